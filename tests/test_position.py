import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset, Position
from playhead.errors import (
    NewerFormat,
    PositionError,
    SlowResume,
    SourceChanged,
    UnreadablePosition,
)

GOLDEN_FILE = Path(__file__).parent / "golden" / "positions.json"


def lists(elements):
    return [json.loads(json.dumps(element, default=lambda x: x.tolist())) for element in elements]


# Pipelines of every kind: with a place, a cursor, batches cut anew, a past


def even(x):
    return x % 2 == 0


def tenths(x, rng):
    return x * 10 + rng.integers(10)


def counting(start=0):
    for k in range(start, 9):
        yield k * k


PIPELINES = {
    "seekable": lambda: (
        Dataset.from_tensor_slices(np.arange(20, dtype=np.int32))
        .shuffle(seed=7)
        .map(tenths, rng=True, seed=5)
        .batch(6)
        .repeat(2)
    ),
    "drawn seeds": lambda: Dataset.range(9).shuffle().map(tenths, rng=True).batch(2),
    "window": lambda: Dataset.range(40).shuffle(9, seed=1).shard(2, 1).batch(3, True).prefetch(2),
    "stream": lambda: Dataset.range(30).shuffle(seed=3).filter(even).batch(4).repeat(2).enumerate(),
    "tree": lambda: Dataset.zip(
        {
            "a": Dataset.range(20).filter(even).take(7).concatenate(Dataset.range(5)),
            "b": Dataset.from_generator(counting).skip(1).repeat(),
        }
    ),
    "endless": lambda: Dataset.from_sequence(list(range(5))).repeat().map(np.int64).batch(4),
    "by record": lambda: Dataset.range(23).shuffle(seed=2).batch(5).repeat(2),
    "lineage": lambda: Dataset.range(12).shuffle(seed=9).batch(5),
}
BEFORE = {
    "by record": [("by_record", lambda: Dataset.range(23).shuffle(seed=2).batch(3).repeat(2), 9)],
    "lineage": [
        ("from_here", lambda: Dataset.range(10).batch(4), 2),
        ("by_record", lambda: Dataset.range(12).shuffle(seed=9).batch(2), 2),
    ],
}


def reached(name, steps=4):
    """An iterator of the pipeline `name`, `steps` after what came before."""
    position, on_change = None, "error"
    for on_next, make, count in [*BEFORE.get(name, ()), ("error", PIPELINES[name], steps)]:
        iterator = make().iterator(epochs=3)
        if position is not None:
            iterator.load_state_dict(position, on_change=on_change)
        for _ in range(count):
            next(iterator)
        position, on_change = iterator.position, on_next
    return iterator


def write_golden():
    """Add what is missing; a line that is there stays as it is for ever."""
    golden = json.loads(GOLDEN_FILE.read_text()) if GOLDEN_FILE.exists() else {}
    for name in PIPELINES:
        if name not in golden:
            iterator = reached(name)
            text = iterator.position.to_json()
            golden[name] = {
                "position": text,
                "next": lists(x for _, x in zip(range(5), iterator, strict=False)),
            }
    lines = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in golden.items()]
    GOLDEN_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


GOLDEN = json.loads(GOLDEN_FILE.read_text()) if GOLDEN_FILE.exists() else {}


@pytest.mark.filterwarnings("ignore::playhead.errors.LibraryChanged")
@pytest.mark.parametrize("name", GOLDEN)
def test_positions_of_the_first_release_go_on_as_they_did(name):
    told = GOLDEN[name]
    iterator = PIPELINES[name]().iterator(epochs=3)
    iterator.load_state_dict(told["position"])
    following = lists(x for _, x in zip(range(5), iterator, strict=False))
    assert following == told["next"]
    assert Position.from_json(told["position"]).to_json() == told["position"]


def test_there_is_a_golden_position_of_every_kind():
    assert GOLDEN.keys() == PIPELINES.keys()
    kept = {name: json.loads(told["position"]) for name, told in GOLDEN.items()}
    assert kept["seekable"]["cursor"] is None and kept["stream"]["cursor"]["at"]["pass"] == 0
    assert kept["by record"]["origin"]["places"] == [[0, 9], [1, 1]]
    assert [past["until_step"] for past in kept["lineage"]["lineage"]] == [2]
    assert kept["lineage"]["origin"]["step"] == 4


# The JSON


@pytest.mark.parametrize("name", PIPELINES)
def test_a_position_is_one_line_of_json_and_its_own_inverse(name):
    position = reached(name).position
    text = position.to_json()
    assert "\n" not in text
    assert Position.from_json(text) == Position.from_json(text.encode()) == position
    assert Position.from_dict(position.to_dict()) == position
    assert json.loads(text)["playhead"] == 1


def test_a_position_of_an_ordinary_pipeline_takes_less_than_a_kilobyte():
    dataset = (
        Dataset.from_tensor_slices(
            {"image": np.zeros((60_000, 4), np.uint8), "label": [0] * 60_000}
        )
        .shuffle(seed=42)
        .map(lambda d, rng: d, rng=True, name="augment")
        .map(lambda d: d)
        .repeat(10)
        .batch(128, drop_remainder=True)
        .prefetch()
    )
    iterator = dataset.iterator()
    iterator.seek(4687)
    assert len(iterator.position.to_json()) < 1024


def test_a_position_says_where_it_stands():
    iterator = Dataset.range(10).batch(4).iterator(epochs=3)
    for _ in range(5):
        next(iterator)
    position = iterator.position
    assert (position.step, position.epoch, position.step_in_epoch) == (5, 1, 2)
    assert (position.records, position.epoch_length, position.cursor) == (18, 3, None)
    assert [op["op"] for op in position.pipeline["operations"]] == ["range", "batch"]


def test_saving_replaces_the_file_in_one_step_or_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "position.json"
    first, second = reached("seekable", 1).position, reached("seekable", 2).position
    first.save(path)
    assert Position.load(path) == first
    assert os.listdir(tmp_path) == ["position.json"]

    def killed(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            second.save(path)
    assert Position.load(path) == first
    assert os.listdir(tmp_path) == ["position.json"]
    second.save(str(path))
    assert Position.load(path) == second


# What is no position


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "null", "3", "[]", "{}", '"playhead"', b"\xff\xfe", b"\0", "[" * 100_000,
        '{"playhead":' * 50_000, '{"playhead": 1', "NaN", '{"playhead": true}', '{"playhead": 0}',
        '{"playhead": -1}', '{"playhead": "1"}', '{"playhead": 1}', '{"playhead": ' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_garbage_is_unreadable(text):
    with pytest.raises(UnreadablePosition, match=r"UnreadablePosition \[P02\]"):
        Position.from_json(text)


@pytest.mark.parametrize(
    "said", [None, 3, [], {}, {"playhead": 1, "step": {1, 2}}, {"playhead": {}}]
)
def test_garbage_objects_are_unreadable(said):
    with pytest.raises(UnreadablePosition):
        Position.from_dict(said)
    circular = {"playhead": 1}
    circular["pipeline"] = circular
    with pytest.raises(UnreadablePosition):
        Position.from_dict(circular)


def test_a_newer_format_is_refused():
    said = reached("seekable").state_dict() | {"playhead": 2}
    with pytest.raises(NewerFormat, match="format 2, this playhead reads up to 1"):
        Position.from_dict(said)
    iterator = PIPELINES["seekable"]().iterator(epochs=3)
    with pytest.raises(NewerFormat):
        iterator.load_state_dict(said)
    assert iterator.position.step == 0


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("seekable", ("step",), 5),
        ("seekable", ("step_in_epoch",), 3),
        ("seekable", ("step_in_epoch",), 9),
        ("seekable", ("epoch",), 1),
        ("seekable", ("records",), 3),
        ("seekable", ("records",), None),
        ("seekable", ("cursor",), [0, 4]),
        ("seekable", ("origin",), {"step": 0, "records": 0, "places": [[0, 0]], "record": 0}),
        ("seekable", ("origin",), 1),
        ("stream", ("cursor",), None),
        ("stream", ("cursor", "at", "epoch"), 1),
        ("stream", ("cursor", "at", "pass"), 2),
        ("stream", ("cursor", "given"), -1),
        ("stream", ("cursor", "at", "at", "at"), [0, 31]),
        ("stream", ("cursor", "at", "at", "at"), [0]),
        ("stream", ("epoch",), 1),
        ("tree", ("cursor",), []),
        ("tree", ("cursor", 0, "dataset"), 2),
        ("tree", ("cursor", 1, "at", "at"), "x"),
        ("by record", ("origin", "places"), [[0, 9]]),
        ("by record", ("origin", "places"), [[0, 9], [5, 1]]),
        ("by record", ("origin", "places"), [[0, 40], [1, 1]]),
        ("by record", ("origin", "record"), 24),
        ("by record", ("origin", "record"), -3),
        ("by record", ("origin", "step"), 8),
    ],
)
def test_a_position_whose_numbers_do_not_agree_is_unreadable(name, path, value):
    said = json.loads(GOLDEN[name]["position"])
    at = said
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    iterator = PIPELINES[name]().iterator(epochs=3)
    with pytest.raises(UnreadablePosition):
        iterator.load_state_dict(said)
    assert iterator.position.step == 0


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.sampled_from([2**31, 2**62 - 1, 2**63, 2**64, -(2**63), 1.5, float("nan"), float("inf")])
    | st.text(max_size=3)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def paths(said, path=()):
    """Every path in a JSON value, the root's first."""
    yield path
    inner = (
        said.items()
        if isinstance(said, dict)
        else enumerate(said)
        if isinstance(said, list)
        else ()
    )
    for key, value in inner:
        yield from paths(value, (*path, key))


@st.composite
def mutated(draw):
    name = draw(st.sampled_from(sorted(GOLDEN)))
    said = json.loads(GOLDEN[name]["position"])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(said))))
        if not path:
            continue
        at = said
        for key in path[:-1]:
            at = at[key]
        if draw(st.booleans()):
            at[path[-1]] = draw(VALUES)
        else:
            del at[path[-1]]
    return name, said


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutated(), st.sampled_from(["error", "by_record", "from_here"]))
@pytest.mark.filterwarnings("ignore::playhead.errors.PlayheadWarning")
def test_a_damaged_position_is_refused_or_goes_on_without_an_error(damaged, on_change):
    name, said = damaged
    text = json.dumps(said)
    try:
        position = Position.from_json(text)
    except (UnreadablePosition, NewerFormat):
        return
    iterator = PIPELINES[name]().iterator(epochs=3)
    before = iterator.position
    try:
        iterator.load_state_dict(position, on_change=on_change)
    except PositionError:
        assert iterator.position == before
        return
    assert iterator.position.step == position.step
    assert Position.from_json(iterator.position.to_json()) == iterator.position
    try:
        for _, _ in zip(range(3), iterator, strict=False):
            pass
    except SourceChanged:
        assert name == "tree"  # the generator is shorter than its cursor says


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60) | VALUES.map(json.dumps))
def test_anything_at_all_is_a_position_or_unreadable(text):
    with contextlib.suppress(UnreadablePosition, NewerFormat):
        Position.from_json(text)


def test_slow_resume_is_a_warning_of_playheads():
    assert issubclass(SlowResume, UserWarning)


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_saved_position_has_the_mode_that_open_gives(tmp_path):
    position = Dataset.range(3).iterator().position
    before = os.umask(0o027)
    try:
        position.save(tmp_path / "new")
        (tmp_path / "old").write_text("")
        (tmp_path / "old").chmod(0o604)
        position.save(tmp_path / "old")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o604
    assert Position.load(tmp_path / "old") == position
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


if __name__ == "__main__":
    write_golden()
