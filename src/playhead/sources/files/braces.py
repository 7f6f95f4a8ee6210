"""Names of shards in one string, as shells and WebDataset spell them: `train-{000..146}.tar`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{(\d+\.\.\d+|[^{}]*,[^{}]*)\}")


def spelled_out(name: str) -> Iterator[str]:
    """The names that one with braces stands for, in order, the last braces counting fastest; else itself.

    `{008..012}` counts from its first number to its last, with as many digits as the longer of them where one
    begins with 0; `{train,extra}` is one word after the other. Other braces are letters like others.
    """
    found = _BRACES.search(name)
    if found is None:
        yield name
        return
    for word in _words(found[1]):
        for rest in spelled_out(name[found.end() :]):
            yield name[: found.start()] + word + rest


def _words(inside: str) -> Iterator[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        yield from inside.split(",")
        return
    first, last = numbers.groups()
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    step = 1 if int(first) <= int(last) else -1
    for number in range(int(first), int(last) + step, step):
        yield str(number).zfill(width)
