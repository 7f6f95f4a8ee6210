import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

from playhead import Dataset
from playhead.plan import aligned
from playhead.plan.aligned import IDLE, UNCOUNTED, WORTH_KEEPING, _stock, aligned_empty

BYTE = np.dtype(np.uint8)


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    _stock._sweep()
    _stock._pieces.clear()
    _stock.nbytes = 0


def address(array):
    return array.ctypes.data


def test_memory_is_used_again_once_its_last_view_is_gone():
    array = aligned_empty((WORTH_KEEPING,), BYTE)
    at, view = address(array), array[10:20].reshape(2, 5)
    del array
    other = aligned_empty((WORTH_KEEPING,), BYTE)
    assert address(other) != at
    del view
    again = aligned_empty((WORTH_KEEPING // 4,), np.dtype(np.float32))
    assert address(again) == at and again.flags.writeable and again.flags.c_contiguous


def test_a_view_of_another_library_keeps_the_memory():
    array = aligned_empty((WORTH_KEEPING,), BYTE)
    at, view = address(array), memoryview(array)
    del array
    assert address(aligned_empty((WORTH_KEEPING,), BYTE)) != at
    view.release()


@pytest.mark.parametrize("nbytes", [0, 1, WORTH_KEEPING - 1])
def test_small_arrays_are_the_allocators(nbytes):
    array = aligned_empty((nbytes,), BYTE)
    del array
    assert _stock.nbytes == 0


def test_what_waits_is_bounded_and_sizes_unused_for_long_go_first(monkeypatch):
    monkeypatch.setattr(aligned, "IDLE", 4 * WORTH_KEEPING)
    old = [aligned_empty((WORTH_KEEPING + 1,), BYTE) for _ in range(3)]
    del old
    assert _stock.nbytes == 3 * (WORTH_KEEPING + 1)
    new = [aligned_empty((WORTH_KEEPING,), BYTE) for _ in range(3)]
    del new
    assert _stock.nbytes <= 4 * WORTH_KEEPING
    assert _stock.take(WORTH_KEEPING + 1) is None and _stock.take(WORTH_KEEPING) is not None


def test_an_array_larger_than_all_that_may_wait_does_not_drive_the_others_out():
    kept = aligned_empty((WORTH_KEEPING,), BYTE)
    del kept
    large = aligned_empty((IDLE + 1,), BYTE)
    del large
    assert _stock.nbytes == WORTH_KEEPING


def test_threads_that_make_and_drop_arrays_never_share_one():
    wrong = []

    def work(number):
        kept = []
        for k in range(1500):
            array = aligned_empty((WORTH_KEEPING // 8,), np.dtype(np.int64))
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


def test_an_array_that_dies_while_others_are_counted_is_counted_later():
    class Dying(dict):
        """The stock's pieces; as one is put there, the garbage collector finds an array."""

        def __setitem__(self, size, pieces):
            found.clear()
            super().__setitem__(size, pieces)

    large = 2 << 20  # counted at once
    found = [aligned_empty((large,), BYTE)]
    array = aligned_empty((2 * large,), BYTE)
    _stock._pieces = Dying()
    del array
    assert not found
    assert _stock.nbytes == 3 * large
    assert len(_stock.take(large)) == large and len(_stock.take(2 * large)) == 2 * large
    assert _stock.nbytes == 0


def test_few_small_arrays_are_counted_when_the_next_is_made():
    arrays = [aligned_empty((WORTH_KEEPING,), BYTE) for _ in range(2 * UNCOUNTED)]
    places = {address(array) for array in arrays}
    while arrays:
        arrays.pop()
        left = 2 * UNCOUNTED - len(arrays) - _stock.nbytes // WORTH_KEEPING
        assert 0 <= left <= UNCOUNTED
    assert address(aligned_empty((WORTH_KEEPING,), BYTE)) in places


def test_an_interrupt_while_pieces_are_counted_leaves_a_stock_that_works():
    class Interrupted(dict):
        def __setitem__(self, size, pieces):
            raise KeyboardInterrupt

    _stock.take(1)
    _stock._left.append(np.empty(2 << 20, BYTE))
    _stock.nbytes = IDLE  # as if many pieces had gone with the interrupt
    _stock._pieces = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        _stock.take(WORTH_KEEPING)
    _stock._pieces = {}
    for _ in range(2):  # the first finds too many bytes, though there is no piece
        _stock.leave(np.empty(2 << 20, BYTE))
    assert _stock.nbytes == 2 << 20
    assert len(_stock.take(2 << 20)) == 2 << 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning", "ignore:os.fork:RuntimeWarning"
)
def test_the_stock_works_in_a_child_forked_while_it_was_in_use():
    with _stock._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                array = aligned_empty((WORTH_KEEPING,), BYTE)
                del array
                _stock._sweep()
                code = 0 if _stock.nbytes == WORTH_KEEPING else 2
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


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
