"""What differs between Keras' backends, and under `tf.distribute`: one function for each question.

On TensorFlow variables hold their values at any time; under a strategy of one machine each has a component
a replica. On JAX the trainer holds the values while it runs. On torch there is more that training reads and
changes: torch's global generators, and the buffers of modules that are no Keras layers.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from playhead.errors import TrainingError
from playhead.keras.checkpoint import Array, Named

_TRAINING = ("tensorflow", "jax", "torch")


def name() -> str:
    """The backend of this process: `tensorflow`, `jax` or `torch`."""
    return str(keras.backend.backend())


def require_usable(model: Any) -> None:
    """Raises `TrainingError`, with the reason, where `model` cannot be trained exactly here."""
    if name() not in _TRAINING:
        raise TrainingError(
            f"Keras runs on the backend {name()}, which does not train",
            help="set KERAS_BACKEND to tensorflow, jax or torch before Keras is imported",
        )
    if name() == "tensorflow":
        _require_strategy(model)
    elif name() == "jax":
        _require_one_process()


def settle(model: Any) -> None:
    """Has the variables of `model` hold their values now; what is assigned to them is then heeded."""
    if name() == "jax":
        model.jax_state_sync()


def scope(model: Any) -> AbstractContextManager[Any]:
    """Where variables of `model` have to be created."""
    strategy = _strategy(model) if name() == "tensorflow" else None
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def builds_first(model: Any) -> bool:
    """Whether Keras creates all variables before it runs a step, also for a `train_step` of one's own."""
    return name() != "tensorflow" or _strategy(model) is not None


def step_once(model: Any, batch: Any) -> None:
    """Trains on `batch` once, so that a `train_step` of the user's creates what only it knows."""
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
    model.make_train_function()
    if name() == "tensorflow":
        model.train_function(itertools.repeat(tensors))
    elif name() == "torch":
        model.train_function([tensors])
    # On JAX a step creates nothing: it is a function of the variables that are there.


def view(variable: Any) -> Array:
    """A variable's value, without a copy where it is in the host's memory; the next step may write it again.

    Under a strategy, the value that Keras would show.
    """
    value = variable.value
    if hasattr(value, "read_value"):
        value = value.read_value()
    try:
        if hasattr(value, "detach"):
            return np.asarray(value.numpy(force=True))  # Keras would make a copy
        return np.asarray(memoryview(value))  # NumPy alone would ask TensorFlow for a copy
    except (TypeError, ValueError, BufferError, RuntimeError):  # on a device, or of no type of C
        return array(value)


def array(tensor: Any) -> Array:
    """A tensor of the backend, a NumPy array or a number, as an array on the host."""
    if name() == "tensorflow" and hasattr(tensor, "numpy"):
        return np.asarray(tensor.numpy())
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def components(variable: Any) -> list[Any]:
    """What holds the value for each replica, with `numpy()` and `assign()`; empty where there is one value."""
    if name() != "tensorflow":
        return []
    distributed = sys.modules["tensorflow"].distribute.DistributedValues
    value = variable.value
    return list(value.values) if isinstance(value, distributed) else []


def replicas(model: Any) -> int:
    """Over how many replicas, or devices of a `keras.distribution`, a batch is split."""
    if name() == "tensorflow":
        strategy = _strategy(model)
        return 1 if strategy is None else int(strategy.num_replicas_in_sync)
    distribution = keras.distribution.distribution() if name() == "jax" else None
    return 1 if distribution is None else int(np.prod(distribution.device_mesh.shape))


def generators() -> Named:
    """The states of the global generators that layers draw from and Keras does not keep: torch's."""
    if name() != "torch":
        return []
    torch = sys.modules["torch"]
    states = [("torch/cpu", torch.get_rng_state())]
    if torch.cuda.is_available():
        for k, found in enumerate(torch.cuda.get_rng_state_all()):
            states.append((f"torch/cuda:{k}", found))
    return [(name, np.array(found.numpy())) for name, found in states]


def put_generators(saved: Named) -> None:
    """Puts back what `generators` gave. A device that is not here now is passed over."""
    if not saved or name() != "torch":
        return
    torch = sys.modules["torch"]
    for label, found in saved:
        device = label.removeprefix("torch/")
        if device == "cpu":
            torch.set_rng_state(torch.from_numpy(np.array(found)))
        elif int(device.removeprefix("cuda:")) < torch.cuda.device_count():
            torch.cuda.set_rng_state(torch.from_numpy(np.array(found)), device)


def buffers(model: Any) -> list[tuple[str, Any]]:
    """The tensors beside the variables, by layer and name: those of torch modules, as in their BatchNorm."""
    if name() != "torch":
        return []
    found: dict[int, tuple[str, Any]] = {}
    for k, layer in enumerate(model._flatten_layers()):
        for label, buffer in layer.named_buffers():
            found.setdefault(id(buffer), (f"{k}/{label}", buffer))
    return list(found.values())


def read_buffers(model: Any) -> list[tuple[str, Array]]:
    """Copies of `buffers` on the host."""
    return [(label, np.array(array(buffer))) for label, buffer in buffers(model)]


def put_buffers(model: Any, saved: Named) -> None:
    """Puts the values back into the buffers of the same names."""
    if not saved or name() != "torch":
        return
    values = dict(saved)
    torch = sys.modules["torch"]
    with torch.no_grad():
        for label, buffer in buffers(model):
            if label in values:
                buffer.copy_(keras.ops.convert_to_tensor(values[label]))


def _strategy(model: Any) -> Any:
    """The `tf.distribute.Strategy` that `model` was made under, or that is in force; None without one."""
    own = getattr(model, "_distribute_strategy", None)
    tf = sys.modules["tensorflow"]  # the backend
    if own is None and tf.distribute.has_strategy():
        own = tf.distribute.get_strategy()
    return own


def _require_strategy(model: Any) -> None:
    strategy = _strategy(model)
    if strategy is None:
        return
    distribute = sys.modules["tensorflow"].distribute
    kind = type(strategy).__name__
    if getattr(model, "_distribute_strategy", None) is None:
        raise TrainingError(
            f"fit is called in the scope of a {kind}, and the model was made outside it",
            help="make and compile the model in strategy.scope(), or call fit outside it",
        )
    multi = (
        distribute.MultiWorkerMirroredStrategy,
        distribute.experimental.MultiWorkerMirroredStrategy,
    )
    if isinstance(strategy, multi):
        raise TrainingError(
            f"the model is of a {kind}, under which Keras 3's own fit does not run",
            help="write the loop, over playhead.tensorflow.iterator(ds, strategy=...)",
        )
    if not isinstance(strategy, distribute.OneDeviceStrategy | distribute.MirroredStrategy):
        raise TrainingError(
            f"the model is of a {kind}; fit knows MirroredStrategy and OneDeviceStrategy, and of no other what "
            "it keeps where",
            help="write the loop, over playhead.tensorflow.iterator(ds, strategy=...)",
        )


def _require_one_process() -> None:
    count = sys.modules["jax"].process_count()
    if count > 1:
        raise TrainingError(
            f"JAX runs in {count} processes, each of which would write this checkpoint",
            help="write the loop, over ds.split(...).iterator(), or train in one process",
        )


def same(values: Sequence[Array]) -> bool:
    """Whether all are bit for bit the first."""
    return all(value.tobytes() == values[0].tobytes() for value in values[1:])
