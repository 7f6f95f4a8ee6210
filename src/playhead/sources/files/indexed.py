"""What is read through an index, which is found or built when it is first needed.

Building the index of a remote set reads all of it, and the best place to find it in is the directory of a
run, which is known only when the run begins: long after the dataset was made. So a source of remote files
looks at them when it is made, and says then what is wrong with them or with its arguments; it asks for the
index when somebody asks how long it is, or for a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from playhead.plan.lock import Lock
from playhead.plan.node import Node
from playhead.sources.files.maps import Seen
from playhead.sources.files.paths import is_remote
from playhead.sources.files.shelf import Kept, Shelf

K = TypeVar("K", bound=Kept)
T = TypeVar("T")


class Indexed(Generic[T]):
    """What `make` makes, once, when it is first asked for; see `indexed`. Thread-safe.

    A copy by pickle carries what was made, and makes it first.
    """

    def __init__(self, make: Callable[[], T], spread: Callable[[], None]) -> None:
        self._make, self._spread = make, spread
        self._made: list[T] = []
        self._lock = Lock()

    def get(self) -> T:
        """What was made. Raises what `make` raises, anew each time."""
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]

    def settle(self) -> None:
        """Have the indexes where the run that is under way keeps them, too; see `Shelf.spread`."""
        if self._made:
            self._spread()
        else:
            self.get()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[T]]:
        return ready, (self.get(),)


def indexed(shelf: Shelf[K], files: Sequence[Seen], make: Callable[[list[K]], T]) -> Indexed[T]:
    """`make` of the indexes of `files`, as `shelf` finds or builds them: at once where all files are local.

    Raises, then or when it is asked for, what `Shelf.load_or_build` and `make` raise.
    """
    made = Indexed(lambda: make(shelf.load_or_build(files)), lambda: shelf.spread(files))
    if not any(is_remote(seen.path) for seen in files):
        made.get()
    return made


def ready(made: T) -> Indexed[T]:
    """What was made elsewhere, or without an index."""
    there = Indexed(lambda: made, lambda: None)
    there.get()
    return there


def settle(node: Node) -> None:
    """`Indexed.settle` for each source of a plan: those that have an attribute `indexed`."""
    nodes, found = {id(node): node}, [node]
    for node in found:
        more = {id(parent): parent for parent in node.parents if id(parent) not in nodes}
        nodes |= more
        found += more.values()
    sources = {
        id(made): made
        for node in found
        if isinstance(made := getattr(node, "indexed", None), Indexed)
    }
    for made in sources.values():
        made.settle()
