"""Workers between two iterators over the same pipeline, and whether they still know what it does.

The pipeline's root is the key, by identity: another plan never meets them, and they leave when it is garbage.
No lock is taken, since an iterator gives its workers back wherever it becomes garbage: what `take` finds is
nobody else's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import weakref
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from playhead.execution.remote import Plan
from playhead.plan.functions import UserFunction, identity
from playhead.plan.node import Node

if TYPE_CHECKING:
    from playhead.execution.processes import Crew

MOST = 4  # pipelines whose workers wait: those of training, validation, a test, and one more

_idle: weakref.WeakKeyDictionary[Node, Crew] = weakref.WeakKeyDictionary()


def keep(root: Node, crew: Crew) -> None:
    """Let them wait for the next iterator. Another crew of this pipeline and those of many others may go."""
    before = [take(root)]
    _idle[root] = crew
    for other in _idle.keyrefs()[:-MOST]:  # the oldest
        node = other()
        before.append(None if node is None else take(node))
    for gone in before:
        if gone is not None:
            gone.end()


def take(root: Node) -> Crew | None:
    """Who waits, and waits no more."""
    return _idle.pop(root, None)


def withdraw(root: Node, crew: Crew) -> bool:
    """Whether `crew` waited. It waits no more."""
    found = take(root)
    if found is not None and found is not crew:
        _idle.setdefault(root, found)
    return found is crew


@dataclass(frozen=True, eq=False)
class _UsersOwn(Node):
    """A plan of nothing but what the user may change after it was made."""

    op: ClassVar[str] = "own"

    things: tuple[Any, ...]
    parents: tuple[Node, ...] = field(default=(), kw_only=True)


def users_own(plan: Plan) -> bytes:
    """A digest of what workers were sent of the user's functions and objects, with all that those refer to,
    and of what processes inherit: the environment, the directory, where modules are looked for.

    Everything else in a plan stays as it is. Raises what pickling raises.
    """
    things: list[Any] = [sorted(os.environ.items()), list(sys.path)]
    with contextlib.suppress(FileNotFoundError):
        things.append(os.getcwd())
    for node in plan.nodes:
        if not node.runs_user_code or (not node.parents and not node.seekable):
            continue  # what is walked is not sent
        for at in fields(node):
            value = getattr(node, at.name)
            if isinstance(value, UserFunction):
                things += [identity(value.fn), value.fn]
            elif at.name not in ("parents", "info"):
                things.append(value)
    head, buffers = Plan(_UsersOwn(tuple(things))).dumps()
    digest = hashlib.blake2b(head)
    for buffer in buffers:
        digest.update(buffer.raw())
    return digest.digest()
