"""Fits of one Keras backend that are broken off and resumed, beside the same fits left alone.

As a program, with KERAS_BACKEND in the environment: `backend_run.py cases DIRECTORY [CHECKPOINT]` prints what
every case went through, as JSON, where CHECKPOINT is one of another backend; `backend_run.py run DIRECTORY LOG`
is one run that appends a line a step to LOG.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import small_run
from small_run import STEPS, Broken, data

import playhead as ph
from playhead.errors import PreemptedError
from playhead.keras import backends, checkpoint, fit

L = keras.layers
BACKEND = keras.backend.backend()
Build = Callable[[], Any]
Case = Callable[[Path], Any]


class Journal(small_run.Journal):
    """The steps of a run, to the bit."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        logs = {name: float(value) for name, value in logs.items()}
        self.note(f"epoch {self._epoch} batch {batch} {sorted(logs.items())} {digest(self.model)}")
        if self.stop is not None and len(self.lines) == self.stop:
            raise Broken


class File(Journal):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def note(self, line: str) -> None:
        with open(self._path, "a") as file:
            file.write(line + "\n")
        time.sleep(0.05)


def digest(model: Any) -> str:
    """Of every variable, of what each replica has in its place, and of the buffers of torch modules."""
    parts = [
        part.numpy().tobytes().hex()
        for variable in [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        for part in backends.components(variable)
    ]
    parts += [value.tobytes().hex() for _, value in backends.read_buffers(model)]
    return (
        small_run.digest(model)
        + small_run.hashlib.blake2b("".join(parts).encode()).hexdigest()[:16]
    )


def run(
    where: Path, build: Build, ds: ph.Dataset, stops: tuple[int, ...] = (), **given: Any
) -> list[Any]:
    """Journal, History and final state of three epochs, broken off after each of `stops` lines."""
    given = {"epochs": 3, "save_every": 1, "verbose": 0, **given}
    skipped, each = given.get("initial_epoch", 0) * STEPS, given.pop("each", 1)
    extra = given.pop("callbacks", list)
    lines: list[str] = []
    for stop in (*stops, None):
        journal, trained = Journal(stop), build()
        with contextlib.suppress(Broken):
            history = fit(trained, ds, checkpoint=where, callbacks=[journal, *extra()], **given)
        step = checkpoint.latest(where)[1]["step"] if checkpoint.saves(where) else 0
        lines = [*lines, *journal.lines][: (step - skipped) // each]
    return [lines, history.epoch, history.history, digest(trained)]


def twice(build: Build, ds: ph.Dataset, *stops: int, **given: Any) -> Case:
    def both(where: Path) -> dict[str, Any]:
        whole = run(where / "whole", build, ds, **given)
        return {"whole": whole, "broken": run(where / "broken", build, ds, stops, **given)}

    return both


def raised(build: Build, ds: ph.Dataset, **given: Any) -> Case:
    """What fit raises."""

    def caught(where: Path) -> list[str]:
        try:
            fit(build(), ds, verbose=0, **{"checkpoint": where, **given})
        except Exception as error:
            return [type(error).__name__, str(error)]
        return []

    return caught


def stream() -> ph.Dataset:
    """Batches of what a filter keeps: nobody knows how many there are in a pass."""
    return data().unbatch().filter(lambda x, y: bool(x[0] > 0.3)).batch(8)


def weighted() -> ph.Dataset:
    return data().map(lambda x, y: (x, y, (1 + np.arange(len(y)) % 3).astype(np.float32)))


def even() -> ph.Dataset:
    """Eight batches of the same length an epoch."""
    return data(n=64)


def scheduled() -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7, staircase=True)
    return small_run.model(keras.optimizers.SGD(rate, momentum=0.9))


def accumulating() -> Any:
    return small_run.model(keras.optimizers.Adam(0.01, gradient_accumulation_steps=4))


def optimizer_steps(where: Path) -> dict[str, Any]:
    """Of a run of 21 batches, four to a step."""
    counts = {}
    for name, stops in (("whole", ()), ("broken", (3, STEPS))):
        made: list[Any] = []

        def build(made: list[Any] = made) -> Any:
            made.append(accumulating())
            return made[-1]

        ran = run(where / name, build, weighted(), stops)
        counts[name] = [*ran, int(made[-1].optimizer.iterations)]
    return counts


class Unseeded(L.Layer):
    """Draws from Keras' global generator."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + keras.random.normal((1,), stddev=0.1) if training else x


def with_layer(*layers: Callable[[], Any]) -> Build:
    def build() -> Any:
        keras.utils.set_random_seed(1)
        made = keras.Sequential([*(layer() for layer in layers), L.Dense(1, "sigmoid")])
        made.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return made

    return build


class Telling(keras.callbacks.Callback):
    """Has the run told to stop in the middle of its first validation."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def told_in_validation(build: Build) -> Case:
    def both(where: Path) -> dict[str, Any]:
        given = {"validation_data": data(), "epochs": 2}
        told, journal = {"callbacks": [Telling()], "on_preempt": "raise", "verbose": 0}, Journal()
        told["callbacks"] = [Telling(), journal]
        with contextlib.suppress(PreemptedError):
            fit(build(), data(), checkpoint=where / "broken", **told, **given)
        broken = run(where / "broken", build, data(), **given)
        broken[0] = journal.lines + broken[0]
        return {"whole": run(where / "whole", build, data(), **given), "broken": broken}

    return both


def everywhere() -> dict[str, Case]:
    return {
        "left alone": lambda where: run(
            where, small_run.model, data(), save_every=2, validation_data=data()
        ),
        "mid-epoch": twice(small_run.model, data(), 3, 9, validation_data=data()),
        "last batches": twice(small_run.model, data(), 8, 8, validation_data=data()),
        "schedule": twice(scheduled, even(), 5, class_weight={0: 0.5, 1: 2}, save_every="1 epoch"),
        "optimizer steps": optimizer_steps,
        "a stream": twice(small_run.model, stream(), 3, 9, validation_data=data()),
        "initial epoch": twice(small_run.model, data(), 3, initial_epoch=1, epochs=2),
    }


def compiled() -> dict[str, Case]:
    """What XLA compiles: torch's compiler takes a minute for such a model."""

    def build() -> Any:
        return small_run.model(jit_compile=True)

    three = raised(lambda: small_run.model(steps_per_execution=3), even(), steps_per_epoch=8)
    return {"compiled": twice(build, even(), 5, epochs=1), "three into eight": three}


class Looking(keras.callbacks.Callback):
    """Notes what `look` finds when an epoch begins, and before and after each step."""

    def __init__(self, look: Callable[[Any], Any]) -> None:
        super().__init__()
        self.look, self.seen = look, []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(self.look(self._model))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(self.look(self._model))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(self.look(self._model))


class Batches(keras.utils.PyDataset):
    num_batches = 2**62

    def __getitem__(self, index: int) -> Any:
        return np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)


def linear(steps: Any, *callbacks: Any) -> Any:
    """A layer without bias that Keras' own fit has trained, at a learning rate of 0."""
    made = keras.Sequential([keras.Input((4,)), L.Dense(1, use_bias=False)])
    made.compile(keras.optimizers.SGD(0.0), "mse")
    made.fit(Batches(), steps_per_epoch=steps, callbacks=callbacks, verbose=0, shuffle=False)
    return made


class NoSteps:
    """None in the epoch, once Keras has built the model from a first batch."""

    def __init__(self) -> None:
        self.coming = 2

    def __index__(self) -> int:
        self.coming -= 1
        return self.coming

    def __gt__(self, other: int) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


def facts_of_torch(where: Path) -> dict[str, Any]:
    import torch

    looking = Looking(lambda model: torch.get_rng_state().numpy().tobytes().hex())
    linear(2, looking)
    began, before, after, between, _ = looking.seen
    return {
        "making a reader draws": began != before,
        "a step draws nothing": before == after,
        "reading draws nothing": after == between,
    }


def facts_of_jax(where: Path) -> dict[str, Any]:
    def empty(model: Any) -> list[bool]:
        found = [model.layers[0].kernel._value is None]
        model.jax_state_sync()
        return [*found, model.layers[0].kernel._value is None]

    class Zeroing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].kernel.assign(np.zeros((4, 1)))

    class Counting(keras.Sequential):
        times = 0

        def jax_state_sync(self) -> None:
            self.times += not self._jax_state_synced
            super().jax_state_sync()

    counting = Counting([keras.Input((4,)), L.Dense(1)])
    counting.compile("sgd", "mse")
    fit(counting, data(), checkpoint=where, epochs=1, save_every="1 epoch", verbose=0)
    looking, zeroed = Looking(empty), linear(2, Zeroing())
    linear(2, looking)
    try:
        linear(NoSteps())
        epoch_of_no_steps = "ends"
    except UnboundLocalError:
        epoch_of_no_steps = "fails"
    return {
        "variables are empty until synchronised": looking.seen[2],
        "what an epoch begins with": zeroed.layers[0].kernel.numpy().sum().item(),
        "an epoch of no steps": epoch_of_no_steps,
        "synchronised in each step": counting.times >= STEPS,
    }


def facts_of_replicas(strategy: Any) -> Case:
    def found(where: Path) -> dict[str, Any]:
        trained = under(strategy)()
        fit(trained, data(), checkpoint=where, epochs=1, verbose=0)
        kinds = {"moving_mean": trained.variables, "kernel": trained.variables}
        kinds |= {"seed_generator_state": trained.variables, "total": trained.metrics_variables}
        alike = {}
        for kind, variables in kinds.items():
            first = next(v for v in variables if v.path.endswith(kind))
            one, other = (part.numpy() for part in backends.components(first))
            alike[kind] = bool((one == other).all())
        return alike

    return found


def on_torch() -> dict[str, Case]:
    import torch

    class Drawing(L.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            return x * (torch.rand_like(x) > 0.2) if training else x

    class Module(L.TorchModuleWrapper):
        def __init__(self) -> None:
            linear, norm = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)
            super().__init__(torch.nn.Sequential(linear, norm, torch.nn.Dropout(0.3)))

    drawing, module = with_layer(lambda: L.Dense(4), Drawing), with_layer(Module)
    x, y = np.ones((20, 4), np.float32), np.ones((20, 1), np.float32)
    return {
        "facts": facts_of_torch,
        "torch's generator": twice(drawing, data(), 3, 7, 7, validation_data=(x, y)),
        "torch's generator, a stream": twice(drawing, stream(), 6, 6, validation_data=data()),
        "torch's generator, epochs": twice(drawing, data(), 10, save_every="1 epoch"),
        "torch's generator, validation": told_in_validation(drawing),
        "a torch module": twice(module, data(), 3, 9, validation_data=data()),
        "the global generator": twice(with_layer(lambda: L.Dense(4), Unseeded), data(), 3, 9),
        "four steps at once": raised(
            lambda: small_run.model(steps_per_execution=4), even(), steps_per_epoch=8
        ),
    }


def on_jax() -> dict[str, Case]:
    def split(distribution: Any, *case: Any, **given: Any) -> Case:
        def under(where: Path) -> Any:
            keras.distribution.set_distribution(distribution)
            try:
                return twice(*case, **given)(where)
            finally:
                keras.distribution.set_distribution(None)

        return under

    parallel = keras.distribution.DataParallel()
    layout = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh((1, 2), ["batch", "model"], keras.distribution.list_devices())
    )
    layout[".*wide.*kernel"] = (None, "model")
    sliced = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    four = {"save_every": 4, "steps_per_epoch": 8, "epochs": 2, "each": 4}
    return {
        "facts": facts_of_jax,
        "four steps at once": twice(
            lambda: small_run.model(steps_per_execution=4), even(), 1, 2, **four
        ),
        "two devices": split(parallel, small_run.model, data(), 3, 9, epochs=2),
        "a sliced model": split(
            sliced, with_layer(lambda: L.Dense(8, name="wide")), even(), 5, epochs=1
        ),
    }


def under(strategy: Any, build: Build = small_run.model) -> Build:
    def made() -> Any:
        with strategy.scope():
            return build()

    return made


def on_tensorflow() -> dict[str, Case]:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one = tf.distribute.OneDeviceStrategy("CPU:1")

    def fewer(where: Path) -> list[Any]:
        """Two replicas, then none; what is said, and the steps of both."""
        journals, said = [Journal(5), Journal()], []
        for journal, build in zip(journals, (under(two), small_run.model), strict=True):
            with warnings.catch_warnings(record=True) as noted, contextlib.suppress(Broken):
                warnings.simplefilter("always")
                given = {"checkpoint": where, "callbacks": [journal], "save_every": 1}
                fit(build(), data(), epochs=1, verbose=0, **given)
            said += [str(w.message) for w in noted if w.category is ph.PlayheadWarning]
        return [[len(journal.lines) for journal in journals], said]

    unseeded = with_layer(lambda: L.Dense(4), Unseeded)
    return {
        "facts": facts_of_replicas(two),
        "two replicas": twice(under(two), data(), 3, 6, epochs=2, validation_data=data()),
        "two replicas, a stream": twice(under(two), stream(), 6, epochs=2),
        "two replicas, the global generator": raised(under(two, unseeded), data()),
        "two replicas, accumulating": raised(under(two, accumulating), even()),
        "one device": twice(under(one, unseeded), even(), 3, epochs=1),
        "another number of replicas": fewer,
        "many workers": raised(under(tf.distribute.MultiWorkerMirroredStrategy()), data()),
        "a server": raised(under(tf.distribute.experimental.CentralStorageStrategy()), data()),
        "optimizer steps": optimizer_steps,
    }


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    if command == "run":
        trained = small_run.model()
        given = {"epochs": 3, "save_every": 2, "verbose": 0, "callbacks": [File(rest[0])]}
        history = fit(trained, data(), checkpoint=where, validation_data=data(), **given)
        print(json.dumps([history.epoch, history.history, digest(trained)]))
    else:
        cases = {"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch}[BACKEND]()
        if BACKEND != "torch":
            cases.update(compiled())
        if BACKEND != "tensorflow":
            cases.update(everywhere())
        if rest:
            cases["another backend"] = raised(small_run.model, data(), checkpoint=rest[0])
        results = {}
        for number, (name, case) in enumerate(cases.items()):
            began = time.perf_counter()
            results[name] = case(Path(where) / str(number))
            print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
        print(json.dumps(results))
