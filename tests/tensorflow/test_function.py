"""Functions of TensorFlow operations: traced once, run on chunks, equal to tf.data's own map."""

from __future__ import annotations

import gc
import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import FormError, UnrepeatableFunction
from playhead.plan.block import Columns, Rows, map_nest
from playhead.plan.functions import UserFunction
from playhead.plan.places import Places
from playhead.plan.randomness import seed_pairs
from playhead.tensorflow.function import block_form

SIZES = (1, 3, 64)
Pair = namedtuple("Pair", ["first", "second"])


class Numbers:
    """Random numbers of the elements `start` and on of pass 2."""

    wide = 12345

    def __init__(self, start: int, count: int) -> None:
        self.places = Places(2, np.arange(start, start + count, dtype=np.int64))


def form(fn: Any, block: Any, *, op: str = "map", with_rng: bool = False) -> Any:
    function = UserFunction(fn, form="tf", op=op, where="train.py:7")
    return block_form(function, block.slice(0, 1), with_rng)


def results(fn: Any, block: Any, size: int, *, with_rng: bool = False) -> list[Any]:
    """All the function's results, computed in chunks of `size`."""
    run = form(fn, block, with_rng=with_rng)
    rows = []
    for start in range(0, len(block), size):
        part = block.slice(start, min(start + size, len(block)))
        rows += run(part, Numbers(start, len(part)) if with_rng else None).rows()
    return rows


def same(left: Any, right: Any) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return (
            type(a) is type(b)
            and getattr(a, "dtype", None) == getattr(b, "dtype", None)
            and (np.array_equal(a, b))
        )

    pairs: list[bool] = []
    map_nest(lambda a, b: pairs.append(equal(a, b)), left, right)
    return all(pairs)


def columns(count: int = 100) -> Columns:
    rng = np.random.default_rng(3)
    return Columns(
        {"x": rng.normal(size=(count, 7)).astype(np.float32), "k": np.arange(count)}, count
    )


def every_kind(element: Any) -> Any:
    x, k = element["x"], element["k"]
    return {
        "sum": tf.reduce_sum(tf.linalg.matvec(tf.ones([5, 7]), tf.math.exp(x))),
        "odd": k % 2 == 1,
        "text": tf.strings.as_string(k),
        "words": tf.stack([tf.strings.as_string(k), "b"]),
        "bytes": tf.cast(k, tf.uint8),
        "half": tf.cast(x, tf.float16),
        "brain": tf.cast(x, tf.bfloat16),
        "pair": Pair(k, [k, k + 1]),
        "constant": (3, 0.5, np.float64(2)),
    }


@pytest.mark.parametrize("size", SIZES)
def test_results_do_not_depend_on_the_size_of_chunks(size: int) -> None:
    one_by_one = results(every_kind, columns(), 1)
    assert all(
        same(a, b) for a, b in zip(results(every_kind, columns(), size), one_by_one, strict=True)
    )


def test_every_dtype_and_structure_survives() -> None:
    last = results(every_kind, columns(), 64)[-1]
    dtypes = {k: getattr(v, "dtype", type(v)) for k, v in last.items() if not isinstance(v, tuple)}
    assert dtypes == {
        "sum": np.float32,
        "odd": np.bool_,
        "text": bytes,
        "words": object,
        "bytes": np.uint8,
        "half": np.float16,
        "brain": tf.bfloat16.as_numpy_dtype,
    }
    assert last["text"] == b"99" and last["words"].tolist() == [b"99", b"b"] and last["odd"]
    assert type(last["pair"]).__name__ == "Pair" and last["pair"].second.tolist() == [99, 100]
    assert [v.dtype for v in last["constant"]] == [np.int32, np.float32, np.float64]


def test_equal_shapes_become_columns_that_belong_to_the_caller() -> None:
    block = columns()
    run = form(lambda e: (tf.reshape(e["x"], [7]), tf.constant([1.0, 2.0])), block)
    first, again = run(block, None), run(block, None)
    assert isinstance(first, Columns) and first.nest[0].shape == (100, 7)
    for column in first.nest:
        assert column.flags.writeable and column.flags.c_contiguous
        column[...] = -1
    assert np.array_equal(again.nest[0], block.nest["x"]) and block.nest["x"].max() > 0
    assert run(block, None).nest[1].tolist() == [[1.0, 2.0]] * 100
    assert run.spec == (
        ph.ArraySpec((7,), np.dtype(np.float32)),
        ph.ArraySpec((2,), np.dtype(np.float32)),
    )


def test_results_of_varying_shape_stay_rows() -> None:
    def varying(element: Any) -> Any:
        k = element["k"] % 4
        return {
            "range": tf.range(k),
            "text": tf.repeat(tf.strings.as_string(k), k),
            "grid": tf.zeros([k, 2, k], tf.bool),
            "brain": tf.cast(tf.range(k), tf.bfloat16),
            "fixed": k,
        }

    for size in SIZES:
        rows = results(varying, columns(40), size)
        assert [row["range"].tolist() for row in rows] == [list(range(k % 4)) for k in range(40)]
        assert rows[3]["text"].tolist() == [b"3", b"3", b"3"]
        assert rows[2]["grid"].shape == (2, 2, 2) and rows[2]["grid"].dtype == bool
        assert rows[2]["brain"].dtype == tf.bfloat16.as_numpy_dtype and rows[2]["fixed"] == 2
    run = form(varying, columns(4))
    assert isinstance(run(columns(4), None), Rows)
    assert run.spec["grid"] == ph.ArraySpec((None, 2, None), np.dtype(bool))


def test_results_of_varying_rank_stay_rows_too() -> None:
    def varying(element: Any) -> Any:
        shape = tf.repeat(2, element["k"] % 3)
        return tf.raw_ops.PlaceholderWithDefault(input=tf.ones(shape), shape=None)

    for size in SIZES:
        found = [np.shape(row) for row in results(varying, columns(6), size)]
        assert found == [(), (2,), (2, 2)] * 2
    assert form(varying, columns(4)).spec is None


def test_rows_of_unequal_shapes_come_back_in_their_order() -> None:
    rows = Rows([(np.full(3 + k % 3, k, np.int64), str(k)) for k in range(20)])
    for size in SIZES:
        found = results(lambda x, s: (tf.reduce_sum(x), s + "!"), rows, size)
        assert [(int(x), s) for x, s in found] == [(k * (3 + k % 3), b"%d!" % k) for k in range(20)]
        found = results(lambda x, s: x * 2, rows, size)
        assert [x.tolist() for x in found] == [[2 * k] * (3 + k % 3) for k in range(20)]


def test_a_function_is_traced_once_whatever_the_chunks() -> None:
    calls: list[int] = []

    def counted(element: Any) -> Any:
        calls.append(1)
        return element["x"] + 1

    for size in SIZES:
        calls.clear()
        results(counted, columns(), size)
        assert len(calls) == 1


def test_a_pipeline_probes_a_function_once_and_traces_it_once() -> None:
    calls: list[int] = []

    def counted(x: Any) -> Any:
        calls.append(1)
        return tf.square(x)

    ds = ph.Dataset.range(1000).map(counted).batch(10).prefetch(workers=2)
    assert np.concatenate(list(ds)).tolist() == [k * k for k in range(1000)]
    assert ds.element_spec == ph.ArraySpec((None,), np.dtype(np.int64))
    assert len(calls) == 2
    assert ds.operations()[1]["form"] == "tf"


def test_many_threads_may_call_it_at_once() -> None:
    block = columns(300)
    run = form(every_kind, block)
    expected = run(block, None).rows()
    wrong: list[int] = []

    def work(number: int) -> None:
        for start in range(0, 300, 10):
            rows = run(block.slice(start, start + 10), None).rows()
            if not all(same(a, b) for a, b in zip(rows, expected[start : start + 10], strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_seeds_are_chosen_by_the_place_alone() -> None:
    expected = seed_pairs(Numbers.wide, 2, np.arange(100, dtype=np.int64))
    for size in SIZES:
        found = results(lambda element, seed: seed, columns(), size, with_rng=True)
        assert np.array_equal(np.stack(found), expected)


def test_random_numbers_are_the_same_for_any_number_of_workers() -> None:
    def noisy(x: Any, seed: Any) -> Any:
        return tf.cast(x, tf.float32) + tf.random.stateless_uniform([], seed)

    ds = ph.Dataset.range(500).shuffle(seed=1).map(noisy, rng=True, seed=5).batch(7)
    alone = np.concatenate(list(ds.epoch(1)))
    for workers in (1, 3):
        assert np.array_equal(np.concatenate(list(ds.prefetch(8, workers=workers).epoch(1))), alone)
    assert not np.array_equal(np.sort(alone), np.sort(np.concatenate(list(ds.epoch(0)))))


def stateful_in_a_branch(x: Any) -> Any:
    return tf.cond(x > 0, lambda: tf.random.normal([]), lambda: 0.0)


def stateful_in_a_loop(x: Any) -> Any:
    total = 0.0
    for _ in tf.range(x):
        total += tf.random.uniform([], seed=3)
    return total


counter = tf.Variable(0, dtype=tf.int64)
generator = tf.random.Generator.from_seed(1)


@pytest.mark.parametrize(
    ("fn", "operation"),
    [
        (stateful_in_a_branch, "RandomStandardNormal"),
        (stateful_in_a_loop, "RandomUniform"),
        (lambda x: tf.random.shuffle([x, x]), "RandomShuffle"),
        (lambda x: tf.random.categorical([[0.5, 0.5]], 1), "Multinomial"),
        (lambda x: tf.image.random_flip_left_right(tf.zeros([4, 4, 3])), "RandomUniform"),
        (lambda x: generator.uniform([]), "RngReadAndSkip"),
        (lambda x: tf.numpy_function(lambda y: y, [x], tf.int64), "PyFunc"),
        (lambda x: tf.py_function(lambda y: y, [x], tf.int64), "EagerPyFunc"),
        (lambda x: counter.assign_add(x), "AssignAddVariableOp"),
    ],
)
def test_a_graph_that_cannot_be_repeated_is_refused(fn: Any, operation: str) -> None:
    with pytest.raises(UnrepeatableFunction, match=operation) as caught:
        form(fn, Columns(np.arange(3), 3))
    assert "train.py:7" in str(caught.value) and caught.value.help


def test_a_keras_layer_that_augments_is_sent_into_the_model() -> None:
    keras = pytest.importorskip("keras")
    layer = keras.layers.RandomFlip()
    with pytest.raises(UnrepeatableFunction, match="belongs in the model"):
        form(lambda k: layer(tf.zeros([1, 4, 4, 3]), training=True), Columns(np.arange(3), 3))


def test_what_only_reads_is_no_state() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            [1, 2], [10, 20], key_dtype=tf.int64, value_dtype=tf.int64
        ),
        -1,
    )
    offset = tf.Variable(100, dtype=tf.int64)

    def looked_up(x: Any) -> Any:
        y = table.lookup(x)
        for _ in tf.range(2):
            y += offset
        if x > 2:
            y = -y
        return y

    for size in SIZES:
        assert results(looked_up, Columns(np.arange(4), 4), size) == [199, 210, 220, -199]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2]), "to_tensor"),
        (lambda x: {"s": tf.sparse.eye(3)}, "to_dense"),
        (lambda x: (x, None), r"result\[1\]"),
        (lambda x: {}, "returns nothing"),
        (lambda x: int(x), 'form="python"'),
    ],
)
def test_what_cannot_run_as_a_graph_says_what_would(fn: Any, message: str) -> None:
    with pytest.raises(FormError, match=message):
        form(fn, Columns(np.arange(3), 3))


def test_an_error_while_tracing_keeps_its_cause() -> None:
    def broken(x: Any) -> Any:
        return tf.reshape(tf.zeros([4]), [3]) + tf.cast(x, tf.float32)

    with pytest.raises(FormError, match='form="python"') as caught:
        form(broken, Columns(np.arange(3), 3))
    assert isinstance(caught.value.__cause__, ValueError)


def test_elements_that_no_tensor_holds_are_named() -> None:
    rows = Rows([{"path": "a", "image": object()}])
    with pytest.raises(FormError, match=r"element\['image'\] is object"):
        form(lambda e: e["path"], rows)


def test_a_later_element_of_another_dtype_is_refused() -> None:
    run = form(lambda x: x, Rows([np.int32(1)]))
    with pytest.raises(FormError, match="int64"):
        run(Rows([np.int32(1), np.int64(1)]), None)


def test_an_error_on_one_element_names_its_record() -> None:
    def checked(x: Any) -> Any:
        tf.debugging.assert_less(x, np.int64(8))
        return x

    ds = ph.Dataset.range(12).map(checked).batch(4)
    it = ds.iterator()
    assert [next(it).tolist(), next(it).tolist()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(it)
    assert any("element 8" in note and "range[8]" in note for note in caught.value.__notes__)


def test_a_predicate_keeps_what_it_is_true_for() -> None:
    ds = ph.Dataset.range(20).filter(lambda x: tf.equal(x % 3, 0), form="tf")
    assert [int(x) for x in ds] == [0, 3, 6, 9, 12, 15, 18]
    with pytest.raises(FormError, match="one bool"):
        form(lambda x: [x > 1, x > 2], Columns(np.arange(3), 3), op="filter")


def test_jpegs_of_many_sizes_stay_rows_until_they_are_resized() -> None:
    def encoded(k: int) -> bytes:
        image = tf.image.resize(
            tf.random.stateless_uniform([6, 6, 3], [k, 1], 0, 255), [20 + k, 30 - k]
        )
        data: bytes = tf.io.encode_jpeg(tf.cast(image, tf.uint8)).numpy()
        return data

    def decode(data: Any) -> Any:
        return tf.io.decode_jpeg(data, channels=3)

    def resize(image: Any) -> Any:
        return tf.image.resize(image, [16, 16]) / 255.0

    files = [encoded(k) for k in range(9)]
    decoded = ph.Dataset.from_sequence(files).map(decode)
    assert [image.shape for image in decoded] == [(20 + k, 30 - k, 3) for k in range(9)]
    expected = tf.data.Dataset.from_tensor_slices(files).map(decode).map(resize).batch(4)
    found = decoded.map(resize).batch(4).prefetch(workers=2)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours, theirs.numpy())


def test_parse_single_example_gives_what_tf_data_gives() -> None:
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([4], tf.float32),
    }

    def record(k: int) -> bytes:
        feature = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([k] * 6)])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[k])),
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[k, 0.5, -1, k / 3])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        data: bytes = example.SerializeToString()
        return data

    def parse(data: Any) -> Any:
        example = tf.io.parse_single_example(data, features)
        image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [2, 3])
        return {"image": image, "x": example["x"]}, example["label"]

    records = [record(k) for k in range(50)]
    ours = ph.Dataset.from_sequence(records).map(parse).batch(8)
    theirs = tf.data.Dataset.from_tensor_slices(records).map(parse).batch(8)
    for (a, label), (b, expected) in zip(ours, theirs, strict=True):
        assert np.array_equal(label, expected) and all(
            np.array_equal(a[k], b[k].numpy()) for k in b
        )


def test_the_first_element_may_be_asked_for_inside_a_graph() -> None:
    ds = ph.Dataset.range(4).map(lambda x: tf.square(x), form="tf")

    @tf.function
    def inside() -> Any:
        return tf.constant(ds[3])

    assert inside() == 9
    with tf.Graph().as_default():
        assert ds[2] == 4


def test_a_trace_outlives_everything_but_the_function() -> None:
    run = form(
        lambda x: tf.cond(x > 1, lambda: x * 2, lambda: x + tf.constant(5, tf.int64)),
        Rows([np.int64(1)]),
    )
    gc.collect()
    assert run(Rows([np.int64(1), np.int64(2)]), None).rows() == [6, 4]


def test_results_may_be_written_to_and_share_nothing() -> None:
    constant = tf.ones([3])

    def with_a_constant(x: Any) -> Any:
        return x, constant

    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    ds = ph.Dataset.from_tensor_slices(table).map(with_a_constant)
    for pipeline in (ds, ds.batch(4)):
        x, ones = pipeline[0]
        x += 100
        ones += 100
    assert np.array_equal(ds.batch(4)[0][0], table)
    assert np.array_equal(ds.batch(4)[0][1], np.ones((4, 3)))
    assert table[0].tolist() == [0, 1, 2] and constant.numpy().tolist() == [1, 1, 1]


def test_tensors_hand_out_their_memory_without_a_copy() -> None:
    # What the speed of large results relies on; without it they would be copied.
    tensor = tf.function(lambda: tf.random.stateless_uniform([1000], [1, 2]))()
    array = tensor._numpy()
    assert array.flags.writeable and not array.flags.owndata
