"""What runs in a worker process: it is told the plan once, then does task after task.

Messages are bytes; the first byte says what they are. To the worker: TASK, where its results may go and how
much room is there, and the task; ROOM, where the results go that needed more; LEAVE. From the worker: READY,
or BROKEN and why; NEED, how much room the results take; DONE and the outcome.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
from collections import deque
from multiprocessing.connection import Connection

import cloudpickle

from playhead import errors
from playhead.execution.memory import Memory, Shelf
from playhead.execution.parcels import Packing, Parcel, unpacked
from playhead.execution.remote import Plan, portable
from playhead.plan.compute import Outcome

TASK, ROOM, LEAVE = b"T", b"R", b"L"
READY, BROKEN, NEED, DONE = b"Y", b"B", b"N", b"D"

PLACE = struct.Struct("<qq")  # where, and how many bytes
NOWHERE = -1
WATCH = (
    5.0  # seconds between looks whether the parent lives, where a forked child keeps its pipe open
)


def main(connection: Connection, shared: Memory, shelf: Shelf, parent: int) -> None:
    """Work until told to leave, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to leave
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        desk = _Desk(connection, shared, shelf, parent)
    except Exception as error:
        connection.send_bytes(BROKEN + cloudpickle.dumps(portable(error)))
        return
    try:
        connection.send_bytes(READY)
        desk.work()
    except (EOFError, OSError):
        _flush()
        os._exit(0)  # nobody is left who would end a library that hangs as it is unloaded


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


class _Desk:
    def __init__(self, connection: Connection, shared: Memory, shelf: Shelf, parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._memory = shared.map()
        shared.close()
        self._plan = Plan.loads(*shelf.read())
        self._messages: deque[bytes] = deque()

    def work(self) -> None:
        while True:
            message = self._messages.popleft() if self._messages else self._receive()
            if message[:1] == LEAVE:
                return
            at, room = PLACE.unpack_from(message, 1)
            outcome = self._outcome(memoryview(message)[1 + PLACE.size :])
            _flush()  # nobody may ever let this process end by itself
            self._send(outcome, at, room)
            del message, outcome

    def _receive(self) -> bytes:
        while not self._connection.poll(WATCH):
            if os.name == "posix" and os.getppid() != self._parent:
                raise EOFError
        return self._connection.recv_bytes()

    def _outcome(self, data: memoryview) -> Outcome[object]:
        plan, memory = self._plan, memoryview(self._memory)
        try:
            job, sent, forms = unpacked(
                pickle.loads(data),
                lambda head, buffers: plan.read_task(head, buffers, memory),
                lambda at, nbytes: memory[at : at + nbytes],
            )
            return plan.perform(job, sent, forms)
        except (
            BaseException
        ) as error:  # a function that ends its process by sys.exit() fails here, too
            return Outcome(error=portable(error))

    def _send(self, outcome: Outcome[object], at: int, room: int) -> None:
        try:
            packing = Packing(lambda beside: self._plan.task(outcome, beside))
        except Exception as error:
            outcome = _unsendable(outcome, error)
            packing = Packing(lambda beside: self._plan.task(outcome, beside))
        if packing.size > room:
            at = self._more_room(packing.size)
        place = None if at == NOWHERE or not packing.size else at
        parcel: Parcel = packing.packed(place, self._write)
        self._connection.send_bytes(DONE + pickle.dumps((parcel, packing.size)))

    def _more_room(self, nbytes: int) -> int:
        self._connection.send_bytes(NEED + PLACE.pack(NOWHERE, nbytes))
        while True:
            message = self._receive()
            if message[:1] == ROOM:
                at: int = PLACE.unpack_from(message, 1)[0]
                return at
            self._messages.append(message)

    def _write(self, at: int, data: memoryview) -> None:
        memoryview(self._memory)[at : at + data.nbytes] = data


def _unsendable(outcome: Outcome[object], error: Exception) -> Outcome[object]:
    failed = errors.PipelineError(
        f"a result cannot be sent from its process: {type(error).__name__}: {error}",
        help='let functions return arrays, numbers, bytes and strings; prefetch(on="threads") sends nothing',
    )
    return Outcome(
        error=portable(failed),
        seconds=outcome.seconds,
        cpu=outcome.cpu,
        forms=outcome.forms,
        warned=outcome.warned,
    )
