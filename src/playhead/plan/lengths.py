"""pack over documents whose lengths are known: every row can be read directly."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from playhead.errors import ElementError, PipelineError
from playhead.plan.batches import read_elements
from playhead.plan.block import Block, Element, Rows
from playhead.plan.cached import Cache, Frozen
from playhead.plan.compute import Chunk, Compute
from playhead.plan.documents import Tokens, row_of
from playhead.plan.elements import Enumerate, Map, note
from playhead.plan.lock import Lock
from playhead.plan.node import UNKNOWN, WINDOW, Node, as_chunk
from playhead.plan.order import Repeat, Shuffle, Slice
from playhead.plan.pack import Pack
from playhead.plan.packed import Packed, Strip
from playhead.plan.places import Cursor, Index, Keyed, Leaf, Located, Places, is_place
from playhead.plan.prefetch import Prefetch

EPOCHS = 4  # whose running sums are kept


class Sums:
    """The running sums of some epochs, lane by lane. Empty again in another process."""

    def __init__(self) -> None:
        self.known: OrderedDict[int, tuple[Index, ...]] = OrderedDict()
        self.lock = Lock()

    def __reduce__(self) -> tuple[type[Sums], tuple[()]]:
        return Sums, ()


@dataclass(frozen=True, eq=False)
class PackByLengths(Pack):
    """Documents one after the other; `lengths` are those of the records of the source that they are made of.

    Seekable where every epoch has equally many rows. Elsewhere a stream, whose cursor is a place all the same.
    """

    lengths: Index

    sums: Sums = field(default_factory=Sums, kw_only=True)

    def __post_init__(self) -> None:
        Pack.__post_init__(self)
        if self.method != "concat":
            raise PipelineError(
                f'pack(lengths=...) is for method="concat": where {self.method} puts a document depends '
                "on all before it"
            )
        help = "without lengths, pack takes any dataset"
        if not self.parent.seekable or self.parent.length is None:
            what = "a stream" if not self.parent.seekable else "endless"
            raise PipelineError(f"pack(lengths=...): these documents are {what}", help=help)
        leaf = leaf_of(self.parent.locate(Places(0, np.empty(0, np.int64))))
        if leaf is None:
            raise PipelineError(
                "pack(lengths=...): a document has to be made of one record of one source",
                help=f"only maps and operations on the order may come before; {help}",
            )
        if len(self.lengths) != leaf.source.cardinality:
            raise PipelineError(
                f"pack: {len(self.lengths)} lengths for a source of {leaf.source.cardinality} records"
            )

    @cached_property
    def seekable(self) -> bool:
        same = has_same_order if self.lanes > 1 else has_same_records
        return same(self.parent)

    @property
    def cardinality(self) -> int:
        return self.rows(0) if self.seekable or not self.parent.length else UNKNOWN

    @cached_property
    def weight(self) -> int:
        total = max(1, int(self.lengths.sum()))
        return 1 + -(-self.size * len(self.lengths) // total)

    @cached_property
    def content(self) -> str:
        return hashlib.blake2b(self.lengths.astype("<i8").tobytes(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"lengths": self.content}

    # --- where documents end ----------------------------------------------------------------------------

    def ends(self, epoch: int) -> tuple[Index, ...]:
        """For each lane, where each of its documents ends among the lane's tokens in that epoch."""
        epoch = 0 if has_same_order(self.parent) else epoch
        known = self.sums.known
        with self.sums.lock:
            if epoch not in known:
                known[epoch] = self._ends(epoch)
            known.move_to_end(epoch)
            while len(known) > EPOCHS:
                known.popitem(last=False)
            return known[epoch]

    def _ends(self, epoch: int) -> tuple[Index, ...]:
        count = self.parent.length
        assert count is not None
        sizes = np.empty(count, np.int64)
        for start in range(0, count, WINDOW):
            index = np.arange(start, min(start + WINDOW, count), dtype=np.int64)
            leaf = leaf_of(self.parent.locate(Places(epoch, index)))
            assert leaf is not None
            sizes[index] = self.lengths[leaf.places.index]
        return tuple(np.cumsum(sizes[lane :: self.lanes]) for lane in range(self.lanes))

    def rows(self, epoch: int) -> int:
        """How many rows that epoch has."""
        totals = [int(ends[-1]) if len(ends) else 0 for ends in self.ends(epoch)]
        last = [
            (-(-total // self.size) - 1) * self.lanes + lane
            for lane, total in enumerate(totals)
            if total
        ]
        return max(last, default=-1) + 1

    @property
    def countable(self) -> bool:
        return has_same_order(self.parent)

    def count_records(self, index: int) -> int:
        return int(self._ended(0, np.array([index], np.int64))[0])

    def _ended(self, epoch: int, index: Index) -> Index:
        """How many documents end in the first `index` rows."""
        count = np.zeros_like(index)
        for lane, ends in enumerate(self.ends(epoch)):
            rows = (index - lane + self.lanes - 1) // self.lanes
            count += _ended(ends, rows * self.size)
        return count

    # --- jumping ----------------------------------------------------------------------------------------

    def locate(self, places: Places) -> Located:
        lane = places.index % self.lanes
        epochs, which = np.unique(places.epochs(), return_inverse=True)
        kinds, strip = np.unique(which * self.lanes + lane, return_inverse=True)
        strip, rank, strips = strip.astype(np.int64), np.empty_like(places.index), []
        for number, kind in enumerate(kinds.tolist()):
            here = np.flatnonzero(strip == number)
            rank[here] = np.arange(len(here))
            epoch, own = divmod(kind, self.lanes)
            strips.append(self._strip(int(epochs[epoch]), own, places.index[here] // self.lanes))
        return Packed(strip, rank, tuple(strips))

    def _strip(self, epoch: int, lane: int, rows: Index) -> Strip:
        ends = self.ends(epoch)[lane]
        starts, stops = rows * self.size, (rows + 1) * self.size
        first = _ended(ends, starts)
        until = np.minimum(np.searchsorted(ends, stops, side="left") + 1, len(ends))
        counts = until - first
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        row = np.repeat(np.arange(len(rows)), counts)
        document = first[row] + np.arange(offsets[-1]) - offsets[row]
        end = ends[document]
        begin = np.where(document > 0, ends[document - 1], 0)
        new = np.ones(len(document), bool)
        new[1:] = document[1:] != document[:-1]
        places = Places(epoch, document[new] * self.lanes + lane)
        return Strip(
            offsets,
            np.cumsum(new) - 1,
            np.maximum(begin, starts[row]) - begin,
            np.minimum(end, stops[row]) - begin,
            end - begin,
            Keyed(places, self.parent.locate(places)),
        )

    def read(self, located: Located) -> Block:
        assert isinstance(located, Packed)
        made = [self._read(strip) for strip in located.strips]
        pairs = zip(located.strip.tolist(), located.rank.tolist(), strict=True)
        return Rows([made[strip][rank] for strip, rank in pairs])

    def _read(self, strip: Strip) -> list[Element]:
        inner = strip.inner
        documents: list[Tokens] = []
        if len(inner):
            sizes = dict(zip(strip.which.tolist(), strip.size.tolist(), strict=True))
            for k, document in enumerate(read_elements(self.parent, inner.inner).rows()):
                documents.append(self._declared(document, sizes[k], inner.slice(k, k + 1)))
        bounds, rows = strip.offsets.tolist(), []
        which, lows, highs = strip.which.tolist(), strip.low.tolist(), strip.high.tolist()
        for k in range(len(strip)):
            chosen = [p for p in range(bounds[k], bounds[k + 1]) if lows[p] < highs[p]]

            def explain(k: int, error: Exception, chosen: list[int] = chosen) -> None:
                number = which[chosen[k]]
                self._note(error, inner.slice(number, number + 1))

            like = documents[which[chosen[0]]] if chosen else self._like
            parts = [(documents[which[p]], lows[p], highs[p]) for p in chosen]
            rows.append(row_of(self.size, like, parts, explain))
        return rows

    def _declared(self, document: Element, size: int, inner: Keyed) -> Tokens:
        tokens = self.tokens(document, inner.places.at(0), lambda: list(inner.records()))
        real = len(next(iter(tokens.values())))
        if real != size:
            error = ElementError(f"pack: a document has {real} tokens, and `lengths` says {size}")
            self._note(error, inner)
            raise error
        return tokens

    def _note(self, error: Exception, inner: Keyed) -> None:
        note(error, self, inner.places.at(0), list(inner.records()))

    @cached_property
    def _like(self) -> Tokens:
        """The first document: rows of padding are like it."""
        return self.tokens(self.parent.firsts(1)[0], (0, 0), list)

    # --- walking ----------------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return [epoch, 0]

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        return is_place(cursor) and cursor[0] == epoch and bool(cursor[1] <= self.rows(epoch))

    def open(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, row = cursor
        for piece, block in compute.read(self, [(epoch, row, self.rows(epoch))]):
            index = np.arange(piece.start, piece.start + len(piece) + 1, dtype=np.int64)
            counts = np.diff(self._ended(epoch, index))
            yield replace(as_chunk(self, piece, block, counted=False), records=counts)


def _ended(ends: Index, tokens: Index) -> Index:
    """How many documents end within the first `tokens` tokens. Empty ones end with the next token."""
    found = np.searchsorted(ends, tokens, side="left")
    at_end = np.append(ends, -1)[found] == tokens
    return np.where(tokens > 0, found + at_end, 0)


def leaf_of(located: Located) -> Leaf | None:
    """The records that elements are made of, one each; None where that cannot be told."""
    while isinstance(located, Keyed | Frozen):
        located = located.inner
    return located if isinstance(located, Leaf) else None


def has_same_order(node: Node) -> bool:
    """Whether every epoch has the same records in the same order."""
    return _has_same_order(node, set())


def _has_same_order(node: Node, sound: set[int]) -> bool:
    """`sound`: those that are known to."""
    if not node.parents or isinstance(node, Cache) or id(node) in sound:
        return True
    fixed = isinstance(node, Map) or (isinstance(node, Shuffle) and not node.reshuffle)
    if node.random is not None and not fixed:
        return False
    sound.add(id(node))  # unless one of its parents is not: then nobody asks any more
    return all(_has_same_order(parent, sound) for parent in node.parents)


def has_same_records(node: Node) -> bool:
    """Whether every epoch has the same records, in whatever order."""
    if has_same_order(node):
        return True
    keeps_all = isinstance(node, Shuffle | Map | Prefetch | Repeat | Enumerate) or (
        isinstance(node, Slice) and node.cardinality == node.parent.cardinality
    )
    return keeps_all and has_same_records(node.parent)


def lengths_of(lengths: Any) -> Index:
    """int64[n]. Raises `PipelineError` for anything but whole numbers, none of them negative."""
    array = np.asarray(lengths)
    if array.ndim == 1 and not array.size:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        raise PipelineError("pack: lengths are whole numbers, one for each record of the source")
    return array.astype(np.int64)
