"""`playhead.keras.fit`: `model.fit` that goes on exactly where it was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import keras

from playhead import __version__
from playhead.dataset import Dataset
from playhead.errors import CheckpointError, PipelineError, TrainingChanged, TrainingError
from playhead.indexes import kept_in, settle
from playhead.iterator import Iterator
from playhead.keras import architecture, backends, settings, state
from playhead.keras import callbacks as states
from playhead.keras import checkpoint as store
from playhead.keras.arguments import Arguments, capped, whole
from playhead.keras.cadence import Cadence
from playhead.keras.feed import Feed
from playhead.keras.preemption import POLICIES, Watch
from playhead.keras.run import Keeping, Progress, Run
from playhead.keras.storage import Place, Storage, at
from playhead.keras.to_keras import Batches, EachPass, FirstPass
from playhead.keras.wrapping import what_of_tensorflow, wrapped
from playhead.keras.writer import Writer
from playhead.plan.prefetch import outermost


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
    _require_pair(model, ds)
    arguments = Arguments(fit_arguments)
    cadence = Cadence(save_every)
    keep = whole(keep, "keep")
    _require(on_change, ("error", "by_record", "from_here"), "on_change")
    _require(resume, ("auto", "must", "never"), "resume")
    _require(on_preempt, POLICIES, "on_preempt")
    override = (override,) if isinstance(override, str) else tuple(override)
    signals = (signals,) if isinstance(signals, int) else tuple(signals)
    if not getattr(model, "compiled", False):
        raise ValueError("compile the model before fit")
    if not os.fspath(checkpoint):
        raise ValueError("checkpoint= is empty, where fit needs the name of a directory")
    backends.require_usable(model)
    root = at(checkpoint)
    _require_there(root, resume)
    with root.hold() as alone, kept_in(str(root)):
        root.sweep(alone=alone)
        found = store.latest(root) if store.saves(root) else None
        if found is None:  # a directory that cannot be written can still hold a finished run
            root.require_writable()
        settle(ds)
        length = _epoch_length(ds, arguments.steps_per_epoch, model.steps_per_execution)
        now = settings.of(
            model,
            steps_per_epoch=arguments.steps_per_epoch,
            class_weight=arguments.rest.get("class_weight"),
        )
        iterator = (ds if outermost(ds.node) else ds.prefetch()).iterator(epochs=None)
        saved_settings, saved_position = (
            (found[1]["settings"], found[1]["position"]) if found else ({}, None)
        )
        settings.require_known(
            override,
            [*now, *saved_settings],
            [*_operations(iterator.position.to_dict()), *_operations(saved_position)],
        )
        if found is not None:
            _require_backend(found[1])
            rate = found[1].get("learning_rate")
            settings.require_same(saved_settings, now, override, rate=rate)
        layers = architecture.of(model)
        progress = Progress(step=0, total=length)
        if found is not None:
            operations = [name for name in override if not settings.is_setting(name)]
            iterator.load_state_dict(found[1]["position"], on_change=on_change, override=operations)
            progress = _progress(found[1], iterator, length, arguments)
        elif arguments.initial_epoch:
            progress = _skipped_ahead(iterator, length, arguments)
        feed = Feed(
            iterator,
            by_pass=length is None,
            class_weight=arguments.rest.pop("class_weight", None),
        )
        validation = _validation(arguments.rest)
        try:
            restore = None
            finished = found is not None and _finished(found[1], progress, arguments.epochs)
            if found is None:
                # Before a function of the pipeline runs, which is watched for draws from Python's generator.
                state.begin_seeds()
            if not finished:
                iterator.start()  # the first batches are computed while the model is restored or built
            if found is not None:
                restore = _Restore(model, *found, override)
                restore.first(feed)
                if "model" not in override:
                    architecture.require_same(found[1].get("layers"), layers)
                names = found[1].get("metric_names", []), state.metric_names(model)
                progress.logs = state.renamed(progress.logs, *names)
                progress.history = state.renamed(progress.history, *names)
                _require_unswapped(found[1], arguments.epochs)
                if finished:
                    restore.final()
                    _say(
                        arguments,
                        f"{_name(root)} is already finished: {_ended(found[1], progress, arguments)}",
                    )
                    return _history(model, progress, arguments, length)
                root.require_writable()
            elif feed.has_open_axes:
                state.build(model, feed.first())
            verb = "starting" if found is None else "resuming"
            _say(arguments, f"{verb} {_name(root)} at {_where(progress, arguments.epochs)}")
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
                return _keras_fit(model, feed, run, progress.epoch, arguments)
        except Exception as error:
            failure = feed.failure
            # TensorFlow tells of it as text in an error of its own. What else fails is not of the data, though
            # the read-ahead may have failed by then.
            if (
                failure is not None
                and error is not failure
                and type(failure).__name__ in str(error)
            ):
                raise failure from error
            raise
        finally:
            feed.close()
            if validation is not None:
                validation.close()


class _Restore:
    """Puts a checkpoint back into a model and its callbacks, in the parts that `Run` asks for."""

    def __init__(
        self, model: Any, directory: Place, saved: Mapping[str, Any], override: tuple[str, ...]
    ) -> None:
        self._model = model
        self._entries = saved.get("callbacks", [])
        self._stopped = bool(saved["stopped"])
        self._arrays = store.read_arrays(directory, dict(saved))
        self._mid_epoch = saved["step_in_epoch"] > 0
        left_out = (
            set() if self._mid_epoch else {"metrics"}
        )  # Keras begins an epoch by resetting them
        left_out |= {"optimizer"} & set(override)
        self._groups = [group for group in state.GROUPS if group not in left_out]
        rate = settings.overridden("optimizer.learning_rate", override)
        self._without = ("learning_rate",) if rate else ()

    def first(self, feed: Feed) -> None:
        """Before training: builds what is not built yet, compares, restores."""
        model, arrays, groups, without = self._model, self._arrays, self._groups, self._without
        state.build_for(model, arrays, feed.first, groups, without=without)
        state.require_same_variables(model, arrays, groups, without=without)
        state.warn_of_other_replicas(model, arrays)
        state.restore(model, arrays, groups, without=without)

    def generators(self) -> None:
        """Before the first epoch begins: what was drawn since the model was restored is drawn again."""
        state.put_generators(self._arrays)

    def final(self) -> None:
        """Of a run that is over: the weights it ended with."""
        state.put_final(self._model, self._arrays)

    def cut_back(self, callbacks: Sequence[Any]) -> None:
        """Before they are told of the model; see `playhead.keras.callbacks.cut_back`."""
        states.cut_back(callbacks, self._entries)

    def callbacks(self, callbacks: Sequence[Any]) -> None:
        """After they were told that training begins."""
        arrays = self._arrays.get("callbacks", [])
        states.restore(callbacks, self._entries, arrays, anew=self._stopped)

    def again(self, callbacks: Sequence[Any]) -> None:
        """After the epoch has begun, where it is resumed in the middle."""
        if self._mid_epoch:
            self.callbacks(callbacks)
            state.restore(self._model, self._arrays, self._groups, without=self._without)


def _keras_fit(model: Any, feed: Feed, run: Run, initial_epoch: int, arguments: Arguments) -> Any:
    return model.fit(
        feed,
        epochs=arguments.epochs,
        initial_epoch=initial_epoch,
        callbacks=run,
        shuffle=False,
        verbose=arguments.verbose,
        **arguments.rest,
    )


def _require_backend(saved: Mapping[str, Any]) -> None:
    """Raises `TrainingChanged` where the checkpoint was written on another backend of Keras."""
    before, now = saved["versions"]["backend"], backends.name()
    if before != now:
        raise TrainingChanged(
            f"the checkpoint was written on Keras' backend {before}, and this is {now}: dropout and every "
            "other random layer would draw other numbers, and the weights would come out otherwise",
            help=f"set KERAS_BACKEND={before}, or start a run of its own in another directory",
            differences=[f"backend  saved {before}   ->   now {now}"],
        )


def _require_pair(model: Any, ds: Any) -> None:
    """Raises TypeError for anything but a model and a playhead.Dataset, saying what to write instead."""
    if isinstance(ds, Dataset):
        if not isinstance(model, Dataset):
            return
        problem = "two datasets: the model is the first argument, as in fit(model, ds)"
    elif isinstance(model, Dataset):
        problem = "the dataset first: the model is the first argument, as in fit(model, ds)"
    elif isinstance(ds, Iterator) or (hasattr(ds, "__next__") and hasattr(ds, "position")):
        problem = "an iterator: give the playhead.Dataset that it was made of, fit makes its own"
    elif isinstance(ds, EachPass):
        problem = (
            "ds.to_keras(), which is for Keras' own fit: give ds itself, and its place is saved"
        )
    elif (of_tensorflow := what_of_tensorflow(ds)) is not None:
        problem = of_tensorflow
    else:
        problem = (
            f"{type(ds).__name__}. Arrays go in by playhead.Dataset.from_tensor_slices((x, y)), files by "
            "from_tfrecords(files), generators by from_generator(function)"
        )
    raise TypeError(f"fit takes a playhead.Dataset, and was given {problem}")


def _require_there(root: Storage, resume: str) -> None:
    there = bool(store.saves(root))
    if there and resume == "never":
        raise CheckpointError(
            f'{root} holds a run already, and resume="never"',
            help='choose another directory, move this one away, or resume="auto"',
            path=str(root),
        )
    if not there and resume == "must":
        raise CheckpointError(
            f'there is no checkpoint in {root}, and resume="must"',
            help='check the path; resume="auto" starts a run where there is none',
            path=str(root),
        )


def _epoch_length(ds: Dataset, given: int | None, steps_per_execution: int) -> int | None:
    """Steps in a Keras epoch; None where the end of each pass over a stream decides."""
    length = given if given is not None else ds.cardinality()
    if length == -1:
        raise PipelineError(
            "the dataset has no end, so an epoch has none",
            help="say steps_per_epoch=, or leave out repeat()",
        )
    if length == 0:
        raise PipelineError("the dataset is empty")
    known = None if length == -2 else capped(length, "max_steps_per_epoch")
    if steps_per_execution > 1 and (known is None or known % steps_per_execution):
        raise TrainingError(
            f"steps_per_execution={steps_per_execution} does not divide an epoch of "
            f"{'unknown length' if known is None else f'{known} steps'}: the last execution would run into "
            "the next epoch",
            help="choose a divisor, or say steps_per_epoch= as a multiple of it",
        )
    return known


def _progress(
    saved: Mapping[str, Any], iterator: Iterator, length: int | None, arguments: Arguments
) -> Progress:
    position = iterator.position
    progress = Progress(
        step=position.step,
        epoch=saved["epoch"],
        step_in_epoch=saved["step_in_epoch"],
        total=length,
        complete=saved["epoch_complete"],
        logs=saved["logs"],
        history=saved["history"],
        history_epochs=saved["history_epochs"],
    )
    if arguments.initial_epoch > progress.epoch:
        raise TrainingError(
            f"initial_epoch={arguments.initial_epoch}, but the checkpoint stands in epoch {progress.epoch}",
            help="leave initial_epoch as it was when the run began: the checkpoint knows how far it is",
        )
    if progress.step_in_epoch and not progress.complete and length is not None:
        left = length - progress.step_in_epoch
        if arguments.steps_per_epoch is None and position.epoch_length is not None:
            left = (
                position.epoch_length - position.step_in_epoch
            )  # the data may be cut otherwise now
        progress.total = progress.step_in_epoch + max(left, 0)
        if left <= 0:
            progress.complete = True
    return progress


def _skipped_ahead(iterator: Iterator, length: int | None, arguments: Arguments) -> Progress:
    epochs = arguments.initial_epoch
    if epochs >= arguments.epochs:
        raise ValueError(
            f"initial_epoch={epochs} of a new run with epochs={arguments.epochs} leaves nothing to train: "
            "epochs= is the number of the last epoch, not how many follow"
        )
    if length is None or not iterator.dataset.seekable:
        raise TrainingError(
            f"initial_epoch={epochs} of a new run over a stream, which cannot skip what came before",
            help="leave initial_epoch out: the data begins at its beginning",
        )
    iterator.seek(epochs * length)
    return Progress(step=epochs * length, epoch=epochs, total=length)


def _validation(rest: dict[str, Any]) -> FirstPass | None:
    given = rest.get("validation_data")
    if not isinstance(given, Dataset | Batches):
        return None
    if rest.get("validation_batch_size") is not None:
        raise TypeError(
            "validation_batch_size= is refused: the batch(...) of the validation pipeline says it"
        )
    found = rest["validation_data"] = FirstPass(
        given.dataset if isinstance(given, Batches) else given
    )
    settle(found.dataset)
    if found.dataset.cardinality() == -1 and rest.get("validation_steps") is None:
        raise PipelineError(
            "validation_data has no end, so its first pass has none",
            help="say validation_steps=, or leave out repeat()",
        )
    return found


def _require_unswapped(saved: Mapping[str, Any], epochs: int) -> None:
    if saved.get("swapped") and saved["epochs"] <= saved["epoch"] < epochs:
        raise TrainingError(
            "SwapEMAWeights(swap_on_epoch=True) has put the averages in place of the trained weights when "
            f"its last epoch, {saved['epochs']}, ended: no epoch can follow",
            help=f"say epochs={epochs} from the beginning, in another directory, or leave swap_on_epoch out",
        )


def _finished(saved: Mapping[str, Any], progress: Progress, epochs: int) -> bool:
    return progress.epoch >= epochs or (saved["stopped"] and epochs <= saved["epochs"])


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


def _where(progress: Progress, epochs: int) -> str:
    return f"{progress.where(epochs)} (step {progress.step} of the run)"


def _ended(saved: Mapping[str, Any], progress: Progress, arguments: Arguments) -> str:
    epochs = progress.epoch + bool(progress.step_in_epoch)
    text = f"it trained {_count(epochs, 'epoch')} ({_count(progress.step, 'step')})"
    if epochs > arguments.epochs:
        text += f", and epochs={arguments.epochs} asks for no more"
    elif epochs < arguments.epochs and saved["stopped"]:
        text += f" of {arguments.epochs}, when a callback stopped it"
    return text


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _operations(position: Any) -> set[str]:
    """The names of a pipeline's operations, at any depth."""
    if isinstance(position, Mapping):
        own = {position["op"]} if isinstance(position.get("op"), str) else set()
        return own.union(*(_operations(part) for part in position.values()))
    if isinstance(position, list | tuple):
        return set().union(*(_operations(part) for part in position))
    return set()


def _name(root: Storage) -> str:
    return f"{root}/"


def _say(arguments: Arguments, text: str) -> None:
    if arguments.verbose != 0:
        print(f"playhead: {text}", flush=True)


def _require(value: str, known: tuple[str, ...], name: str) -> None:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(map(repr, known))}, not {value!r}")
