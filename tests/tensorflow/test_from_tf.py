"""An unchanged tf.data pipeline as a source: exact in both of its states."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import (
    PipelineChanged,
    PipelineError,
    PlayheadWarning,
    SlowResume,
    SourceChanged,
    UnreadablePosition,
    UnrepeatableFunction,
)
from playhead.tensorflow import iterator_state
from playhead.testing import assert_resumes_exactly, difference

Make = Callable[[], tf.data.Dataset]


@pytest.fixture(autouse=True)
def no_global_seed() -> None:
    """TensorFlow's, which another test may have set: it gives seeds to shuffles that have none."""
    tf.random.set_seed(None)


def doubled(x: Any) -> Any:
    return x * 2


def some(x: Any) -> Any:
    return tf.data.Dataset.range(x % 3 + 1).shuffle(2, seed=4)


def odd(x: Any) -> Any:
    return x % 2 == 1


def shuffled(n: int = 6, seed: int = 3) -> tf.data.Dataset:
    return tf.data.Dataset.range(n).shuffle(4, seed=seed)


def windows(w: Any) -> Any:
    return w.batch(3)


PIPELINES: dict[str, Make] = {
    "shuffle, parallel map, batch, prefetch": lambda: (
        shuffled().map(doubled, num_parallel_calls=2).batch(4).prefetch(2)
    ),
    "shuffle below repeat": lambda: shuffled(3).repeat(2),
    "shuffle below shuffle": lambda: shuffled().shuffle(3, seed=9).batch(2),
    "cache of a shuffle": lambda: shuffled().cache().batch(2),
    "shuffle of a cache": lambda: tf.data.Dataset.range(6).cache().shuffle(4, seed=1).batch(2),
    "parallel interleave of shuffles": lambda: (
        shuffled(4).interleave(some, cycle_length=2, num_parallel_calls=2).batch(3)
    ),
    "filter and windows": lambda: shuffled(8).filter(odd).window(3).flat_map(windows),
    "zip of two shuffles": lambda: tf.data.Dataset.zip((shuffled(5), shuffled(5, 8))),
    "two shuffles one after the other": lambda: shuffled(3).concatenate(shuffled(3, 7)),
    "two shuffles mixed": lambda: tf.data.Dataset.sample_from_datasets(
        [shuffled(3), shuffled(3, 7)], [0.5, 0.5], seed=5
    ),
    "nothing random": lambda: tf.data.Dataset.range(5).map(doubled).batch(2),
}
NOT_SAVED = ("two shuffles one after the other", "two shuffles mixed")


def as_python(element: Any) -> Any:
    return tf.nest.map_structure(lambda x: np.asarray(x).tolist(), element)


def passes(make: Make, count: int) -> list[list[Any]]:
    """What TensorFlow itself gives in `count` passes over one dataset object."""
    dataset = make()
    return [[as_python(x) for x in dataset.as_numpy_iterator()] for _ in range(count)]


@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
@pytest.mark.parametrize("name", PIPELINES)
def test_passes_are_those_of_tf_data_and_each_place_is_found_again(name: str) -> None:
    make = PIPELINES[name]
    expected = passes(make, 3)
    ds = ph.Dataset.from_tf(make())
    with ds.iterator(epochs=3) as it:
        taken = [(as_python(x), it.position) for x in it]
    assert [x for x, _ in taken] == list(itertools.chain(*expected))
    for after in range(0, len(taken), 2):
        position = taken[after][1]
        with ph.Dataset.from_tf(make()).iterator(epochs=3) as again:
            again.load_state_dict(position.to_json())
            rest = [as_python(x) for x in again]
            assert rest == [x for x, _ in taken[after + 1 :]], f"after {after + 1}"


@pytest.mark.parametrize(
    "name", ["shuffle, parallel map, batch, prefetch", "cache of a shuffle", "zip of two shuffles"]
)
def test_it_resumes_exactly_with_any_read_ahead(name: str) -> None:
    make = PIPELINES[name]
    assert_resumes_exactly(lambda: ph.Dataset.from_tf(make()), workers=(0, 2), every=3)


def test_a_second_pass_opened_directly_counts_as_tensorflow_counts_passes() -> None:
    """Each opening of an iterator over a dataset object draws the next seed, iterated or not."""
    dataset = shuffled(12)
    first = list(dataset.as_numpy_iterator())
    iter(dataset)
    third = list(dataset.as_numpy_iterator())
    assert third == passes(lambda: shuffled(12), 3)[2] and first != third


def test_only_what_a_position_needs_is_replayed() -> None:
    """Of what a shuffle leaves behind, opening an iterator is all; below repeat a pass must be walked."""

    def replayed(make: Make, cursor: list[int]) -> str:
        ds = ph.Dataset.from_tf(make())
        state = ds.iterator(epochs=3).state_dict() | {
            "cursor": cursor,
            "epoch": cursor[0],
            "step_in_epoch": cursor[1],
        }
        it = ds.iterator(epochs=3)
        it.load_state_dict(state)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            next(it)
        return " ".join(str(warning.message) for warning in said)

    assert "replayed 3 elements" in replayed(lambda: shuffled(6), [2, 3])
    assert replayed(lambda: shuffled(6), [1, 6]) == ""
    assert "replayed 7 elements" in replayed(lambda: shuffled(6).cache(), [2, 1])
    assert "replayed 13 elements" in replayed(lambda: shuffled(3).repeat(2), [2, 1])
    assert "replayed 1 elements" in replayed(lambda: tf.data.Dataset.range(5).cache(), [2, 1])


def test_whoever_iterated_the_dataset_before_changes_nothing() -> None:
    dataset = shuffled(12)
    ds = ph.Dataset.from_tf(dataset)
    before = [int(x) for x in ds.iterator(epochs=2)]
    list(dataset), list(dataset)
    assert [int(x) for x in ds.iterator(epochs=2)] == before
    assert [int(x) for x in ph.Dataset.from_tf(dataset).iterator(epochs=2)] == before


@pytest.fixture
def snapshots_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator_state, "EVERY", 0.0)
    monkeypatch.setattr(iterator_state, "SHARE", 1e9)


@pytest.mark.usefixtures("snapshots_at_once")
@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
@pytest.mark.parametrize("name", [name for name in PIPELINES if name not in NOT_SAVED])
def test_tf_data_s_own_state_comes_back_at_every_step(name: str) -> None:
    make = PIPELINES[name]
    expected = list(itertools.chain(*passes(make, 2)))

    def wrapped() -> ph.Dataset:
        return ph.Dataset.from_tf(make(), state="iterator")

    with wrapped().iterator(epochs=2) as it:
        positions = [it.position]
        for element, value in zip(it, expected, strict=True):
            assert as_python(element) == value
            positions.append(it.position)
    assert sum(isinstance(p.cursor, dict) for p in positions) > len(positions) // 4
    for step, position in enumerate(positions):
        ds = wrapped() if step % 2 else wrapped().prefetch(2)
        with ds.iterator(epochs=2) as again:
            again.load_state_dict(position.to_json())
            assert [as_python(x) for x in again] == expected[step:], f"restored at step {step}"


@pytest.mark.usefixtures("snapshots_at_once")
@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
def test_a_shuffle_without_a_seed_goes_on_with_its_saved_state() -> None:
    def wrapped() -> ph.Dataset:
        return ph.Dataset.from_tf(tf.data.Dataset.range(40).shuffle(30), state="iterator")

    with wrapped().iterator(epochs=3) as it:
        elements, positions = zip(*((int(x), it.position) for x in it), strict=True)
    assert sorted(elements) == sorted(list(range(40)) * 3) and elements[:40] != elements[40:80]
    for step in (1, 17, 40, 41, 60, 100):
        with wrapped().iterator(epochs=3) as again:
            again.load_state_dict(positions[step - 1].to_json())
            assert tuple(int(x) for x in again) == elements[step:]


@pytest.mark.usefixtures("snapshots_at_once")
def test_a_restored_state_replays_nothing_and_another_tensorflow_s_is_replayed() -> None:
    def wrapped() -> ph.Dataset:
        return ph.Dataset.from_tf(shuffled(40), state="iterator")

    with wrapped().iterator() as it:
        for _ in range(20):
            next(it)
        position = it.position.to_dict()
        expected = [int(x) for x in it]
    assert position["cursor"]["taken"] > 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with wrapped().iterator() as again:
            again.load_state_dict(position)
            assert [int(x) for x in again] == expected
    position["cursor"]["tensorflow"] = "1.0"
    with wrapped().iterator() as again:
        again.load_state_dict(position)
        with pytest.warns(SlowResume, match="replayed 20 elements"):
            assert [int(x) for x in again] == expected
    for damage in ("AAAA", "?"):
        position["cursor"] |= {"state": damage, "tensorflow": tf.__version__}
        with wrapped().iterator() as again:
            again.load_state_dict(position)
            with pytest.raises(UnreadablePosition):
                next(again)
    position["cursor"]["taken"] = 21
    with wrapped().iterator() as again, pytest.raises(UnreadablePosition):
        again.load_state_dict(position)


@pytest.mark.usefixtures("snapshots_at_once")
def test_a_state_with_one_bit_turned_is_refused_before_tensorflow_reads_it() -> None:
    with ph.Dataset.from_tf(shuffled(40), state="iterator").iterator() as it:
        for _ in range(20):
            next(it)
        position = it.position.to_dict()
    state = base64.b64decode(position["cursor"]["state"])
    for at in range(0, len(state), len(state) // 40):
        turned = state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :]
        position["cursor"]["state"] = base64.b64encode(turned).decode()
        with ph.Dataset.from_tf(shuffled(40), state="iterator").iterator() as again:
            again.load_state_dict(position)
            with pytest.raises(UnreadablePosition, match="damaged after it was saved"):
                next(again)


@pytest.mark.usefixtures("snapshots_at_once")
def test_the_state_of_a_pipeline_that_was_overridden_is_not_forced_on_the_new_one() -> None:
    with ph.Dataset.from_tf(shuffled(40), state="iterator").iterator() as it:
        for _ in range(20):
            next(it)
        position = it.position
    expected = passes(lambda: shuffled(40, seed=4), 1)[0][20:]
    with ph.Dataset.from_tf(shuffled(40, seed=4), state="iterator").iterator() as changed:
        changed.load_state_dict(position, override=["tf_data"])
        with pytest.warns(SlowResume, match="replayed 20 elements"):
            assert [int(x) for x in changed] == expected


def test_a_state_above_the_limit_names_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator_state, "EVERY", 0.0)
    monkeypatch.setattr(iterator_state, "LIMIT", 4096)
    rows = np.random.default_rng(0).random((64, 64))
    wide = tf.data.Dataset.from_tensor_slices(rows).shuffle(50, seed=1)
    with pytest.raises(PipelineError, match=r'(?s)0 MB.*state="skip"'):
        list(ph.Dataset.from_tf(wide, state="iterator"))


def test_any_operation_may_follow() -> None:
    def make() -> ph.Dataset:
        pairs = tf.data.Dataset.zip({"x": shuffled(9), "y": shuffled(9, 5)})
        ds = ph.Dataset.from_tf(pairs).map(lambda e: e["x"] * 10 + e["y"])
        return ds.shuffle(4, seed=2).batch(2).prefetch(2)

    assert_resumes_exactly(make, workers=(0, 2), every=4)


PROCESS = """
import sys, warnings
import tensorflow as tf
import playhead as ph
noise, path = int(sys.argv[1]), sys.argv[2]
for k in range(noise):  # names of functions and resources are counted in a process
    list(tf.data.Dataset.range(3).map(lambda x: x + k).shuffle(2).cache())
def some(x):
    return tf.data.Dataset.range(x % 3 + 1).shuffle(2, seed=4)
made = tf.data.Dataset.range(30).shuffle(9, seed=3).interleave(some, 2, num_parallel_calls=2).batch(4)
warnings.simplefilter("ignore")
from playhead.tensorflow import iterator_state
iterator_state.EVERY, iterator_state.SHARE = 0.0, 1e9
it = ph.Dataset.from_tf(made, state="iterator").iterator(epochs=2)
if noise:
    it.load_state_dict(ph.Position.load(path))
print(it.position.pipeline["fingerprint"])
for step, x in enumerate(it):
    print(x.tolist())
    if step == 8 and not noise:
        it.position.save(path)
"""


def test_another_process_finds_the_same_pipeline_and_restores_its_state(tmp_path: Path) -> None:
    def run(noise: int) -> list[str]:
        script = tmp_path / "run.py"  # autograph reads the source
        script.write_text(PROCESS)
        command = [sys.executable, str(script), str(noise), str(tmp_path / "p.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    whole, rest = run(0), run(3)
    assert isinstance(ph.Position.load(tmp_path / "p.json").cursor, dict)
    assert rest == [whole[0], *whole[10:]] and len(rest) > 10


def different(*makes: Make) -> bool:
    contents = {ph.Dataset.from_tf(make()).operations()[0]["content"] for make in makes}
    return len(contents) == len(makes)


def test_what_changes_the_elements_changes_the_description() -> None:
    bias = np.arange(3)
    assert different(
        lambda: shuffled(),
        lambda: shuffled(7),
        lambda: shuffled(seed=4),
        lambda: shuffled().map(doubled),
        lambda: shuffled().map(lambda x: x * 3),
        lambda: shuffled().map(doubled).map(doubled),
        lambda: shuffled().batch(2),
        lambda: shuffled().batch(2, drop_remainder=True),
        lambda: tf.data.Dataset.from_tensor_slices(bias),
        lambda: tf.data.Dataset.from_tensor_slices(bias + 1),
    )
    assert not different(lambda: shuffled().map(doubled), lambda: shuffled().map(lambda y: y * 2))


def test_a_changed_pipeline_is_refused() -> None:
    it = ph.Dataset.from_tf(shuffled()).iterator()
    next(it)
    with pytest.raises(PipelineChanged, match="tf_data"):
        ph.Dataset.from_tf(shuffled(seed=4)).iterator().load_state_dict(it.position)
    moved = ph.Dataset.from_tf(shuffled(seed=4)).iterator()
    moved.load_state_dict(it.position, override=["tf_data"])
    with pytest.warns(SlowResume):
        assert [int(x) for x in moved] == passes(lambda: shuffled(seed=4), 1)[0][1:]


def test_other_processes_work_on_its_elements() -> None:
    def make() -> ph.Dataset:
        ds = ph.Dataset.from_tf(shuffled(9)).map(functools.partial(np.multiply, 10)).batch(2)
        return ds.prefetch(2, workers=1, on="processes")

    with make().iterator() as it:
        assert [x.tolist() for x in it] == [
            [10 * x for x in pair] for pair in passes(lambda: shuffled(9).batch(2), 1)[0]
        ]


def test_specs_and_cardinality_are_tf_data_s() -> None:
    pairs = tf.data.Dataset.from_tensor_slices(
        ({"image": np.zeros((5, 2, 3), np.float32)}, ["a", "b", "c", "d", "e\0"])
    ).batch(2)
    ds = ph.Dataset.from_tf(pairs)
    assert len(ds) == 3 and not ds.seekable
    image, words = ds.element_spec
    assert image == {"image": ph.ArraySpec((None, 2, 3), np.dtype(np.float32))}
    assert words == ph.ArraySpec((None,), bytes)
    *_, (last, word) = ds
    assert last["image"].shape == (1, 2, 3) and word.tolist() == [b"e\0"]
    assert ph.Dataset.from_tf(shuffled().filter(odd)).cardinality() == ph.UNKNOWN
    endless = ph.Dataset.from_tf(shuffled(3).repeat())
    assert endless.cardinality() == ph.INFINITE
    assert_resumes_exactly(
        lambda: ph.Dataset.from_tf(shuffled(3).repeat().batch(2)),
        epochs=None,
        steps=5,
        workers=(0,),
    )
    (scalar,) = ph.Dataset.from_tf(tf.data.Dataset.from_tensors(b"\0x"))
    assert scalar == b"\0x"


def test_elements_belong_to_the_consumer() -> None:
    held = tf.data.Dataset.from_tensors(np.zeros(1000)).repeat(2)
    first, second = ph.Dataset.from_tf(held)
    first += 1
    assert second.sum() == 0 and second.ctypes.data % 64 == 0


def test_ragged_and_sparse_leaves_are_named() -> None:
    ragged = tf.data.Dataset.from_tensors({"r": tf.ragged.constant([[1], [2, 3]])})
    with pytest.raises(PipelineError, match=r"(?s)element\['r'\] is a RaggedTensor.*padded_batch"):
        ph.Dataset.from_tf(ragged)
    sparse = tf.data.Dataset.from_tensors(tf.sparse.from_dense([[1, 0]]))
    with pytest.raises(PipelineError, match=r"(?s)SparseTensor.*to_dense"):
        ph.Dataset.from_tf(sparse)
    with pytest.raises(TypeError, match=r"from_tf takes a tf\.data\.Dataset"):
        ph.Dataset.from_tf([1, 2])


def unseeded_inside(x: Any) -> Any:
    return tf.data.Dataset.range(x).shuffle(3)


def hasty() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return shuffled().with_options(options)


REFUSED: dict[str, tuple[Make, type[Exception], str]] = {
    "shuffle": (
        lambda: tf.data.Dataset.range(9).shuffle(3),
        PipelineError,
        r'(?s)ShuffleDatasetV3 has no seed.*seed=.*state="iterator"',
    ),
    "inner shuffle": (
        lambda: tf.data.Dataset.range(9).flat_map(unseeded_inside),
        PipelineError,
        "in a function of the pipeline has no seed",
    ),
    "mixture": (
        lambda: tf.data.Dataset.sample_from_datasets([shuffled(), shuffled()]),
        PipelineError,
        "RandomDataset has no seed",
    ),
    "random operation": (
        lambda: shuffled().map(lambda x: tf.random.uniform([])),
        UnrepeatableFunction,
        "(?s)RandomUniform.*rng=True",
    ),
    "seeded random operation": (
        lambda: shuffled().map(lambda x: tf.random.uniform([], seed=1)),
        UnrepeatableFunction,
        "RandomUniform",
    ),
    "order of readiness": (
        lambda: shuffled().map(doubled, num_parallel_calls=2, deterministic=False),
        PipelineError,
        "ParallelMapDataset.*deterministic=False",
    ),
    "order of readiness by option": (hasty, PipelineError, "deterministic=False"),
    "read ahead and cut": (
        lambda: shuffled().repeat().prefetch(4).take(5),
        PipelineError,
        "read ahead and then cut short",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_repeats_is_refused_by_name(name: str) -> None:
    make, kind, match = REFUSED[name]
    with pytest.raises(kind, match=match):
        ph.Dataset.from_tf(make())
    if name not in ("shuffle", "mixture"):
        with pytest.raises(kind, match="from_tf"):
            ph.Dataset.from_tf(make(), state="iterator")


def test_elements_of_a_tf_data_service_come_in_no_order_and_are_refused() -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    distributed = shuffled().apply(service.distribute("parallel_epochs", dispatcher.target))
    with pytest.raises(PipelineError, match=r"(?s)DataService.*without distribute"):
        ph.Dataset.from_tf(distributed)


def test_what_tensorflow_cannot_save_is_refused_with_its_reason() -> None:
    generator = tf.data.Dataset.from_generator(
        lambda: iter([1, 2]), output_signature=tf.TensorSpec((), tf.int32)
    )
    python = tf.data.Dataset.range(3).map(
        lambda x: tf.numpy_function(lambda a: a, [x], tf.int64, stateful=True)
    )
    for made, reason in (
        (generator, "PyFunc is stateful"),
        (python, "PyFunc is stateful"),
        (PIPELINES["two shuffles mixed"](), "hangs"),
        (PIPELINES["two shuffles one after the other"](), "loses the seed"),
    ):
        with pytest.raises(PipelineError, match=rf'(?s){reason}.*state="skip"'):
            ph.Dataset.from_tf(made, state="iterator")


def test_python_in_the_pipeline_is_called_again_and_says_so() -> None:
    calls: list[list[int]] = []  # one for each pass: an open iterator's prefetch goes on by itself

    def numbers() -> Iterator[int]:
        called: list[int] = []
        calls.append(called)
        for k in range(6):
            called.append(k)
            yield k * 10

    made = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int32))
    with pytest.warns(PlayheadWarning, match="calls Python"):
        ds = ph.Dataset.from_tf(made.prefetch(1))
    it = ds.iterator()
    assert [int(next(it)) for _ in range(4)] == [0, 10, 20, 30]
    position = it.position
    before = len(calls)
    again = ds.iterator()
    again.load_state_dict(position)
    with pytest.warns(SlowResume, match="replayed 4 elements"):
        assert [int(x) for x in again] == [40, 50]
    assert calls[before:] == [list(range(6))]


def test_variables_keep_the_value_that_they_had_when_the_pipeline_was_wrapped() -> None:
    offset = tf.Variable(5, dtype=tf.int64)
    keys = tf.range(3, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 7), -1)
    made = tf.data.Dataset.range(3).map(lambda x: table.lookup(x) + offset)
    ds, again = ph.Dataset.from_tf(made), ph.Dataset.from_tf(made)
    assert ds.operations() == again.operations()
    offset.assign(6)
    assert [int(x) for x in ds] == [5, 12, 19]
    assert ph.Dataset.from_tf(made).operations() != ds.operations()


def test_files_that_have_become_shorter_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\nd\n")
    ds = ph.Dataset.from_tf(tf.data.TextLineDataset(str(path)))
    it = ds.iterator()
    for _ in range(3):
        next(it)
    position = it.position
    path.write_text("a\nb\n")
    again = ds.iterator()
    again.load_state_dict(position)
    with pytest.raises(SourceChanged, match="ended after 2 elements"):
        next(again)


def test_an_error_in_the_pipeline_names_its_element() -> None:
    checked = tf.data.Dataset.range(5).map(lambda x: 6 // (3 - x))
    it = ph.Dataset.from_tf(checked).iterator()
    assert [int(next(it)) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(it)
    assert "playhead: in from_tf, element 3 of epoch 0" in raised.value.__notes__
    assert it.position.step == 3


FIT = """
import json, os, sys, time
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf
import playhead as ph
from playhead.tensorflow import iterator_state

class Killed(keras.callbacks.Callback):
    seen = 0
    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        print(json.dumps([batch, logs["loss"]]), flush=True)
        if self.seen == int(sys.argv[2]):
            time.sleep(0.5)  # what was saved is written behind the loop
            os.kill(os.getpid(), 9)

iterator_state.EVERY, iterator_state.SHARE = 0.0, 1e9
x = np.random.default_rng(0).random((40, 4)).astype(np.float32)
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
data = data.cache().shuffle(40, seed=1).batch(8).prefetch(2)
if sys.argv[3] == "iterator":
    data = ph.Dataset.from_tf(data, state="iterator")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile("adam", "mse")
ph.keras.fit(model, data, checkpoint=sys.argv[1], epochs=3, save_every=2, verbose=0, callbacks=[Killed()])
print(json.dumps([float(np.sum(w)) for w in model.get_weights()]))
"""


def test_a_fit_over_tf_data_that_is_killed_twice_ends_as_if_it_was_not(tmp_path: Path) -> None:
    """First it is wrapped by fit, then its iterator state is saved, too."""

    def fit(where: str, stop: int, state: str) -> list[str]:
        command = [sys.executable, "-c", FIT, str(tmp_path / where), str(stop), state]
        quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, env=quiet
        )
        assert done.returncode == (-9 if stop else 0), done.stderr
        return done.stdout.splitlines()

    whole = fit("whole", 0, "skip")
    assert len(whole) == 16 and fit("run", 4, "skip") == whole[:4]
    assert fit("run", 4, "iterator") in (whole[4:8], whole[2:6])
    rest = fit("run", 0, "iterator")
    assert rest == whole[-len(rest) :] and 8 <= len(rest) <= 12


def test_fit_says_that_it_wraps_a_tf_data_pipeline_and_how_to_seed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((4, 1), np.float32)
    made = tf.data.Dataset.from_tensor_slices((rows, rows))
    with pytest.raises(PipelineError, match=r'(?s)has no seed.*seed=.*state="iterator"'):
        ph.keras.fit(model, made.shuffle(4).batch(2), checkpoint=tmp_path / "r")
    ph.keras.fit(model, made.batch(2), checkpoint=tmp_path / "r", epochs=1, verbose=2)
    assert "is wrapped by playhead.Dataset.from_tf" in capsys.readouterr().out


def test_difference_of_two_positions_is_the_saved_state_only() -> None:
    """Whether the state is kept or not, a position of one serves the other."""
    skip = ph.Dataset.from_tf(shuffled()).iterator()
    kept = ph.Dataset.from_tf(shuffled(), state="iterator").iterator()
    elements = list(itertools.islice(skip, 2))
    kept.load_state_dict(skip.position)
    with pytest.warns(SlowResume):
        rest = [int(x) for x in kept]
    assert [int(x) for x in [*elements, *skip]][2:] == rest
    assert (
        difference(skip.position.to_dict()["pipeline"], kept.position.to_dict()["pipeline"]) is None
    )
    assert json.loads(kept.position.to_json())["records"] == 6
