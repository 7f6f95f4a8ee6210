"""The variables that a training step reads and changes, copied out and put back, on every replica.

Under a strategy some variables have a value of their own on each replica, which TensorFlow's checkpoints
replace by the sum or the mean: running metrics, the statistics of BatchNormalization. Training would go on
from other numbers then, so all replicas' values are kept as well, in arrays with a first axis for them. And
tf_keras leaves the generators of dropout and augmentation layers out of what it saves; here they are in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable, SyncOnReadVariable
from tf_keras.src.backend import RandomGenerator

from playhead.errors import PlayheadWarning, TrainingChanged, warn
from playhead.keras.checkpoint import Array, Named
from playhead.tensorflow.distribute import Replicas

GROUPS = ("model", "optimizer", "metrics", "generators")
REPLICAS = "replicas"
_STATE = "StateVar"  # what a tf.random.Generator calls its variable


def parts(variable: Any) -> Sequence[Any]:
    """The plain variables of the replicas here that a variable consists of."""
    kept = _unwrapped(variable)
    return tuple(kept.values) if isinstance(kept, DistributedVariable) else (kept,)


@dataclass(frozen=True)
class Held:
    """A variable by its place among the objects of a model. `own`: each replica has a value of its own."""

    group: str
    name: str
    variable: Any
    own: bool

    @property
    def parts(self) -> Sequence[Any]:
        """The plain variables of the replicas here."""
        return parts(self.variable)

    @property
    def key(self) -> str:
        """Its name among those of all groups."""
        return f"{self.group}/{self.name}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value on one replica."""
        return tuple(self.parts[0].shape)

    @property
    def dtype(self) -> str:
        """By name, as numpy has it."""
        return str(np.dtype(self.parts[0].dtype.as_numpy_dtype).name)

    def value(self) -> Array:
        """A copy, where all replicas have the same."""
        return np.array(self.parts[0].numpy())

    def merged(self, values: Array) -> Array:
        """One value for those of all replicas, as TensorFlow would read it."""
        how = self.variable.aggregation
        if how == tf.VariableAggregation.SUM:
            return np.asarray(values.sum(axis=0, dtype=values.dtype))
        if how == tf.VariableAggregation.MEAN:
            return np.asarray(values.mean(axis=0, dtype=values.dtype))
        return np.asarray(values[0])

    def spread(self, value: Array, replicas: int) -> list[Array]:
        """Values for `replicas` replicas that `merged` makes `value` of."""
        if self.variable.aggregation == tf.VariableAggregation.SUM:
            return [value, *[np.zeros_like(value)] * (replicas - 1)]
        return [value] * replicas


class Variables:
    """Those of a model whose training step has been traced, so that all of them are there."""

    def __init__(self, model: Any, replicas: Replicas) -> None:
        self._strategy, self._replicas = model.distribute_strategy, replicas
        seen: set[int] = set()
        found = {
            "optimizer": [*_reached(model.optimizer, seen), *_slots(model.optimizer, seen)],
            "metrics": [
                (f"{k}/{name}", variable)
                for k, metric in enumerate(model.metrics)
                for name, variable in _reached(metric, seen)
            ],
            "generators": list(_generators(model, seen)),
            "model": list(_reached(model, seen)),
        }
        self._held = [
            Held(group, name, variable, self._is_own(group, variable))
            for group in GROUPS
            for name, variable in found[group]
        ]

    def warn_of_others(self, used: Sequence[Any]) -> None:
        """Warns of plain variables among `used` that are not kept here."""
        known = {id(part) for held in self._held for part in held.parts}
        others = sorted({variable.name for variable in used if id(variable) not in known})
        if others:
            message = (
                f"the training step uses variables that no attribute of the model or its layers leads to, so "
                f"they are not saved: {', '.join(others)}"
            )
            warn(message, PlayheadWarning)

    def _is_own(self, group: str, variable: Any) -> bool:
        kept = _unwrapped(variable)
        if self._replicas.total == 1 or not isinstance(kept, DistributedVariable):
            return False
        drawn = group == "generators" or _STATE in kept.name
        return drawn or isinstance(kept, SyncOnReadVariable)

    def capture(self, groups: Sequence[str] = GROUPS) -> dict[str, list[tuple[str, Array]]]:
        """Copies of all values, by group. Among several workers, all of them have to come here."""
        chosen = [held for held in self._held if held.group in groups]
        own = [held for held in chosen if held.own]
        everywhere = dict(zip([held.key for held in own], self._of_replicas(own), strict=True))
        taken: dict[str, list[tuple[str, Array]]] = {group: [] for group in groups}
        for held in chosen:
            value = held.merged(everywhere[held.key]) if held.own else held.value()
            taken[held.group].append((held.name, value))
        taken[REPLICAS] = list(everywhere.items())
        return taken

    def _of_replicas(self, held: Sequence[Held]) -> list[Array]:
        """For each variable the values of all replicas of all workers, in an array with an axis for them."""
        if not held or self._replicas.workers == 1:
            return [np.stack([part.numpy() for part in one.parts]) for one in held]

        def gather() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            return [
                context.all_gather(tf.expand_dims(one.variable.read_value(), 0), axis=0)
                for one in held
            ]

        gathered = tf.function(lambda: self._strategy.run(gather))()
        return [self._strategy.experimental_local_results(one)[0].numpy() for one in gathered]

    def restore(self, arrays: Mapping[str, Named], groups: Sequence[str] = GROUPS) -> None:
        """Gives the variables the values that `capture` returned."""
        here, total = len(self._replicas.devices), self._replicas.total
        first = self._replicas.worker * here
        everywhere = dict(arrays[REPLICAS])
        for held, value in self._matched(arrays, groups):
            values: Any = [value] * total
            if held.own:
                values = everywhere.get(held.key)
                if values is None or len(values) != total:
                    values = held.spread(value, total)
            for k, part in enumerate(held.parts):
                part.assign(values[first + k] if held.own else value)

    def require_same(self, arrays: Mapping[str, Named], replicas: int) -> None:
        """Raises `TrainingChanged`, naming the variables, where `arrays` are those of another model.

        Warns where they were captured on another number of `replicas` than there are now.
        """
        lines = []
        for group in GROUPS:
            saved = {name: (value.shape, value.dtype.name) for name, value in arrays[group]}
            now = {h.name: (h.shape, h.dtype) for h in self._held if h.group == group}
            for name in [*now, *(name for name in saved if name not in now)]:
                before, after = saved.get(name), now.get(name)
                if before != after:
                    lines.append(f"{group}/{name}  saved {_told(before)}   ->   now {_told(after)}")
        if lines:
            raise TrainingChanged(
                "the variables of the model are not those of the checkpoint\n    "
                + "\n    ".join(lines),
                help="train the model that was saved, or start a run of its own in another directory",
                differences=lines,
            )
        if replicas != self._replicas.total:
            message = (
                f"the checkpoint was trained on {_count(replicas)}, and this is "
                f"{_count(self._replicas.total)}: the global batches are those of the unbroken run, its "
                "weights are not to the bit, as each replica sums over other rows and has dropout and batch "
                "statistics for itself"
            )
            warn(message, PlayheadWarning)

    def _matched(
        self, arrays: Mapping[str, Named], groups: Sequence[str]
    ) -> Iterator[tuple[Held, Array]]:
        for group in groups:
            saved = dict(arrays[group])
            for held in self._held:
                if held.group == group:
                    yield held, saved[held.name]


def _reached(root: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The variables under `root` that are not in `seen` yet, by the shortest path that leads to them."""
    view = tf.train.TrackableView(root)
    waiting = [("", root)]
    visited = {id(root)}
    while waiting:
        path, here = waiting.pop(0)
        if isinstance(here, tf.Variable):
            if id(_unwrapped(here)) not in seen:
                seen.add(id(_unwrapped(here)))
                yield path, here
            continue
        for name, child in view.children(here).items():
            if id(child) not in visited:
                visited.add(id(child))
                waiting.append((f"{path}/{name}" if path else name, child))


def _slots(optimizer: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What an optimizer of the older kind keeps for each weight, which its object does not lead to."""
    given = optimizer.variables
    for k, variable in enumerate(given() if callable(given) else given):
        if id(_unwrapped(variable)) not in seen:
            seen.add(id(_unwrapped(variable)))
            yield f"slots/{k}", variable


def _generators(model: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The states of the random generators that layers have, by the layers' places."""
    for k, layer in enumerate(model._flatten_layers()):
        for name, value in sorted(vars(layer).items()):
            found = value._generator if isinstance(value, RandomGenerator) else value
            if not isinstance(found, tf.random.Generator):
                continue
            state = found._state_var
            if id(_unwrapped(state)) not in seen:
                seen.add(id(_unwrapped(state)))
                yield f"{k}/{name.lstrip('_')}", state


def _unwrapped(variable: Any) -> Any:
    """The variable itself, where a policy of mixed precision has put a caster around it."""
    return getattr(variable, "_variable", variable)


def _told(kind: tuple[tuple[int, ...], str] | None) -> str:
    return "(not there)" if kind is None else f"{kind[1]}{list(kind[0])}"


def _count(replicas: int) -> str:
    return f"{replicas} replica{'s'[: replicas > 1]}"
