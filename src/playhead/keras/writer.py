"""Saving behind the training loop, which waits only while its state is copied."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import CheckpointError

Array: TypeAlias = np.ndarray[Any, Any]
_BEAT = 60.0  # seconds


class Writer:
    """One thread that writes one save at a time, and the memory that saves are copied into.

    The memory is used again from save to save: touching new memory for the first time takes longer than the
    copy. So a copy waits until the save before it is written.

    `beat` is called after each save, and each minute in which nothing is written. Leaving the `with` block
    waits for what is being written, except where `hurried()` says that the user does not want to.
    """

    def __init__(
        self,
        beat: Callable[[], None] = lambda: None,
        *,
        where: str = "",
        hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self._beat, self._where, self._hurried = beat, where, hurried
        self._memory: dict[str, Array] = {}
        self._tasks: queue.SimpleQueue[tuple[Callable[[], object], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._task: Future[None] | None = None
        self._raised: tuple[CheckpointError, BaseException] | None = None
        # A process that has to end at once does not wait for a network.
        self._thread = threading.Thread(target=self._run, name="playhead-writer", daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tasks.put(None)
        if self._raised is not None and self._raised[0] is error:
            error.__cause__ = self._raised[
                1
            ]  # which Keras takes away from what passes through its fit
        if self._hurried():
            return
        try:
            self.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))
        self._thread.join(timeout=10)  # it may be about a beat, on a slow network

    def copy(self, key: str, value: Array) -> Array:
        """A copy of `value` in the memory of `key`, to which the next copy of that name goes as well.

        Raises what the save before failed with.
        """
        self.wait()
        memory = self._memory.get(key)
        if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
            memory = self._memory[key] = np.empty(value.shape, value.dtype)
        np.copyto(memory, value)
        return memory

    def expect(self, key: str, value: Array) -> Array:
        """Says that an array like this one will be copied; returns it. See `prepare`."""
        self._memory[key] = np.empty(value.shape, value.dtype)
        return value

    def prepare(self) -> None:
        """Has the memory of all that is expected touched, in the thread, so that the first copy is fast."""
        expected = list(self._memory.values())

        def touch() -> None:
            for memory in expected:
                memory.fill(0)

        self._hand_over(touch)

    def write(self, task: Callable[[], object]) -> None:
        """Has the thread call `task`, after waiting for the one before. Raises what that one failed with."""
        self.wait()
        self._hand_over(task)

    def wait(self) -> None:
        """Until nothing is being written. Raises `CheckpointError` once for a save that failed."""
        task = self._task
        if task is not None:
            failure = task.exception()
            self._task = None
            self._raise(failure)

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._task is not None and not self._task.done()

    def check(self) -> None:
        """Raises `CheckpointError` if a save has failed, without waiting."""
        if self._task is not None and self._task.done():
            self.wait()

    def _hand_over(self, task: Callable[[], object]) -> None:
        future: Future[None] = Future()
        self._tasks.put((task, future))
        self._task = future

    def _raise(self, failure: BaseException | None) -> None:
        if failure is None:
            return
        if isinstance(failure, CheckpointError):
            raise failure
        raised = CheckpointError(
            f"a checkpoint could not be written to {self._where} ({failure or type(failure).__name__}); the "
            "run is saved as far as the one before",
            help="see to the cause and run the same program again: it goes on from there",
            path=self._where,
        )
        self._raised = raised, failure
        raise raised from failure

    def _live(self) -> None:
        with contextlib.suppress(Exception):
            self._beat()

    def _run(self) -> None:
        while True:
            try:
                handed = self._tasks.get(timeout=_BEAT)
            except queue.Empty:
                self._live()
                continue
            if handed is None:
                return
            task, future = handed
            try:
                task()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            self._live()
            del handed, task, future  # and the state they hold, until the next save
