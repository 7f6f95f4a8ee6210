"""A tf.data iterator that carries what Python gives into graphs, and ends before Python does.

TensorFlow tells a generator of its end when the iterator over it is freed. Where functions hold that until
after Python's own end, telling it fails, which TensorFlow prints as an error.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from playhead.plan.living import Living

Pull = Callable[[], tuple[Any, ...]]


class Carrier:
    """Calls `pull` for each element; it must not keep this object alive. Nothing is read ahead."""

    def __init__(self, pull: Pull, signature: Any) -> None:
        self._source = _Source(pull)
        self._process = os.getpid()
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = 1
        made = tf.data.Dataset.from_generator(self._source, output_signature=signature)
        self.iterator: tf.data.Iterator = iter(made.with_options(options))
        _open.add(self)

    def end(self) -> None:
        """Let the generator end, unless somebody waits for it right now, or in another process."""
        if self._source.busy or self._process != os.getpid():
            return
        self._source.over = True
        with tf.init_scope(), contextlib.suppress(tf.errors.OpError):
            self.iterator.get_next()


class _Source:
    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self.busy = self.over = False

    def __call__(self) -> _Source:
        return self

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> tuple[Any, ...]:
        if self.over:
            raise StopIteration
        self.busy = True
        try:
            return self._pull()
        finally:
            self.busy = False


_open: Living[Carrier] = Living()


def _end_all() -> None:
    for carrier in _open:
        carrier.end()


atexit.register(_end_all)
