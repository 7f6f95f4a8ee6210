import linecache
import pickle
import threading
import types

import cloudpickle
import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import PipelineError
from playhead.execution.remote import (
    Absent,
    Plan,
    RemoteTraceback,
    Untold,
    arrived,
    portable,
    refuse,
)
from playhead.plan.compute import Job, Outcome
from playhead.plan.node import Piece, Reading
from playhead.plan.places import Places


def there(plan):
    """The plan as another process has it."""
    head, buffers = plan.dumps()
    return Plan.loads(head, [bytearray(buffer.raw()) for buffer in buffers])


def travelled(error):
    try:
        raise error
    except BaseException as raised:
        return arrived(pickle.loads(cloudpickle.dumps(portable(raised))))


def test_a_task_names_nodes_and_does_not_carry_them():
    data = np.arange(100_000)
    node = Dataset.from_tensor_slices(data).map(lambda x: x + 1).shuffle(seed=1).batch(10).node
    plan = Plan(node)
    other = there(plan)
    located = node.locate(Places(0, np.arange(3)))
    task = plan.task((Reading(node), Piece(0, 0, located), plan.forms()))
    assert len(task) < 4000
    job, piece, forms = other.read_task(task)
    assert job.node is other.root
    outcome = other.perform(job, piece, forms)
    assert [b.tolist() for b in outcome.result.rows()] == [
        b.tolist() for b in node.read(located).rows()
    ]


def test_arrays_of_the_plan_are_beside_the_pickle_whatever_their_strides():
    data = np.arange(200_000).reshape(100, 2000)
    node = Dataset.from_tensor_slices((data, data.T[:100], data[:, ::2])).node
    head, buffers = Plan(node).dumps()
    assert len(head) < 5000
    other = Plan.loads(head, [buffer.raw() for buffer in buffers]).root.columns.nest
    for here, elsewhere in zip(node.columns.nest, other, strict=True):
        assert (here == elsewhere).all()


def test_a_source_that_is_walked_stays_at_home():
    lock = threading.Lock()

    def numbers():
        with lock:
            yield from range(3)

    node = Dataset.from_generator(numbers).map(lambda x: x + 1).batch(2).node
    plan, other = Plan(node), there(Plan(node))
    assert [type(n).__name__ for n in plan.nodes[:-1]] == [
        type(n).__name__ for n in other.nodes[:-1]
    ]
    assert isinstance(other.nodes[-1], Absent) and not other.root.seekable


def test_a_function_known_by_value_keeps_its_file_and_its_source():
    lines = ["def added(x):\n", "    return x + nothing\n"]
    linecache.cache["<cell 7>"] = (40, None, lines, "<cell 7>")
    namespace = {}
    exec(compile("".join(lines), "<cell 7>", "exec"), namespace)
    namespace["added"].__module__ = "__main__"
    head, buffers = Plan(Dataset.range(1).map(namespace["added"]).node).dumps()
    del linecache.cache["<cell 7>"]
    other = Plan.loads(head, [buffer.raw() for buffer in buffers])
    function = other.functions[0].fn
    assert isinstance(function, types.FunctionType)
    assert function.__code__.co_filename == "<cell 7>"
    assert linecache.getline("<cell 7>", 2) == lines[1]


def test_what_a_function_turned_out_to_be_is_told_both_ways():
    node = Dataset.range(5).map(lambda x: x).map(lambda x: x, form="python").node
    plan, other = Plan(node), there(Plan(node))
    job = Reading(node)
    assert plan.in_doubt(job)
    assert plan.forms() == ("python", None)
    piece = Piece(0, 0, node.locate(Places(0, np.arange(1))))
    outcome = other.perform(*other.read_task(plan.task((job, piece, plan.forms()))))
    plan.receive(outcome)
    assert plan.forms() == ("python", "python")
    assert not plan.in_doubt(job)


class Raising(Job):
    def __call__(self, sent):
        raise sent


def test_an_error_keeps_what_it_holds_even_where_its_class_forgets_it():
    class Forgetful(ValueError):
        def __reduce__(self):
            return type(self), self.args

    error = Forgetful("a", 2)
    error.add_note("seen")
    error.row, error.lock = 9, threading.Lock()
    got = travelled(error)
    assert type(got) is Forgetful and got.args == ("a", 2) and got.__notes__ == ["seen"]
    assert got.row == 9 and not hasattr(got, "lock")
    assert isinstance(got.__cause__, RemoteTraceback)
    assert "raise error" in str(got.__cause__)


def test_an_error_whose_class_takes_other_arguments_is_of_its_class_again():
    class Picky(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} {b}")
            self.a = a

    got = travelled(Picky(1, 2))
    assert type(got) is Picky and str(got) == "1 2" and got.a == 1


def test_an_error_that_nothing_can_carry_is_told_by_name():
    error = KeyError(threading.Lock())
    got = travelled(error)
    assert isinstance(got, Untold) and str(got).startswith("KeyError: <unlocked _thread.lock")


def test_a_chain_of_causes_is_in_the_text():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        outer = error
    got = travelled(outer)
    assert "KeyError: 'inner'" in str(got.__cause__)


def test_the_outcome_of_a_failed_job_arrives_as_it_was():
    plan = Plan(Dataset.range(1).node)
    outcome = plan.perform(Raising(plan.root), KeyError("x"), plan.forms())
    outcome = pickle.loads(pickle.dumps(outcome))
    assert isinstance(outcome, Outcome)
    plan.receive(outcome)
    assert type(outcome.error) is KeyError and outcome.error.args == ("x",)


def test_a_plan_that_cannot_travel_is_refused_with_the_function_that_holds_it_back():
    lock = threading.Lock()
    plan = Plan(Dataset.range(1).map(lambda x: x).map(lambda x: (x, lock.locked())[0]).node)
    with pytest.raises(TypeError) as caught:
        plan.dumps()
    with pytest.raises(
        PipelineError, match=r"^\S+ \[D01\]: map\(<lambda>\) at \S+ cannot"
    ) as refused:
        refuse(caught.value, plan)
    assert "inside the functions" in refused.value.help
