"""Documents, and rows made of their tokens, for pack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import ElementError, PipelineError
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import Element, named_leaves

ADDED = ("segment_ids", "positions")

Array: TypeAlias = np.ndarray[Any, Any]
Tokens: TypeAlias = dict[Any, Array]  # a document: its arrays by their names


def tokens_of(document: Element) -> Tokens:
    """A document's arrays by their names. Raises `ElementError` where it is none."""
    named = document if isinstance(document, dict) else {"tokens": document}
    sizes = {}
    for name, leaf in named.items():
        if not isinstance(leaf, np.ndarray) or leaf.ndim != 1 or not is_numeric(leaf.dtype):
            path = f"[{name!r}]" if named is document else ""
            path, leaf = next(named_leaves(leaf, path), (path, leaf))
            raise ElementError(
                f"pack needs a 1-D array of numbers, or a dict of them; element{path} is {_said(leaf)}"
            )
        sizes[name] = len(leaf)
    if not sizes or len(set(sizes.values())) > 1:
        said = ", ".join(f"element[{name!r}]: {size}" for name, size in sizes.items())
        raise ElementError(f"pack needs arrays of one length, not {said or 'none'}")
    if named is document:
        require_free(named)
    return named


def require_free(names: dict[Any, Any]) -> None:
    """Raises `PipelineError` where a document has a name that pack adds."""
    for name in ADDED:
        if name in names:
            raise PipelineError(
                f"pack adds {name!r} to each row, and the documents have it already",
                help="give it another name in a map before pack",
            )


def row_of(
    size: int,
    like: Tokens,
    parts: list[tuple[Tokens, int, int]],
    explain: Callable[[int, Exception], None],
) -> Element:
    """A row of `size`: tokens `low` to `high` of each document, and padding; named and typed as in `like`.

    Raises `ElementError` for a document of other names or dtypes, after `explain(its number, error)`.
    """
    for k, (tokens, _, _) in enumerate(parts):
        said = None if tokens is like else _unlike(like, tokens)
        if said is not None:
            error = ElementError(f"pack: one row holds {said}")
            explain(k, error)
            raise error
    sizes = np.array([high - low for _, low, high in parts], np.int64)
    total = int(sizes.sum())
    row: dict[Any, Array] = {}
    for name, array in like.items():
        row[name] = aligned_empty((size,), array.dtype)
        if parts:
            cut = [tokens[name][low:high] for tokens, low, high in parts]
            np.concatenate(cut, out=row[name][:total])
    starts = np.cumsum(sizes) - sizes
    numbers = np.arange(1, len(parts) + 1), np.arange(total) - np.repeat(starts, sizes)
    for name, values in zip(ADDED, (np.repeat(numbers[0], sizes), numbers[1]), strict=True):
        row[name] = aligned_empty((size,), np.dtype(np.int32))
        row[name][:total] = values
    for array in row.values():
        array[total:] = 0
    return row


def is_numeric(dtype: Any) -> bool:
    """Whether it is a dtype of numbers; other libraries' own (bfloat16) are of numpy's kind V."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)


def _said(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray | np.generic):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return type(leaf).__name__


def _unlike(like: Tokens, tokens: Tokens) -> str | None:
    """How two documents differ in names or dtypes."""
    if tokens.keys() != like.keys():
        return f"documents of {sorted(like, key=repr)} and of {sorted(tokens, key=repr)}"
    for name, array in tokens.items():
        if array.dtype != like[name].dtype:
            return f"{name!r} of {like[name].dtype} and of {array.dtype}"
    return None
