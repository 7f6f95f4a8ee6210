"""Whether all that counts stands at the same place: the data here, the data of other workers, the loop.

Workers meet in the key-value store of TensorFlow's coordination service, which `MultiWorkerMirroredStrategy`
starts: no collective operation, so it may happen in any thread, also while a graph runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import SupportsInt

import tensorflow as tf
from tensorflow.python.eager import context

from playhead.errors import CheckpointError
from playhead.position import Position

PATIENCE = 600.0  # seconds that a worker waits for the others
_LOOK = 2.0  # seconds after which a worker sees whether the one it waits for is still there

_meetings = itertools.count()


@dataclass
class Agreement:
    """The meetings of the `workers` iterators that each process made as its so manieth."""

    worker: int
    workers: int
    place: int = field(default_factory=lambda: next(_meetings))
    rounds: int = 0

    def require(self, position: Position) -> None:
        """Returns once all workers stand at `position`. Raises `CheckpointError`, on all of them, otherwise."""
        mine = _told(position)
        number, self.rounds = self.rounds, self.rounds + 1
        told = self._exchange(number, mine)
        if all(other == mine for other in told):
            return
        steps = [json.loads(other)["step"] for other in told]
        said = ", ".join(f"worker {k} at step {step}" for k, step in enumerate(steps))
        if len(set(steps)) > 1:
            what = f"the workers stand at different steps of the data: {said}"
            help = (
                "restore all from one checkpoint, the chief's, whose position is that of all; a worker that "
                "found none began anew"
            )
        else:
            others = [k for k, other in enumerate(told) if other != told[0]]
            what = (
                f"all workers stand at step {steps[0]}, but not in the same data: worker "
                f"{', '.join(map(str, others))} reads other records or other operations than worker 0"
            )
            help = "every worker builds the same pipeline over the same files, and takes its part by itself"
        raise CheckpointError(what, help=help, steps=steps, worker=self.worker)

    def _exchange(self, number: int, mine: str) -> list[str]:
        name = f"playhead/{self.place}/{number}"
        until = time.monotonic() + PATIENCE
        try:
            context.context().set_config_key_value(f"{name}/{self.worker}", mine)
            return [self._heard(f"{name}/{k}", k, until) for k in range(self.workers)]
        except tf.errors.OpError as error:
            raise _gone(0, error) from error  # who keeps what the workers tell each other

    def _heard(self, key: str, worker: int, until: float) -> str:
        here = context.context()
        while True:
            try:
                told: str = here.get_config_key_value(key, int(1000 * _LOOK))
                return told
            except tf.errors.DeadlineExceededError:
                if time.monotonic() < until:
                    _require_alive(worker)
                    continue
            raise CheckpointError(
                f"worker {worker} has not come to its next batch for {PATIENCE:.0f} s",
                help="every worker makes the same iterators in the same order and takes as many batches "
                "from each; see what that worker waits for",
                worker=worker,
            )


def tasks() -> list[str]:
    """The processes of the cluster that this one was started in, in the order of their numbers; else none."""
    service = context.context().coordination_service
    jobs = [] if service is None else service.coordinated_job_list
    return [f"/job:{job.name}/replica:0/task:{k}" for job in jobs for k in range(job.num_tasks)]


def _require_alive(worker: int) -> None:
    """Raises `CheckpointError` where a worker's process has ended."""
    try:
        context.context().check_collective_ops_peer_health(tasks()[worker], int(1000 * _LOOK))
    except tf.errors.DeadlineExceededError:
        return  # busy, perhaps
    except (tf.errors.UnavailableError, tf.errors.FailedPreconditionError) as error:
        raise _gone(worker, error) from error


def _gone(worker: int, error: tf.errors.OpError) -> CheckpointError:
    return CheckpointError(
        f"worker {worker} is gone, as the others were to tell each other where they stand: "
        f"{error.message.splitlines()[0]}",
        help="start all workers again, or another number of them: restored from the last checkpoint they "
        "go on exactly there",
        worker=worker,
    )


def _told(position: Position) -> str:
    digest = hashlib.blake2b(position.to_json().encode(), digest_size=16).hexdigest()
    return json.dumps({"step": position.step, "position": digest})


def require_counted(step: SupportsInt | tf.Variable | None, position: Position) -> None:
    """Raises `CheckpointError` where the loop's own counter, if there is one, is not the data's."""
    if step is None or counted(step) == position.step:
        return
    raise CheckpointError(
        f"the loop stands at step {counted(step)}, its data at step {position.step}",
        help="save and restore both in one tf.train.Checkpoint(step=step, data=it), and count a step "
        "after its batch was taken",
        step=counted(step),
        position=position.step,
    )


def counter(step: SupportsInt | None) -> SupportsInt | tf.Variable | None:
    """The `tf.Variable` that a Keras variable holds, which a graph reads in its order; else `step`."""
    held = getattr(step, "value", None)
    return held if isinstance(held, tf.Variable) else step


def counted(step: SupportsInt | tf.Variable) -> int:
    """The loop's own counter now, outside of any graph; a strategy's variable has no `__int__`."""
    return int(step.numpy() if isinstance(step, tf.Variable) else step)
