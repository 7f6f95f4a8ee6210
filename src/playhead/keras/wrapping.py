"""What is given to fit as its data: a `tf.data.Dataset` is wrapped, what is no dataset is named."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from playhead.dataset import Dataset
from playhead.errors import warn
from playhead.iterator import Iterator
from playhead.keras.to_keras import EachPass


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
        warn(warning.message, warning.category)
    if not quiet:
        print(
            "playhead: a tf.data.Dataset is wrapped by playhead.Dataset.from_tf: resuming replays its epoch",
            flush=True,
        )
    return made


def _what_of_tensorflow(ds: Any) -> str | None:
    """What `ds` is, and what to give instead, where it is of TensorFlow and could not be wrapped."""
    homes = [kind.__module__ for kind in type(ds).__mro__]
    if any(home.startswith("tensorflow.python.distribute.") for home in homes):
        return (
            f"a {type(ds).__name__}, which a strategy has split already and whose place nothing can save: give "
            "the dataset that was split, of whole batches (of all replicas together). The model that was "
            "built in strategy.scope() says how its batches are split"
        )
    if any(home.startswith("tensorflow.") for home in homes):
        return (
            "a tf.data.Dataset over Python code, whose place nothing can save. Change the line that reads: "
            "tf.data.TFRecordDataset(files) becomes playhead.Dataset.from_tfrecords(files), "
            "tf.data.Dataset.from_tensor_slices(x) becomes playhead.Dataset.from_tensor_slices(x); the "
            "rest of the chain stays. What only Python can read goes in by "
            "playhead.Dataset.from_generator(function). Where it is ds.to_tf(), give ds itself"
        )
    return None


def require_pair(model: Any, ds: Any) -> None:
    """Raises TypeError for anything but a model and a playhead.Dataset, saying what to write instead."""
    if isinstance(ds, Dataset):
        if not isinstance(model, Dataset):
            return
        problem = "two datasets: the model is the first argument, as in fit(model, ds)"
    elif isinstance(model, Dataset):
        problem = "the dataset first: the model is the first argument, as in fit(model, ds)"
    elif isinstance(ds, Iterator) or (hasattr(ds, "__next__") and hasattr(ds, "position")):
        problem = "an iterator: give the playhead.Dataset that it was made of, fit makes its own"
    elif isinstance(ds, EachPass):
        problem = (
            "ds.to_keras(), which is for Keras' own fit: give ds itself, and its place is saved"
        )
    elif (of_tensorflow := _what_of_tensorflow(ds)) is not None:
        problem = of_tensorflow
    else:
        problem = (
            f"{type(ds).__name__}. Arrays go in by playhead.Dataset.from_tensor_slices((x, y)), files by "
            "from_tfrecords(files), generators by from_generator(function)"
        )
    raise TypeError(f"fit takes a playhead.Dataset, and was given {problem}")
