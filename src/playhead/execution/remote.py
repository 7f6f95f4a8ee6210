"""Work that travels: the plan is sent once, and a task names its nodes.

A task is a job and places or elements, a kilobyte or so. Nodes in it are written as their numbers in the
plan, and read as the nodes of the plan on the other side. Functions that cannot be imported there (lambdas,
those of a notebook) go by value, through cloudpickle.
"""

from __future__ import annotations

import io
import linecache
import mmap
import os
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import cloudpickle
import numpy as np

from playhead import errors
from playhead.execution.sheets import Sheet
from playhead.plan.aligned import aligned_copy
from playhead.plan.block import map_nest
from playhead.plan.compute import Job, Outcome, perform
from playhead.plan.functions import function_of
from playhead.plan.node import Node, Source

PROTOCOL = 5


@dataclass(frozen=True, eq=False)
class Absent(Node):
    """Stands for a source that is walked by the coordinator alone, and never sent."""

    op = "absent"

    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def seekable(self) -> bool:
        return False


def _send_the_script() -> None:
    """Where multiprocessing started this process, the script's functions go by value too."""
    script = sys.modules.get("__mp_main__")
    if script is not None:
        cloudpickle.register_pickle_by_value(script)


class _PlanPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, buffers: Any) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffers)
        self.sources: dict[str, list[str]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self._keep_source(obj.co_filename)
            build, arguments = self.dispatch_table[types.CodeType](obj)
            return _code, (obj.co_filename, build, arguments)
        if isinstance(obj, Source) and not obj.seekable:
            return Absent, ()
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
            mapped = _mapped(obj)
            if mapped is not None:
                return mapped
            if type(obj) is np.ndarray and not (obj.flags.c_contiguous or obj.flags.f_contiguous):
                return np.ascontiguousarray(obj).__reduce_ex__(PROTOCOL)
        return super().reducer_override(obj)

    def _keep_source(self, name: str) -> None:
        """A notebook's cells are in no file: tracebacks and TensorFlow's autograph ask for their lines."""
        if name not in self.sources and not os.path.exists(name):
            self.sources[name] = linecache.getlines(name)


def _code(name: str, build: Callable[..., types.CodeType], arguments: Any) -> types.CodeType:
    """Code that knows the file it was written in, which cloudpickle leaves out."""
    return build(*arguments).replace(co_filename=name)


def _mapped(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """How to map the file again that an array lies in, rather than send it; None if it lies in none."""
    memory: Any = array
    while isinstance(memory, np.ndarray) and not isinstance(memory, np.memmap):
        memory = memory.base
    if not isinstance(memory, np.memmap) or memory.filename is None or memory.mode == "c":
        return None
    mapping = getattr(memory, "_mmap", None)
    if not isinstance(mapping, mmap.mmap) or not array.size:
        return None
    begin = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    ahead = memory.offset - memory.offset % mmap.ALLOCATIONGRANULARITY
    at = array.__array_interface__["data"][0] - begin
    path = os.path.abspath(os.fspath(memory.filename))
    try:
        file = _identity(os.stat(path))
    except FileNotFoundError:
        return None
    return _map_again, (
        path,
        file,
        ahead,
        len(mapping),
        at,
        array.shape,
        array.strides,
        array.dtype,
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _map_again(
    path: str,
    identity: tuple[int, int],
    ahead: int,
    length: int,
    at: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
) -> np.ndarray[Any, Any]:
    with open(path, "rb") as file:
        if _identity(os.fstat(file.fileno())) != identity:
            raise errors.SourceChanged(
                f"{path} was replaced by another file while it was in use",
                help="start the run again, or keep the files of a run as they are",
            )
        mapping = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=ahead)
    return np.ndarray(shape, dtype, mapping, at, strides)


@dataclass(frozen=True, slots=True)
class _Output:
    """An array that the other side writes into."""

    array: np.ndarray[Any, Any]


Place = Callable[["np.ndarray[Any, Any]"], "int | None"]


class _TaskPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes nodes as their numbers in a plan, and arrays in shared memory as their places there."""

    def __init__(
        self, file: io.BytesIO, numbers: dict[int, int], buffers: Any, place: Place | None
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffers)
        self._numbers = numbers
        self._place = place

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Node):
            return self._numbers.get(id(obj))
        if self._place is None:
            return None
        if type(obj) is np.ndarray:
            return self._reference("input", obj)
        if type(obj) is _Output:
            return self._reference("output", obj.array)
        return None

    def _reference(self, kind: str, array: np.ndarray[Any, Any]) -> Any:
        assert self._place is not None
        at = None if array.dtype.hasobject else self._place(array)
        return None if at is None else (kind, array.shape, array.dtype, at, array.strides)

    def reducer_override(self, obj: Any) -> Any:
        if self._place is not None and type(obj) is Sheet:
            rebuild, (length, spec, nest) = obj.__reduce__()
            return rebuild, (length, spec, None if nest is None else map_nest(_output, nest))
        return super().reducer_override(obj)


def _output(array: np.ndarray[Any, Any]) -> Any:
    return _Output(array) if array.size else array


class _TaskUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, nodes: Sequence[Node], buffers: Any, memory: Any) -> None:
        super().__init__(file, buffers=buffers)
        self._nodes = nodes
        self._memory = memory

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, int):
            return self._nodes[pid]
        kind, shape, dtype, at, strides = pid
        array = np.ndarray(shape, dtype, self._memory, at, strides)
        # A function may change what it is given in place, and be called again if its process dies
        return array if kind == "output" else aligned_copy(array)


class Plan:
    """The nodes of a pipeline, numbered alike on both sides."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes = list(_nodes(root))
        self.numbers = {id(node): number for number, node in enumerate(self.nodes)}
        self.functions = [f for node in self.nodes if (f := function_of(node)) is not None]

    def dumps(self) -> tuple[bytes, list[pickle.PickleBuffer]]:
        """The plan itself, and the memory of its arrays beside it. Raises what pickling raises."""
        _send_the_script()
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler = _PlanPickler(file, buffers.append)
        pickler.dump(self.root)
        pickle.dump(pickler.sources, file)
        return file.getvalue(), buffers

    @classmethod
    def loads(cls, data: bytes | memoryview, buffers: Sequence[Any] = ()) -> Plan:
        """The other side's plan, over the memory in `buffers`."""
        file = io.BytesIO(data)
        root = pickle.load(file, buffers=buffers)
        for name, lines in pickle.load(file).items():
            linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))
        return cls(root)

    def task(self, value: Any, buffers: Any = None, place: Place | None = None) -> bytes:
        """Anything that may hold nodes of this plan.

        `buffers` takes its arrays' memory, if given; `place` says where in the memory shared with the other
        side an array lies, if it does: such arrays stay where they are.
        """
        file = io.BytesIO()
        _TaskPickler(file, self.numbers, buffers, place).dump(value)
        return file.getvalue()

    def read_task(
        self, data: bytes | memoryview, buffers: Sequence[Any] = (), memory: Any = None
    ) -> Any:
        """What `task` wrote, on the other side. `memory` is the shared memory there."""
        return _TaskUnpickler(io.BytesIO(data), self.nodes, buffers, memory).load()

    # --- forms ------------------------------------------------------------------------------------------

    def forms(self) -> tuple[str | None, ...]:
        """Which form each function takes, as far as that is known."""
        return tuple(function.decided for function in self.functions)

    def tell(self, forms: Sequence[str | None]) -> None:
        """Let each function take the form that it took on the other side."""
        for function, form in zip(self.functions, forms, strict=True):
            if form is not None:
                function.tell(form)

    def in_doubt(self, job: Job[Any, Any]) -> bool:
        return any(
            function.decided is None
            for node in _nodes(job.node)
            if (function := function_of(node)) is not None
        )

    # --- both ends of a task ----------------------------------------------------------------------------

    def perform(self, job: Job[Any, Any], sent: Any, forms: Sequence[str | None]) -> Outcome[Any]:
        """In the worker: do it, and bring its warnings and its functions' forms home."""
        self.tell(forms)
        with errors.warnings_kept() as kept:
            outcome = perform(job, sent)
        outcome.warned = tuple(kept)
        outcome.forms = self.forms()
        if outcome.error is not None:
            outcome.error = portable(outcome.error)
        return outcome

    def receive(self, outcome: Outcome[Any]) -> None:
        """In the coordinator: take over what a worker found out."""
        if outcome.forms:
            self.tell(outcome.forms)
        for message, category in outcome.warned:
            errors.warn(message, category)
        if outcome.error is not None:
            outcome.error = arrived(outcome.error)


def _nodes(root: Node) -> Iterator[Node]:
    """Every node once, parents behind their children, in an order that depends on the plan alone."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(reversed(node.parents))


class RemoteTraceback(Exception):
    """Where in a worker an error arose: the cause of the error that the consumer sees."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


class Untold(Exception):
    """An exception of a kind that cannot travel: its name and its text."""


Made: TypeAlias = tuple[type[BaseException], tuple[Any, ...]]


class Travelling(Exception):
    """An exception on its way, with its traceback as text and what else it holds.

    As its class and arguments where its class makes something else of its arguments.
    """

    def __init__(self, error: BaseException | Made, text: str, held: dict[str, Any]) -> None:
        super().__init__(error, text, held)
        self.error = error
        self.text = text
        self.held = held


_KEPT = ("__notes__", "playhead_element")


def portable(error: BaseException) -> Travelling:
    """The error in a form that can be pickled."""
    text = "".join(traceback.format_exception(error))
    held = {name: value for name, value in error.__dict__.items() if _can_travel(value)}
    travelled: BaseException | Made
    try:
        travelled = pickle.loads(cloudpickle.dumps(error))
        if type(travelled) is not type(error) or travelled.args != error.args:
            raise TypeError
    except Exception:
        travelled = (type(error), error.args)
        if not _can_travel(travelled):
            travelled = Untold(f"{type(error).__name__}: {error}")
            held = {name: held[name] for name in _KEPT if name in held}
    return Travelling(travelled, text, held)


def arrived(error: BaseException) -> BaseException:
    """The error itself again; where it arose is its cause."""
    if not isinstance(error, Travelling):
        return error
    found = error.error
    if isinstance(found, tuple):
        kind, args = found
        found = kind.__new__(kind, *args)  # without its __init__, which takes other arguments
    found.__dict__.update(error.held)
    found.__cause__ = RemoteTraceback(error.text)
    return found


def _can_travel(value: Any) -> bool:
    try:
        pickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


def refuse(error: Exception, plan: Plan | None = None) -> NoReturn:
    """Say of a plan that cannot be pickled what can be done."""
    guilty = [f for f in (plan.functions if plan else ()) if not _can_travel(f.fn)]
    named = ", ".join(f"{f.op}({f.name})" + (f" at {f.where}" if f.where else "") for f in guilty)
    raise errors.PipelineError(
        f"{named or 'this pipeline'} cannot be sent to other processes: {type(error).__name__}: {error}",
        help='prefetch(on="threads") sends nothing; open files, locks and connections inside the functions '
        "instead of before",
    ) from error
