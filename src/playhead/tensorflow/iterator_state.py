"""tf.data's own iterator state, saved now and then while a pipeline is walked."""

from __future__ import annotations

import base64
import hashlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from playhead.errors import PipelineError, UnreadablePosition
from playhead.plan.places import Cursor, is_count, is_place

EVERY = 1.0  # seconds between two
SHARE = 0.03  # of the time, at most, goes into them
LIMIT = 256 << 20  # bytes of a state
KEPT = 4  # read-ahead asks for cursors before the newest one

_TEXTS = ("state", "digest", "content", "tensorflow")
_IGNORE = 1  # serialize what is stateful, too: what matters of it was refused before


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an iterator after `taken` elements, in base64; the pipeline and the TensorFlow it is of.

    digest: of the state, without which TensorFlow would read a damaged one wrongly, or crash.
    """

    taken: int
    state: str
    digest: str
    content: str
    version: str

    @classmethod
    def made(cls, taken: int, state: bytes, content: str) -> Snapshot:
        text = base64.b64encode(state).decode()
        return cls(taken, text, _digest(text), content, str(tf.__version__))

    @classmethod
    def of(cls, cursor: dict[str, Any]) -> Snapshot:
        return cls(cursor["taken"], *(cursor[name] for name in _TEXTS))

    def cursor(self, at: list[int]) -> Cursor:
        return {
            "at": at,
            "taken": self.taken,
            "state": self.state,
            "digest": self.digest,
            "content": self.content,
            "tensorflow": self.version,
        }

    def fits(self, content: str) -> bool:
        """Whether it is of the pipeline with this digest, which may be another by `override=`."""
        return (self.content, self.version) == (content, str(tf.__version__))

    def restore(self, iterator: Any) -> None:
        """Bring a fresh iterator to where this was saved. Raises `UnreadablePosition`."""
        try:
            if _digest(self.state) != self.digest:
                raise ValueError("it was damaged after it was saved")
            with tf.init_scope(), tf.device("/CPU:0"):
                state = tf.io.parse_tensor(base64.b64decode(self.state, validate=True), tf.variant)
                tf.raw_ops.DeserializeIterator(
                    resource_handle=iterator._iterator_resource, serialized=state
                )
        except (ValueError, tf.errors.OpError) as error:
            raise UnreadablePosition(
                "the state of the tf.data iterator in the position cannot be restored: "
                f"{getattr(error, 'message', error)}",
                help='take an earlier position; with state="skip" positions hold no such state',
            ) from error


def is_snapshot(cursor: dict[str, Any]) -> bool:
    """Whether a cursor is what `Snapshot.cursor` gives."""
    return (
        is_place(cursor.get("at"))
        and is_count(cursor.get("taken"))
        and 0 < cursor["taken"] <= cursor["at"][1]
        and all(isinstance(cursor.get(name), str) for name in _TEXTS)
    )


def _digest(state: str) -> str:
    return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()


class Snapshots:
    """The newest states of an iterator that is walked, over the pipeline with the digest `content`."""

    def __init__(self, iterator: Any, content: str, first: Snapshot | None) -> None:
        self._iterator, self._content = iterator, content
        self._kept: deque[Snapshot] = deque([] if first is None else [first], maxlen=KEPT)
        self._next = time.perf_counter() + EVERY

    def look(self, taken: int) -> None:
        """Save the state after `taken` elements, where it is time to."""
        began = time.perf_counter()
        if began < self._next:
            return
        state = serialized(self._iterator)
        self._kept.append(Snapshot.made(taken, state, self._content))
        now = time.perf_counter()
        self._next = now + max(EVERY, (now - began) / SHARE)

    def latest(self, index: int) -> Snapshot | None:
        """The newest state that is kept of after `index` elements or fewer; None: replay from the beginning."""
        return next((kept for kept in reversed([*self._kept]) if kept.taken <= index), None)


def serialized(iterator: Any) -> bytes:
    """The state of an iterator. Raises `PipelineError` for more than LIMIT bytes."""
    with tf.init_scope(), tf.device("/CPU:0"):
        state = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource, external_state_policy=_IGNORE
        )
        text: bytes = tf.io.serialize_tensor(state).numpy()
    if len(text) > LIMIT:
        raise PipelineError(
            f"the state of the tf.data iterator is {len(text) >> 20} MB, and a position holds "
            f"{LIMIT >> 20} MB of it at most: shuffle and prefetch buffers and caches are in it",
            help='from_tf(ds, state="skip") keeps none; or move the shuffle into playhead',
        )
    return text


def require_snapshots(iterator: Any) -> None:
    """Raises `PipelineError` where TensorFlow cannot save the state of an iterator, with its reason."""
    try:
        serialized(iterator)
    except (tf.errors.OpError, ValueError) as error:
        raise PipelineError(
            'from_tf(state="iterator"): TensorFlow cannot save this pipeline: '
            f"{getattr(error, 'message', error)}",
            help='state="skip" counts elements instead, and needs nothing saved',
        ) from error
