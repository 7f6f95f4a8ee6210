import gc
import importlib.util
import subprocess
import sys
import sysconfig
import textwrap
import threading
import weakref

import numpy as np
import pytest

from playhead import Dataset, kernels
from playhead.plan.aligned import aligned_copy, aligned_empty

BYTE = np.dtype(np.uint8)
LEAST = 1 << 16  # bytes of a piece that is kept
MOST = 64 << 20  # bytes that are kept
ALL = 1 << 40

native = pytest.mark.skipif(not kernels.NATIVE, reason="the reference keeps no memory")


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    assert kernels.trim(0) == 0


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, LEAST - 1, LEAST, LEAST + 1, 5 << 20])
def test_memory_is_aligned_writable_and_of_the_size_asked_for(nbytes):
    kept = [memoryview(kernels.memory(nbytes)) for _ in range(3)]
    for value, view in enumerate(kept):
        assert view.nbytes == nbytes and not view.readonly
        array = np.frombuffer(view, np.uint8)
        array[:] = value
        assert address(array) % kernels.ALIGNMENT == 0 or not nbytes
    assert all(set(view[:5000]) <= {value} for value, view in enumerate(kept))


@native
@pytest.mark.parametrize(
    ("nbytes", "error"),
    [(-1, ValueError), (sys.maxsize, MemoryError), (1 << 70, MemoryError), (1.0, TypeError)],
)
def test_memory_of_no_size_is_refused(nbytes, error):
    with pytest.raises(error):
        kernels.memory(nbytes)


def test_a_shape_may_hold_integers_of_numpy():
    shape = tuple(np.array([3, 5000], np.int32))
    assert aligned_empty(shape, np.dtype(np.float64)).shape == (3, 5000)
    assert aligned_empty((), np.dtype(np.float64)).shape == ()
    assert aligned_empty((2, 3), np.dtype("S0")).tolist() == [[b""] * 3] * 2


@native
def test_memory_is_used_again_once_its_last_view_is_gone():
    array = aligned_empty((LEAST,), BYTE)
    at, view = address(array), array[10:20].reshape(2, 5)
    del array
    other = aligned_empty((LEAST,), BYTE)
    assert address(other) != at
    del view
    again = aligned_empty((LEAST // 4,), np.dtype(np.float32))
    assert address(again) == at and again.flags.writeable and again.flags.c_contiguous


@native
def test_a_view_of_another_library_keeps_the_memory():
    array = aligned_empty((LEAST,), BYTE)
    at, view = address(array), memoryview(array)
    del array
    assert address(aligned_empty((LEAST,), BYTE)) != at
    view.release()


@pytest.mark.parametrize("nbytes", [0, 1, LEAST - 1, MOST + 1])
def test_small_and_huge_arrays_are_the_allocators(nbytes):
    array = aligned_empty((nbytes,), BYTE)
    del array
    assert kernels.trim(ALL) == 0


@native
@pytest.mark.parametrize(
    "nbytes", [LEAST, LEAST + 1, 100_000, (1 << 20) - 1, (1 << 20) + 1, 50_000_000, MOST]
)
def test_a_piece_is_an_eighth_larger_than_its_array_at_most_and_serves_arrays_of_about_its_size(
    nbytes,
):
    array = aligned_empty((nbytes,), BYTE)
    at = address(array)
    del array
    size = kernels.trim(ALL)
    assert nbytes <= size <= nbytes * 9 // 8
    array = aligned_empty((size,), BYTE)
    assert address(array) == at and kernels.trim(ALL) == 0
    array[-1] = 1
    del array
    larger = aligned_empty((size + 1,), BYTE)
    assert larger.nbytes > size == kernels.trim(ALL)


@native
def test_what_waits_is_bounded_and_sizes_unused_for_long_go_first():
    old = [aligned_empty((MOST // 8,), BYTE) for _ in range(3)]
    del old
    assert kernels.trim(ALL) == MOST // 8 * 3
    new = [aligned_empty((MOST // 4,), BYTE) for _ in range(3)]
    del new
    assert kernels.trim(ALL) == MOST // 4 * 3 + MOST // 8 * 2
    assert kernels.trim(MOST - MOST // 4) == MOST // 4 * 3
    array = aligned_empty((MOST // 4,), BYTE)
    assert kernels.trim(ALL) == MOST // 4 * 2
    del array
    assert kernels.trim(1) == 0


@native
def test_an_array_larger_than_all_that_may_wait_does_not_drive_the_others_out():
    kept = aligned_empty((LEAST,), BYTE)
    del kept
    large = aligned_empty((MOST + 1,), BYTE)
    del large
    assert kernels.trim(ALL) == LEAST


def test_a_copy_is_the_same_values_in_memory_of_its_own():
    array = np.arange(60_000, dtype=">i4").reshape(300, 200)[::-2, 3:]
    copy = aligned_copy(array)
    assert copy.dtype == array.dtype and copy.flags.c_contiguous and address(copy) % 64 == 0
    assert (copy == array).all() and not np.shares_memory(copy, array)


def test_threads_that_make_and_drop_arrays_never_share_one():
    wrong = []

    def work(number):
        kept = []
        for k in range(1500):
            array = aligned_empty((LEAST // 8,), np.dtype(np.int64))
            array[:] = number
            kept.append(array)
            if k % 3 == 2:
                wrong.extend(a for a in kept if not (a == number).all())
                kept = kept[-1:]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@native
def test_arrays_keep_the_module_that_made_their_memory():
    spec = importlib.util.find_spec("playhead._kernels")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module is not kernels._c
    with pytest.raises(TypeError):
        type(module.memory(1))()
    array = np.frombuffer(module.memory(LEAST), np.uint8)
    array[:] = 7
    gone = weakref.ref(module)
    del module, spec
    gc.collect()
    assert gone() is not None and (array == 7).all()
    del array
    gc.collect()
    assert kernels.trim(ALL) == 0
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):  # there types stay for ever
        assert gone() is None


@pytest.mark.parametrize("options", [None, {"workers": 1}, {"workers": 3}])
def test_batches_that_are_kept_stay_while_others_come_and_go(options):
    rows = np.arange(200_000, dtype=np.int64).reshape(200, 1000)
    dataset = Dataset.from_tensor_slices(rows).shuffle(seed=3, reshuffle_each_iteration=False)
    dataset = dataset.batch(16)
    expected = [batch.copy() for batch in dataset]
    if options is not None:
        dataset = dataset.prefetch(4, **options)
    kept = []
    for _ in range(5):
        for k, batch in enumerate(dataset):
            if k % 4 == 0:
                kept.append((k, batch))
            assert (batch == expected[k]).all()
    assert all((batch == expected[k]).all() for k, batch in kept)


def test_a_batch_is_gone_when_its_consumer_drops_it():
    dataset = Dataset.from_tensor_slices(np.zeros((64, 10_000))).batch(32)
    batch = dataset[0]
    gone = weakref.ref(batch)
    del batch
    assert gone() is None


def test_an_array_that_outlives_playheads_modules_goes_without_noise():
    script = """
        import csv as early
        import ctypes

        import numpy as np
        from playhead.plan import aligned

        # Modules that are still held are emptied last come first, so this one after that of playhead.
        for module in (early, aligned):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        early.kept = aligned.aligned_empty((1 << 20,), np.dtype(np.uint8))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
