"""What holds under strategies of one process: run by test_strategies.py in a process with two devices.

Each function is one test there, of the same name.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 3)

import playhead as ph  # noqa: E402
from playhead.errors import CheckpointError, ElementError, PipelineError, UnequalElements, WrongDoor  # noqa: E402

TWO = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
THREE = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])


def data(count: int = 24, size: int = 5) -> ph.Dataset:
    ds = ph.Dataset.range(count).shuffle(seed=1)
    return ds.map(lambda x: {"x": np.float32(x), "s": str(x)}).batch(size).prefetch(2)


def whole(ds: ph.Dataset, epochs: int = 1) -> list[list[float]]:
    return [batch["x"].tolist() for batch in ds.iterator(epochs=epochs)]


def parts(value: Any) -> list[list[float]]:
    return [part.numpy().tolist() for part in value["x"].values]


def joined(value: Any) -> list[float]:
    return [number for part in parts(value) for number in part]


def cut(batch: list[float], count: int) -> list[list[float]]:
    bounds = [len(batch) * k // count for k in range(count + 1)]
    return [batch[a:b] for a, b in itertools.pairwise(bounds)]


def each_replica_gets_its_rows_on_its_own_device() -> None:
    for strategy, count in ((TWO, 2), (THREE, 3)):
        it = ph.tensorflow.iterator(data(), strategy=strategy, epochs=2)
        given = list(it)
        assert [parts(value) for value in given] == [cut(b, count) for b in whole(data(), 2)]
        assert it.position.step == 10
        for value in given:
            devices = [part.device for part in value["x"].values]
            assert [device[-5:] for device in devices] == [f"CPU:{k}" for k in range(count)]
            texts = [text.decode() for part in value["s"].values for text in part.numpy()]
            assert [float(text) for text in texts] == joined(value)


def a_loop_in_a_graph_takes_batches_and_ends_with_the_data() -> None:
    it = ph.tensorflow.iterator(data(), strategy=TWO, epochs=3)
    traced = []

    @tf.function
    def steps(it: Any, count: Any) -> Any:
        traced.append(1)
        total = tf.constant(0.0)
        for _ in tf.range(count):
            sums = TWO.run(lambda batch: tf.reduce_sum(batch["x"]), args=(next(it),))
            total += TWO.reduce("SUM", sums, axis=None)
        return total

    @tf.function
    def rest(it: Any) -> Any:
        count, total = 0, 0.0
        for batch in it:
            sums = TWO.run(lambda batch: tf.reduce_sum(batch["x"]), args=(batch,))
            total += TWO.reduce("SUM", sums, axis=None)
            count += 1
        return count, total

    batches = [sum(batch) for batch in whole(data(), 3)]
    assert float(steps(it, tf.constant(3))) == sum(batches[:3]) and it.position.step == 3
    assert joined(next(it)) == whole(data())[3]
    assert float(steps(it, tf.constant(7))) == sum(batches[4:11]) and len(traced) == 1
    count, total = rest(it)
    assert (int(count), float(total), it.position.step) == (4, sum(batches[11:]), 15)
    with pytest.raises(tf.errors.OutOfRangeError):
        steps(it, tf.constant(1))
    it.load_state_dict(it.position_at(13))
    assert float(steps(it, tf.constant(2))) == sum(batches[13:])


def element_spec_is_an_input_signature_and_uneven_batches_are_traced_once() -> None:
    it = ph.tensorflow.iterator(data(), strategy=TWO, epochs=1)
    traced = []

    @tf.function(input_signature=[it.element_spec])
    def signed(batch: Any) -> Any:
        traced.append("signed")
        return TWO.run(lambda batch: tf.size(batch["x"]), args=(batch,))

    @tf.function
    def unsigned(batch: Any) -> Any:
        traced.append("unsigned")
        return TWO.run(lambda batch: tf.size(batch["x"]), args=(batch,))

    sizes = []
    for batch in it:
        assert tf.type_spec_from_value(batch["x"]) == it.element_spec["x"]
        sizes.append([int(size) for size in TWO.experimental_local_results(signed(batch))])
        assert sizes[-1] == [int(s) for s in TWO.experimental_local_results(unsigned(batch))]
    assert sizes == [[2, 3]] * 4 + [[2, 2]] and traced == ["signed", "unsigned"]
    even = ph.Dataset.range(12).batch(4, drop_remainder=True)
    spec = ph.tensorflow.iterator(even, strategy=TWO).element_spec
    assert [leaf.shape.as_list() for leaf in spec._component_specs] == [[2], [2]]


def an_optional_says_whether_anything_is_left() -> None:
    it = ph.tensorflow.iterator(data(10), strategy=TWO, epochs=1)

    @tf.function
    def left(it: Any) -> Any:
        return it.get_next_as_optional().has_value()

    again = ph.tensorflow.iterator(data(10), strategy=TWO, epochs=1)
    taken = tf.function(lambda it: it.get_next())(again)
    assert joined(taken) == whole(data(10))[0] and joined(again.get_next()) == whole(data(10))[1]
    first = it.get_next_as_optional()
    assert joined(first.get_value()) == whole(data(10))[0] and bool(left(it))
    assert [bool(left(it)), bool(it.get_next_as_optional().has_value())] == [False, False]
    assert first.element_spec == it.element_spec


def one_device_gets_plain_tensors_there() -> None:
    for strategy in (
        tf.distribute.OneDeviceStrategy("/CPU:1"),
        tf.distribute.MirroredStrategy(["CPU:1"]),
    ):
        it = ph.tensorflow.iterator(data(), strategy=strategy)
        batch = next(it)
        assert (
            batch["x"].device.endswith("CPU:1") and batch["x"].numpy().tolist() == whole(data())[0]
        )
        assert it.element_spec["x"] == tf.TensorSpec([None], tf.float32)
        one = tf.function(lambda it, s=strategy: s.run(lambda b: b["x"] + 0, args=(next(it),)))
        assert one(it).numpy().tolist() == whole(data())[1]


def a_checkpoint_restores_exactly_on_another_number_of_replicas() -> None:
    def run(strategy: Any) -> tuple[Any, Any, Any]:
        with strategy.scope():
            step = tf.Variable(0, dtype=tf.int64)
            weight = tf.Variable([0.0, 0.0])
        it = ph.tensorflow.iterator(data(), strategy=strategy, epochs=4, step=step)
        return it, step, tf.train.Checkpoint(weight=weight, step=step, data=it)

    expected = whole(data(), 4)
    directory = tempfile.mkdtemp()
    it, step, checkpoint = run(TWO)
    seen = []
    one = tf.distribute.OneDeviceStrategy("/CPU:0")
    for strategy in (TWO, THREE, one, TWO):
        it, step, checkpoint = run(strategy)
        latest = tf.train.latest_checkpoint(directory)
        if latest:
            checkpoint.restore(latest).assert_consumed()
        taken = iter(it)
        for _ in range(3):
            value = next(taken)
            step.assign_add(1)
            seen.append(value["x"].numpy().tolist() if strategy is one else joined(value))
        checkpoint.save(f"{directory}/c")
        next(taken)  # after the save: forgotten
    assert seen == expected[:12]
    position = it.position
    plain = ph.tensorflow.iterator(data(), epochs=4)
    tf.train.Checkpoint(data=plain).restore(tf.train.latest_checkpoint(directory)).expect_partial()
    assert [batch["x"].numpy().tolist() for batch in plain] == expected[12:]
    assert position.pipeline == plain.position.pipeline


def a_step_that_disagrees_is_an_error() -> None:
    with TWO.scope():
        step = tf.Variable(0, dtype=tf.int64)
    it = ph.tensorflow.iterator(data(), strategy=TWO, step=step)
    one = tf.function(lambda it: TWO.run(lambda batch: batch["x"] + 0, args=(next(it),)))
    it.load_state_dict(it.position_at(2))
    for take, kind in ((next, CheckpointError), (one, tf.errors.UnknownError)):
        with pytest.raises(kind, match="the loop stands at step 0, its data at step 2"):
            take(it)
    step.assign(2)
    found = TWO.experimental_local_results(one(it))
    assert [part.numpy().tolist() for part in found] == cut(whole(data())[2], 2)


def a_batch_without_a_row_for_each_replica_is_known_before_the_first_step() -> None:
    plain = ph.Dataset.range(12)
    for ds in (plain.batch(5), plain.batch(5).prefetch(2), plain.batch(2, drop_remainder=True)):
        with pytest.raises(ElementError, match=r"batch of 2 rows .* 3 replicas\n.*drop_remainder"):
            ph.tensorflow.iterator(ds, strategy=THREE)
    it = ph.tensorflow.iterator(plain.batch(4).map(lambda x: x[:2]), strategy=THREE)
    with pytest.raises(ElementError, match="batch of 2 rows"):
        next(it)
    it = ph.tensorflow.iterator(plain.filter(lambda x: x >= 0).batch(5), strategy=THREE)
    assert [x for _ in range(2) for part in next(it).values for x in part] == list(range(10))
    for _ in range(2):  # asked again it raises again: no batch is left out
        with pytest.raises(ElementError, match="batch of 2 rows"):
            next(it)
        assert it.position.step == 2
    padded = plain.map(lambda x: np.arange(x % 3)).padded_batch(6)
    assert len(list(ph.tensorflow.iterator(padded, strategy=THREE, epochs=1))) == 2


def wrong_doors_name_the_right_one() -> None:
    ds = data()

    def raises(kind: type[Exception], words: str, call: Any) -> None:
        with pytest.raises(kind, match=re.escape(words)):
            call()

    def inside() -> Any:
        it = ph.tensorflow.iterator(ds, strategy=TWO)
        return TWO.run(lambda: next(it)["x"])

    raises(WrongDoor, "strategy.run(step_fn, args=(next(it),))", inside)
    raises(Exception, "args=(next(it),)", tf.function(inside))
    split = ds.split(2, 0)
    raises(PipelineError, "split(...)", lambda: ph.tensorflow.iterator(split, strategy=TWO))
    raises(PipelineError, "dataset_fn(ds)", split.to_tf)
    central = tf.distribute.experimental.CentralStorageStrategy()
    raises(PipelineError, "CentralStorage", lambda: ph.tensorflow.iterator(ds, strategy=central))
    raises(TypeError, "tf.distribute.Strategy", lambda: ph.tensorflow.iterator(ds, strategy="two"))
    scalars = ph.tensorflow.iterator(ph.Dataset.range(4), strategy=TWO)
    raises(ElementError, "first axis", lambda: next(scalars))
    plain = ds.iterator()

    @tf.function
    def baked() -> Any:
        return TWO.run(lambda batch: batch["x"], args=(next(plain),))

    raises(Exception, "playhead.tensorflow.iterator", baked)


def values_stay_what_they_were_while_hundreds_of_batches_pass() -> None:
    ds = ph.Dataset.range(64 * 300).map(lambda x: np.full(512, x, np.float32)).batch(64)
    for strategy in (None, TWO):
        it = ph.tensorflow.iterator(ds.prefetch(4), strategy=strategy, epochs=1)
        held = []
        for number, batch in enumerate(it):
            if number % 10 == 0:
                held.append((number, batch))
        for number, batch in held:
            here = [batch] if strategy is None else batch.values
            found = np.concatenate([part.numpy()[:, 0] for part in here])
            assert found.tolist() == list(range(64 * number, 64 * number + 64))


def all_of_it_may_stand_in_the_scope() -> None:
    path = tempfile.mkdtemp()
    with TWO.scope():
        step = tf.Variable(0, dtype=tf.int64)
        it = ph.tensorflow.iterator(data(), strategy=TWO, step=step)
        checkpoint = tf.train.Checkpoint(step=step, data=it)
        one = tf.function(lambda it: TWO.run(lambda batch: batch["x"] + 0, args=(next(it),)))
        options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
        saved = []
        for expected in whole(data())[:4:2]:
            assert joined(next(it)) == expected
            one(it)
            step.assign_add(2)
            saved.append(checkpoint.save(f"{path}/c", options=options))
            next(it)
            it.load_state_dict(it.position_at(step.numpy()))
        checkpoint.sync()
        for number, name in enumerate(saved):
            again = ph.tensorflow.iterator(data(), strategy=TWO)
            tf.train.Checkpoint(data=again, step=step).restore(name).assert_consumed()
            assert again.position.step == step.numpy() == 2 + 2 * number


def maps_after_batch_see_whole_batches_and_uneven_ones_fit_a_graph() -> None:
    seen = []

    def largest(batch: Any) -> Any:
        seen.append(len(batch["x"]))
        return {"x": batch["x"], "share": batch["x"] / batch["x"].max()}

    ds = ph.Dataset.range(14).map(lambda x: {"x": np.float32(x + 1)}).batch(5).map(largest)
    it = ph.tensorflow.iterator(ds, strategy=TWO, epochs=1)
    one = tf.function(lambda it: TWO.run(lambda batch: batch["share"] + 0, args=(next(it),)))
    found = [TWO.experimental_local_results(one(it)) for _ in range(3)]
    assert [[len(part) for part in parts] for parts in found] == [[2, 3], [2, 3], [2, 2]]
    assert [float(parts[1][-1]) for parts in found] == [1.0, 1.0, 1.0]
    assert set(seen) == {5, 4}


def keys_may_come_in_any_order_but_may_not_differ() -> None:
    def swapped(batch: Any) -> Any:
        pair = {"x": batch.astype(np.float32), "y": batch}
        return pair if batch[0] == 0 else dict(reversed(pair.items()))

    it = ph.tensorflow.iterator(ph.Dataset.range(12).batch(4).map(swapped), strategy=TWO, epochs=1)
    for value in it:
        assert {key: tf.type_spec_from_value(value[key]) for key in value} == it.element_spec
        assert value["y"].values[1].dtype == tf.int64

    def dropped(batch: Any) -> Any:
        return {"x": batch, "y": batch} if batch[0] == 0 else {"x": batch, "z": batch}

    it = ph.tensorflow.iterator(ph.Dataset.range(12).batch(4).map(dropped), strategy=TWO)
    next(it)
    with pytest.raises(UnequalElements, match="another structure"):
        next(it)


def a_model_and_its_optimizer_go_on_bit_for_bit() -> None:
    import keras

    directory = tempfile.mkdtemp()
    ds = data(40, 8)

    def run() -> tuple[Any, Any, Any]:
        keras.utils.set_random_seed(1)
        with TWO.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, "tanh")])
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(model.trainable_variables)
            step = tf.Variable(0, dtype=tf.int64)
        it = ph.tensorflow.iterator(ds, strategy=TWO, step=step)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, data=it)

        def step_fn(batch: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(batch["x"][:, None]) ** 2) / 8
            optimizer.apply(tape.gradient(loss, model.trainable_variables))

        @tf.function
        def train(it: Any, count: Any) -> None:
            for _ in tf.range(count):
                TWO.run(step_fn, args=(next(it),))
                step.assign_add(1)

        return model, checkpoint, lambda count: train(it, tf.constant(count))

    unbroken, _, train = run()
    train(12)
    _, checkpoint, train = run()
    train(7)
    path = checkpoint.save(f"{directory}/c")
    resumed, checkpoint, train = run()
    checkpoint.restore(path).assert_existing_objects_matched()
    train(5)
    for expected, found in zip(unbroken.get_weights(), resumed.get_weights(), strict=True):
        assert expected.any() and np.array_equal(expected, found)


def dataset_fn_gives_each_replica_its_part_and_saves_what_was_trained() -> None:
    directory = tempfile.mkdtemp()
    expected = whole(data(), 3)

    def run(strategy: Any) -> tuple[Any, Any, Any]:
        with strategy.scope():
            step = tf.Variable(0, dtype=tf.int64)
        fn = ph.tensorflow.dataset_fn(data(), step=step, epochs=3)
        return fn, step, tf.train.Checkpoint(step=step, data=fn)

    seen = []
    for strategy, count in ((TWO, 4), (THREE, 3), (TWO, 5)):
        fn, step, checkpoint = run(strategy)
        batches = strategy.distribute_datasets_from_function(fn)
        latest = tf.train.latest_checkpoint(directory)
        if latest:
            checkpoint.restore(latest).assert_consumed()
        for _, batch in zip(range(count), batches, strict=False):
            step.assign_add(1)
            seen.append(joined(batch))
        assert fn.position.step == len(seen)
        checkpoint.save(f"{directory}/c")
    rest = [joined(batch) for batch in batches]  # iterated anew, it goes on after what was trained
    assert seen + rest == expected


def dataset_fn_without_a_step_raises_when_saved_and_reads_pass_after_pass() -> None:
    fn = ph.tensorflow.dataset_fn(data(), epochs=1)
    batches = TWO.distribute_datasets_from_function(fn)
    passes = [[joined(batch) for batch in batches] for _ in range(2)]
    assert passes == [whole(data()), whole(data(), 2)[5:]]
    with pytest.raises(CheckpointError, match=r"step=step.*iterator\(ds, strategy=strategy\)"):
        tf.train.Checkpoint(data=fn).save(tempfile.mkdtemp() + "/c")


def dataset_fn_never_begins_anew_unasked() -> None:
    fn = ph.tensorflow.dataset_fn(data())
    batches = TWO.distribute_datasets_from_function(fn)
    assert joined(next(iter(batches))) == whole(data())[0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"step=step.*epochs=1"):
        next(iter(batches))

    fn = ph.tensorflow.dataset_fn(data(), step=1)
    with pytest.raises(tf.errors.OpError, match="the loop stands at step 1, its data at step 0"):
        next(iter(TWO.distribute_datasets_from_function(fn)))

    fn = ph.tensorflow.dataset_fn(data(5000), epochs=1)
    before = iter(TWO.distribute_datasets_from_function(fn))
    next(before)
    fn.load_state_dict(data(5000).iterator().position)
    with pytest.raises(tf.errors.OpError, match="restore first"):
        list(before)


def dataset_fn_over_a_stream_saves_the_cursor_of_the_trained_step() -> None:
    ds = ph.Dataset.range(201).filter(lambda x: x % 3 != 1).batch(4)
    expected = [batch.tolist() for batch in ds.iterator(epochs=2)]
    step = tf.Variable(0)
    fn = ph.tensorflow.dataset_fn(ds, step=step, epochs=2)
    for _, _batch in zip(range(7), TWO.distribute_datasets_from_function(fn), strict=False):
        step.assign_add(1)
    path = tf.train.Checkpoint(data=fn).save(tempfile.mkdtemp() + "/c")
    again = ph.tensorflow.dataset_fn(ds, step=step, epochs=2)
    tf.train.Checkpoint(data=again).restore(path)
    rest = TWO.distribute_datasets_from_function(again)
    tail = [[int(x) for part in batch.values for x in part] for batch in rest]
    assert tail == expected[7:]
    step.assign(500)
    with pytest.raises(CheckpointError, match="trained 500 batches"):
        again.serialize()


def an_optimizer_s_iterations_count_the_steps() -> None:
    with TWO.scope():
        optimizer = keras.optimizers.SGD()
        optimizer.build([keras.Variable([0.0])])
    fn = ph.tensorflow.dataset_fn(data(), step=optimizer.iterations, epochs=1)
    for _, _batch in zip(range(3), TWO.distribute_datasets_from_function(fn), strict=False):
        optimizer.iterations.assign_add(1)
    it = ph.tensorflow.iterator(data(), strategy=TWO, step=optimizer.iterations, epochs=1)
    it.load_state_dict(fn.position)

    @tf.function
    def rest(it: Any) -> Any:
        count = 0
        for _ in it:
            optimizer.iterations.assign_add(1)
            count += 1
        return count

    assert int(rest(it)) == 2 and it.position.step == 5
    it.load_state_dict(it.position_at(3))
    with pytest.raises(CheckpointError, match="the loop stands at step 5, its data at step 3"):
        next(it)


def main(report: str) -> None:
    found = {}
    for name, check in CHECKS.items():
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    Path(report).write_text(json.dumps(found))


CHECKS = {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and name not in ("data", "whole", "parts", "joined", "cut", "main")
}

if __name__ == "__main__":
    main(sys.argv[1])
