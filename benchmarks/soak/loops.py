"""The loops that are killed: how each trains, what it has to read, and where its newest checkpoint stands."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak import digits, keras_fit, mirrored
from playhead.cli.logbook import Writer

Records = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Loop:
    """A training program. Each function takes the run's directory, that of the data, and the seed.

    `train` also takes epochs, steps between checkpoints and the log; `expected` also takes epochs and gives the
    records of each step from 1 on, worked out without the framework; `newest` is the step of the newest
    checkpoint, 0 without one; `doing` tells from the names of files whether one is being written.
    """

    train: Callable[[Path, Path, int, int, int, Writer], None]
    expected: Callable[[Path, int, int], Records]
    newest: Callable[[Path], int]
    doing: Callable[[Path], str | None]
    needs: tuple[str, ...]
    backend: str = "tensorflow"

    def missing(self) -> list[str]:
        """What has to be installed first."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def environment(self) -> dict[str, str]:
        """That of its processes: on the CPU, where the bits repeat without any switch."""
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        return {**os.environ, **quiet, "KERAS_BACKEND": self.backend}


def of_keras(backend: str) -> Loop:
    return Loop(
        keras_fit.train,
        keras_fit.expected,
        keras_fit.newest,
        keras_fit.doing,
        (backend, "keras"),
        backend,
    )


LOOPS = {
    "demo": Loop(
        digits.train,
        digits.expected,
        keras_fit.newest,
        keras_fit.doing,
        ("tensorflow", "keras", "sklearn", "click"),
    ),
    "tensorflow": of_keras("tensorflow"),
    "jax": of_keras("jax"),
    "torch": of_keras("torch"),
    "mirrored": Loop(
        mirrored.train,
        mirrored.expected,
        mirrored.newest,
        mirrored.doing,
        ("tensorflow", "keras"),
    ),
}


@dataclass(frozen=True)
class Run:
    """One run of a loop: the command that starts it is the one that goes on with it."""

    name: str
    run: Path
    data: Path
    seed: int
    epochs: int
    every: int

    @property
    def loop(self) -> Loop:
        return LOOPS[self.name]

    @property
    def command(self) -> list[str]:
        words = (self.name, self.run, self.data, self.seed, self.epochs, self.every)
        return [sys.executable, "-m", "benchmarks.soak.train", *map(str, words)]

    def train(self) -> None:
        """The life of one of its processes."""
        log = Writer(self.run)
        log("began", pid=os.getpid())
        for name in self.loop.needs:
            importlib.import_module(name)
        log("imported")
        self.loop.train(self.run, self.data, self.seed, self.epochs, self.every, log)
        log("finished")

    def expected(self) -> Records:
        return self.loop.expected(self.data, self.seed, self.epochs)
