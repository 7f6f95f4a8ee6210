import json
import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead.plan import permutation
from playhead.plan.permutation import algorithm, invert, mix, mix_int, permute, windowed
from playhead.plan.randomness import key as hashed_key

GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "permutation.json"
KEYS = st.integers(0, 2**64 - 1)


# The algorithms once more, from their description, one Python int at a time.


def slow_mix(x):
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def slow_stream(key, step):
    return slow_mix(key + step * 0x9E3779B97F4A7C15)


@cache
def slow_sort(length, key):
    return sorted(range(length), key=lambda i: slow_stream(key, i + 1))


def slow_feistel(place, length, key):
    bits = 0
    while 2**bits < length:
        bits += 1
    left_size, right_size = 2 ** (bits // 2), 2 ** (bits - bits // 2)
    x = place
    while True:
        left, right = divmod(x, right_size)
        for r in range(0, 10, 2):
            left ^= slow_mix(right ^ slow_stream(key, r + 1)) % left_size
            right ^= slow_mix(left ^ slow_stream(key, r + 2)) % right_size
        x = left * right_size + right
        if x < length:
            return x


def slow_permute(place, length, key):
    if length <= 4096:
        return slow_sort(length, key)[place]
    return slow_feistel(place, length, key)


def slow_windowed(places, length, size, key):
    """The obvious way: the epoch's blocks put end to end, then cut into windows."""
    block = math.isqrt(size)
    blocks = [range(i, min(i + block, length)) for i in range(0, length, block)]
    order = [slow_permute(i, len(blocks), slow_stream(key, 1)) for i in range(len(blocks))]
    sequence = [element for i in order for element in blocks[i]]
    result = []
    for place in places:
        w, offset = divmod(place, size)
        window = sequence[w * size : (w + 1) * size]
        window_key = slow_stream(slow_stream(key, 2), w + 1)
        result.append(window[slow_permute(offset, len(window), window_key)])
    return result


def slow_endless_window(place, size, key):
    w, offset = divmod(place, size)
    return w * size + slow_permute(offset, size, slow_stream(slow_stream(key, 2), w + 1))


def assert_uniform(counts, *, freedom=None, scale=1.0):
    """Pearson's statistic against equal counts lies below its mean plus six standard deviations."""
    expected = counts.sum() / counts.size
    assert expected >= 5
    statistic = scale * ((counts - expected) ** 2).sum() / expected
    freedom = counts.size - 1 if freedom is None else freedom
    assert statistic < freedom + 6 * math.sqrt(2 * freedom)


def keys_over(what, count):
    """Keys as a pipeline makes them: one for each seed, or one for each epoch of a seed."""
    if what == "seeds":
        keys = [hashed_key(seed, "shuffle", 0, 0) for seed in range(count)]
    else:
        keys = [hashed_key(0, "shuffle", 0, epoch) for epoch in range(count)]
    return np.array(keys, np.uint64)


def orders_over(what, count, length):
    """int64[count, length]: a whole permutation for each key."""
    keys = np.repeat(keys_over(what, count), length)
    return permute(np.tile(np.arange(length), count), length, keys).reshape(count, length)


# mix


def test_mix_gives_the_published_numbers_of_splitmix64():
    # The first outputs of splitmix64 with seed 1234567, from the reference implementation in C.
    steps = np.arange(1, 4, dtype=np.uint64) * np.uint64(permutation.GOLDEN) + np.uint64(1234567)
    assert mix(steps).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(KEYS, min_size=1, max_size=5))
def test_mix_of_an_array_is_mix_of_each_int_and_leaves_its_argument_alone(values):
    array = np.array(values, np.uint64)
    assert mix(array).tolist() == [mix_int(v) for v in values] == [slow_mix(v) for v in values]
    assert array.tolist() == values


# Every element exactly once


def test_every_short_permutation_is_a_bijection():
    for length in range(2001):
        order = permute(np.arange(length), length, key=length * 7919)
        assert (np.sort(order) == np.arange(length)).all(), length


def test_the_feistel_network_is_a_bijection_for_every_length():
    for length in range(1, 2001):
        order = permutation._feistel(np.arange(length), length, length * 7919)
        assert (np.bincount(order, minlength=length) == 1).all(), length


@pytest.mark.parametrize("length", [4095, 4096, 4097, 8192, 8193, 60_000, 65_536, 65_537, 10**6])
def test_longer_permutations_are_bijections(length):
    order = permute(np.arange(length), length, key=2**64 - 59)
    assert order.dtype == np.int64
    assert (np.bincount(order, minlength=length) == 1).all()
    assert (order != np.arange(length)).mean() > 0.999


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 10**12) | st.integers(2**61, 2**62), KEYS)
def test_places_of_huge_permutations_are_in_range_distinct_and_found_again(data, length, key):
    places = data.draw(st.lists(st.integers(0, length - 1), max_size=20, unique=True))
    elements = permute(np.array(places, np.int64), length, key).tolist()
    assert len(set(elements)) == len(places)
    assert all(0 <= element < length for element in elements)
    assert [invert(element, length, key) for element in elements] == places


@pytest.mark.parametrize("length", [1, 2, 3, 100, 4096])
def test_invert_is_the_inverse_at_every_place(length):
    order = permute(np.arange(length), length, key=5)
    assert [invert(int(element), length, 5) for element in order] == list(range(length))


def test_the_feistel_inverse_is_exact_for_every_short_length():
    for length in range(1, 70):
        order = permutation._feistel(np.arange(length), length, 5).tolist()
        assert [permutation._feistel_inverse(x, length, 5) for x in order] == list(range(length))


@pytest.mark.parametrize("length", [10, 4096, 4097, 10**12])
@pytest.mark.parametrize("outside", [-1, 0])
def test_a_place_or_a_value_outside_the_range_raises(length, outside):
    outside = outside if outside < 0 else length
    for key in (1, np.full(2, 1, np.uint64)):
        with pytest.raises(IndexError):
            permute(np.array([0, outside]), length, key)
    with pytest.raises(IndexError):
        invert(outside, length, 1)
    with pytest.raises(IndexError):
        windowed(np.array([0, outside]), length, 5, 1)


# The same numbers as the description, in every form of the call


def test_sorting_ends_and_the_feistel_network_begins_at_4096():
    assert [algorithm(n) for n in (0, 1, 4096, 4097, 2**62)] == ["sort-1"] * 3 + ["feistel-1"] * 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), KEYS)
def test_short_permutations_are_as_described(length, key):
    assert permute(np.arange(length), length, key).tolist() == slow_sort(length, key)


@settings(max_examples=60, deadline=None)
@given(st.integers(4097, 10**5) | st.integers(4097, 2**62), KEYS)
def test_long_permutations_are_as_described(length, key):
    places = [0, 1, length // 3, length - 1]
    expected = [slow_feistel(place, length, key) for place in places]
    assert permute(np.array(places), length, key).tolist() == expected


@pytest.mark.parametrize("length", [1, 2, 7, 100, 4096, 4097, 60_000, 10**12])
def test_an_array_of_keys_gives_what_each_key_gives_alone(length):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, 20, np.uint64)[rng.integers(0, 20, 300)]
    places = rng.integers(0, length, 300)
    alone = [int(permute(places[i : i + 1], length, int(keys[i]))[0]) for i in range(300)]
    assert permute(places, length, keys).tolist() == alone


def test_many_keys_are_sorted_piece_by_piece_with_the_same_result(monkeypatch):
    keys = np.random.default_rng(0).integers(0, 2**64, 500, np.uint64)
    places = np.arange(500) % 10
    at_once = permute(places, 10, keys)
    monkeypatch.setattr(permutation, "_PIECE", 25)
    assert (permute(places, 10, keys) == at_once).all()


def test_narrow_halves_looked_up_are_the_halves_computed(monkeypatch):
    places = np.arange(5000)
    looked_up = permutation._feistel_in_numpy(places, 5000, 11)
    monkeypatch.setattr(permutation, "_TABLE_BITS", 0)
    assert (permutation._feistel_in_numpy(places, 5000, 11) == looked_up).all()


@pytest.mark.parametrize("length", [1000, 70_000])
def test_threads_and_pieces_see_one_permutation(length):
    whole = permute(np.arange(length), length, 99)
    pieces = np.array_split(np.arange(length)[::-1], 40)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda piece: permute(piece, length, 99), pieces))
    assert (np.concatenate(found)[::-1] == whole).all()


def test_the_caller_may_change_what_it_was_given():
    places = np.arange(10)
    first = permute(places, 10, 1)
    expected = first.copy()
    first[:] = -1
    assert (permute(places, 10, 1) == expected).all()
    assert (places == np.arange(10)).all()


# Uniform


@pytest.mark.parametrize("what", ["seeds", "epochs"])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 10, 100])
def test_every_element_comes_to_every_place_equally_often(what, length):
    orders = orders_over(what, 3000, length)
    counts = np.array([np.bincount(column, minlength=length) for column in orders.T])
    # Rows and columns both sum to the number of keys, hence the freedom and the scale.
    assert_uniform(counts, freedom=(length - 1) ** 2, scale=(length - 1) / length)


@pytest.mark.parametrize("what", ["seeds", "epochs"])
@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_every_order_of_a_few_elements_comes_equally_often(what, length):
    _, counts = np.unique(orders_over(what, 6000, length), axis=0, return_counts=True)
    assert counts.size == math.factorial(length)
    assert_uniform(counts)


@pytest.mark.parametrize("what", ["seeds", "epochs"])
@pytest.mark.parametrize("length", [3, 4, 5, 10])
def test_every_pair_of_neighbours_comes_equally_often(what, length):
    orders = orders_over(what, 3000, length)
    for place in (0, length - 2):
        pairs = orders[:, place] * length + orders[:, place + 1]
        counts = np.bincount(pairs, minlength=length**2).reshape(length, length)
        assert (np.diag(counts) == 0).all()
        assert_uniform(counts[~np.eye(length, dtype=bool)])


@pytest.mark.parametrize("what", ["seeds", "epochs"])
@pytest.mark.parametrize("length", [100, 5000])
def test_neighbours_differ_by_every_amount_equally_often(what, length):
    orders = orders_over(what, 200_000 // length, length)
    counts = np.bincount((np.diff(orders) % length).ravel(), minlength=length)
    assert counts[0] == 0
    assert_uniform(counts[1:])


@pytest.mark.parametrize("what", ["seeds", "epochs"])
@pytest.mark.parametrize("length", [4100, 10**5, 10**12])
def test_a_place_of_a_long_permutation_holds_any_element_over_its_keys(what, length):
    keys = keys_over(what, 10_000)
    bins = 40
    first = permute(np.full(keys.size, length // 3), length, keys)
    second = permute(np.full(keys.size, length // 3 + 1), length, keys)
    assert_uniform(np.bincount(first * bins // length, minlength=bins))
    joint = (first * bins // length) * bins + second * bins // length
    assert_uniform(np.bincount(joint, minlength=bins**2))
    assert_uniform(np.bincount((second - first) % length * bins // length, minlength=bins))
    assert_uniform(np.bincount(first % 8 * 8 + second % 8, minlength=64))


@pytest.mark.parametrize("epoch", range(4))
def test_one_long_permutation_spreads_its_elements_evenly(epoch):
    length, bins = 10**5, 20
    order = permute(np.arange(length), length, hashed_key(0, "shuffle", 0, epoch))
    region = order * bins // length
    places = np.arange(length) * bins // length
    assert_uniform(np.bincount(places * bins + region, minlength=bins**2), freedom=(bins - 1) ** 2)
    neighbours = region[:-1] * bins + region[1:]
    assert_uniform(np.bincount(neighbours, minlength=bins**2), freedom=(bins - 1) ** 2)
    parity = np.arange(length) % 16 * 16 + order % 16
    assert_uniform(np.bincount(parity, minlength=256), freedom=225)


@pytest.mark.parametrize("length", [4000, 10**5])
def test_an_element_moves_a_third_of_the_length_on_average(length):
    order = permute(np.arange(length), length, 3)
    mean = np.abs(order - np.arange(length)).mean()
    # The mean of |x - y| over [0, 1]**2 is 1/3, its deviation 0.236.
    assert mean / length == pytest.approx(1 / 3, abs=6 * 0.236 / math.sqrt(length))


@pytest.mark.parametrize("length", [4000, 10**5])
def test_keys_that_differ_in_one_bit_agree_at_about_one_place(length):
    places = np.arange(length)
    order = permute(places, length, 0)
    agreeing = [int((permute(places, length, 1 << bit) == order).sum()) for bit in range(0, 64, 7)]
    assert max(agreeing) < 10
    assert sum(agreeing) < 30


@pytest.mark.parametrize("length", [1000, 60_000])
def test_seed_0_in_epoch_1_is_unlike_seed_1_in_epoch_0(length):
    places = np.arange(length)
    one = permute(places, length, hashed_key(0, "shuffle", 0, 1))
    other = permute(places, length, hashed_key(1, "shuffle", 0, 0))
    assert (one == other).sum() < 10


# Windows


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 3000), KEYS)
def test_a_windowed_shuffle_has_every_element_once_for_any_length_and_buffer(data, length, key):
    size = data.draw(st.integers(1, max(1, length)))
    order = windowed(np.arange(length), length, size, key)
    assert (np.sort(order) == np.arange(length)).all()


def test_a_windowed_shuffle_has_every_element_once_for_every_short_length_and_buffer():
    for length in range(1, 26):
        for size in range(1, length + 3):
            order = windowed(np.arange(length), length, size, 17)
            assert sorted(order.tolist()) == list(range(length)), (length, size)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(2, 150), KEYS)
def test_a_windowed_shuffle_is_as_described(length, size, key):
    expected = slow_windowed(range(length), length, size, key)
    assert windowed(np.arange(length), length, size, key).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**62), st.integers(2, 200) | st.integers(4097, 10**9), KEYS)
def test_an_endless_windowed_shuffle_is_as_described(place, size, key):
    expected = slow_endless_window(place, size, key)
    assert windowed(np.array([place]), None, size, key).tolist() == [expected]


@pytest.mark.parametrize(("length", "size"), [(10_007, 100), (10_007, 5000), (None, 100)])
def test_a_place_of_a_windowed_shuffle_needs_no_other_place(length, size):
    whole = windowed(np.arange(10_007), length, size, 8)
    some = np.random.default_rng(0).integers(0, 10_007, 500)
    assert (windowed(some, length, size, 8) == whole[some]).all()
    assert (windowed(some[:1], length, size, 8) == whole[some[:1]]).all()


@pytest.mark.parametrize("length", [10, 5000, None])
def test_a_buffer_of_one_changes_nothing(length):
    assert windowed(np.arange(10), length, 1, 5).tolist() == list(range(10))


def test_a_windowed_shuffle_reads_runs_of_neighbours():
    length, size = 50_000, 900
    order = windowed(np.arange(length), length, size, 4)
    for start in range(0, length, size):
        read = np.sort(order[start : start + size])
        runs = 1 + int((np.diff(read) != 1).sum())
        assert runs <= math.isqrt(size) + 1
    # The blocks themselves come from everywhere.
    assert np.abs(order - np.arange(length)).mean() / length == pytest.approx(1 / 3, abs=0.05)


def test_an_endless_windowed_shuffle_keeps_every_element_in_its_window():
    order = windowed(np.arange(10_000), None, 100, 4).reshape(100, 100)
    assert (np.sort(order) == np.arange(10_000).reshape(100, 100)).all()
    assert len({tuple(window % 100) for window in order}) == 100


def test_the_short_last_block_comes_anywhere():
    # 10 elements in blocks of 3: element 9 is the short block.
    order = np.array([windowed(np.arange(10), 10, 9, key) for key in range(4000)])
    first_nine = (order[:, :9] == 9).sum()
    # It is the fourth block once in four times; only then can it stand last.
    assert 4000 - first_nine == pytest.approx(1000, abs=6 * math.sqrt(4000 * 3 / 16))


def test_every_element_comes_to_a_place_of_a_windowed_shuffle_equally_often():
    keys = [hashed_key(0, "shuffle", 0, epoch) for epoch in range(4000)]
    places = np.array([0, 57, 99])
    orders = np.array([windowed(places, 100, 25, key) for key in keys])
    for column in orders.T:
        assert_uniform(np.bincount(column, minlength=100))


# Frozen


def golden_cases():
    return json.loads(GOLDEN_FILE.read_text())["cases"]


@pytest.mark.parametrize(
    "case", golden_cases(), ids=lambda c: f"{c['algorithm']}-{c['length']}-{c['key']:x}"
)
def test_orders_are_those_of_the_first_release(case):
    places, length, key = np.array(case["places"]), case["length"], case["key"]
    if case["algorithm"] == "window-1":
        elements = windowed(places, length, case["buffer_size"], key)
    else:
        assert algorithm(length) == case["algorithm"]
        elements = permute(places, length, key)
        assert [invert(int(x), length, key) for x in elements] == case["places"]
    assert elements.tolist() == case["elements"]


def test_the_frozen_orders_are_those_of_the_description():
    for case in golden_cases():
        places, length, key = case["places"], case["length"], case["key"]
        if case["algorithm"] != "window-1":
            expected = [slow_permute(place, length, key) for place in places]
        elif length is None:
            expected = [slow_endless_window(p, case["buffer_size"], key) for p in places]
        else:
            expected = slow_windowed(places, length, case["buffer_size"], key)
        assert case["elements"] == expected
