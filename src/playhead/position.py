"""The position of a run in its data: what is saved."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playhead.errors import NewerFormat, UnreadablePosition

FORMAT = 1
MAX_EPOCH = 1 << 31


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a pipeline was entered other than at its beginning.

    `step` and `records` were delivered before. `places` and `record` say where its batches were cut anew
    (by record); without them the pipeline began there at its own beginning (from here).
    """

    step: int
    records: int | None
    places: tuple[tuple[int, int], ...] = ()
    record: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The origin as JSON values."""
        return {
            "step": self.step,
            "records": self.records,
            "places": [list(place) for place in self.places],
            "record": self.record,
        }

    @classmethod
    def from_dict(cls, said: Any) -> Origin:
        """The inverse of `to_dict`. Raises `UnreadablePosition`."""
        if not _is_origin(said):
            raise UnreadablePosition("the position's origin is damaged")
        places = tuple((epoch, index) for epoch, index in said["places"])
        return cls(said["step"], said["records"], places, said["record"])


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a run's data, complete in itself.

    step: elements delivered since the beginning. epoch, step_in_epoch: which pass, and how many of it;
    after an epoch's last element `step_in_epoch` is the epoch's length. records: source records delivered,
    None where that cannot be counted. cursor: JSON, None for a seekable pipeline. pipeline: the
    fingerprint and operations. epoch_length: steps in this epoch, None where unknown or endless.
    lineage: [{"until_step", "pipeline"}] of the pipelines that came before (`on_change="from_here"`), with
    the "origin" of those that had one.
    """

    step: int
    epoch: int
    step_in_epoch: int
    records: int | None
    cursor: Any
    pipeline: dict[str, Any]
    epoch_length: int | None = None
    origin: Origin | None = None
    lineage: tuple[dict[str, Any], ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The position as JSON values."""
        said: dict[str, Any] = {
            "playhead": FORMAT,
            "step": self.step,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "records": self.records,
            "cursor": self.cursor,
            "epoch_length": self.epoch_length,
            "pipeline": self.pipeline,
        }
        if self.origin is not None:
            said["origin"] = self.origin.to_dict()
        if self.lineage:
            said["lineage"] = list(self.lineage)
        return json.loads(json.dumps(said))  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Raises `UnreadablePosition` for anything but a position, `NewerFormat` for a later format."""
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreadablePosition(f"this is not JSON: {error}") from None
        return cls.from_dict(said)

    @classmethod
    def from_dict(cls, said: Any) -> Position:
        """The inverse of `to_dict`; `said` is not kept."""
        if not isinstance(said, dict) or "playhead" not in said:
            raise UnreadablePosition(
                'a position is a JSON object with "playhead" in it',
                help="save it.position.to_json(), or it.state_dict()",
            )
        if not _is_count(said["playhead"]) or not said["playhead"]:
            raise UnreadablePosition(f"the format number is {said['playhead']!r}")
        if said["playhead"] > FORMAT:
            raise NewerFormat(
                f"the position has format {said['playhead']}, this playhead reads up to {FORMAT}",
                help="upgrade playhead",
            )
        try:
            said = json.loads(json.dumps(said))
            intact = _is_position(said)
        except (TypeError, ValueError, RecursionError) as error:
            raise UnreadablePosition(f"the position is not JSON: {error}") from None
        if not intact:
            raise UnreadablePosition("parts of the position are missing or damaged")
        origin = said.get("origin")
        return cls(
            step=said["step"],
            epoch=said["epoch"],
            step_in_epoch=said["step_in_epoch"],
            records=said.get("records"),
            cursor=said.get("cursor"),
            pipeline=said["pipeline"],
            epoch_length=said.get("epoch_length"),
            origin=None if origin is None else Origin.from_dict(origin),
            lineage=tuple(said.get("lineage", ())),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to `path` atomically: a kill at any moment leaves the old file or the new one."""
        write_atomically(Path(path), self.to_json().encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Position:
        """Read what `save` wrote."""
        return cls.from_json(Path(path).read_bytes())


def _is_position(said: dict[str, Any]) -> bool:
    lineage = said.get("lineage", [])
    return (
        all(_is_count(said.get(key)) for key in ("step", "epoch", "step_in_epoch"))
        and said["epoch"] < MAX_EPOCH
        and all(_is_count_or_none(said.get(key)) for key in ("records", "epoch_length"))
        and _is_pipeline(said.get("pipeline"))
        and isinstance(lineage, list)
        and all(_is_past(part) for part in lineage)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_pipeline(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("fingerprint"), str):
        return False
    return _are_operations(value.get("operations"))


def _are_operations(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(op, dict) and isinstance(op.get("op"), str) and _are_inputs(op.get("inputs", []))
        for op in value
    )


def _are_inputs(value: Any) -> bool:
    return isinstance(value, list) and all(_are_operations(branch) for branch in value)


def _is_past(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_count(value.get("until_step"))
        and _is_pipeline(value.get("pipeline"))
        and ("origin" not in value or _is_origin(value["origin"]))
    )


def _is_origin(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_count(value.get("step"))
        and "records" in value
        and _is_count_or_none(value["records"])
        and isinstance(value.get("places"), list)
        and all(_is_place(place) for place in value["places"])
        and _is_count(value.get("record"))
    )


def _is_place(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_count(part) for part in value)


def write_atomically(path: Path, content: bytes) -> None:
    """A temporary file beside `path`, fsync, rename, fsync of the directory.

    Its mode is what `open(path, "wb")` would have left: that of the file that was there, else the umask's.
    """
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory last, where the platform can."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
