"""What can only be walked: Kafka, and pipelines of tf.data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from playhead.readers.reader import Reader, info_here

if TYPE_CHECKING:
    import tensorflow as tf


class Streams(Reader):
    """The constructors of `Dataset` that read streams."""

    __slots__ = ()

    @classmethod
    def from_kafka(
        cls,
        topics: str | Sequence[str],
        *,
        bootstrap_servers: str | Sequence[str],
        until: Any = None,
        start: Any = "beginning",
        order: Literal["round_robin", "arrival"] = "round_robin",
        on_gap: Literal["error", "accept"] = "error",
        patience: float = 60.0,
        config: Mapping[str, Any] | None = None,
        fields: Sequence[str] = ("key", "value", "timestamp", "topic", "partition", "offset"),
        name: str | None = None,
    ) -> Self:
        """The messages of Kafka topics. A stream; offsets live in the position, and none is committed.

        An element is a dict of `fields`: `key` and `value` (bytes, or None), `timestamp` (int64, milliseconds
        since 1970), `topic` (str), `partition` (int32), `offset` (int64); where asked for also `headers`
        (object array (n, 2) of names and values: `dict(headers)`, or a loop over pairs) and `timestamp_type`
        (int32, as confluent-kafka numbers them: 1 when it was made, 2 when the broker took it).

        start, until: where each partition begins and ends. "beginning" and "end", a dict of offsets by
        (topic, partition) or, of one topic, by partition, or a time (a datetime with its zone, or
        milliseconds since 1970: the first message at or after it). They are found out when the first pass
        begins and are part of the position from then on, so that what was resumed, and every later pass,
        has the same range. `until=None` has no end, and notices partitions that are added.
        order: "round_robin" takes one message of each partition in turn, the same on every walk of a range
        with an end. "arrival" takes them as they come, each exactly once.
        on_gap: what retention has removed before it was read is `MessagesGone`, or is passed over and written
        into the position ("accept").
        patience: seconds without any broker after which `SourceError` is raised. config: more settings of
        the client, such as those for security.

        Needs `playhead[kafka]`. Raises `PipelineError`; when read, `MissingSource` for a topic not there.

        >>> import playhead as ph
        >>> ds = ph.Dataset.from_kafka("clicks", bootstrap_servers="localhost:9092", until="end")
        >>> ds.map(lambda message: message["value"]).batch(32).seekable
        False
        """
        from playhead.sources.kafka.messages import messages

        node = messages(
            topics,
            bootstrap_servers,
            start=start,
            until=until,
            order=order,
            on_gap=on_gap,
            patience=patience,
            config=config,
            fields=fields,
        )
        return cls(replace(node, info=info_here(name)))

    @classmethod
    def from_tf(
        cls,
        tf_dataset: tf.data.Dataset,
        *,
        state: Literal["skip", "iterator"] = "skip",
        name: str | None = None,
    ) -> Self:
        """An existing `tf.data.Dataset`, unchanged, as a source. A stream; leaves become numpy arrays.

        Pass e is what iterating `tf_dataset` for the (e + 1)-th time gives in a fresh process, however often
        it was iterated in this one.
        state: "skip" counts elements; resuming takes and drops what came before, inside TensorFlow, and says
        how long that took. "iterator" also keeps tf.data's own iterator state, saved about every second (its
        shuffle and prefetch buffers and caches are in it, up to 256 MB), so that resuming drops little.

        Raises `PipelineError` for a shuffle without a seed (unless "iterator"), for
        `deterministic=False`, for RaggedTensor and SparseTensor leaves, and for "iterator" where TensorFlow
        cannot save the state; `UnrepeatableFunction` for stateful random operations. Variables keep the values
        they have now. What files hold, and Python code in it, is not part of the description.

        >>> import playhead as ph
        >>> import tensorflow as tf
        >>> ds = ph.Dataset.from_tf(tf.data.Dataset.range(10).shuffle(10, seed=1).batch(4))
        >>> it = ds.iterator(epochs=2)
        >>> next(it).shape, it.position.cursor
        ((4,), [0, 1])
        """
        from_tf = importlib.import_module("playhead.tensorflow.pipeline").from_tf
        return cls(replace(from_tf(tf_dataset, state), info=info_here(name)))
