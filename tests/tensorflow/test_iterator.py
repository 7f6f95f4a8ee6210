"""The iterator that a TensorFlow checkpoint holds."""

from __future__ import annotations

import functools
import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import CheckpointError, PipelineChanged, PipelineError, UnreadablePosition


def to_number(text: str) -> np.float32:
    return np.float32(text)


def numbers(prefetch: int = 2) -> ph.Dataset:
    """0.0, 1.0, ... 25.0 out of strings, one a batch."""
    items = [str(k) for k in range(26)]
    return ph.Dataset.from_sequence(items).map(to_number).batch(1).prefetch(prefetch)


def digits(count: int = 10) -> ph.Dataset:
    return ph.Dataset.range(count).map(lambda x: {"x": np.float32(x), "s": str(x)}).batch(3)


def session(
    directory: Path, steps: int, *, in_graph: bool, prefetch: int
) -> list[tuple[int, float]]:
    """One process' worth of the loop: goes on from the latest checkpoint, saves at steps 1, 11, 21."""
    step = tf.Variable(0, dtype=tf.int64)
    it = ph.tensorflow.iterator(numbers(prefetch), epochs=1, step=step)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step, data=it),
        str(directory),
        max_to_keep=3,
        step_counter=step,
        checkpoint_interval=10,
    )
    manager.restore_or_initialize()

    def one(it: Any) -> Any:
        batch = next(it)
        step.assign_add(1)
        return batch[0]

    one_step = tf.function(one) if in_graph else one
    seen = []
    for _ in range(steps):
        try:
            value = one_step(it)
        except (StopIteration, tf.errors.OutOfRangeError):
            break
        seen.append((int(step), float(value)))
        manager.save(checkpoint_number=step, check_interval=True)
    it.close()
    return seen


@pytest.mark.parametrize("prefetch", [0, 1, 8])
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_loop_broken_off_after_step_13_goes_on_where_it_was_saved(
    tmp_path: Path, in_graph: bool, prefetch: int
) -> None:
    before = session(tmp_path, 13, in_graph=in_graph, prefetch=prefetch)
    assert before == [(k, k - 1.0) for k in range(1, 14)]
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-11")
    after = session(tmp_path, 100, in_graph=in_graph, prefetch=prefetch)
    assert after[:2] == [(12, 11.0), (13, 12.0)]
    assert after == [(k, k - 1.0) for k in range(12, 27)]
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-21")


def saved_lines(prefetch: int, directory: Path) -> list[str]:
    it = ph.tensorflow.iterator(numbers(prefetch))
    checkpoint = tf.train.Checkpoint(data=it)
    lines = []
    for k in range(4):
        next(it)
        path = checkpoint.write(str(directory / f"{prefetch}-{k}"))
        reader = tf.train.load_checkpoint(path)
        names = [name for name, _ in tf.train.list_variables(path) if name.startswith("data")]
        assert len(names) == 1
        lines.append(reader.get_tensor(names[0]).decode())
    it.close()
    return lines


def test_read_ahead_never_shows_in_what_is_saved(tmp_path: Path) -> None:
    lines = saved_lines(0, tmp_path)
    assert [ph.Position.from_json(line).step for line in lines] == [1, 2, 3, 4]
    assert max(map(len, lines)) < 1024
    assert saved_lines(1, tmp_path) == lines and saved_lines(8, tmp_path) == lines


def test_a_graph_takes_batches_without_being_traced_again() -> None:
    traced: list[int] = []

    @tf.function
    def three(it: Any) -> Any:
        traced.append(1)
        total = tf.constant(0.0)
        for _ in tf.range(2):
            total += tf.reduce_sum(next(it)["x"])
        last = next(it)
        return total, last["x"], last["s"]

    it = ph.tensorflow.iterator(digits())
    total, x, s = three(it)
    assert (float(total), x.numpy().tolist(), s.numpy().tolist()) == (
        15.0,
        [6, 7, 8],
        [b"6", b"7", b"8"],
    )
    assert it.position.step == 3
    total, x, s = three(it)
    assert (float(total), x.numpy().tolist()) == (9.0 + 3.0, [3, 4, 5])
    assert next(it)["x"].numpy().tolist() == [6, 7, 8]
    assert it.position.step == 7 and it.position.epoch == 1
    it.load_state_dict(it.position_at(1))
    assert float(three(it)[0]) == 12.0 + 21.0
    assert len(traced) == 1


def test_a_captured_iterator_is_not_built_into_the_graph() -> None:
    it = ph.tensorflow.iterator(ph.Dataset.range(9))

    @tf.function
    def one() -> Any:
        return next(it)

    assert [int(one()) for _ in range(3)] == [0, 1, 2]
    assert it.element_spec == tf.TensorSpec((), tf.int64)


def test_the_end_is_out_of_range_in_a_graph_and_stop_iteration_in_python() -> None:
    it = ph.tensorflow.iterator(ph.Dataset.range(3), epochs=1)
    total = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def two(it: Any) -> None:
        for _ in tf.range(2):
            total.assign_add(next(it) + 1)

    two(it)
    with pytest.raises(tf.errors.OutOfRangeError):
        two(it)
    assert int(total) == 1 + 2 + 3 and it.position.step == 3
    with pytest.raises(StopIteration):
        next(it)
    with pytest.raises(tf.errors.OutOfRangeError):
        it.get_next()
    it.load_state_dict(it.position_at(1))
    two(it)
    assert int(total) == 6 + 2 + 3


def test_a_for_loop_in_a_graph_runs_to_the_end_of_the_data() -> None:
    it = ph.tensorflow.iterator(digits(), epochs=2)

    @tf.function
    def whole(it: Any) -> Any:
        count, total = 0, 0.0
        for batch in it:
            count += 1
            total += tf.reduce_sum(batch["x"])
        return count, total

    count, total = whole(it)
    assert (int(count), float(total), it.position.step) == (8, 90.0, 8)
    assert int(whole(it)[0]) == 0
    it.load_state_dict(it.position_at(5))
    assert int(whole(it)[0]) == 3


def test_without_autograph_a_for_loop_in_a_graph_is_refused() -> None:
    it = ph.tensorflow.iterator(digits())

    @tf.function(autograph=False)
    def endless() -> None:
        for _ in it:
            pass

    with pytest.raises(ph.errors.WrongDoor, match=r"tf\.range"):
        endless()


def test_an_optional_says_whether_anything_is_left() -> None:
    it = ph.tensorflow.iterator(digits(4), epochs=1)

    @tf.function
    def left(it: Any) -> Any:
        return it.get_next_as_optional().has_value()

    assert [bool(left(it)), bool(it.get_next_as_optional().has_value())] == [True, True]
    assert [bool(left(it)), bool(it.get_next_as_optional().has_value())] == [False, False]


def test_an_element_that_fits_no_optional_is_not_counted() -> None:
    it = ph.tensorflow.iterator(ph.Dataset.range(3).map(lambda x: np.arange(x + 1)))
    assert it.get_next_as_optional().get_value().shape == (1,)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError):
            it.get_next_as_optional()
        assert it.position.step == 1
    assert next(it).numpy().tolist() == [0, 1]


def test_a_plain_iterator_inside_a_graph_names_the_right_one() -> None:
    it = digits().iterator()

    @tf.function
    def wrong() -> Any:
        return next(it)

    with pytest.raises(
        Exception, match=r"WrongDoor.*built into the graph\n.*playhead\.tensorflow\.iterator"
    ):
        wrong()
    assert it.position.step == 0


def test_epochs_go_on_in_a_half_done_one() -> None:
    it = ph.tensorflow.iterator(digits(), epochs=2)
    next(it)
    rest = [[batch["x"].numpy().tolist() for batch in epoch] for epoch in it.epochs()]
    assert rest[0] == [[3, 4, 5], [6, 7, 8], [9]] and len(rest[1]) == 4
    assert it.position.step == 8


def interrupted_at(event: int, take: Callable[[], Any]) -> BaseException | None:
    """What comes of `take()` where Ctrl-C arrives at its `event`-th line in an iterator's code."""
    left = [event]

    def arrives(frame: Any, kind: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name.endswith(("iterator.py", "contextlib.py")) and kind in ("call", "line"):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return arrives

    before = sys.gettrace()
    sys.settrace(arrives)
    try:
        take()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(before)
    return None


@pytest.mark.parametrize("by_epoch", [False, True])
def test_an_interrupt_anywhere_in_next_leaves_the_element_for_the_next_one(by_epoch: bool) -> None:
    hits = 0
    for event in itertools.count(1):
        it = ph.tensorflow.iterator(ph.Dataset.range(9))
        assert int(next(it)) == 0
        took = functools.partial(next, next(it.epochs()) if by_epoch else it)
        error = interrupted_at(event, took)
        if error is None:
            break
        hits += 1
        assert (it.position.step, int(next(it))) == (1, 1), event
        del error  # and what its traceback kept alive
        assert (it.position.step, int(next(it))) == (2, 2), event
    assert hits > 20


def test_restoring_works_before_and_after_it_joined_the_checkpoint(tmp_path: Path) -> None:
    it = ph.tensorflow.iterator(digits())
    for _ in range(5):
        next(it)
    path = tf.train.Checkpoint(data=it).save(str(tmp_path / "c"))

    late = tf.train.Checkpoint()
    late.restore(path)
    late.data = ph.tensorflow.iterator(digits())
    assert late.data.position.step == 5 and late.data.position.epoch == 1
    early = ph.tensorflow.iterator(digits())
    checkpoint = tf.train.Checkpoint(data=early)
    for _ in range(2):
        checkpoint.restore(path).assert_consumed()
        assert [next(early)["s"].numpy()[0] for _ in range(3)] == [b"3", b"6", b"9"]
        assert early.position.step == 8
    assert it.position.step == 5


def test_two_iterators_share_a_checkpoint_with_a_model(tmp_path: Path) -> None:
    def built() -> tuple[tf.train.Checkpoint, Any, Any]:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        train = ph.tensorflow.iterator(digits().prefetch(2))
        other = ph.tensorflow.iterator(ph.Dataset.range(7).shuffle(seed=3), epochs=3)
        return (
            tf.train.Checkpoint(model=model, optimizer=optimizer, train=train, other=other),
            train,
            other,
        )

    checkpoint, train, other = built()
    next(train)
    expected = [int(next(other)) for _ in range(9)][5:]
    other.load_state_dict(other.position_at(5))
    path = checkpoint.save(str(tmp_path / "c"))
    restored, again, another = built()
    restored.restore(path).assert_existing_objects_matched()
    assert next(again)["x"].numpy().tolist() == [3, 4, 5]
    assert [int(next(another)) for _ in range(4)] == expected
    assert np.array_equal(restored.model.layers[0].kernel, checkpoint.model.layers[0].kernel)


def test_an_asynchronous_save_keeps_the_position_of_its_moment(tmp_path: Path) -> None:
    it = ph.tensorflow.iterator(digits().prefetch(4))
    step = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(data=it, step=step)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    paths = []
    for _ in range(4):
        next(it)
        step.assign_add(1)
        paths.append(checkpoint.save(str(tmp_path / "c"), options=options))
        for _ in range(2):
            next(it)
            step.assign_add(1)
    checkpoint.sync()
    for number, path in enumerate(paths):
        again = ph.tensorflow.iterator(digits())
        counted = tf.Variable(0)
        tf.train.Checkpoint(data=again, step=counted).restore(path).assert_consumed()
        assert again.position.step == int(counted) == 1 + 3 * number


def test_another_pipeline_and_damaged_states_are_refused(tmp_path: Path) -> None:
    it = ph.tensorflow.iterator(digits())
    path = tf.train.Checkpoint(data=it).save(str(tmp_path / "c"))
    changed = ph.tensorflow.iterator(ph.Dataset.range(10).map(lambda x: x).batch(4))
    with pytest.raises(PipelineChanged, match="size=3"):
        tf.train.Checkpoint(data=changed).restore(path)

    class Foreign(tf.train.experimental.PythonState):  # type: ignore[misc]
        def serialize(self) -> str:
            return "not a position"

        def deserialize(self, string_value: Any) -> None: ...

    path = tf.train.Checkpoint(data=Foreign()).save(str(tmp_path / "f"))
    with pytest.raises(UnreadablePosition):
        tf.train.Checkpoint(data=it).restore(path)


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_step_that_disagrees_with_the_data_is_an_error(tmp_path: Path, in_graph: bool) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    it = ph.tensorflow.iterator(digits(), step=step)

    def one(it: Any) -> Any:
        batch = next(it)
        step.assign_add(1)
        return batch["x"]

    take = tf.function(one) if in_graph else one
    take(it), take(it)
    step.assign_add(5)  # later disagreement is the loop's own business
    assert take(it).numpy().tolist() == [6, 7, 8]
    path = tf.train.Checkpoint(data=it).save(str(tmp_path / "c"))
    step.assign(0)
    tf.train.Checkpoint(data=it).restore(path)
    kind = tf.errors.UnknownError if in_graph else CheckpointError
    with pytest.raises(kind, match="the loop stands at step 0, its data at step 3"):
        take(it)
    step.assign(3)
    assert take(it).numpy().tolist() == [9]


def test_an_optimizer_s_iterations_count_in_the_order_of_the_graph() -> None:
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable([0.0])])
    it = ph.tensorflow.iterator(digits(), step=optimizer.iterations)

    @tf.function
    def one(it: Any) -> Any:
        batch = next(it)
        optimizer.iterations.assign_add(1)
        return batch["x"]

    assert [one(it).numpy().tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    it.load_state_dict(it.position_at(1))
    with pytest.raises(tf.errors.UnknownError, match="the loop stands at step 2, its data at step"):
        one(it)
    optimizer.iterations.assign(1)
    assert one(it).numpy().tolist() == [3, 4, 5]


def test_restoring_within_an_epoch_is_checked_at_the_next_batch() -> None:
    step = tf.Variable(0)
    it = ph.tensorflow.iterator(digits(), epochs=1, step=step)
    epoch = next(it.epochs())
    for _ in range(3):
        next(epoch)
        step.assign_add(1)
    it.load_state_dict(it.position_at(1))
    with pytest.raises(CheckpointError, match="the loop stands at step 3, its data at step 1"):
        next(epoch)
    assert it.position.step == 1


def test_a_counter_may_be_any_number() -> None:
    it = ph.tensorflow.iterator(digits(), step=np.int64(1))
    with pytest.raises(CheckpointError):
        next(it)
    it.load_state_dict(it.position_at(1))
    assert next(it)["x"].numpy().tolist() == [3, 4, 5]


def test_an_error_in_the_pipeline_reaches_the_graph_and_leaves_the_place() -> None:
    broken = [True]

    def fails_once(x: Any) -> Any:
        if x == 2 and broken:
            broken.clear()
            raise ValueError("no such picture")
        return x

    it = ph.tensorflow.iterator(ph.Dataset.range(5).map(fails_once))

    @tf.function
    def one(it: Any) -> Any:
        return next(it)

    assert [int(one(it)), int(one(it))] == [0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such picture"):
        one(it)
    assert it.position.step == 2
    assert [int(one(it)), int(one(it))] == [2, 3]


def test_elements_of_varying_shape_are_named_in_a_graph_and_fine_in_python() -> None:
    ds = ph.Dataset.range(4).map(lambda x: {"row": np.arange(x + 1)})
    it = ph.tensorflow.iterator(ds)
    assert [next(it)["row"].shape[0] for _ in range(4)] == [1, 2, 3, 4]

    @tf.function
    def one(it: Any) -> Any:
        return next(it)["row"]

    assert one(it).numpy().tolist() == [0]
    with pytest.raises(tf.errors.OpError, match=r"element\['row'\].*\n.*padded_batch"):
        one(it)


def test_what_no_tensor_holds_is_named() -> None:
    it = ph.tensorflow.iterator(ph.Dataset.from_sequence([{"a": 1, "b": object()}]))
    with pytest.raises(PipelineError, match=r"element\['b'\]"):
        next(it)
    with pytest.raises(PipelineError, match=r"element\['b'\]"):
        _ = it.element_spec


def test_a_dropped_iterator_is_freed_and_a_closed_one_is_at_its_end() -> None:
    it = ph.tensorflow.iterator(digits().prefetch(2))

    @tf.function
    def one(it: Any) -> Any:
        return next(it)["x"]

    one(it)
    state = it.state
    it.close()
    with pytest.raises(StopIteration):
        next(it)
    it.load_state_dict(state)
    assert next(it)["x"].numpy().tolist() == [3, 4, 5]
    gone = weakref.ref(it)
    del it
    gc.collect()
    assert gone() is None
    again = ph.tensorflow.iterator(digits())
    assert one(again).numpy().tolist() == [0, 1, 2]


def test_restoring_adopts_the_seed_that_was_drawn(tmp_path: Path) -> None:
    it = ph.tensorflow.iterator(ph.Dataset.range(100).shuffle().batch(10))
    next(it)
    path = tf.train.Checkpoint(data=it).save(str(tmp_path / "c"))
    expected = next(it).numpy().tolist()
    again = ph.tensorflow.iterator(ph.Dataset.range(100).shuffle().batch(10))
    tf.train.Checkpoint(data=again).restore(path)
    assert next(again).numpy().tolist() == expected
    assert again.dataset[1].tolist() == expected


ONE_THREAD = """
import tensorflow as tf
import playhead as ph

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
ds = ph.Dataset.range(64).map(lambda x: tf.square(x), form="tf").batch(4).prefetch(2)
it, other = ph.tensorflow.iterator(ds), ph.tensorflow.iterator(ds)

@tf.function
def run(it, other):
    total = tf.constant(0, tf.int64)
    for _ in tf.range(8):
        total += tf.reduce_sum(next(it)) - tf.reduce_sum(next(other))
    return total

assert int(run(it, other)) == 0 and it.position.step == 8
"""


def test_a_graph_that_waits_leaves_tensorflow_s_threads_to_the_pipeline(tmp_path: Path) -> None:
    script = tmp_path / "one_thread.py"  # autograph reads the source
    script.write_text(ONE_THREAD)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
