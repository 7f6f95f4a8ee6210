"""`playhead.tf_keras.fit`: `model.fit` of tf_keras that goes on exactly where it was killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Literal

import tf_keras

from playhead import __version__
from playhead.dataset import Dataset
from playhead.errors import CheckpointError
from playhead.indexes import kept_in, settle
from playhead.keras import checkpoint as store
from playhead.keras.asked import (
    RESUME,
    require_named,
    require_one,
    require_there,
    two_given,
    unsaved,
    whole,
)
from playhead.keras.cadence import Cadence
from playhead.keras.storage import Storage, at
from playhead.keras.writer import Writer
from playhead.plan.prefetch import outermost
from playhead.tensorflow.agreement import Agreement
from playhead.tensorflow.dataset_fn import DatasetFn
from playhead.tensorflow.distribute import Replicas, replicas_of
from playhead.tf_keras import feed, settings
from playhead.tf_keras.arguments import Arguments
from playhead.tf_keras.run import FINAL, KIND, Keeping, Progress, Run, Saved, Start
from playhead.tf_keras.tracing import trace
from playhead.tf_keras.variables import Variables


@two_given
def fit(
    model: Any,
    ds: Dataset,
    *,
    checkpoint: str | os.PathLike[str],
    save_every: int | str = "1 epoch",
    keep: int = 2,
    resume: Literal["auto", "must", "never"] = "auto",
    **fit_arguments: Any,
) -> Any:
    """`model.fit` over `ds`, saved under `checkpoint`, a directory or a URL, and resumed from there.

    Run the same program again after a kill and it goes on at the step after the newest save. A finished run
    returns its History at once; larger `epochs` continues it. All other arguments are those of `model.fit`.
    `ds` yields whole batches. Under MirroredStrategy and MultiWorkerMirroredStrategy each replica gets its part
    of them; every worker runs the same program, and the first one writes where all can read.

    Restored bit for bit: the batches and their order, weights, optimizer, running metrics and batch statistics
    of every replica, generators of dropout layers, History, and the states of EarlyStopping, ReduceLROnPlateau,
    ModelCheckpoint and of every callback with `get_state()` and `set_state(state)`. On another number of
    replicas the batches are the same and the sums are rounded otherwise, which a warning says. A playhead
    dataset as `validation_data` is read from the beginning of its first pass each time.

    save_every: 500 (steps), "1 epoch", and "10min" where there is one worker: several have to save at the same
    step. What is due at the last step of an epoch is saved after its validation. keep: how many saves stay.
    resume: "must" raises where there is nothing to resume, "never" where there is something.

    Returns the `tf_keras.callbacks.History` of the whole run. Raises `TrainingError` for a model that draws
    random numbers which nothing can save (dropout, unless `enable_tf_random_generator()` was called first),
    `TrainingChanged`, `PipelineChanged` and `CheckpointError`, all before anything is trained.

    >>> import playhead as ph
    >>> model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> ds = ph.Dataset.from_tensor_slices(([[1.0], [2.0]], [[1.0], [2.0]])).shuffle(seed=1).batch(1)
    >>> fit(model, ds, checkpoint=getfixture("tmp_path"), epochs=3, save_every=1, verbose=0).epoch
    [0, 1, 2]
    """
    _require_pair(model, ds)
    arguments = Arguments(fit_arguments)
    cadence = Cadence(save_every)
    keep = whole(keep, "keep")
    require_one(resume, RESUME, "resume")
    require_named(checkpoint)
    strategy = model.distribute_strategy
    replicas = replicas_of(strategy)
    if replicas.workers > 1 and _by_time(save_every):
        raise ValueError(
            f"save_every={save_every!r}: clocks differ, and several workers have to save at the same step; "
            'say 500 (steps) or "1 epoch"'
        )
    root = at(checkpoint)
    writes = replicas.worker == 0
    begun = writes and root.begun()
    held_alone = root.hold() if writes else contextlib.nullcontext(False)
    with held_alone as alone, kept_in(str(root)):
        if writes:
            root.sweep(alone=alone)
        saved = _found(root, resume)
        settle(ds)
        length = feed.epoch_length(ds, arguments.steps_per_epoch)
        now = settings.of(model, steps_per_epoch=length, class_weight=arguments.class_weight)
        progress = Progress(length)
        data = DatasetFn(ds if outermost(ds.node) else ds.prefetch(), progress, None)
        if saved is not None:
            settings.require_same(
                saved.state["settings"], now, rate=saved.state.get("learning_rate")
            )
            data.load_state_dict(saved.state["position"])
            progress = _resume(progress, saved.state)
        _agree(data, replicas)
        read = feed.parts(data, arguments.class_weight)
        used = trace(model, read)
        variables = Variables(model, replicas)
        variables.warn_of_others(used)
        if saved is not None:
            variables.require_same(saved.arrays, saved.state["replicas"])
            progress.history = _renamed(progress.history, saved.state["metric_names"], model)
            if _finished(saved.state, arguments.epochs):
                variables.restore(saved.arrays)
                final = {group: saved.arrays[name] for name, group in FINAL.items()}
                variables.restore(final, ("model",))
                _say(arguments, replicas, f"{root}/ is already finished")
                return _history(model, progress)
            variables.restore(saved.arrays)
        elif writes:
            root.require_writable()
        if saved is None and begun:
            _say(arguments, replicas, unsaved(root, save_every))
        verb = "starting" if saved is None else "resuming"
        at_ = progress.where(arguments.epochs)
        _say(arguments, replicas, f"{verb} {root}/ at {at_} (step {progress.step} of the run)")
        validated = arguments.rest.get("validation_data")
        if isinstance(validated, Dataset):
            settle(validated)
            arguments.rest["validation_data"] = feed.validation(validated)
        with contextlib.ExitStack() as held:
            writer = held.enter_context(Writer(root.beat, where=str(root))) if writes else None
            fixed = {
                "settings": now if saved is None else saved.state["settings"],
                "replicas": replicas.total,
                "versions": {"playhead": __version__, "tf_keras": tf_keras.__version__},
            }
            run = Run(
                arguments.callbacks,
                model=model,
                variables=variables,
                data=data,
                progress=progress,
                keeping=Keeping(root, writer, cadence, keep, fixed),
                epochs=arguments.epochs,
                verbose=arguments.verbose,
                saved=saved,
            )
            with strategy.scope():
                batches = strategy.distribute_datasets_from_function(read)
            model._training_state = Start(progress)
            held.callback(setattr, model, "_training_state", None)
            return model.fit(
                batches,
                epochs=arguments.epochs,
                steps_per_epoch=length,
                callbacks=run,
                verbose=arguments.verbose,
                **arguments.rest,
            )


def _require_pair(model: Any, ds: Any) -> None:
    """Raises for anything but a compiled model of tf_keras and a playhead.Dataset."""
    if not isinstance(model, tf_keras.Model):
        help = ""
        if any(kind.__module__.split(".")[0] == "keras" for kind in type(model).__mro__):
            help = ": models of Keras 3 are for playhead.keras.fit"
        raise TypeError(f"fit takes a tf_keras.Model, not {type(model).__name__}{help}")
    if not isinstance(ds, Dataset):
        raise TypeError(
            f"fit takes a playhead.Dataset, not {type(ds).__name__}: change the pipeline's first line, as in "
            "playhead.Dataset.from_tfrecords(files)"
        )
    if not model._is_compiled:
        raise ValueError("compile the model before fit")


def _found(root: Storage, resume: str) -> Saved | None:
    """The newest save, if there is one. Raises `CheckpointError` where `resume` wants it otherwise."""
    if not require_there(root, resume):
        return None
    directory, state = store.latest(root)
    if state.get("kind") != KIND:
        raise CheckpointError(
            f"{directory} was written by {state.get('kind')}.fit, and this is {KIND}.fit",
            help="choose another directory",
            path=str(directory),
        )
    return Saved(state, store.read_arrays(directory, state))


def _resume(fresh: Progress, saved: Mapping[str, Any]) -> Progress:
    """`fresh`, moved to where the checkpoint stands; the data's own step is this object."""
    fresh.step, fresh.epoch = saved["step"], saved["epoch"]
    fresh.step_in_epoch = saved["step_in_epoch"]
    fresh.history, fresh.history_epochs = saved["history"], saved["history_epochs"]
    return fresh


def _renamed(history: Mapping[str, Any], before: list[str], model: Any) -> dict[str, Any]:
    """`history` by the metrics' names of now: what a process calls "auc" is "auc_1" after another model."""
    names: dict[str, str] = {}
    for old, metric in zip(before, model.metrics, strict=False):
        names |= {old: metric.name, f"val_{old}": f"val_{metric.name}"}
    return {names.get(name, name): values for name, values in history.items()}


def _agree(data: DatasetFn, replicas: Replicas) -> None:
    """Raises `CheckpointError`, on all workers, where they have found different saves or other data."""
    if replicas.workers > 1:
        Agreement(replicas.worker, replicas.workers).require(data.position)


def _finished(saved: Mapping[str, Any], epochs: int) -> bool:
    return bool(saved["epoch"] >= epochs or (saved["stopped"] and epochs <= saved["epochs"]))


def _history(model: Any, progress: Progress) -> Any:
    history = tf_keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch = progress.history, progress.history_epochs
    model.history = history
    return history


def _by_time(save_every: int | str) -> bool:
    return isinstance(save_every, str) and not any(unit in save_every for unit in ("step", "epoch"))


def _say(arguments: Arguments, replicas: Replicas, text: str) -> None:
    if arguments.verbose != 0 and replicas.worker == 0:
        print(f"playhead: {text}", flush=True)
