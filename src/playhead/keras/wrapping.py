"""An existing `tf.data.Dataset` given to fit."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from playhead.dataset import Dataset


def wrapped(ds: Any, *, quiet: bool = False) -> Any:
    """`Dataset.from_tf(ds)` for a `tf.data.Dataset`, which a line says unless `quiet`; else `ds`.

    One that reads from a Python generator stays what it is: its elements may depend on what ran before.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(ds, tf.data.Dataset):
        return ds
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = Dataset.from_tf(ds)
    if made.operations()[0].get("python") == "from_generator":
        return ds
    for warning in said:
        warnings.warn(warning.message, warning.category, stacklevel=3)
    if not quiet:
        print(
            "playhead: a tf.data.Dataset is wrapped by playhead.Dataset.from_tf: resuming replays its epoch",
            flush=True,
        )
    return made
