"""One worker of a MultiWorkerMirrored run. Started by test_workers.py with TF_CONFIG and a JSON of settings.

It tells what happens as lines of JSON: the parts that its replicas were given, what the weight became, errors.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

import playhead as ph
from playhead.errors import CheckpointError, ElementError, PipelineError

PRIME = 65537


def dataset(kind: str = "seekable", count: int = 24) -> ph.Dataset:
    """Batches of 5, the last of an epoch shorter."""
    ds = ph.Dataset.range(count).shuffle(seed=1)
    if kind == "stream":
        ds = ds.filter(lambda x: x % 5 != 3)
    ds = ds.map(lambda x: {"x": np.int64(x), "s": str(x)}).batch(5)
    return ds.prefetch(2)


def after(weight: int, total: int) -> int:
    """What a step makes of the weight: it tells the batches and their order."""
    return (weight * 31 + total) % PRIME


def say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def started() -> tuple[Any, int]:
    """The strategy of this worker, and its number."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return strategy, strategy.cluster_resolver.task_id


class Run:
    """A weight that every batch changes, its step, its data, and their checkpoints."""

    def __init__(self, strategy: Any, data: ph.Dataset, *, epochs: int = 3) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.weight = tf.Variable(0, dtype=tf.int64)
            self.step = tf.Variable(0, dtype=tf.int64)
        self.it = ph.tensorflow.iterator(data, strategy=strategy, epochs=epochs, step=self.step)
        self.checkpoint = tf.train.Checkpoint(weight=self.weight, step=self.step, data=self.it)
        self.traced = 0

    def one(self, batch: Any) -> Any:
        self.traced += 1

        def step_fn(batch: Any) -> Any:
            here = tf.reduce_sum(batch["x"])
            total = tf.distribute.get_replica_context().all_reduce("SUM", here)
            self.weight.assign((self.weight * 31 + total) % PRIME)
            return tf.strings.to_number(batch["s"], tf.int64)

        found = self.strategy.run(step_fn, args=(batch,))
        self.step.assign_add(1)
        return found

    def train(self, loop: str, steps: int) -> None:
        if loop == "graph":
            whole(self, self.it, tf.constant(steps))
            say(step=self.step.numpy().item(), weight=self.weight.numpy().item())
            return
        for _ in range(steps):
            batch = next(self.it)
            given = [part.numpy().tolist() for part in batch["x"].values]
            found = eager(self, batch)
            parts = [
                part.numpy().tolist() for part in self.strategy.experimental_local_results(found)
            ]
            assert parts == given
            say(
                step=self.step.numpy().item(),
                weight=self.weight.numpy().item(),
                parts=parts,
                traced=self.traced,
            )


@tf.function
def whole(run: Run, it: Any, steps: Any) -> None:
    for _ in tf.range(steps):
        run.one(next(it))


@tf.function
def eager(run: Run, batch: Any) -> Any:
    return run.one(batch)


def trains(settings: dict[str, Any]) -> None:
    strategy, worker = started()
    run = Run(strategy, dataset())
    chief = settings["directory"]
    mine = chief if worker == 0 else os.path.join(chief, f"temporary-{worker}")
    manager = tf.train.CheckpointManager(run.checkpoint, mine, max_to_keep=1)
    latest = tf.train.latest_checkpoint(chief)
    if latest:
        run.checkpoint.restore(latest).assert_consumed()
    say(worker=worker, restored=run.step.numpy().item())
    began = time.monotonic()
    try:
        with run.it:
            for loop, steps in settings["loops"]:
                if loop == "save":
                    manager.save()
                    if worker:
                        shutil.rmtree(mine)
                elif loop == "die":
                    if worker == steps:
                        os.kill(os.getpid(), signal.SIGKILL)
                    began = time.monotonic()
                else:
                    run.train(loop, steps)
    except Exception as error:
        say(
            error=type(error).__name__,
            message=str(error),
            notes=getattr(error, "__notes__", []),
            seconds=time.monotonic() - began,
        )
        os._exit(7)  # nobody is left for TensorFlow to say goodbye to
    say(ended=run.step.numpy().item())


def refused(kind: type[Exception], call: Any) -> str:
    """What an error said that had to come."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} came")


def checks(settings: dict[str, Any]) -> None:
    """What each of two workers is given, and refused, in turn."""
    strategy, worker = started()

    def local(value: Any) -> list[int]:
        (part,) = strategy.experimental_local_results(value)
        return [int(x) for x in part.numpy()]

    def iterator(ds: ph.Dataset, **arguments: Any) -> Any:
        return ph.tensorflow.iterator(ds, strategy=strategy, epochs=2, **arguments)

    stream = iterator(dataset("stream"))
    given = [[local(batch["x"]) for batch in epoch] for epoch in stream.epochs()]
    say(stream=given, position=stream.position.to_dict())

    uneven = iterator(dataset())

    @tf.function
    def count(it: Any) -> Any:
        batches, rows = 0, 0
        for batch in it:
            sizes = strategy.run(lambda batch: tf.size(batch["x"]), args=(batch,))
            rows += strategy.reduce("SUM", sizes, axis=None)
            batches += 1
        return batches, rows

    say(counted=[int(x) for x in count(uneven)])

    other = iterator(ph.Dataset.range(20).shuffle(seed=worker).batch(4))
    say(other_data=refused(CheckpointError, lambda: next(other)))
    behind = iterator(ph.Dataset.range(20).batch(4))
    if worker == 0:
        behind.load_state_dict(behind.position_at(3))
    say(behind=refused(CheckpointError, lambda: next(behind)))
    behind.load_state_dict(behind.position_at(3))
    say(together=local(next(behind)))

    unseeded = ph.Dataset.range(20).shuffle().batch(4)
    say(unseeded=refused(PipelineError, lambda: iterator(unseeded)))
    say(unseeded_to_tf=refused(PipelineError, unseeded.to_tf))
    split = ph.Dataset.range(20).batch(4).split(2, worker)
    say(split=refused(PipelineError, lambda: iterator(split)))
    short = iterator(ph.Dataset.range(5).filter(lambda x: x >= 0).batch(4))
    next(short)
    say(short=refused(ElementError, lambda: next(short)))

    seen: list[list[int]] = []
    line = ""
    for steps in (3, 4):
        with strategy.scope():
            step = tf.Variable(len(seen), dtype=tf.int64)
        fn = ph.tensorflow.dataset_fn(dataset(), step=step, epochs=2)
        if line:
            fn.load_state_dict(line)
        batches = iter(strategy.distribute_datasets_from_function(fn))
        for _ in range(steps):
            seen.append(local(next(batches)["x"]))
            step.assign_add(1)
        line = fn.serialize()
    say(function=seen, step=json.loads(line)["step"])

    plain = strategy.experimental_distribute_dataset(dataset().to_tf())
    say(to_tf=[local(batch["x"]) for batch in plain])

    lonely = iterator(dataset())
    if worker == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    message = refused(CheckpointError, lambda: next(lonely))
    say(lonely=message, seconds=time.monotonic() - began)
    os._exit(0)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    globals()[chosen.pop("run", "trains")](chosen)
