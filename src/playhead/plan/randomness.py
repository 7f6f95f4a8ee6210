"""Random numbers as a function of (seed, operation, epoch, place), the same in any worker.

A key names an operation in a run: a blake2b hash. Below it numbers are counted, never carried over,
so there is no hidden state to save: Philox for generators (Salmon, Moraes, Dror and Shaw, "Parallel
Random Numbers: As Easy as 1, 2, 3", SC 2011), `mix` for pairs of seeds.

The bytes hashed into a key: for each of seed, kind, ordinal and the parts, in this order, one tag
byte, the payload's length (uint32, little-endian), the payload. An int has the tag `i` and is in
two's complement, little-endian, `bit_length() // 8 + 1` bytes. A str has the tag `s` and is in
UTF-8. The digest, of 8 bytes for `key` and 16 for `wide_key`, is read little-endian; its size is
part of what blake2b hashes, so the two are unrelated.
"""

from __future__ import annotations

import secrets
import threading
from hashlib import blake2b
from operator import index as as_int
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from playhead.plan.permutation import GOLDEN, mix

_WORD = 2**64 - 1


def key(seed: int, kind: str, ordinal: int, *parts: int) -> int:
    """A 64-bit int for operation number `ordinal` of its `kind`; `parts` tell apart its epochs.

    Takes ints of any size and sign. (seed 0, epoch 1) is unlike (seed 1, epoch 0).

        >>> key(42, "shuffle", 0, 3) == key(42, "shuffle", 3, 0)
        False
    """
    return int.from_bytes(_digest(8, seed, kind, ordinal, parts), "little")


def wide_key(seed: int, kind: str, ordinal: int, *parts: int) -> int:
    """As `key`, 128 bits: the key of a Philox generator."""
    return int.from_bytes(_digest(16, seed, kind, ordinal, parts), "little")


def _digest(size: int, seed: int, kind: str, ordinal: int, parts: tuple[int, ...]) -> bytes:
    name = kind.encode()
    message = [_encoded(seed), b"s", len(name).to_bytes(4, "little"), name]
    message += [_encoded(number) for number in (ordinal, *parts)]
    return blake2b(b"".join(message), digest_size=size).digest()


def _encoded(number: int) -> bytes:
    number = as_int(number)
    size = number.bit_length() // 8 + 1
    return b"i" + size.to_bytes(4, "little") + number.to_bytes(size, "little", signed=True)


class _Key(ISeedSequence):
    """Hands its two words to Philox as they are.

    `Philox(key=...)` also makes a SeedSequence from the operating system's entropy, from which
    `Generator.spawn` would draw numbers that nobody can repeat. Here `spawn` raises TypeError.
    """

    def __init__(self, wide: int) -> None:
        self.words = np.array([wide & _WORD, wide >> 64], np.uint64)

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        if n_words != 2 or np.dtype(dtype) != np.uint64:
            raise ValueError("a Philox key is two uint64 words")
        return self.words


class _Slot(threading.local):
    """One thread's generator, and the state that rewinds it."""

    def __init__(self, wide: int) -> None:
        self.counter = [0, 0, 0, 0]
        # numpy takes any seed sequence, and a state of ints; its stubs know neither.
        self.state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self.counter, "key": [wide & _WORD, wide >> 64]},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        seed: Any = _Key(wide)
        self.bits = Philox(seed)
        self.generator = Generator(self.bits)


class Draws:
    """The generators of one random operation: under a 128-bit key, 2**128 draws for each element.

    One instance serves any number of threads at once, and can be pickled.

        >>> draws = Draws(wide_key(42, "map", 0))
        >>> draws.at(epoch=0, index=7).random() == draws.at(epoch=0, index=7).random()
        True
    """

    def __init__(self, wide: int) -> None:
        self._wide = wide
        self._slot = _Slot(wide)

    def __reduce__(self) -> tuple[type[Draws], tuple[int]]:
        return Draws, (self._wide,)

    def at(self, epoch: int, index: int) -> Generator:
        """The generator of the element at (epoch, index), both in range(2**64), at its beginning.

        It is valid until this thread's next call of `at`, which resets the same object: a tenth of
        the time of building one. Its numbers are those of
        `Generator(Philox(key=wide, counter=words))` with the uint64 words 0, 0, index, epoch.
        Raises OverflowError outside the range.
        """
        slot = self._slot
        slot.counter[2:] = index, epoch
        # Sets the buffer and the spare 32 bits too, so nothing of the element before is left.
        slot.bits.state = slot.state
        return slot.generator


def generator(wide: int, epoch: int, index: int) -> Generator:
    """The generator that `Draws(wide).at(epoch, index)` gives, as an object of its own."""
    return Draws(wide).at(epoch, index)


def seed_pair(rng: Generator) -> NDArray[np.int32]:
    """int32[2] drawn from `rng`: a seed for the `tf.random.stateless_*` functions."""
    return rng.integers(-(2**31), 2**31, size=2, dtype=np.int32)


def seed_pairs(
    wide: int, epochs: NDArray[np.int64] | int, indices: NDArray[np.int64]
) -> NDArray[np.int32]:
    """int32[n, 2]: for each (epoch, index) a seed for the `tf.random.stateless_*` functions.

    `indices` is int64[n], `epochs` the same or one int, `wide` a 128-bit key of words low and high.
    With e = (epoch + 1) * GOLDEN, a pair is the low and the high 32 bits of
    `mix(mix((index + 1) * GOLDEN + mix(low + e)) ^ mix(high + e))`, modulo 2**64, so the seeds of
    one epoch all differ. They are not those that `seed_pair` draws from `Draws.at`.
    """
    pairs = words(wide, epochs, indices)
    return pairs.astype("<u8").view("<i4").reshape(-1, 2).astype(np.int32, copy=False)


def draw_seed() -> int:
    """A fresh seed of 63 bits from the operating system."""
    return secrets.randbits(63)


def uniform(
    wide: int, epochs: NDArray[np.int64] | int, indices: NDArray[np.int64]
) -> NDArray[np.float64]:
    """float64[n] in [0, 1): for each (epoch, index) a number of its own; see `words`."""
    return (words(wide, epochs, indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def words(
    wide: int, epochs: NDArray[np.int64] | int, indices: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """uint64[n]: the 64 bits of which `seed_pairs` makes its pairs, low ones first."""
    epoch = (np.atleast_1d(epochs).astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    place = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    place += mix(epoch + np.uint64(wide & _WORD))
    return mix(mix(place) ^ mix(epoch + np.uint64(wide >> 64)))
