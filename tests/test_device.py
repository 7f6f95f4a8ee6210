"""Elements put on a device ahead: what was delivered counts, in every framework."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import playhead as ph
from playhead.device import DeviceIterator
from playhead.errors import NotSeekable, OutOfReach, PipelineChanged, PipelineError, WrongDoor
from playhead.plan.block import map_nest

Door = Callable[..., DeviceIterator[Any]]


class Host:
    """The device that is no device."""

    def begin(self, element: Any) -> Any:
        return element

    def finish(self, begun: Any) -> Any:
        return begun


def host(it: ph.Iterator, size: int = 2) -> DeviceIterator[Any]:
    return DeviceIterator(it, Host(), size)


@pytest.fixture(params=["host", "jax", "tensorflow", "torch"])
def door(request: pytest.FixtureRequest) -> Door:
    if request.param == "host":
        return host
    pytest.importorskip(request.param)
    module = importlib.import_module(f"playhead.{request.param}")
    if request.param == "jax":
        return module.prefetch_to_device
    place = {"tensorflow": "/CPU:0", "torch": "cpu"}[request.param]
    return lambda it, size=2: module.prefetch_to_device(it, place, size)


def record(x: Any) -> dict[str, Any]:
    return {"x": np.float32(x) / 7, "name": f"é{x}"}


def seekable() -> ph.Dataset:
    return ph.Dataset.range(10).shuffle(seed=3).map(record, form="python").batch(4).prefetch(2)


def drawn() -> ph.Dataset:
    return ph.Dataset.range(6).shuffle().map(record, form="python").batch(2)


def stream() -> ph.Dataset:
    return ph.Dataset.range(11).filter(lambda x: x % 3 != 1).map(record, form="python").batch(2)


def read_ahead_stream() -> ph.Dataset:
    return stream().prefetch(3)


PIPELINES = [seekable, drawn, stream, read_ahead_stream]


def values(element: Any) -> Any:
    """An element of any framework as lists of Python numbers and str."""

    def listed(leaf: Any) -> Any:
        array = np.asarray(leaf)
        if array.dtype == object:
            flat = [v.decode() if isinstance(v, bytes) else v for v in array.ravel()]
            return [str, list(array.shape), flat]
        return [str(array.dtype), list(array.shape), array.tolist()]

    return map_nest(listed, element)


def saved(it: Any) -> str:
    return json.dumps(it.state_dict(), sort_keys=True)


@dataclass
class Told:
    """What a loop saw: elements and ends of epochs, each with the position after it."""

    events: list[tuple[Any, str]]

    @classmethod
    def by_next(cls, it: Any) -> Told:
        return cls([(values(element), saved(it)) for element in it])

    @classmethod
    def by_epochs(cls, it: Any) -> Told:
        events: list[tuple[Any, str]] = []
        for epoch in it.epochs():
            for element in epoch:
                events.append((values(element), saved(it)))
            events.append(("end", saved(it)))
        return cls(events)


WALKS = [Told.by_next, Told.by_epochs]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_elements_positions_and_epochs_are_those_of_the_plain_iterator(
    door: Door, pipeline: Callable[[], ph.Dataset], size: int, walk: Callable[[Any], Told]
) -> None:
    ds = pipeline()
    plain = walk(ds.iterator(epochs=3))
    assert len(plain.events) >= 9
    with door(ds.iterator(epochs=3), size=size) as ahead:
        assert saved(ahead) == saved(ds.iterator(epochs=3))
        assert walk(ahead) == plain
        assert next(ahead, None) is None


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_run_broken_off_at_any_step_goes_on_with_the_same_tail(
    door: Door, pipeline: Callable[[], ph.Dataset]
) -> None:
    ds = pipeline()
    run = door(ds.iterator(epochs=2))
    texts, elements = [saved(run)], []
    for element in run:
        elements.append(values(element))
        texts.append(saved(run))
    assert len(elements) >= 6
    for step, text in enumerate(texts):
        again = door(pipeline().iterator(epochs=2))
        for _ in range(2):  # the second time over what waits from the first
            again.load_state_dict(json.loads(text))
            assert again.step == step and saved(again) == text
            first = [values(element) for element, _ in zip(again, range(1), strict=False)]
            assert first == elements[step : step + 1]
        again.set_state(text)
        assert [values(element) for element in again] == elements[step:]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_run_broken_off_at_any_step_goes_on_with_the_same_epochs(
    door: Door, pipeline: Callable[[], ph.Dataset]
) -> None:
    ds = pipeline()
    run = Told.by_epochs(door(ds.iterator(epochs=3)))
    for at, (_, text) in enumerate(run.events):
        again = door(pipeline().iterator(epochs=3))
        again.load_state_dict(text)
        assert Told.by_epochs(again).events == run.events[at + 1 :]


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("size", [1, 3])
def test_next_and_epochs_may_be_mixed(pipeline: Callable[[], ph.Dataset], size: int) -> None:
    ds = pipeline()

    def mixed(it: Any, first: int, inside: int) -> list[Any]:
        seen: list[Any] = [(values(next(it)), saved(it)) for _ in range(first)]
        for epoch in it.epochs():
            for number, element in enumerate(epoch):
                seen.append((values(element), saved(it)))
                if number == inside and (one := next(it, None)) is not None:
                    seen.append((values(one), saved(it)))
            seen.append(("end", saved(it)))
        return seen

    for first in range(6):
        for inside in range(3):
            expected = mixed(ds.iterator(epochs=3), first, inside)
            assert mixed(host(ds.iterator(epochs=3), size), first, inside) == expected


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_epochs_after_the_end_of_all_say_what_the_plain_iterator_says(
    pipeline: Callable[[], ph.Dataset],
) -> None:
    ds = pipeline()
    plain, ahead = ds.iterator(epochs=2), host(ds.iterator(epochs=2))
    assert len(list(plain)) == len(list(ahead))
    assert saved(ahead) == saved(plain)
    assert Told.by_epochs(ahead) == Told.by_epochs(plain)
    assert list(ahead.epochs()) == []


def test_an_epoch_that_is_left_early_is_finished_first() -> None:
    ahead = host(ph.Dataset.range(5).iterator(epochs=2))
    for epoch in ahead.epochs():
        assert [int(next(epoch)), int(next(epoch))] == [0, 1]
        break
    assert [[int(x) for x in epoch] for epoch in ahead.epochs()] == [[2, 3, 4], [0, 1, 2, 3, 4]]


class Counting(Host):
    def __init__(self) -> None:
        self.begun = 0

    def begin(self, element: Any) -> Any:
        self.begun += 1
        return element


@pytest.mark.parametrize("keep", [lambda s: s, lambda s: s.filter(lambda x: x >= 0)])
def test_size_elements_are_ahead_and_none_of_the_next_epoch(keep: Any) -> None:
    read: list[int] = []
    ds = keep(ph.Dataset.range(10)).map(lambda x: read.append(int(x)) or x, form="python")
    counting = Counting()
    ahead = DeviceIterator(ds.iterator(epochs=2), counting, 3)
    for number, epoch in enumerate(ahead.epochs()):
        for k, element in enumerate(epoch):
            assert int(element) == k
            assert ahead.step == ahead.position.step == 10 * number + k + 1
            assert counting.begun == 10 * number + min(k + 1 + 3, 10)
        assert len(read) == 10 * (number + 1)


def test_a_loop_without_epochs_keeps_size_elements_ahead_across_their_ends() -> None:
    counting = Counting()
    ahead = DeviceIterator(ph.Dataset.range(3).iterator(epochs=4), counting, 2)
    for k, _ in enumerate(ahead):
        assert counting.begun == min(k + 1 + 2, 12)


@pytest.mark.parametrize("epochs", [0, 1, 3, None])
@pytest.mark.parametrize("empty", [lambda s: s.take(0), lambda s: s.filter(lambda x: x < 0)])
def test_an_empty_dataset_has_no_elements(door: Door, empty: Any, epochs: int | None) -> None:
    ds = empty(ph.Dataset.range(3))
    ahead = door(ds.iterator(epochs=epochs))
    assert list(ahead) == [] and ahead.step == 0
    plain = ds.iterator(epochs=epochs)
    assert list(plain) == []
    assert Told.by_epochs(door(ds.iterator(epochs=epochs))).events == (
        Told.by_epochs(ds.iterator(epochs=epochs)).events
    )


def at_7(x: Any) -> Any:
    if x == 7:
        raise RuntimeError("no 7")
    return x


@pytest.mark.parametrize("size", [1, 2, 20])
@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("keep", [lambda s: s, lambda s: s.filter(lambda x: x >= 0)])
def test_an_error_comes_at_its_step_as_often_as_it_is_asked_for(
    door: Door, keep: Any, epochs: bool, size: int
) -> None:
    ahead = door(keep(ph.Dataset.range(12)).map(at_7).iterator(), size=size)
    elements = next(ahead.epochs()) if epochs else ahead
    assert [int(next(elements)) for _ in range(7)] == list(range(7))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no 7") as raised:
            next(next(ahead.epochs()) if epochs else ahead)
        assert "playhead: while computing step 8 of the run" in raised.value.__notes__
        assert ahead.step == ahead.position.step == 7
    ahead.close()


def test_an_element_that_cannot_be_put_is_put_again_and_never_skipped() -> None:
    class Flaky(Host):
        refused = False

        def begin(self, element: Any) -> Any:
            if element == 4 and not self.refused:
                self.refused = True
                raise MemoryError("full")
            return element

    ahead = DeviceIterator(ph.Dataset.range(8).iterator(), Flaky(), 2)
    assert [int(next(ahead)) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(MemoryError) as raised:
        next(ahead)
    assert raised.value.__notes__ == ["playhead: while putting step 5 on the device"]
    assert ahead.step == 4
    assert [int(x) for x in ahead] == [4, 5, 6, 7]


@pytest.mark.parametrize("where", ["pipeline", "begin", "finish"])
@pytest.mark.parametrize("keep", [lambda s: s, lambda s: s.filter(lambda x: x >= 0)])
@pytest.mark.parametrize("by_epochs", [False, True])
def test_an_interrupt_anywhere_loses_nothing(where: str, keep: Any, by_epochs: bool) -> None:
    pressed: set[str] = set()

    def press(at: str, x: Any) -> Any:
        if at == where and int(x) == 5 and not pressed:
            pressed.add(at)
            raise KeyboardInterrupt
        return x

    class Interrupted(Host):
        def begin(self, element: Any) -> Any:
            return press("begin", element)

        def finish(self, begun: Any) -> Any:
            return press("finish", begun)

    ds = keep(ph.Dataset.range(9)).map(lambda x: press("pipeline", x))
    ahead = DeviceIterator(ds.iterator(), Interrupted(), 2)
    seen: list[int] = []

    def walk() -> None:
        for epoch in ahead.epochs() if by_epochs else [ahead]:
            for element in epoch:
                seen.append(int(element))

    with pytest.raises(KeyboardInterrupt):
        walk()
    assert ahead.step == ahead.position.step == len(seen) < 9
    walk()
    assert seen == list(range(9))


@pytest.mark.parametrize("keep", [lambda s: s, lambda s: s.filter(lambda x: x >= 0)])
@pytest.mark.parametrize("by_epochs", [False, True])
def test_an_interrupt_before_any_line_that_hands_over_loses_nothing(
    keep: Any, by_epochs: bool
) -> None:
    handing_over = ("_hand_over", "_take", "_fill", "_pull", "_begin", "_stand", "_open")
    ds = keep(ph.Dataset.range(4))

    def interrupted_at(line: int) -> bool:
        ahead, seen, passed = host(ds.iterator(epochs=2)), [], 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal passed
            mine = frame.f_code.co_filename.endswith("playhead/device.py")
            if not mine or frame.f_code.co_name not in handing_over:
                return None
            if event == "line":
                passed += 1
                if passed == line:
                    raise KeyboardInterrupt
            return trace

        def walk() -> None:
            for epoch in ahead.epochs() if by_epochs else [ahead]:
                for element in epoch:
                    seen.append(int(element))

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            walk()
        except KeyboardInterrupt:
            sys.settrace(before)
            assert ahead.step == ahead.position.step == len(seen)
            walk()
        finally:
            sys.settrace(before)
        assert seen == [0, 1, 2, 3] * 2, line
        return passed >= line

    line = 1
    while interrupted_at(line):
        line += 1
    assert line > 100


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_earlier_positions_are_exact(pipeline: Callable[[], ph.Dataset]) -> None:
    ds = pipeline()
    ahead = host(ds.iterator(epochs=2))
    after = [ahead.position]
    for _ in ahead:
        after.append(ahead.position)
        for step, position in enumerate(after):
            assert ahead.position_at(step) == position


def test_a_stream_names_its_last_1024_steps_however_much_waits() -> None:
    ahead = host(ph.Dataset.range(1200).filter(lambda x: x >= 0).iterator(), size=100)
    for _ in range(1050):
        next(ahead)
    again = ph.Dataset.range(1200).filter(lambda x: x >= 0).iterator()
    again.load_state_dict(ahead.position_at(27))
    assert again.position.step == 27
    with pytest.raises(OutOfReach, match="last 1024"):
        ahead.position_at(26)


def test_a_stream_names_what_was_delivered_and_not_what_waits() -> None:
    ahead = host(ph.Dataset.range(9).filter(lambda x: x >= 0).iterator(), size=4)
    next(ahead)
    with pytest.raises(OutOfReach, match="not among the last 2 that this stream delivered"):
        ahead.position_at(2)
    with pytest.raises(NotSeekable):
        ahead.seek(1)


def test_a_seekable_pipeline_is_sought_and_names_any_step() -> None:
    ds = ph.Dataset.range(9).batch(2)
    ahead = host(ds.iterator(epochs=2), size=8)
    next(ahead)
    plain = ds.iterator(epochs=2)
    for step in range(11):
        assert ahead.position_at(step) == plain.position_at(step)
    ahead.seek(7)
    assert ahead.step == 7
    epoch = next(ahead.epochs())
    assert next(epoch).tolist() == [4, 5]
    plain.seek(8)
    for step in range(11):
        assert ahead.position_at(step) == plain.position_at(step)
    ahead.seek(7)
    assert [x.tolist() for x in ahead] == [[4, 5], [6, 7], [8]]


def test_the_iterator_below_may_be_restored_before_the_first_element_only() -> None:
    ds = ph.Dataset.range(9)
    below = ds.iterator()
    ahead = host(below)
    assert ahead.step == 0
    below.seek(4)
    assert ahead.step == ahead.position.step == 4
    assert int(next(ahead)) == 4
    for use in (
        lambda: below.seek(0),
        lambda: next(below),
        lambda: below.set_state(ahead.position),
    ):
        ahead.seek(4)
        assert int(next(ahead)) == 4
        use()
        with pytest.raises(WrongDoor, match="moved by something else"):
            next(ahead)
        assert ahead.step == 5


def test_a_position_of_another_pipeline_leaves_everything_as_it_is() -> None:
    ahead = host(ph.Dataset.range(9).iterator())
    next(ahead)
    other = ph.Dataset.range(9).shuffle(seed=1).iterator()
    with pytest.raises(PipelineChanged):
        ahead.load_state_dict(other.position)
    assert [int(x) for x in ahead] == list(range(1, 9))
    ahead.load_state_dict(other.position, on_change="from_here")
    assert int(next(ahead)) == 0


def test_closed_it_ends_keeps_its_position_and_can_be_restored(door: Door) -> None:
    ds = stream()
    with door(ds.iterator(epochs=2)) as ahead:
        first = values(next(ahead))
        text = saved(ahead)
    assert next(ahead, None) is None and list(ahead.epochs()) == []
    assert saved(ahead) == text and ahead.step == 1
    ahead.load_state_dict(text)
    assert [first, *map(values, ahead)] == [values(x) for x in ds.iterator(epochs=2)]


@pytest.mark.parametrize("size", [0, -1, 1001])
def test_a_size_outside_its_bounds_is_refused(size: int) -> None:
    with pytest.raises(PipelineError, match="from 1 to 1000"):
        host(ph.Dataset.range(3).iterator(), size)


@pytest.mark.parametrize("given", [ph.Dataset.range(3), iter([1]), None])
def test_anything_but_an_iterator_is_refused_with_the_way_to_make_one(
    door: Door, given: Any
) -> None:
    with pytest.raises(TypeError, match=r"ds\.iterator\(epochs="):
        door(given)


def test_nests_keep_their_structure(door: Door) -> None:
    def nest(x: Any) -> Any:
        return {"a": (np.float32(x), np.full((2, 3), x, np.int32)), "b": np.bool_(x > 0)}

    ds = ph.Dataset.range(4).map(nest)
    ahead = list(door(ds.iterator()))
    assert [values(x) for x in ahead] == [values(x) for x in ds.iterator()]
    assert [type(x["a"]) for x in ahead] == [tuple] * 4


def test_an_endless_run_goes_on_over_its_epochs() -> None:
    def taken(it: Iterator[Any]) -> list[Any]:
        return [(int(next(it)), saved(it)) for _ in range(11)]

    for ds in (ph.Dataset.range(3), ph.Dataset.range(3).filter(lambda x: x != 1)):
        assert taken(host(ds.iterator(epochs=None))) == taken(ds.iterator(epochs=None))
        repeated = ds.repeat()
        assert taken(host(repeated.iterator())) == taken(repeated.iterator())


def test_stats_tell_what_was_handed_out_from_what_waits() -> None:
    with host(ph.Dataset.range(20).batch(2).iterator(), size=3) as it:
        assert it.stats()["delivered"] == it.stats()["on_device"] == 0
        for _ in range(2):
            next(it)
        assert (it.stats()["delivered"], it.stats()["on_device"]) == (2, 3)
        assert len(list(it)) == 8
        assert (it.stats()["delivered"], it.stats()["on_device"]) == (10, 0)
        assert it.stats()["seconds"] >= it.stats()["waited"]
