"""`playhead inspect`: where a run or a saved position stands, in words or as JSON.

Reads with numpy and the standard library: no framework is needed to look at a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from playhead.cli.words import count, percent, printable, seconds, size
from playhead.errors import CheckpointError, PlayheadError, PositionError
from playhead.keras import checkpoint
from playhead.keras.storage import MANIFEST, Local, Place, Storage, at
from playhead.plan.failing import counted_in
from playhead.position import Position
from playhead.printing import HIDDEN

# A position is a few kilobytes. What is much larger is a mistaken path, and not worth reading.
_LARGEST = 16 * 2**20
_LOOKS = 5  # a run that is going on removes old checkpoints, also the one that is being looked at
_LEFT_OUT = (*HIDDEN, "algorithm", "inputs")


@dataclass(frozen=True)
class Found:
    """A position and what lies around it. `state`, `bytes`: of the checkpoint it was found in."""

    path: Path | Place
    position: Position
    saved_at: float
    state: dict[str, Any] | None = None
    bytes: int | None = None
    checkpoints: tuple[Place, ...] = ()
    complaints: tuple[str, ...] = field(default=())


class NothingHereError(Exception):
    """The path is neither a checkpoint nor a position."""


@click.command(name="inspect")
@click.argument("path", type=click.Path(path_type=str))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")
def command(path: str, as_json: bool) -> None:
    """Say where the run or the position saved at PATH stands.

    PATH is the checkpoint directory of a playhead.keras.fit or one checkpoint in it, also on an object
    store (s3://bucket/run), or a file that Position.save wrote. Exit status 2: PATH is none of these.
    1: it is, but no part of it is whole.

    \b
    The keys of --json:
      kind              "checkpoint" or "position"
      path, saved_at    what was read; when it was written (ISO 8601)
      step              batches delivered since the beginning of the run
      epoch             the pass over the data, counted from 0
      step_in_epoch, epoch_length, percent_of_epoch
                        how far that pass is (null where its length is unknown)
      records           records delivered (null where they cannot be counted)
      ignored           elements that on_error="skip" or ignore_errors left out of this pass
      bytes             {"position": n, "checkpoint": n or null}
      run               what the checkpoint says beyond the data, or null: epoch, epochs,
                        step_in_epoch, steps_in_epoch (Keras' count), finished, learning_rate,
                        history (null for a value that is not finite), versions
      checkpoints       the names of the checkpoints in the directory, oldest first
      complaints        what is damaged, one sentence each
      position          the position as it was saved
    """
    try:
        found = find(path)
    except NothingHereError as error:
        click.echo(f"playhead inspect: {printable(str(error))}", err=True)
        raise SystemExit(2) from None
    except PlayheadError as error:
        click.echo(f"playhead inspect: {printable(str(error))}", err=True)
        raise SystemExit(1) from None
    if as_json:
        click.echo(json.dumps(said(found), indent=2))
    else:
        show(found, Console(highlight=False, soft_wrap=True))


def find(path: str | Path) -> Found:
    """What is saved at `path`. Raises `NothingHereError`, or a `PlayheadError` for damage."""
    storage = at(path)
    if not isinstance(storage, Local) or storage.path.is_dir():
        for _ in range(_LOOKS):
            with contextlib.suppress(FileNotFoundError):
                return _find_checkpoint(storage)
        raise NothingHereError(f"{path} changes too fast to be looked at")
    return _find_position(storage.path)


def _find_position(path: Path) -> Found:
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
            saved_at = os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        raise NothingHereError(f"{path} does not exist") from None
    except OSError as error:
        raise NothingHereError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST:
        raise NothingHereError(f"{path} is not a position: it is larger than {size(_LARGEST)}")
    try:
        value = json.loads(content)
    except ValueError:
        raise NothingHereError(f"{path} is not a position: it is not JSON") from None
    if not isinstance(value, dict) or "playhead" not in value:
        raise NothingHereError(
            f'{path} is not a position: it is not a JSON object with "playhead" in it'
        )
    return Found(path, Position.from_dict(value), saved_at)


def _find_checkpoint(storage: Storage) -> Found:
    inside = storage.has("", MANIFEST)
    checkpoints = (storage.place(""),) if inside else tuple(checkpoint.saves(storage))
    if not checkpoints:
        raise NothingHereError(f"{storage} is a directory without a checkpoint in it")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        directory, state = checkpoint.latest(storage)
    complaints = tuple(str(warning.message) for warning in caught)
    try:
        position = Position.from_dict(state.get("position"))
    except PositionError as error:
        raise CheckpointError(f"{directory}: {error}", path=str(directory)) from None
    whole, saved_at = checkpoint.size_and_time(directory)
    return Found(directory, position, saved_at, state, whole, checkpoints, complaints)


def said(found: Found) -> dict[str, Any]:
    """What `--json` prints."""
    position, state = found.position, found.state
    run = None
    if state is not None:
        keys = ("epoch", "epochs", "step_in_epoch", "steps_in_epoch", "learning_rate", "history")
        run = {key: state.get(key) for key in keys}
        run["finished"] = _finished(state)
        run["versions"] = state.get("versions")
    return {
        "kind": "position" if state is None else "checkpoint",
        "path": str(found.path),
        "saved_at": datetime.fromtimestamp(found.saved_at).astimezone().isoformat("T", "seconds"),
        "step": position.step,
        "epoch": position.epoch,
        "step_in_epoch": position.step_in_epoch,
        "epoch_length": position.epoch_length,
        "percent_of_epoch": _percent(position.step_in_epoch, position.epoch_length),
        "records": position.records,
        "ignored": counted_in(position.cursor),
        "bytes": {
            "position": len(position.to_json().encode()),
            "checkpoint": found.bytes,
        },
        "run": _finite(run),
        "checkpoints": [directory.name for directory in found.checkpoints],
        "complaints": list(found.complaints),
        "position": position.to_dict(),
    }


def _finite(value: Any) -> Any:
    """`value` with None for what JSON has no word for: a loss may have become NaN."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(found: Found, console: Console) -> None:
    """The same in words."""
    table = Table.grid(padding=(0, 3, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _lines(found):
        table.add_row(label, Text(printable(text)))
    console.print(Text(printable(_title(found)), style="bold"))
    for complaint in found.complaints:
        console.print(Text(printable(complaint), style="yellow"))
    console.print()
    console.print(table)


def _title(found: Found) -> str:
    if found.state is None:
        return f"{found.path}: a position"
    if len(found.checkpoints) == 1:
        return f"{found.path}: a checkpoint of a Keras run"
    return (
        f"{found.path}: the newest whole one of {len(found.checkpoints)} checkpoints of a Keras run"
    )


def _lines(found: Found) -> list[tuple[str, str]]:
    position, state = found.position, found.state
    lines = [("step", count(position.step, "batch", "batches") + " delivered")]
    if state is not None:
        lines.append(("training", _training(state)))
    data = f"pass {position.epoch + 1}, {_of(position.step_in_epoch, position.epoch_length)}"
    lines.append(("data", data))
    if position.records is not None:
        lines.append(("records", count(position.records, "record") + " seen"))
    if ignored := counted_in(position.cursor):
        lines.append(("left out", count(ignored, "element") + " of this pass"))
    if position.cursor is not None:
        lines.append(("cursor", json.dumps(position.cursor, separators=(",", ":"))))
    if state is not None:
        lines += _learned(state)
    for past in position.lineage:
        until = f"until step {past['until_step']:,}"
        lines += _pipeline(past["pipeline"], f"{until}, another pipeline")
    if position.origin is not None:
        origin = position.origin
        how = f"cut anew at record {origin.record:,}" if origin.places else "at its own beginning"
        lines.append(("entered", f"this pipeline was entered after step {origin.step:,}, {how}"))
    lines += _pipeline(position.pipeline, f"fingerprint {position.pipeline['fingerprint']}")
    lines.append(("saved", _saved(found.saved_at)))
    position_size = f"position {size(len(position.to_json().encode()))}"
    whole = "" if found.bytes is None else f", checkpoint {size(found.bytes)}"
    lines.append(("size", position_size + whole))
    return lines


def _training(state: dict[str, Any]) -> str:
    epochs, epoch = state.get("epochs"), int(state["epoch"])
    if _finished(state):
        stopped = ", stopped by a callback" if state.get("stopped") else ""
        return f"finished: {count(epoch, 'epoch')} of {epochs}{stopped}"
    steps = _of(int(state["step_in_epoch"]), state.get("steps_in_epoch"))
    return f"epoch {epoch + 1} of {epochs}, {steps}"


def _learned(state: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    history = state.get("history") or {}
    last = [f"{name} {values[-1]:.4g}" for name, values in history.items() if values]
    if last:
        lines.append(("last epoch", ", ".join(last)))
    if state.get("learning_rate") is not None:
        lines.append(("learning rate", f"{state['learning_rate']:.4g}"))
    versions = state.get("versions") or {}
    if versions:
        lines.append(("written by", ", ".join(f"{name} {text}" for name, text in versions.items())))
    return lines


def _pipeline(pipeline: dict[str, Any], heading: str) -> list[tuple[str, str]]:
    lines = [heading, *_operations(pipeline["operations"], "")]
    return [("" if k else "pipeline", line) for k, line in enumerate(lines)]


def _operations(operations: list[dict[str, Any]], indent: str) -> list[str]:
    lines = []
    for operation in operations:
        for number, branch in enumerate(operation.get("inputs", ())):
            lines += [f"{indent}[{number}]", *_operations(branch, indent + "  ")]
        shown = [f"{k}={v}" for k, v in operation.items() if k not in _LEFT_OUT and v is not None]
        if operation.get("drawn"):
            shown.append("(drawn)")
        lines.append(f"{indent}{operation['op']:<13} {' '.join(shown)}".rstrip())
    return lines


def _of(done: int, length: int | None) -> str:
    if length is None:
        return f"step {done:,} of an unknown number"
    share = _percent(done, length)
    return f"step {done:,} of {length:,}" + ("" if share is None else f" ({percent(share)})")


def _percent(done: int, length: int | None) -> float | None:
    return round(100 * done / length, 2) if length else None


def _finished(state: dict[str, Any]) -> bool:
    return bool(state.get("stopped")) or int(state["epoch"]) >= int(state["epochs"])


def _saved(at: float) -> str:
    when = datetime.fromtimestamp(at).astimezone()
    return f"{when:%Y-%m-%d %H:%M:%S}, {seconds(max(0.0, time.time() - at))} ago"
