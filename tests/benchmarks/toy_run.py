"""The soak over a loop so small that it can be done in a test: right, or wrong in one way.

`toy_run.py soak KIND DIRECTORY KILLS` prints the faults that were found as JSON; `toy_run.py train KIND RUN
DATA SEED EPOCHS EVERY` is one of its processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.soak import keras_fit, killing, loops
from benchmarks.soak.loops import Loop, Run

import playhead as ph
from playhead.position import write_atomically


def pipeline(seed: int) -> ph.Dataset:
    return ph.Dataset.range(30).shuffle(seed=seed).batch(4)


def expected(data: Path, seed: int, epochs: int) -> dict[int, tuple[int, ...]]:
    batches = pipeline(seed).iterator(epochs=epochs)
    return {step: tuple(batch.tolist()) for step, batch in enumerate(batches, 1)}


def newest(run: Path) -> int:
    save = run / "save.json"
    return json.loads(save.read_text())["position"]["step"] if save.exists() else 0


def train(kind: str, run: Path, data: Path, seed: int, epochs: int, every: int, log: Any) -> None:
    weight, it = 0, pipeline(seed).iterator(epochs=epochs)
    if newest(run):
        saved = json.loads((run / "save.json").read_text())
        it.load_state_dict(saved["position"])
        weight = saved["weight"] + (kind == "another weight")
        if kind == "a batch twice":
            it.seek(it.step - 1)
    for step in range(newest(run) + 1, len(expected(data, seed, epochs)) + 1):
        batch = next(it)
        weight = (31 * weight + int(batch.sum())) % 1_000_003
        log("batch", step=step, loss=float(weight).hex(), records=batch.tolist())
        time.sleep(0.01)
        if step % every == 0:
            save = json.dumps({"position": it.state_dict(), "weight": weight})
            half = len(save) // 2 if kind == "damaged" and step > 20 else None
            write_atomically(run / "save.json", save[:half].encode())
    keras_fit.keep(run, {"weight": np.array(weight)})


for kind in ("right", "a batch twice", "another weight", "damaged"):
    loops.LOOPS[kind] = Loop(partial(train, kind), expected, newest, lambda run: None, ())


def command(run: Run) -> list[str]:
    words = (run.name, run.run, run.data, run.seed, run.epochs, run.every)
    return [sys.executable, __file__, "train", *map(str, words)]


def soak(kind: str, directory: str, kills: str) -> None:
    Run.command = property(command)
    said = {"minutes": 5, "seed": 0, "epochs": 4, "every": 2, "afresh": 0.2, "stepping": 0.8}
    done = killing.Soak(kind, argparse.Namespace(kills=int(kills), **said), Path(directory))
    done.run()
    print(json.dumps({"faults": done.faults, "kills": done._kills}))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "soak":
        soak(*rest)
    else:
        name, run, data, *numbers = rest
        Run(name, Path(run), Path(data), *map(int, numbers)).train()
