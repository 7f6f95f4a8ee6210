"""Graphs in which operations share what lies below them: n steps may lead to one source in 2**n ways.

What is asked of an operation over several datasets is asked once, so that the answer costs a step for each
operation, not for each way to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from playhead.plan.block import Nest
from playhead.plan.node import Node

N = TypeVar("N", bound=Node)


def told_once(find: Callable[[N], Nest | None]) -> Callable[[N], Nest | None]:
    """A method that finds the elements' spec, which is not asked again once it has told one."""
    name = f"_{find.__name__}"

    def told(node: N) -> Nest | None:
        known: Nest | None = node.__dict__.get(name)
        if known is None:
            known = find(node)
            if known is not None:
                node.__dict__[name] = known
        return known

    told.__doc__ = find.__doc__
    return told


def each_once(node: Node) -> Iterator[Node]:
    """Every operation of a plan, once, what lies below before what is made of it, first datasets first."""
    seen: set[int] = set()

    def below(at: Node) -> Iterator[Node]:
        if id(at) not in seen:
            seen.add(id(at))
            for parent in at.parents:
                yield from below(parent)
            yield at

    return below(node)
