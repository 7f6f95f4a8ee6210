import functools
import pickle
import random
import threading
import warnings

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import FormError, GlobalRandomness
from playhead.plan.block import Rows
from playhead.plan.functions import UserFunction, function_name, identity


def made(fn, form="auto"):
    return UserFunction(fn, form=form, op="map", where="train.py:3")


def rows(*values):
    return Rows([np.int64(v) for v in values])


# Identity


def scale(x, by=2):
    return x * by


def outer(k):
    def inner(x):
        return x + k

    return inner


def test_equal_code_has_one_identity_wherever_it_stands():
    namespace: dict = {}
    exec(
        "\n\n\ndef scale(y, by=2):\n    '''Other words, same deed.'''\n    return y * by", namespace
    )
    exec("def scale(x, by=2):\n    return x * by", namespace)
    assert identity(namespace["scale"]) == identity(scale)
    assert identity(outer(1)) == identity(outer(1)) != identity(outer(2))
    assert identity(scale).startswith("3.")


@pytest.mark.parametrize(
    "other",
    [
        lambda x, by=2: x + by,
        lambda x, by=3: x * by,
        lambda x, by=2: x * by * 1.0,
        functools.partial(scale, by=3),
    ],
)
def test_other_code_defaults_or_constants_are_another_identity(other):
    assert identity(other) != identity(scale)


def test_nested_functions_closures_and_partials_count():
    assert identity(lambda x: [y + 1 for y in x]) != identity(lambda x: [y + 2 for y in x])
    assert identity(lambda x: scale(x)) != identity(lambda x: abs(x))
    assert identity(functools.partial(scale, by=3)) == identity(functools.partial(scale, by=3))
    assert identity(functools.partial(scale, by=3)) != identity(functools.partial(scale, by=4))
    assert identity(outer(outer(1))) == identity(outer(outer(1))) != identity(outer(outer(2)))
    assert identity(lambda x: x in {"a", "b", "c"}) == identity(lambda x: x in {"c", "b", "a"})


def test_what_has_no_python_code_has_no_identity():
    class Callable:
        def __call__(self, x):
            return x

    assert identity(np.negative) is identity(Callable()) is identity(abs) is None
    assert function_name(np.negative) == "negative"
    assert function_name(functools.partial(scale, by=3)) == "scale"
    assert function_name(Callable()) == "Callable"


def test_methods_and_wrapped_functions_are_told_by_their_code():
    class Model:
        def first(self, x):
            return x + 1

        def second(self, x):
            return x + 2

    assert identity(Model().first) == identity(Model().first) != identity(Model().second)
    wrapped = functools.wraps(scale)(functools.lru_cache(scale))
    assert identity(wrapped) == identity(scale)


# Running


def test_a_function_is_called_once_for_each_element():
    calls = []
    function = made(lambda x: calls.append(int(x)) or x + 1)
    assert [int(x) for x in function(rows(1, 2, 3)).rows()] == [2, 3, 4]
    assert [int(x) for x in function(rows(4)).rows()] == [5]
    assert len(function(rows())) == 0
    assert calls == [1, 2, 3, 4]
    assert function.decided == "python"


def test_the_form_is_decided_once_by_whichever_thread_comes_first():
    calls = []
    function = made(lambda x: calls.append(int(x)) or x)
    barrier = threading.Barrier(8)

    def work(k):
        barrier.wait()
        function(rows(k))

    pool = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert sorted(calls) == list(range(8))


def test_unknown_forms_and_no_functions_are_refused():
    with pytest.raises(FormError, match="'auto', 'python', 'tf'"):
        made(scale, form="numpy")
    with pytest.raises(TypeError, match="map needs a function, not int"):
        made(3)


def test_a_function_told_its_form_is_another_object_with_the_same_identity():
    function = made(scale)
    told = function.in_form("python")
    assert told is function.in_form("python") is not function
    assert (told.decided, function.decided) == ("python", None)
    assert told.identity == function.identity and told.name == "scale"


def test_a_pickled_function_decides_again():
    function = made(scale)
    function(rows(1))
    again = pickle.loads(pickle.dumps(function))
    assert again.decided is None and again.identity == function.identity
    assert int(again(rows(5)).rows()[0]) == 10


# Global randomness


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: random.random(), "global random state"),
        (lambda: np.random.rand(), "global numpy.random state"),
        (lambda: random.random() + np.random.rand(), "global random and numpy.random state"),
    ],
)
def test_drawing_from_a_global_state_is_a_warning_that_names_the_function(draw, named):
    def augment(x):
        return x + draw()

    with pytest.warns(
        GlobalRandomness, match=rf"map\(augment\) at test_functions.py:\d+ .*{named}"
    ):
        Dataset.range(3).map(augment)[0]


def test_torch_is_watched_at_the_first_element_while_no_model_can_draw_from_it():
    torch = pytest.importorskip("torch")
    with pytest.warns(GlobalRandomness, match=r"map\(<lambda>\) .* the global torch state"):
        Dataset.range(3).map(lambda x: x + float(torch.rand(())))[0]

    def step(x):
        return x + float(torch.rand(())) if x > 0 else x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(Dataset.range(3).map(step))


def test_drawing_from_ones_own_generator_is_no_warning():
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset.range(3).map(lambda x: x + rng.random())[0]
        Dataset.range(3).map(lambda x, rng: x + rng.random(), rng=True)[0]


@pytest.mark.parametrize("form", ["auto", "python"])
def test_a_draw_at_a_later_one_of_the_first_elements_is_seen_too_in_any_form(form):
    def sometimes(x):
        return x + random.random() if x == 2 else x

    with pytest.warns(GlobalRandomness, match="sometimes"):
        assert len(list(Dataset.range(3).map(sometimes, form=form))) == 3


# Errors of the user's own are never taken for a function of tensors


@pytest.mark.parametrize("error", [OSError, ValueError, AssertionError, KeyError])
def test_an_error_on_the_first_element_is_raised_though_tensorflow_is_there(error):
    pytest.importorskip("tensorflow")
    calls = []

    def flaky(x):
        calls.append(x)
        if len(calls) == 1:
            raise error("disk")
        return x * np.float32(1 / 3)

    with pytest.raises(error, match="disk"):
        Dataset.range(3).map(flaky)[0]
    assert len(calls) == 1


def test_a_function_that_needs_tensors_is_traced_though_numpy_values_break_it():
    tf = pytest.importorskip("tensorflow")

    def doubled(x):
        x.set_shape([2])
        return tf.cast(x, tf.float32) * 2

    dataset = Dataset.from_tensor_slices(np.ones((3, 2), np.float32)).map(doubled)
    assert dataset[1].tolist() == [2, 2]
    assert dataset.operations()[-1]["form"] == "tf"


def test_a_trace_that_was_tried_in_vain_leaves_no_form_behind():
    tf = pytest.importorskip("tensorflow")

    def broken(x):
        x.set_shape([])
        with tf.control_dependencies([tf.debugging.assert_equal(x, tf.constant(-1, tf.int64))]):
            return x + 1

    dataset = Dataset.range(3).map(broken)
    for _ in range(2):
        with pytest.raises(AttributeError, match="set_shape"):
            dataset[0]
        assert "form" not in dataset.operations()[-1]
