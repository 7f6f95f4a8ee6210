"""What a Ray worker does: it fetches the plan once, then does task after task.

Values travel as a list of byte arrays: the pickle, and behind it the memory of the value's larger arrays.
"""

from __future__ import annotations

import pickle
import platform
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from playhead import errors
from playhead.execution.remote import Plan, portable
from playhead.plan.aligned import aligned_copy
from playhead.plan.compute import Outcome

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

INSIDE = 1024  # an array below this is part of the pickle,
FEW = 64  # where so many are beside it already: one costs some microseconds, and thousands may be rows
KEPT = 4  # plans that a worker knows at once
IDLE = 60.0  # seconds after which a worker forgets a plan, whose arrays hold memory of the object store


def as_bytes(data: bytes | memoryview) -> Bytes:
    return np.frombuffer(data, np.uint8)


def packed(plan: Plan, value: Any) -> list[Bytes]:
    """What travels of a value. Nothing is copied but what the pickle holds."""
    beside: list[Bytes] = []

    def buffer(memory: pickle.PickleBuffer) -> bool:
        raw = memory.raw()
        inside = raw.nbytes < INSIDE and (len(beside) >= FEW or not raw.nbytes)
        if not inside:
            beside.append(as_bytes(raw))
        return inside

    head = plan.task(value, buffer)
    return [as_bytes(head), *beside]


def unpacked(plan: Plan, parts: Sequence[Bytes]) -> Any:
    """The value, in writable aligned memory of its own: the object store keeps none of it."""
    head, *beside = parts
    return plan.read_task(head.data, [aligned_copy(part) for part in beside])


def version() -> str:
    """playhead's own. Both sides must have the same: the same place must mean the same value."""
    return str(sys.modules["playhead"].__version__)


def run(sender: str, plan_ref: list[Any], parts: Sequence[Bytes]) -> list[Bytes]:
    """Do a task: what comes back is (the node's host name, the outcome), packed.

    `plan_ref` holds the reference of the plan, which Ray leaves alone inside a list.
    """
    host = platform.node()
    try:
        if sender != version():
            raise errors.PipelineError(
                f"{host} has playhead {version()}, and the program that reads has {sender}",
                help="install the same playhead on every node of the Ray cluster",
            )
        plan = _shelf.plan(plan_ref[0])
    except Exception as error:
        if type(error).__module__.startswith("ray."):
            raise
        return _alone((host, Outcome(error=portable(_unloadable(host, error)))))
    try:
        job, sent, forms = unpacked(plan, parts)
    except Exception as error:
        return _alone((host, Outcome(error=portable(error))))
    outcome = plan.perform(job, sent, forms)
    try:
        return packed(plan, (host, outcome))
    except Exception as error:
        failed = errors.PipelineError(
            f"a result cannot be sent from {host}: {type(error).__name__}: {error}",
            help="let functions return arrays, numbers, bytes and strings",
        )
        return _alone((host, Outcome(error=portable(failed), forms=outcome.forms)))


def _alone(value: Any) -> list[Bytes]:
    return [as_bytes(pickle.dumps(value))]


def _unloadable(host: str, error: Exception) -> Exception:
    if isinstance(error, errors.PlayheadError):
        return error
    failed = errors.PipelineError(
        f"{host} cannot read the pipeline: {type(error).__name__}: {error}",
        help="the modules that hold its functions must be importable on every node of the Ray cluster: "
        'ray.init(runtime_env={"working_dir": "."}) sends those of the current directory',
    )
    failed.__cause__ = error
    return failed


@dataclass(eq=False)
class _Shelf:
    """The plans that this worker process knows: a few, and none that was not asked for lately."""

    plans: OrderedDict[str, tuple[Plan, float]] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    watched: bool = False

    def plan(self, ref: Any) -> Plan:
        import ray

        key = ref.hex()
        with self.lock:
            known = self.plans.pop(key, None)
        if known is None:
            head, *beside = ray.get(ref)
            plan = Plan.loads(head.data, beside)
        else:
            plan = known[0]
        with self.lock:
            self.plans[key] = plan, time.monotonic()
            while len(self.plans) > KEPT:
                self.plans.popitem(last=False)
            if not self.watched:
                self.watched = True
                threading.Thread(target=self._watch, name="playhead_plans", daemon=True).start()
        return plan

    def _watch(self) -> None:
        while True:
            time.sleep(IDLE / 4)
            with self.lock:
                before = time.monotonic() - IDLE
                for key in [key for key, (_, used) in self.plans.items() if used < before]:
                    del self.plans[key]
                if not self.plans:
                    self.watched = False
                    return


_shelf = _Shelf()
