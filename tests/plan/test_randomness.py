import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, Philox

from playhead.plan.permutation import GOLDEN, mix_int
from playhead.plan.randomness import (
    Draws,
    draw_seed,
    generator,
    key,
    seed_pair,
    seed_pairs,
    wide_key,
)

WIDE = 0x0123456789ABCDEF_FEDCBA9876543210


def fresh(epoch, index, wide=WIDE):
    """The definition: numpy's own Philox, started at the element's counter."""
    return Generator(Philox(key=wide, counter=np.array([0, 0, index, epoch], np.uint64)))


# Keys


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((42, "map", 0), b"i\1\0\0\0\x2a" b"s\3\0\0\0map" b"i\1\0\0\0\0"),
        ((-1, "", 128), b"i\1\0\0\0\xff" b"s\0\0\0\0" b"i\2\0\0\0\x80\0"),
        ((0, "é", 0, 255), b"i\1\0\0\0\0" b"s\2\0\0\0\xc3\xa9" b"i\1\0\0\0\0" b"i\2\0\0\0\xff\0"),
        ((-256, "map", 0), b"i\2\0\0\0\0\xff" b"s\3\0\0\0map" b"i\1\0\0\0\0"),
        ((2**64, "map", 1), b"i\x09\0\0\0\0\0\0\0\0\0\0\0\1" b"s\3\0\0\0map" b"i\1\0\0\0\1"),
    ],
)  # fmt: skip
def test_a_key_is_the_hash_of_the_documented_bytes(arguments, message):
    for function, size in ((key, 8), (wide_key, 16)):
        digest = blake2b(message, digest_size=size).digest()
        assert function(*arguments) == int.from_bytes(digest, "little")


def test_keys_are_those_of_the_first_release():
    assert key(42, "shuffle", 0, 3) == 3843103505506823964
    assert wide_key(42, "map", 1) == 259426137443791762333049359441364130895


def test_seed_0_in_epoch_1_is_unlike_seed_1_in_epoch_0():
    arguments = itertools.product(range(-4, 5), ["map", "shuffle"], range(9), range(9))
    keys = [function(*a) for a in arguments for function in (key, wide_key)]
    assert len(set(keys)) == len(keys) == 2 * 9 * 2 * 9 * 9


@given(st.lists(st.integers(), max_size=3), st.lists(st.integers(), max_size=3), st.integers())
def test_different_parts_give_different_keys(one, other, seed):
    assert (key(seed, "map", 0, *one) == key(seed, "map", 0, *other)) == (one == other)


def test_an_int_of_numpy_is_the_int():
    assert key(np.int64(-3), "map", np.uint8(200), np.int32(7)) == key(-3, "map", 200, 7)


# Draws


def everything(rng):
    """Some of each kind of number, in odd amounts, so that spare bits are left over."""
    return (
        rng.integers(0, 2**32, 3, np.uint32).tolist(),
        rng.random(),
        rng.standard_normal(5).tolist(),
        rng.integers(0, 1000, 3).tolist(),
        rng.permutation(7).tolist(),
        rng.random(3, np.float32).tolist(),
        rng.binomial(10, 0.3),
        rng.integers(0, 2**32, dtype=np.uint32),
    )


def test_an_element_draws_from_philox_at_its_own_counter():
    draws = Draws(WIDE)
    for epoch, index in [(0, 0), (0, 1), (1, 0), (7, 2**40), (2**64 - 1, 2**64 - 1)]:
        assert everything(draws.at(epoch, index)) == everything(fresh(epoch, index))
        assert everything(generator(WIDE, epoch, index)) == everything(fresh(epoch, index))


def test_draws_are_those_of_the_first_release():
    raw = Draws(WIDE).at(epoch=3, index=5).bit_generator.random_raw(5)
    assert raw.tolist() == [
        15215877391124276747,
        11692820184226097649,
        13143901403397145593,
        2359184081155048318,
        367793547275927819,
    ]


def philox_block(counter, words):
    """Philox4x64-10 as in the paper, one block."""
    x = [(counter >> 64 * i) % 2**64 for i in range(4)]
    low, high = words
    for _ in range(10):
        first, second = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
        x = [
            second >> 64 ^ x[1] ^ low,
            second % 2**64,
            first >> 64 ^ x[3] ^ high,
            first % 2**64,
        ]
        low, high = (low + 0x9E3779B97F4A7C15) % 2**64, (high + 0xBB67AE8584CAA73B) % 2**64
    return x


def test_draws_are_philox_as_published():
    # numpy counts before it draws, so the first block of an element has counter 1.
    raw = Draws(WIDE).at(epoch=3, index=5).bit_generator.random_raw(8)
    start = (5 << 128) + (3 << 192)
    words = (0xFEDCBA9876543210, 0x0123456789ABCDEF)
    assert raw.tolist() == philox_block(start + 1, words) + philox_block(start + 2, words)


@pytest.mark.parametrize("count", range(1, 10))
def test_spare_bits_of_one_element_never_reach_the_next(count):
    draws = Draws(WIDE)
    draws.at(0, 0).integers(0, 2**32, count, np.uint32)
    assert everything(draws.at(0, 1)) == everything(fresh(0, 1))
    assert everything(draws.at(0, 0)) == everything(fresh(0, 0))


def test_elements_epochs_and_keys_have_numbers_of_their_own():
    rngs = [generator(wide, e, i) for wide in range(3) for e in range(10) for i in range(30)]
    assert len({rng.integers(2**63) for rng in rngs}) == 900
    rngs = [generator(wide, 0, 0) for wide in (1, 1 << 64)]
    assert len({rng.integers(2**63) for rng in rngs}) == 2


def test_neighbouring_elements_are_uncorrelated():
    draws = Draws(WIDE)
    values = np.array([[draws.at(e, i).standard_normal() for i in range(200)] for e in range(50)])
    assert abs(values.mean()) < 6 / 100
    assert abs((values[:, 1:] * values[:, :-1]).mean()) < 6 / 100
    assert abs((values[1:] * values[:-1]).mean()) < 6 / 100


def test_threads_sharing_one_instance_in_any_order_draw_the_same_numbers():
    draws = Draws(WIDE)
    expected = {i: everything(fresh(2, i)) for i in range(400)}
    together = threading.Barrier(8)

    def work(order):
        together.wait()
        return {i: everything(draws.at(2, i)) for i in order}

    orders = [np.random.default_rng(t).permutation(400).tolist() for t in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(work, orders))


def test_one_instance_may_be_pickled():
    draws = Draws(WIDE)
    draws.at(0, 0).random()
    assert everything(pickle.loads(pickle.dumps(draws)).at(1, 2)) == everything(fresh(1, 2))


def test_spawning_from_an_element_is_refused_for_it_could_not_be_repeated():
    with pytest.raises(TypeError, match="spawn"):
        Draws(WIDE).at(0, 0).spawn(2)


@pytest.mark.parametrize(("epoch", "index"), [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_an_element_that_cannot_be_counted_raises(epoch, index):
    with pytest.raises(OverflowError):
        Draws(WIDE).at(epoch, index)


# Pairs of seeds


def test_a_seed_pair_is_two_int32_of_the_whole_range():
    pairs = np.array([seed_pair(generator(WIDE, 0, i)) for i in range(2000)])
    assert pairs.dtype == np.int32
    assert pairs.shape == (2000, 2)
    assert len(np.unique(pairs, axis=0)) == 2000
    assert pairs.min() < -(2**31) * 0.99
    assert pairs.max() > 2**31 * 0.99
    assert (seed_pair(fresh(0, 5)) == pairs[5]).all()


@given(
    st.integers(0, 2**128 - 1),
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=4),
)
def test_seed_pairs_are_as_described(wide, places):
    expected = []
    for epoch, index in places:
        a = mix_int(wide % 2**64 + (epoch + 1) * GOLDEN)
        b = mix_int((wide >> 64) + (epoch + 1) * GOLDEN)
        word = mix_int(mix_int((index + 1) * GOLDEN + a) ^ b)
        expected.append([(half ^ 2**31) - 2**31 for half in (word % 2**32, word >> 32)])
    epochs, indices = np.array(places, np.int64).reshape(-1, 2).T
    found = seed_pairs(wide, epochs, indices)
    assert found.dtype == np.int32
    assert found.shape == (len(places), 2)
    assert found.tolist() == expected


def test_seed_pairs_of_one_epoch_take_it_as_an_int():
    indices = np.arange(50)
    expected = seed_pairs(WIDE, np.full(50, 6), indices)
    assert (seed_pairs(WIDE, 6, indices) == expected).all()


def test_seed_pairs_never_repeat_within_an_epoch_nor_in_practice_across_them():
    epochs, indices = np.divmod(np.arange(200_000), 20_000)
    words = np.concatenate([seed_pairs(w, epochs, indices).view(np.int64) for w in (0, 1, 1 << 64)])
    assert len(np.unique(words)) == 600_000


def test_every_bit_of_the_seed_pairs_is_fair():
    words = seed_pairs(WIDE, 0, np.arange(20_000)).view(np.uint64).ravel()
    ones = np.array([int((words >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)])
    assert (np.abs(ones - 10_000) < 6 * np.sqrt(5_000)).all()


def test_seed_pairs_are_those_of_the_first_release():
    assert seed_pairs(WIDE, 3, np.array([0, 1, 2**40])).tolist() == [
        [1709583039, -1873841676],
        [1946914411, 933374112],
        [-1330382849, 143148754],
    ]


def test_a_drawn_seed_has_63_bits_and_is_new_each_time():
    seeds = [draw_seed() for _ in range(200)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
