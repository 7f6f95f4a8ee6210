"""Names of tf.data and Keras that playhead has not, and what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTES = {
    "_variant_tensor": "a function of TensorFlow wants a tf.data.Dataset, and to_tf() makes one; "
    "cardinality() and get_single_element() are methods here",
    "class_names": "they are those of one from_image_folder below, and there is none, or several that differ",
    "file_paths": "trace(k) names the file of element k",
    "fingerprint": "operations() describes the pipeline",
    "options": "there is no optimiser to tell anything",
    "ragged_batch": "padded_batch makes arrays of unequal ones",
    "snapshot": "cache(filename) or save keeps elements in files",
    "sparse_batch": "padded_batch makes arrays of unequal ones",
    "with_options": "there is no optimiser to tell anything",
}

_LATER = {
    "batch_size": "batch(...) comes after it",
    "shuffle": "shuffle(...) comes after it",
    "num_epochs": "repeat(...) comes after it, or iterator(epochs=...)",
}
_AHEAD = {
    "num_parallel_reads": "prefetch() reads ahead with several at once",
    "buffer_size": "prefetch() reads ahead",
}
_FILES = {"filenames": "files is the first argument"}
_COMPRESSED = {"compression_type": "it is told from each file's first bytes"}
_RESIZED = "map(...) resizes pictures, with tf.image.resize say"
_PARTED = (
    "shuffle(seed=..., reshuffle_each_iteration=False) fixes an order, of which take(n) and skip(n) "
    "are parts"
)

RECORDS = {**_FILES}
LINES = {**_AHEAD, **_FILES, **_COMPRESSED}
TABLES = {
    **_LATER,
    **_AHEAD,
    **_FILES,
    **_COMPRESSED,
    "column_defaults": "dtypes= names types by column, and fill= what stands for an empty cell",
    "column_types": "dtypes= names types by column",
    "exclude_cols": "columns= names those to read",
    "field_delim": "it is delimiter= here",
    "file_pattern": "files is the first argument",
    "header": "column_names=[...] is for files without a header",
    "ignore_errors": 'on_error="skip" leaves out rows that cannot be read',
    "label_name": 'map(lambda row: (row, row.pop("y"))) parts the column y from the others',
    "na_value": "fill= says what stands for an empty cell",
    "num_rows_for_inference": "types are found in the first megabyte; dtypes= names them by column",
    "prefetch_buffer_size": "prefetch(...) comes after it",
    "record_defaults": "dtypes= names types by column, and fill= what stands for an empty cell",
    "select_cols": "it is columns= here",
    "select_columns": "it is columns= here",
    "shuffle_buffer_size": "shuffle(buffer_size) comes after it",
    "shuffle_seed": "shuffle(seed=...) comes after it",
    "sloppy": "rows always come in order",
    "use_quote_delim": "quote_char=None is for files without quotes",
}
PICTURES = {
    **_LATER,
    "color_mode": "decode=True gives RGB, and map(...) other channels",
    "crop_to_aspect_ratio": _RESIZED,
    "data_format": "pictures are [height, width, channels], and map(...) transposes them",
    "image_size": _RESIZED,
    "interpolation": _RESIZED,
    "label_mode": "labels are int32; labels=None leaves them out, and map(...) makes others of them",
    "pad_to_aspect_ratio": _RESIZED,
    "seed": "shuffle(seed=...) comes after it",
    "subset": _PARTED,
    "validation_split": _PARTED,
    "verbose": "nothing is printed",
}


def refusing(instead: Mapping[str, str]) -> Callable[[F], F]:
    """Has a function say what to write instead of an argument that others know and it does not.

    It stays what it was to `help` and to editors. What it raises is a TypeError, as for any argument that is
    not there.
    """

    def around(function: F) -> F:
        @functools.wraps(function)
        def asked(*given: Any, **arguments: Any) -> Any:
            for name in arguments:
                if name in instead:
                    raise TypeError(f"{asked.__qualname__}() has no {name}=: {instead[name]}")
            return function(*given, **arguments)

        return cast(F, asked)

    return around
