"""Which element stands at which place of a shuffle: a bijection computed, never stored.

Only 64-bit integer arithmetic, so every machine gives the same order, a place costs O(1), and an
order of 10**12 elements needs no memory. Each algorithm has a name, saved in positions, and is
frozen: a better one gets a new name. All arithmetic below is modulo 2**64.

`sort-1`
    The places 0 .. n-1 in ascending order of `mix(key + (i + 1) * GOLDEN)`.
`feistel-1`
    A Feistel network of ten half-rounds over w bits, as many as n - 1 has: the left half is w // 2
    bits wide, the right half the rest. Half-round r replaces one half (left for even r, right for
    odd) by its XOR with the low bits of `mix(other half ^ mix(key + (r + 1) * GOLDEN))`. A result
    >= n goes through again, until it falls in range (cycle walking: Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", CT-RSA 2002).
`window-1`
    Blocks of isqrt(b) neighbours are permuted under `mix(key + GOLDEN)`. In the sequence they make,
    each window w of b consecutive places is permuted under
    `mix(mix(key + 2 * GOLDEN) + (w + 1) * GOLDEN)`. The last block and window may be shorter.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from playhead import kernels

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: the step of splitmix64."""

SORT_LIMIT = 4096
"""The longest permutation made by sorting."""

_WORD = 2**64 - 1
_ROUNDS = 10
_TABLE_BITS = 12  # ten tables of 4096 words: 0.3 ms to make, a third of the time ever after
_PIECE = 2**18  # hashes sorted at once: bounds the memory of many keys
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The 64-bit finaliser of splitmix64, a bijection in which every bit reaches every bit.

    Takes uint64 of any shape and returns a new array. Source: Steele, Lea and Flood, "Fast
    Splittable Pseudorandom Number Generators", OOPSLA 2014; it is MurmurHash3's finaliser with
    Stafford's constants ("variant 13").
    """
    x = np.array(x, np.uint64)
    _mix_in_place(x, np.empty_like(x))
    return x


def mix_int(x: int) -> int:
    """`mix` of one Python int, taken modulo 2**64."""
    x &= _WORD
    for shift, factor in _MIX:
        x = (x ^ x >> shift) * factor & _WORD
    return x ^ x >> 31


def _mix_in_place(x: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    for shift, factor in _MIX:
        np.right_shift(x, shift, out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        np.multiply(x, np.uint64(factor), out=x)
    np.right_shift(x, 31, out=scratch)
    np.bitwise_xor(x, scratch, out=x)


def _stream(key: NDArray[np.uint64], step: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """`mix(key + step * GOLDEN)` for arrays that broadcast."""
    x = key + np.multiply(np.asarray(step, np.uint64), np.uint64(GOLDEN))
    _mix_in_place(x, np.empty_like(x))
    return x


def algorithm(length: int) -> str:
    """The name of what `permute` does for this length: "sort-1" or "feistel-1"."""
    return "sort-1" if length <= SORT_LIMIT else "feistel-1"


def permute(
    index: NDArray[np.int64], length: int, key: int | NDArray[np.uint64]
) -> NDArray[np.int64]:
    """The elements at the places `index` of the permutation of range(length) that `key` chooses.

    `index` is int64[n]; `key` is one 64-bit int, or uint64[n] with a key for each place; `length`
    is at most 2**62. Returns a new int64[n]. Raises IndexError for a place outside range(length).

        >>> permute(np.arange(5), 5, key=7)
        array([1, 0, 4, 3, 2])
    """
    _check(index, length)
    if length > SORT_LIMIT:
        return _feistel(index, length, key)
    if isinstance(key, np.ndarray):
        return _sorted_by_keys(index, length, key)
    return _order(key & _WORD, length)[index]


def _check(index: NDArray[np.int64], length: int) -> None:
    # Seen as unsigned, a negative place is a huge one.
    if index.size and int(index.view(np.uint64).max()) >= length:
        raise IndexError(f"a place is outside range({length})")


def invert(value: int, length: int, key: int) -> int:
    """The place at which `permute` with this length and key puts the element `value`.

    Raises IndexError where `value` is outside range(length).
    """
    if not 0 <= value < length:
        raise IndexError(f"{value} is outside range({length})")
    if length > SORT_LIMIT:
        return _feistel_inverse(value, length, key)
    return int(np.flatnonzero(_order(key & _WORD, length) == value)[0])


def block_size(buffer_size: int) -> int:
    """How many neighbours stay together in "window-1"."""
    return isqrt(buffer_size)


def windowed(
    index: NDArray[np.int64], length: int | None, buffer_size: int, key: int
) -> NDArray[np.int64]:
    """The elements at the places `index` of a shuffle that reads nearly in sequence ("window-1").

    Blocks of isqrt(buffer_size) neighbours are permuted over the epoch; the sequence they make is
    cut into windows of `buffer_size` places, and each is permuted. So a window is read in about
    isqrt(buffer_size) runs of neighbours, and every element stands at exactly one place. An endless
    parent (`length` None) has no epoch to spread its blocks over: there only the windows are
    permuted. A `buffer_size` of 1 changes nothing.

    `index` is int64[n]; returns a new int64[n]. Raises IndexError for a place outside
    range(length).

        >>> windowed(np.arange(8), 8, buffer_size=4, key=7)
        array([6, 7, 5, 4, 0, 3, 1, 2])
    """
    _check(index, 2**63 if length is None else length)
    if buffer_size == 1:
        return index.copy()
    position = _within_windows(index, length, buffer_size, mix_int(key + 2 * GOLDEN))
    if length is None:
        return position
    return _over_blocks(position, length, block_size(buffer_size), mix_int(key + GOLDEN))


def _within_windows(
    index: NDArray[np.int64], length: int | None, size: int, key: int
) -> NDArray[np.int64]:
    window, offset = np.divmod(index, size)
    keys = _stream(np.full(1, key, np.uint64), window.view(np.uint64) + np.uint64(1))
    start = np.multiply(window, size, out=window)
    if length is None or not length % size:
        start += permute(offset, size, keys)
        return start
    # The last window is shorter.
    rest = length % size
    last = start == length - rest
    full = ~last
    start[full] += permute(offset[full], size, keys[full])
    start[last] += permute(offset[last], rest, keys[last])
    return start


def _over_blocks(
    position: NDArray[np.int64], length: int, block: int, key: int
) -> NDArray[np.int64]:
    blocks = -(-length // block)
    missing = blocks * block - length
    if missing:
        # The short last block lands in some slot; what follows it moves up by what it lacks.
        slot = invert(blocks - 1, blocks, key)
        position = position + missing * (position >= (slot + 1) * block - missing)
    slots, offset = np.divmod(position, block)
    element = permute(slots, blocks, key)
    element *= block
    element += offset
    return element


@lru_cache(maxsize=64)
def _order(key: int, length: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = _orders(np.full(1, key, np.uint64), length)[0]
    order.flags.writeable = False
    return order


def _orders(keys: NDArray[np.uint64], length: int) -> NDArray[np.int64]:
    """int64[len(keys), length]: the permutation of each key in a row."""
    hashes = _stream(keys[:, None], np.arange(1, length + 1, dtype=np.uint64))
    # The hashes of one key differ (an odd factor and `mix` are bijections), so any sort will do.
    return hashes.argsort(axis=1)


def _sorted_by_keys(
    index: NDArray[np.int64], length: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    # Keys come in runs (of an epoch, of a window), and few are quicker to tell apart than many.
    begins = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:])
    unique, inverse = np.unique(keys[begins], return_inverse=True)
    row = inverse[np.cumsum(begins) - 1]
    result = np.empty_like(index)
    count = max(1, _PIECE // max(1, length))
    for first in range(0, unique.size, count):
        here = np.flatnonzero((row >= first) & (row < first + count))
        orders = _orders(unique[first : first + count], length)
        result[here] = orders[row[here] - first, index[here]]
    return result


def _widths(length: int) -> tuple[int, int]:
    width = (length - 1).bit_length()
    return width // 2, width - width // 2


def _feistel(
    index: NDArray[np.int64], length: int, key: int | NDArray[np.uint64]
) -> NDArray[np.int64]:
    made = kernels.feistel if kernels.NATIVE else _feistel_in_numpy
    return made(index, length, key)


def _feistel_in_numpy(
    index: NDArray[np.int64], length: int, key: int | NDArray[np.uint64]
) -> NDArray[np.int64]:
    widths = _widths(length)
    x = _encipher(index.view(np.uint64), widths, key)
    outside = np.flatnonzero(x >= length)
    while outside.size:
        walked = _encipher(x[outside], widths, key[outside] if isinstance(key, np.ndarray) else key)
        x[outside] = walked
        outside = outside[walked >= length]
    return x.view(np.int64)


def _encipher(
    x: NDArray[np.uint64], widths: tuple[int, int], key: int | NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """One pass of the network over the whole power of two."""
    left: NDArray[np.uint64] = x >> np.uint64(widths[1])
    right = x & np.uint64((1 << widths[1]) - 1)
    value, scratch = np.empty_like(x), np.empty_like(x)
    tables = None
    if not isinstance(key, np.ndarray) and widths[1] <= _TABLE_BITS:
        tables = _tables(key & _WORD, widths)
    for r in range(_ROUNDS):
        source, target, width = (left, right, widths[1]) if r % 2 else (right, left, widths[0])
        if tables is not None:
            # Every source is in range; "clip" only spares numpy the buffer that "raise" needs.
            np.take(tables[r], source.view(np.int64), out=value, mode="clip")
        else:
            np.bitwise_xor(source, _round_key(key, r), out=value)
            _mix_in_place(value, scratch)
            np.bitwise_and(value, np.uint64((1 << width) - 1), out=value)
        np.bitwise_xor(target, value, out=target)
    left <<= np.uint64(widths[1])
    left |= right
    return left


def _round_key(key: int | NDArray[np.uint64], r: int) -> np.uint64 | NDArray[np.uint64]:
    if isinstance(key, np.ndarray):
        return _stream(key, r + 1)
    return np.uint64(mix_int(key + (r + 1) * GOLDEN))


@lru_cache(maxsize=16)
def _tables(key: int, widths: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """For each half-round what it adds, by the value of the half that it reads."""
    tables = []
    for r in range(_ROUNDS):
        table = np.arange(1 << widths[1 - r % 2], dtype=np.uint64) ^ _round_key(key, r)
        _mix_in_place(table, np.empty_like(table))
        table &= np.uint64((1 << widths[r % 2]) - 1)
        table.flags.writeable = False
        tables.append(table)
    return tuple(tables)


def _feistel_inverse(value: int, length: int, key: int) -> int:
    widths = _widths(length)
    keys = [mix_int(key + (r + 1) * GOLDEN) for r in range(_ROUNDS)]
    x = value
    while True:
        left, right = x >> widths[1], x & (1 << widths[1]) - 1
        for r in reversed(range(_ROUNDS)):
            if r % 2:
                right ^= mix_int(left ^ keys[r]) & (1 << widths[1]) - 1
            else:
                left ^= mix_int(right ^ keys[r]) & (1 << widths[0]) - 1
        x = left << widths[1] | right
        if x < length:
            return x
