"""`playhead.keras.fit`: `model.fit` that goes on exactly where it was killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import keras

from playhead import __version__
from playhead.dataset import Dataset
from playhead.indexes import kept_in, settle
from playhead.keras import architecture, backends, settings, state
from playhead.keras import checkpoint as store
from playhead.keras.arguments import Arguments
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
from playhead.keras.feed import Feed, epoch_length, validation
from playhead.keras.preemption import POLICIES, Watch
from playhead.keras.progress import Progress, begin, ended, is_finished
from playhead.keras.restoring import Restore, require_same, require_unswapped
from playhead.keras.run import Keeping, Run
from playhead.keras.storage import at
from playhead.keras.to_keras import FirstPass
from playhead.keras.wrapping import require_pair, wrapped
from playhead.keras.writer import Writer
from playhead.plan.prefetch import outermost


@two_given
def fit(
    model: Any,
    ds: Dataset,
    *,
    checkpoint: str | os.PathLike[str],
    save_every: int | str = "10min",
    keep: int = 2,
    resume: Literal["auto", "must", "never"] = "auto",
    on_preempt: Literal["exit", "raise", "ignore"] = "exit",
    on_change: Literal["error", "by_record", "from_here"] = "error",
    override: str | Iterable[str] = (),
    signals: int | Iterable[int] = (signal.SIGTERM,),
    **fit_arguments: Any,
) -> Any:
    """`model.fit` over `ds`, saved under `checkpoint`, a directory or a URL, and resumed from there.

    Run the same program again after a kill and it goes on at the step after the newest save, as if nothing
    had happened. A finished run returns its History at once; larger `epochs` continues it. All other arguments
    are those of `model.fit`. The indexes of remote files that it reads are kept there, too, and another
    machine that goes on finds them.

    Restored bit for bit: the batches and their order, weights, optimizer, running metrics, History, the seeds
    of Keras' layers, and the states of Keras' callbacks (EarlyStopping, ReduceLROnPlateau, ModelCheckpoint,
    TensorBoard ...) and of every callback with `get_state()` and `set_state(state)`. So losses, epoch logs and
    weights are those of the unbroken run where the computation itself repeats (same machine and versions,
    deterministic operations). The files of CSVLogger and TensorBoard are cut back to the save. Not restored:
    what other callbacks remember, files they append to, and the global generators of Python, NumPy and
    TensorFlow. A dataset as `validation_data` is read from the beginning of its first pass each time. Where a
    callback had stopped the run and larger `epochs` continues it, EarlyStopping keeps its best and waits anew.

    save_every: 500 (steps), "10min" (and at the end of an epoch that has no save, where that is not too
    often), "1 epoch". Ctrl-C saves after the step, too, and raises KeyboardInterrupt; a second one raises
    it at once. keep: how many saves stay, 1 or more. resume: "must" raises
    where there is nothing to resume, "never" where there is something. on_preempt, when one of `signals`
    arrives: "exit" saves after the step and raises `Preempted`, which ends the process with 128 + the signal;
    "raise" saves and raises `PreemptedError`; "ignore" leaves signals alone. on_change and override: as in
    `Iterator.load_state_dict`; `override=["optimizer.learning_rate"]` takes the value of the code, "model"
    its layers where the variables are equal.

    On the TensorFlow, JAX and torch backends, each of which goes on from its own checkpoints alone; under
    OneDeviceStrategy, MirroredStrategy (exact on the same number of replicas) and, on JAX, the distributions
    of one process. On torch its global generators and the buffers of torch modules are restored as well.

    Returns the `keras.callbacks.History` of the whole run. Raises `TrainingChanged`, `PipelineChanged` and
    `CheckpointError` before anything is trained (the latter also where another run uses the directory), and
    `PipelineError` where a pass over the data that an epoch needs gives no element.

    A `tf.data.Dataset` as `ds` is wrapped by `Dataset.from_tf`, which raises `PipelineError` for a shuffle
    without a seed.
    """
    ds = wrapped(ds, quiet=fit_arguments.get("verbose") == 0)
    require_pair(model, ds)
    arguments = Arguments(fit_arguments)
    cadence = Cadence(save_every)
    keep = whole(keep, "keep")
    require_one(on_change, ("error", "by_record", "from_here"), "on_change")
    require_one(resume, RESUME, "resume")
    require_one(on_preempt, POLICIES, "on_preempt")
    override = (override,) if isinstance(override, str) else tuple(override)
    signals = (signals,) if isinstance(signals, int) else tuple(signals)
    if not getattr(model, "compiled", False):
        raise ValueError("compile the model before fit")
    require_named(checkpoint)
    backends.require_usable(model)
    root = at(checkpoint)
    require_there(root, resume)
    begun = root.begun()
    with root.hold() as alone, kept_in(str(root)):
        root.sweep(alone=alone)
        found = store.latest(root) if store.saves(root) else None
        saved = None if found is None else found[1]
        if saved is None:  # a directory that cannot be written can still hold a finished run
            root.require_writable()
        settle(ds)
        length = epoch_length(ds, arguments.steps_per_epoch, model.steps_per_execution)
        weights = arguments.rest.pop("class_weight", None)
        now = settings.of(model, steps_per_epoch=arguments.steps_per_epoch, class_weight=weights)
        iterator = (ds if outermost(ds.node) else ds.prefetch()).iterator(epochs=None)
        require_same(saved, now, override, iterator.position.to_dict())
        layers = architecture.of(model)
        progress = begin(iterator, saved, length, arguments, on_change=on_change, override=override)
        feed = Feed(iterator, by_pass=length is None, class_weight=weights)
        with _reading(feed, validation(arguments.rest)):
            restore = None
            finished = saved is not None and is_finished(saved, progress, arguments.epochs)
            if saved is None:
                # Before a function of the pipeline runs, which is watched for draws from Python's generator.
                state.begin_seeds()
            if not finished:
                iterator.start()  # the first batches are computed while the model is restored or built
            if found is not None:
                directory, saved = found
                restore = Restore(model, directory, saved, override)
                restore.first(feed, layers)
                restore.rename(progress)
                require_unswapped(saved, arguments.epochs)
                if finished:
                    restore.final()
                    how = ended(saved, progress, arguments.epochs)
                    _say(arguments, f"{root}/ is already finished: {how}")
                    return _history(model, progress, arguments, length)
                root.require_writable()
            elif feed.has_open_axes:
                state.build(model, feed.first())
            if saved is None and begun:
                _say(arguments, unsaved(root, save_every))
            verb = "starting" if saved is None else "resuming"
            where = progress.where(arguments.epochs)
            _say(arguments, f"{verb} {root}/ at {where} (step {progress.step} of the run)")
            quiet = arguments.verbose == 0
            heeded = on_preempt != "ignore"
            with (
                Watch(signals if heeded else (), interrupt=heeded, quiet=quiet) as watch,
                Writer(root.beat, where=str(root), hurried=lambda: watch.hurried) as writer,
            ):
                run = Run(
                    arguments.callbacks,
                    model=model,
                    iterator=iterator,
                    feed=feed,
                    progress=progress,
                    keeping=Keeping(root, writer, cadence, keep, _fixed(now, layers), on_preempt),
                    watch=watch,
                    fixed_length=length,
                    epochs=arguments.epochs,
                    verbose=arguments.verbose,
                    restore=restore,
                )
                return model.fit(
                    feed,
                    epochs=arguments.epochs,
                    initial_epoch=progress.epoch,
                    callbacks=run,
                    shuffle=False,
                    verbose=arguments.verbose,
                    **arguments.rest,
                )


@contextlib.contextmanager
def _reading(feed: Feed, validation: FirstPass | None) -> Iterator[None]:
    """Closes both at its end. Raises what has failed in the data as it is."""
    try:
        yield
    except Exception as error:
        failure = feed.failure
        # TensorFlow tells of it as text in an error of its own. What else fails is not of the data, though
        # the read-ahead may have failed by then.
        if failure is not None and error is not failure and type(failure).__name__ in str(error):
            raise failure from error
        raise
    finally:
        feed.close()
        if validation is not None:
            validation.close()


def _history(model: Any, progress: Progress, arguments: Arguments, length: int | None) -> Any:
    history = keras.callbacks.History()
    history.set_params({"verbose": arguments.verbose, "epochs": arguments.epochs, "steps": length})
    history.set_model(model)
    history.history, history.epoch = progress.history, progress.history_epochs
    model.history = history
    return history


def _fixed(now: Mapping[str, Any], layers: Any) -> dict[str, Any]:
    versions = {
        "playhead": __version__,
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
    }
    return {"settings": dict(now), "layers": layers, "versions": versions}


def _say(arguments: Arguments, text: str) -> None:
    if arguments.verbose != 0:
        print(f"playhead: {text}", flush=True)
