"""What Keras' own loops read of a dataset, on the backend that KERAS_BACKEND names: prints it as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import playhead as ph

N, BATCH = 22, 4
Seen = list[list[int]]


def ids(n: int = N, *, last: bool = True) -> ph.Dataset:
    """Elements (one feature, the number of the example), shuffled anew in each pass."""
    x, y = np.ones((n, 1), np.float32), np.arange(n, dtype=np.float32)[:, None]
    ds = ph.Dataset.from_tensor_slices((x, y)).shuffle(seed=1)
    return ds.batch(BATCH, drop_remainder=not last)


def stream(**given: Any) -> ph.Dataset:
    """The same with a part left out, so that nobody knows its length."""
    x, y = np.ones((N, 1), np.float32), np.arange(N, dtype=np.float32)[:, None]
    ds = ph.Dataset.from_tensor_slices((x, y)).shuffle(seed=1).filter(kept)
    return ds.batch(BATCH, **given)


def kept(x: np.ndarray, y: np.ndarray) -> bool:
    return int(y[0]) % 5 != 0


class First(keras.metrics.Metric):
    """The first number of the last batch, and its rows: 100 * number + rows."""

    def __init__(self) -> None:
        super().__init__(name="first")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        rows = keras.ops.cast(keras.ops.shape(y_true)[0], "float32")
        self.value.assign(100 * y_true[0, 0] + rows)

    def result(self) -> Any:
        return self.value + 0.0


class Noting(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.trained: list[list[int]] = []
        self.tested: list[list[int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.trained.append([])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.trained[-1].append(round(float(logs["first"])))

    def on_test_begin(self, logs: Any = None) -> None:
        self.tested.append([])

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.tested[-1].append(round(float(logs["first"])))


@functools.cache
def model(**compiled: Any) -> Any:
    """One for all cases: they look at the data, and building another takes longer than training it."""
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile("sgd", "mse", metrics=[First()], **compiled)
    return made


def fitted(data: Any, net: Any = None, **given: Any) -> Noting:
    noting = Noting()
    (net or model()).fit(data, callbacks=[noting], verbose=0, **given)
    return noting


def expected(ds: ph.Dataset, *passes: int) -> Seen:
    return [[int(100 * y[0, 0]) + len(y) for _, y in ds.epoch(p)] for p in passes]


def compare(name: str, got: Any, wanted: Any) -> None:
    RESULTS[name] = {"same": got == wanted, "got": got, "wanted": wanted}


RESULTS: dict[str, Any] = {}


def each_epoch_of_fit_reads_the_next_pass(ds: ph.Dataset, name: str) -> None:
    data = ds.to_keras()
    compare(f"{name}: epochs", fitted(data, epochs=3).trained, expected(ds, 0, 1, 2))
    compare(f"{name}: a second fit", fitted(data, epochs=2).trained, expected(ds, 3, 4))


def evaluation_reads_the_first_pass(ds: ph.Dataset, name: str) -> None:
    data, net, noting = ds.to_keras(), model(), Noting()
    fitted(data, net, epochs=2)
    for _ in range(2):
        net.evaluate(data, callbacks=[noting], verbose=0)
    compare(f"{name}: evaluate", noting.tested, expected(ds, 0, 0))
    compare(f"{name}: fit after evaluate", fitted(data, net).trained, expected(ds, 2))
    rows = sum(len(y) for _, y in ds.epoch(0))
    compare(f"{name}: predict", list(net.predict(data, verbose=0).shape), [rows, 1])
    features = ds.map(lambda x, y: y)
    net = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)])
    wanted = [2 * int(v) for y in features.epoch(0) for v in y[:, 0]]
    got = [int(v) for v in net.predict(features.to_keras(), verbose=0)[:, 0]]
    compare(f"{name}: predictions", got, wanted)


def validation_reads_the_first_pass(ds: ph.Dataset, name: str) -> None:
    other = ids(9)
    noting = fitted(other.to_keras(), epochs=2, validation_data=ds.to_keras())
    compare(f"{name}: trained beside validation", noting.trained, expected(other, 0, 1))
    compare(f"{name}: validation", noting.tested, expected(ds, 0, 0))
    data = ds.to_keras()
    noting = fitted(data, epochs=2, validation_data=data)
    compare(f"{name}: one object for both, trained", noting.trained, expected(ds, 0, 1))
    compare(f"{name}: one object for both, tested", noting.tested, expected(ds, 0, 0))
    noting = fitted(data, validation_data=data, validation_steps=2)
    compare(f"{name}: validation_steps", noting.tested, [expected(ds, 0)[0][:2]])


def steps_per_epoch_cuts_the_passes(ds: ph.Dataset, name: str) -> None:
    data = ds.to_keras()
    flow = [batch for part in expected(ds, *range(4)) for batch in part]
    noting = fitted(data, epochs=4, steps_per_epoch=4)
    compare(f"{name}: steps_per_epoch", noting.trained, [flow[k : k + 4] for k in (0, 4, 8, 12)])
    passes = next(k for k in range(9) if sum(map(len, expected(ds, *range(k)))) >= 16)
    compare(f"{name}: fit after it", fitted(data).trained, expected(ds, passes))


def a_fit_that_stops_in_an_epoch_has_read_that_pass(ds: ph.Dataset, name: str) -> None:
    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                self.model.stop_training = True

    data, net = ds.to_keras(), model()
    net.fit(data, epochs=3, callbacks=[Stopping()], verbose=0)
    compare(f"{name}: fit after a stop", fitted(data, net).trained, expected(ds, 1))


def several_steps_an_execution(ds: ph.Dataset, name: str) -> None:
    data = ds.to_keras()
    noting = fitted(data, model(steps_per_execution=2), epochs=2)
    wanted = [[*part[1::2], *([part[-1]] if len(part) % 2 else [])] for part in expected(ds, 0, 1)]
    compare(f"{name}: steps_per_execution", noting.trained, wanted)


def a_strategy_gives_each_replica_its_part(ds: ph.Dataset, name: str) -> None:
    import tensorflow as tf

    def go(scope: Any) -> tuple[list[float], int, list[int]]:
        with scope:
            keras.utils.set_random_seed(1)
            net = keras.Sequential([keras.layers.Dense(1)])
            net.compile(keras.optimizers.SGD(1e-3), "mse")
        history = net.fit(ds.to_keras(), epochs=2, validation_data=ds.to_keras(), verbose=0)
        losses = history.history["loss"] + history.history["val_loss"]
        rows = list(net.predict(ds.to_keras(), verbose=0).shape)
        return [round(float(v), 3) for v in losses], int(net.optimizer.iterations.numpy()), rows

    replicas = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    compare(f"{name}: replicas", replicas.num_replicas_in_sync, 2)
    compare(f"{name}: on two replicas", go(replicas.scope()), go(contextlib.nullcontext()))


CASES: list[Callable[[ph.Dataset, str], None]] = [
    each_epoch_of_fit_reads_the_next_pass,
    evaluation_reads_the_first_pass,
    validation_reads_the_first_pass,
    steps_per_epoch_cuts_the_passes,
    a_fit_that_stops_in_an_epoch_has_read_that_pass,
]


def run(backend: str) -> None:
    with_end, without = ids(), stream(drop_remainder=True)
    if backend == "tensorflow":
        import tensorflow as tf

        cpu, two = (
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2,
        )
        tf.config.set_logical_device_configuration(cpu, two)
        a_strategy_gives_each_replica_its_part(ids(24), "two replicas")
    for name, ds in {"seekable": with_end, "even stream": without}.items():
        for case in CASES:
            case(ds, name)
        if backend != "torch":
            several_steps_an_execution(ds, name)
    for name, ds in {"even": ids(last=False), "stream": stream()}.items():
        each_epoch_of_fit_reads_the_next_pass(ds, name)
        validation_reads_the_first_pass(ds, name)


if __name__ == "__main__":
    warnings.simplefilter("error")
    # Keras itself, of torch's tensors
    warnings.filterwarnings("ignore", message="__array__ impl", category=DeprecationWarning)
    run(keras.backend.backend())
    print(json.dumps(RESULTS))
