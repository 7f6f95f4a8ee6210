"""The thread behind a pool of processes: hands out tasks, takes results in, replaces workers that die."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from playhead import errors
from playhead.execution import worker as there
from playhead.execution.arena import Arena
from playhead.execution.memory import Shelf
from playhead.execution.parcels import SMALL, Parcel, adopted, unpacked
from playhead.execution.pool import made_from
from playhead.execution.remote import arrived
from playhead.execution.staff import NO_ROOM, Client, Room, Task, Worker, said
from playhead.plan.compute import Outcome

DEATHS = 8  # of workers over one task, until it is given up
FALSE_STARTS = 3  # of workers that end by themselves before they are ready
KILLED_FOR = 60.0  # seconds in which workers are killed before any is ready
FROM_OUTSIDE = (-getattr(signal, "SIGKILL", 9), -signal.SIGTERM)
GRACE = 1.0  # seconds that what runs may go on when the pool is closed
BRIEF = 0.05  # seconds; tasks that take less wait for each other at a worker: it never waits for us
FITS_A_PIPE = 1 << 15 if sys.platform == "linux" else 1 << 12
IDLE = 60.0  # seconds without anybody to work for: who comes after more has little to gain by its workers
LOOK = 1.0  # seconds between looks for dead workers whose pipe another process keeps open


class Supervisor:
    """Works until `closed`, for one client after another. It never holds who closes it when garbage.

    At rest, between two clients, it holds no node of the pipeline either.
    """

    def __init__(self, shelf: Shelf, arena: Arena, limit: int) -> None:
        self.arena = arena
        self.limit = limit
        self.grace = GRACE
        self.closed = False
        self.failure: BaseException | None = None
        self.process = os.getpid()
        self.waiting: deque[Task] = deque()
        self.workers: list[Worker] = []
        self.thread = threading.Thread(target=self._run, name="playhead-processes", daemon=True)
        self._shelf = shelf
        self._lock = threading.Lock()
        self._bell, rope = Pipe(duplex=False)
        self._rope: Connection | None = rope  # closed when whoever rings has let go of it
        self._rung = False
        self._needed = False  # before a client's first task, none is started
        self._resting: float | None = None  # since when
        self._leaving = False  # whether there may be tasks of a client that left
        self._names = itertools.count()
        self._false_starts = 0
        self._killed_since: float | None = None
        self._typical: float | None = None  # seconds of a task
        self._room = 0.0  # bytes of a result
        self._looked = 0.0

    # --- from any thread --------------------------------------------------------------------------------

    def add(self, task: Task) -> None:
        with self._lock:
            refused = self.closed or self.failure is not None or task.client.left is not None
            if not refused:
                self._needed = True
                self.waiting.append(task)
                self._ring()
        if self.failure is not None and refused:
            task.future.set_exception(self.failure)
        elif refused:
            self._put_away(task)
            task.future.cancel()

    def stop(self, grace: float | None = None) -> None:
        """End it soon. It waits for no lock: it is called wherever the pool becomes garbage."""
        if os.getpid() != self.process:
            return
        if grace is not None:
            self.grace = grace
        self.closed = True
        self._ring()

    def rest(self, client: Client) -> None:
        """Nobody wants the client's tasks any more. Waits for no lock, as `stop`.

        What nobody began is cancelled, what runs has the grace. Unless somebody else comes within `IDLE`
        seconds, it is the end.
        """
        client.left = self._resting = time.monotonic()
        self._needed = False
        self._leaving = True
        self._ring()

    def wake(self) -> bool:
        """Whether there is somebody to work for a new client."""
        with self._lock:
            self._resting = self._killed_since = None
            self._false_starts = 0
            return not self.closed and self.failure is None

    def resize(self, limit: int) -> None:
        with self._lock:
            self.limit = limit
            self._ring()

    def _ring(self) -> None:
        """Let the thread look around. Without a lock, which an interrupt might leave taken."""
        rope = self._rope
        if rope is not None and not self._rung:
            self._rung = True
            # It may be closed meanwhile, and where two ring at once, Windows hears one.
            with contextlib.suppress(OSError, ValueError):
                rope.send_bytes(b"!")

    def abandon(self) -> None:
        """In a forked child: close its ends of the pipes, so that workers hear when the parent is gone."""
        for worker in self.workers:
            worker.connection.close()
        self._bell.close()
        if self._rope is not None:
            self._rope.close()
        self._shelf.close()
        self.arena.close()

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.closed and self.failure is None:
                self._see_off()
                self._staff()
                self._hand_out()
                self._listen(LOOK)
            self._let_go()
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            self._clean_up()

    def _see_off(self) -> None:
        """Free who waits for tasks of a client that left, and its workers; rest no longer than is worth it."""
        now = time.monotonic()
        with self._lock:
            if self._resting is not None and now - self._resting > IDLE:
                self.closed = True
            if not self._leaving:
                return
            self._leaving = False
            gone = [task for task in self.waiting if task.client.left is not None]
            self.waiting = deque(task for task in self.waiting if task.client.left is None)
        for task in gone:
            self._put_away(task)
            _unwanted(task)
        for worker in self.workers:
            gone = [task for task in worker.tasks if task.client.left is not None]
            for task in gone:
                _unwanted(task)  # but its worker may still write to what it was sent
                self._leaving = True
            if gone and gone[0] is worker.tasks[0] and now - (gone[0].client.left or now) > GRACE:
                worker.kill()

    def _staff(self) -> None:
        """As many workers as there should be."""
        active = [worker for worker in self.workers if not worker.leaving]
        excess = max(0, len(active) - self.limit)
        for worker in sorted(active, key=lambda w: len(w.tasks))[:excess]:
            worker.dismiss()
        for _ in range(self.limit - len(active) if self._needed else 0):
            try:
                name = f"playhead-worker-{next(self._names)}"
                self.workers.append(Worker(name, self.arena.memory, self._shelf, self.limit))
            except Exception as error:
                self._started_in_vain(None, str(error))
                return

    def _hand_out(self) -> None:
        while self.waiting:
            task = self.waiting[0]
            worker = self._free(len(task.data) <= FITS_A_PIPE)
            if worker is None:
                return
            self.waiting.popleft()
            if task.begun or task.future.set_running_or_notify_cancel():
                task.begun = True
                worker.give(task, self._reserve(int(1.25 * self._room)))
            else:
                self._put_away(task)

    def _free(self, fits: bool) -> Worker | None:
        able = [worker for worker in self.workers if worker.ready and not worker.leaving]
        worker = min(able, key=lambda w: len(w.tasks), default=None)
        most = 2 if fits and self._typical is not None and self._typical < BRIEF else 1
        return worker if worker is not None and len(worker.tasks) < most else None

    def _reserve(self, nbytes: int) -> Room:
        """Room for a result of which only the usual size is known: not where room is scarce."""
        if nbytes < SMALL or self.arena.taken + nbytes > self.arena.size // 2:
            return NO_ROOM
        at = self.arena.reserve(nbytes)
        return NO_ROOM if at is None else (at, nbytes)

    def _listen(self, seconds: float) -> None:
        heard = wait([self._bell, *(worker.connection for worker in self.workers)], seconds)
        if self._bell in heard:
            self._bell.recv_bytes()
        self._rung = False  # also where an interrupt came between saying so and ringing
        for worker in [w for w in self.workers if w.connection in heard]:
            try:
                self._hear(worker, worker.connection.recv_bytes())
            except (EOFError, OSError):
                self._lost(worker)
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            for worker in [w for w in self.workers if w.has_died() and not w.connection.poll()]:
                self._lost(worker)

    def _hear(self, worker: Worker, message: bytes) -> None:
        kind, rest = message[:1], memoryview(message)[1:]
        if kind == there.READY:
            worker.ready = True
            self._false_starts, self._killed_since = 0, None
        elif kind == there.NEED:
            nbytes = there.PLACE.unpack(rest)[1]
            self._give_back(worker.rooms[0])
            at = self.arena.reserve(nbytes)
            worker.answer(NO_ROOM if at is None else (at, nbytes))
        elif kind == there.DONE:
            parcel, size = pickle.loads(rest)
            self._room = max(size, 0.95 * self._room)
            self._done(worker.tasks.popleft(), parcel, worker.rooms.popleft())
        else:
            cause = arrived(pickle.loads(rest))
            if isinstance(cause, errors.PlayheadError):
                self.failure = cause
                return
            self.failure = errors.PipelineError(
                "the worker processes cannot load this pipeline",
                help="what its functions need has to be importable in another process too",
            )
            self.failure.__cause__ = cause

    def _done(self, task: Task, parcel: Parcel, room: Room) -> None:
        self._put_away(task)
        if task.client.left is not None:
            self._give_back(room)
            _unwanted(task)
            return
        plan = task.client.plan
        load = plan.read_task
        outcome: Outcome[Any]
        try:
            if parcel.at is not None and self.arena.given <= self.arena.size // 2:
                left, room = room, NO_ROOM
                outcome = adopted(parcel, load, self.arena, left[1])
            else:
                outcome = unpacked(parcel, load, self.arena.view)
            before = outcome.seconds if self._typical is None else self._typical
            self._typical = 0.9 * before + 0.1 * outcome.seconds
            plan.receive(outcome)
        except Exception as error:
            outcome = Outcome(error=error)
        finally:
            self._give_back(room)
        task.future.set_result(outcome)

    def _lost(self, worker: Worker) -> None:
        """A worker's end: its tasks are done again, the one it was at first."""
        self.workers.remove(worker)
        code = worker.bury(GRACE if worker.leaving else 0.1)
        for room in worker.rooms:
            self._give_back(room)
        if not worker.ready:
            if not self.closed:
                self._started_in_vain(code, f"it {said(code)}")
            return
        if worker.tasks and worker.tasks[0].client.left is None:
            worker.tasks[0].deaths += 1
            if worker.tasks[0].deaths >= DEATHS:
                self._give_up(worker.tasks.popleft(), code)
        with self._lock:
            self.waiting.extendleft(reversed(worker.tasks))

    def _started_in_vain(self, code: int | None, why: str) -> None:
        now = time.monotonic()
        if code in FROM_OUTSIDE:
            self._killed_since = self._killed_since or now
        else:
            self._false_starts += 1
        killed_for = 0.0 if self._killed_since is None else now - self._killed_since
        if self._false_starts >= FALSE_STARTS or killed_for >= KILLED_FOR:
            self.failure = errors.WorkerLost(
                f"no worker process can be started: {why}",
                help="its output above may say why; memory or the number of processes may be limited here",
            )

    def _give_up(self, task: Task, code: int | None) -> None:
        records, made = made_from(task.sent)
        error = errors.WorkerLost(
            f"{DEATHS} processes in a row died over {made or 'the same elements'}; the last one {said(code)}",
            help="a library that crashes on this record, or memory that runs out",
            records=records,
            exitcode=code,
        )
        self._put_away(task)
        task.future.set_result(Outcome(error=error))

    def _put_away(self, task: Task) -> None:
        self._give_back(task.inputs)
        task.inputs = NO_ROOM
        task.sent = None

    def _give_back(self, room: Room) -> None:
        self.arena.release(*room)

    # --- the end ----------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Cancel what nobody began; what has begun may end within the grace."""
        if self.failure is not None:
            return
        while self.waiting and not self.waiting[0].begun:
            self._put_away(self.waiting[0])
            self.waiting.popleft().future.cancel()
        for worker in self.workers:
            if worker.ready and self.grace:
                worker.dismiss()
            else:
                worker.kill()
        deadline = time.monotonic() + self.grace
        while self.workers and time.monotonic() < deadline:
            self._listen(min(LOOK, max(0.0, deadline - time.monotonic())))

    def _clean_up(self) -> None:
        with self._lock:
            self.closed = True
        for worker in self.workers:
            worker.kill()
        left = list(self.waiting)
        for worker in self.workers:
            worker.bury(5.0)
            left += worker.tasks
        self.workers.clear()
        self.waiting.clear()
        for task in left:
            if task.future.done() or (self.failure is None and task.future.cancel()):
                continue
            if task.begun or task.future.set_running_or_notify_cancel():
                if self.failure is not None:
                    task.future.set_exception(self.failure)
                else:
                    task.future.set_result(Outcome(error=errors.WorkerLost("the pool was closed")))
        self._rope = None
        self._bell.close()
        self._shelf.close()
        self.arena.close()


def _unwanted(task: Task) -> None:
    """Let go who waits for it, if it is the walk of an iterator that nobody has any more."""
    if not task.future.done() and not task.future.cancel():
        task.future.set_result(Outcome(error=errors.WorkerLost("the iterator was left")))
