"""What of a Keras model is state, how it is copied out and how it comes back.

Everything that a training step reads and changes: the model's variables (with the seed generators of
dropout and augmentation layers, which no Keras saver keeps), the optimizer's, the running metrics', and
Keras' global seed generator, from which layers without a generator of their own draw. Beside these, where
there are such: what each replica of a strategy has for itself, torch's global generators, and the buffers
of torch modules.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator

from playhead.errors import PlayheadWarning, TrainingChanged, TrainingError, warn
from playhead.keras import backends
from playhead.keras.checkpoint import Array, Named
from playhead.keras.text import text_as_tensors

Arrays: TypeAlias = Mapping[str, Named]
Copy: TypeAlias = Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]
GROUPS = ("model", "optimizer", "metrics", "seeds")
# The model's variables after the run, where its end changed them: averages of an optimizer with use_ema,
# the best weights of an EarlyStopping. Training goes on from "model", which is as the last epoch left it.
FINAL = "final"
REPLICAS, GENERATORS, BUFFERS = "replicas", "generators", "buffers"

# Keras numbers layers per process: "dense_3" in one is "dense_5" in another that built a model before.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


def build(model: Any, batch: Any) -> None:
    """Creates the variables of model, metrics and optimizer for batches like `batch`, without running them."""
    x, *rest = batch if isinstance(batch, tuple) else (batch,)
    with backends.scope(model):
        # The one place where Keras itself creates all three kinds at once.
        model._symbolic_build(data_batch=(x, *rest, *[None] * (2 - len(rest))))


def build_for(
    model: Any,
    arrays: Arrays,
    first_batch: Callable[[], Any],
    groups: Sequence[str] = GROUPS,
    *,
    without: Sequence[str] = (),
) -> None:
    """Creates the variables that `restore` with the same arguments will fill, as far as they are not there.

    What a model with a `train_step` of its own creates, only that step knows: it is run once, and what it
    does to the variables is overwritten by the restore.
    """

    def missing() -> list[str]:
        return [
            group
            for group in groups
            if group != "seeds"
            and len(_chosen(arrays[group], without)) != len(_fillable(model, group, without))
        ]

    if not missing():
        return
    batch = text_as_tensors(first_batch())
    if type(model).train_step is keras.Model.train_step or backends.builds_first(model):
        build(model, batch)
        if not missing() or "model" in missing():
            return
    if "optimizer" not in groups:
        raise TrainingError(
            "a model with a train_step of its own cannot go on with a fresh optimizer",
            help='override the settings that changed instead, as in override=["optimizer.learning_rate"]',
        )
    backends.step_once(model, batch)


def optimizers(model: Any) -> dict[str, Any]:
    """The optimizers a model holds, by attribute: `optimizer`, and those of a `train_step` of its own."""
    held = {
        n: v for n, v in sorted(vars(model).items()) if isinstance(v, keras.optimizers.Optimizer)
    }
    own = getattr(model, "optimizer", None)
    first = {} if own is None else {"optimizer": own}
    return {**first, **{name: value for name, value in held.items() if value is not own}}


def capture(
    model: Any, copy: Copy = lambda key, value: np.array(value)
) -> dict[str, list[tuple[str, np.ndarray[Any, Any]]]]:
    """Copies of all variables on the host, by group, named by their path in the model.

    `copy(key, value)` makes each: `value` may be the variable's own memory, which the next training step
    writes again. `key` is the same for the same variable at each call.
    """
    backends.settle(model)
    taken = {
        group: [
            (v.path, copy(f"{group}/{k}", backends.view(v)))
            for k, v in enumerate(_variables(model, group))
        ]
        for group in GROUPS
    }
    others = {
        REPLICAS: _replicas(model),
        **of_generators(backends.generators()),
        BUFFERS: backends.read_buffers(model),
    }
    return {**taken, **{group: named for group, named in others.items() if named}}


def changed_since(
    model: Any, captured: Mapping[str, Named]
) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """The model's variables, or nothing where they are bit for bit those of `captured`."""
    backends.settle(model)
    now = [(v.path, np.array(backends.view(v))) for v in _variables(model, "model")]
    same = all(
        value.tobytes() == before.tobytes()
        for (_, value), (_, before) in zip(now, captured["model"], strict=True)
    )
    return [] if same else now


def restore(
    model: Any, arrays: Arrays, groups: Sequence[str] = GROUPS, *, without: Sequence[str] = ()
) -> None:
    """Puts `arrays` back into the variables of `groups`, except those named in `without`."""
    if "seeds" in groups:
        _as_many_seeds(arrays["seeds"])
    for group in groups:
        variables = _fillable(model, group, without)
        for variable, (_, value) in zip(variables, _chosen(arrays[group], without), strict=True):
            variable.assign(value)
    _put_replicas(model, arrays.get(REPLICAS, ()), groups, without)
    backends.put_buffers(model, arrays.get(BUFFERS, ()))
    put_generators(arrays)


def of_generators(states: Named) -> dict[str, list[tuple[str, Array]]]:
    """The group of a checkpoint that holds `states` of the global generators, where there are any."""
    return {GENERATORS: list(states)} if states else {}


def put_generators(arrays: Arrays) -> None:
    """Puts the global generators back that layers draw from, besides Keras' own."""
    backends.put_generators(arrays.get(GENERATORS, ()))


def begin_seeds() -> None:
    """Makes Keras' global generator, as Keras does at the first draw, from Python's generator as it is then.

    Made before the first save, it is in every save, and what a resumed program draws before does not matter.
    """
    global_seed_generator()


def _as_many_seeds(saved: Named) -> None:
    """Keras makes its global generator at the first draw; here it is there exactly if it was at the save."""
    there = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR) is not None
    if there and not saved:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)
    elif saved and not there:
        # Seeded, as drawing a seed would move Python's own generator; the state is put back over it.
        made = keras.random.SeedGenerator(seed=0)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, made)


def put_final(model: Any, arrays: Arrays) -> None:
    """Gives the model the weights that Keras and its callbacks left when the run had ended."""
    for variable, (_, value) in zip(model.variables, arrays.get(FINAL, ()), strict=False):
        variable.assign(value)


def require_same_variables(
    model: Any, arrays: Arrays, groups: Sequence[str] = GROUPS, *, without: Sequence[str] = ()
) -> None:
    """Raises `TrainingChanged`, naming the variables, where `arrays` do not fit those of `model`."""
    for group in groups:
        if group == "seeds":
            continue
        chosen = _chosen(arrays[group], without)
        saved = [(name, value.shape, value.dtype.name) for name, value in chosen]
        now = [
            (v.path, tuple(v.shape), keras.backend.standardize_dtype(v.dtype))
            for v in _fillable(model, group, without)
        ]
        differences = _differences(saved, now)
        if differences:
            raise TrainingChanged(
                f"the variables of the {group} are not those of the checkpoint\n    "
                + "\n    ".join(differences),
                help="train the model that was saved, or start a run of its own in another directory",
                differences=differences,
            )


def _chosen(named: Named, without: Sequence[str]) -> list[tuple[str, np.ndarray[Any, Any]]]:
    return [(name, value) for name, value in named if name.rsplit("/", 1)[-1] not in without]


def learning_rate(model: Any) -> float | None:
    """The optimizer's learning rate as it stands; None where it has none of its own."""
    rate = getattr(model.optimizer, "learning_rate", None)
    return None if rate is None else float(plain(rate))


def plain(value: Any) -> Any:
    """A logged value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, keras.Variable):
        return backends.view(value).tolist()
    return backends.array(value).tolist()


def metric_names(model: Any) -> list[str]:
    """What the training logs of the model are called, in its order."""
    return [str(name) for name in model.get_metrics_result()]


def renamed(values: Mapping[str, Any], before: Sequence[str], now: Sequence[str]) -> dict[str, Any]:
    """`values` by the names of now, where Keras has numbered the metrics anew: "auc" is "auc_1" then."""
    names: dict[str, str] = {}
    if len(before) == len(now):
        for old, new in zip(before, now, strict=True):
            if _NUMBER.sub("", old) == _NUMBER.sub("", new):
                names.update({old: new, f"val_{old}": f"val_{new}"})
    return {names.get(name, name): value for name, value in values.items()}


def warn_of_other_replicas(model: Any, arrays: Arrays) -> None:
    """Says so where a batch is split over another number of replicas than at the save."""
    before, now = _count(arrays.get(REPLICAS, ())), backends.replicas(model)
    if before != now:
        message = (
            f"the checkpoint was trained on {before} replica{'s'[: before > 1]}, and this is {now}: the global "
            "batches are those of the unbroken run, its weights are not to the bit, as each replica sums over "
            "other rows and has dropout and batch statistics for itself"
        )
        warn(message, PlayheadWarning)


def _count(saved: Named) -> int:
    return int(dict(saved).get("count", 1))


def _replicas(model: Any) -> list[tuple[str, Array]]:
    """For each variable whose value differs between the replicas, all of them in one array.

    Named by group and number. The first entry is how many replicas there are, where it is not one.
    """
    count = backends.replicas(model)
    if count == 1:
        return []
    named: list[tuple[str, Array]] = [("count", np.array(count))]
    for group in GROUPS:
        for k, variable in enumerate(_variables(model, group)):
            parts = [np.array(part.numpy()) for part in backends.components(variable)]
            if len(parts) > 1 and not backends.same(parts):
                named.append((f"{group}/{k}", np.stack(parts)))
    return named


def _put_replicas(model: Any, saved: Named, groups: Sequence[str], without: Sequence[str]) -> None:
    """Gives each replica what it had. On another number of them all keep the one value they were given."""
    if _count(saved) != backends.replicas(model):
        return
    for name, value in saved:
        if name == "count":
            continue
        group, _, number = name.partition("/")
        variable = _variables(model, group)[int(number)] if group in groups else None
        if variable is not None and variable.name not in without:
            for part, own in zip(backends.components(variable), value, strict=True):
                part.assign(own)


def _fillable(model: Any, group: str, without: Sequence[str]) -> list[Any]:
    return [v for v in _variables(model, group) if v.name not in without]


def _variables(model: Any, group: str) -> list[Any]:
    if group == "model":
        return list(model.variables)
    if group == "optimizer":
        return [v for held in optimizers(model).values() for v in held.variables]
    if group == "metrics":
        return [v for metric in model.metrics for v in metric.variables]
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


_Variable: TypeAlias = tuple[str, tuple[int, ...], str]  # path, shape, dtype


def _kind(variable: _Variable) -> _Variable:
    """What tells a variable from its neighbours: no name of a layer, and not where its optimizer was built.

    The last part of its path, of which an optimizer's variables ("dense_kernel_momentum") have two words
    that are not of the layer's name.
    """
    path, shape, dtype = variable
    tail = _NUMBER.sub("", path).rsplit("/", 1)[-1]
    return "_".join(tail.split("_")[-2:]), shape, dtype


def _outline(variable: _Variable) -> str:
    path, shape, dtype = variable
    return f"{_NUMBER.sub('', path)}  {dtype}{list(shape)}"


def _differences(before_kinds: list[_Variable], now_kinds: list[_Variable]) -> list[str]:
    lines = []
    saved, now = [_outline(v) for v in before_kinds], [_outline(v) for v in now_kinds]
    matcher = difflib.SequenceMatcher(
        None, [_kind(v) for v in before_kinds], [_kind(v) for v in now_kinds], autojunk=False
    )
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            before, after = saved[a:b], now[c:d]
            for k in range(max(len(before), len(after))):
                old = before[k] if k < len(before) else "(not there)"
                new = after[k] if k < len(after) else "(not there)"
                lines.append(f"saved {old}   ->   now {new}")
    return lines
