"""A sample of a tar file as an element: a dict of its key and of what each of its members holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from playhead.errors import UnparsableRecord
from playhead.plan.block import Element
from playhead.sources.tar.extensions import ByExtension, Unreadable
from playhead.sources.tar.members import Member, split

KEY = "__key__"


def as_sample(
    found: Sequence[Member],
    data: Callable[[Member], bytes],
    decoding: ByExtension,
    path: str,
    number: int,
) -> Element:
    """The element that members of one key are. Raises `UnparsableRecord`."""
    parts = [split(member.name) or ("", "") for member in found]
    sample: dict[str, Any] = {KEY: parts[0][0]}
    for member, (key, extension) in zip(found, parts, strict=True):
        if extension in sample:
            raise _wrong(
                path,
                number,
                member,
                f"a second .{extension} of sample {key!r}",
                "write the archive again with one member of each extension in a sample",
            )
        try:
            sample[extension] = decoding.element(extension, data(member))
        except Unreadable as error:
            raise _wrong(path, number, member, error.reason, error.help) from error.__context__
    return sample


def _wrong(path: str, number: int, member: Member, reason: str, help: str) -> UnparsableRecord:
    return UnparsableRecord(
        f"{path}, sample {number}, member {member.name!r} at byte {member.offset}: {reason}",
        help=f"{help}; ignore_errors() leaves such samples out",
        file=path,
        record=number,
        member=member.name,
        offset=member.offset,
        reason=reason,
    )
