import contextlib
import gc
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import cloudpickle
import google_crc32c
import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import GlobalRandomness, PipelineError, SourceChanged, WorkerLost
from playhead.execution.pool import cores
from playhead.execution.processes import ProcessPool
from playhead.plan.block import Columns, leaves
from playhead.plan.compute import Job
from playhead.plan.node import Piece, Reading
from playhead.plan.places import Places

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE = 180.0


@pytest.fixture
def pool():
    pools = []

    def make(dataset, workers=2, **options):
        pools.append(ProcessPool(dataset.node, workers, **options))
        return pools[-1]

    yield make
    for made in pools:
        made.close()


def piece(node, start, stop):
    return Piece(0, start, node.locate(Places(0, np.arange(start, stop, dtype=np.int64))))


def submit(pool, dataset, start, stop):
    return pool.submit(Reading(dataset.node), piece(dataset.node, start, stop))


def block(future):
    outcome = future.result(PATIENCE)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and all(map(same, a.flat, b.flat))
    return type(a) is type(b) and a == b


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def workers_of(pid):
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and b"popen_loky" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def run(script, *, stdin=False, **options):
    environment = os.environ | {"PYTHONPATH": SOURCE}
    command = [sys.executable, "-" if stdin else script]
    text = Path(script).read_text() if stdin else None
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
        **options,
    )


def saved(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def doubled(x):
    return x * 2


class Thing:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return type(other) is Thing and other.number == self.number

    __hash__ = None


def datasets():
    images = np.arange(40 * 64 * 64, dtype=np.float32).reshape(40, 64, 64)
    numbers = Dataset.range(40)
    yield "large columns", Dataset.from_tensor_slices((images, np.arange(40)))
    yield "small columns", numbers.map(lambda x: {"a": x, "b": (x + 1, np.float32(0.5))})
    yield "batches", Dataset.from_tensor_slices({"x": images, "y": np.arange(40)}).batch(7)
    yield "batches of rows", numbers.map(lambda x: np.full((300,), x)).batch(8)
    yield "ragged", numbers.map(lambda x: np.arange(x * 100))
    yield "bytes and str", numbers.map(lambda x: (b"\0b" * int(x), "é" * int(x) * 3000))
    yield "objects", numbers.map(lambda x: Thing(int(x)))
    yield "batches of objects", numbers.map(lambda x: Thing(int(x))).batch(3)
    yield "empty arrays", numbers.map(lambda x: np.zeros((0, 3), np.int8))
    yield "column order", numbers.map(lambda x: np.arange(6000).reshape(60, 100).T + x)
    yield (
        "random",
        numbers.map(lambda x, rng: x + rng.random(500), rng=True, seed=3).shuffle(seed=1),
    )
    yield (
        "filtered",
        numbers.map(lambda x: np.full(2000, x)).filter(lambda x: x[0] % 3 == 0).batch(4),
    )
    yield "nothing", Dataset.range(0).map(doubled)


@pytest.mark.parametrize(
    ("name", "dataset"), list(datasets()), ids=[name for name, _ in datasets()]
)
def test_elements_are_those_of_a_serial_run(name, dataset):
    expected = list(dataset.iterator(epochs=2))
    assert len(expected) == 2 * len(list(dataset))
    with contextlib.closing(
        dataset.prefetch(on="processes", workers=2).iterator(epochs=2)
    ) as iterator:
        assert same(list(iterator), expected)


def frame(record):
    def masked(data):
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def test_tfrecords_are_read_in_workers(tmp_path):
    path = str(tmp_path / "data.tfrecord")
    Path(path).write_bytes(b"".join(frame(b"%d" % k * 200) for k in range(50)))
    dataset = Dataset.from_tfrecords(path).map(lambda record: (record, os.getpid())).batch(4)
    with contextlib.closing(dataset.prefetch(on="processes", workers=2).iterator()) as iterator:
        batches = list(iterator)
    assert [r for records, _ in batches for r in records] == [b"%d" % k * 200 for k in range(50)]
    assert os.getpid() not in {int(p) for _, pids in batches for p in pids}


def test_results_are_writable_aligned_and_each_its_own(pool):
    dataset = Dataset.from_tensor_slices(np.arange(64 * 5000.0).reshape(64, 5000)).map(doubled)
    dataset = dataset.batch(4)
    made = pool(dataset)
    blocks = [block(submit(made, dataset, k, k + 1)) for k in range(16)]
    arrays = [array for b in blocks for row in b.rows() for array in leaves(row)]
    assert len(arrays) == 16
    for k, array in enumerate(arrays):
        assert array.flags.writeable and array.ctypes.data % 64 == 0
        array += k
    for k, array in enumerate(arrays):
        expected = np.arange(64 * 5000.0).reshape(64, 5000)[4 * k : 4 * k + 4] * 2 + k
        assert (array == expected).all()


def test_a_consumer_that_keeps_everything_gets_everything(pool):
    dataset = Dataset.range(200).map(lambda x: np.full(10_000, x)).batch(2)
    made = pool(dataset, memory=2 << 20)
    kept = [block(submit(made, dataset, k, k + 1)).rows()[0] for k in range(100)]
    assert made._arena.given <= made._arena.size
    assert sum(a.nbytes for a in kept) > 7 * made._arena.size
    for k, batch in enumerate(kept):
        assert (batch == np.repeat([[2 * k], [2 * k + 1]], 10_000, axis=1)).all()
        assert batch.flags.writeable and batch.ctypes.data % 64 == 0


def test_the_pool_hears_also_after_an_interrupt_in_the_middle_of_ringing_its_bell(pool):
    dataset = Dataset.range(20).map(lambda x: x + 1).batch(2)
    made = pool(dataset, workers=1)
    assert block(submit(made, dataset, 0, 1)).rows()[0].tolist() == [1, 2]
    made._supervisor._rung = True  # as if the interrupt had come behind this
    wait_until(lambda: not made._supervisor._rung)
    with made._supervisor._lock:
        made._supervisor.stop()  # waits for no lock
    made._supervisor.thread.join(60)
    assert not made._supervisor.thread.is_alive()
    made._supervisor.stop()  # its bell is gone


class Filling(Job):
    """Writes a number into the part of a sheet that it is sent, then dies if it is told to."""

    def __call__(self, sent):
        sheet, low, number, killers = sent
        written = sheet.write(low, Columns(np.full((2, 1000), number), 2))
        with contextlib.suppress(FileExistsError):
            os.close(os.open(killers, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return written


def test_workers_write_into_the_consumers_memory_even_if_they_die_in_between(pool, tmp_path):
    from playhead.execution.sheets import Sheet
    from playhead.plan.block import ArraySpec

    made = pool(Dataset.range(3))
    sheet = Sheet(8, ArraySpec((1000,), np.dtype(np.int64)), made.empty)
    job = Filling(Dataset.range(1).node)
    futures = [
        made.submit(job, (sheet, low, low + 1, str(tmp_path / f"killed-{low}")))
        for low in range(0, 8, 2)
    ]
    for low, future in zip(range(0, 8, 2), futures, strict=True):
        written = block(future)
        assert written.left is None
        sheet.keep(low, 2, written)
    assert (sheet.elements().nest == np.repeat([1, 1, 3, 3, 5, 5, 7, 7], 1000).reshape(8, -1)).all()


class Increasing(Job):
    """Changes its argument in place, and dies the first time."""

    def __call__(self, sent):
        array, killers = sent
        array += 1
        with contextlib.suppress(FileExistsError):
            os.close(os.open(killers, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return Columns(array, len(array))


@pytest.mark.parametrize("shared", [True, False])
def test_a_function_that_changes_its_argument_in_place_sees_it_unchanged_when_called_again(
    pool, tmp_path, shared
):
    made = pool(Dataset.range(3), 1)
    array = made.empty((9000,), np.dtype(np.int64)) if shared else np.empty(9000, np.int64)
    array[:] = 5
    future = made.submit(Increasing(Dataset.range(1).node), (array, str(tmp_path / "killed")))
    assert (block(future).nest == 6).all()
    assert (array == 5).all()
    assert (tmp_path / "killed").exists()


# Functions that no other process can import


SCRIPT = """
    import numpy as np
    from playhead import Dataset

    class Pair:
        def __init__(self, x):
            self.x = x

    class Odd(Exception):
        pass

    offset = 100

    def shifted(x):
        return x + offset

    def failing(x):
        raise Odd("no")

    ds = Dataset.range(20).map(shifted).map(lambda x: x * 2).prefetch(on="processes", workers=2)
    print([int(x) for x in ds])
    pairs = Dataset.range(3).map(lambda x: Pair(int(x))).prefetch(on="processes", workers=1)
    print([(isinstance(p, Pair), p.x) for p in pairs])
    try:
        list(Dataset.range(3).map(failing).prefetch(on="processes", workers=1))
    except Odd as error:
        print("odd", error)
    kept = Dataset.range(1000).map(lambda x: x).prefetch(on="processes", workers=2).iterator()
    print(next(kept))
"""


@pytest.mark.parametrize("stdin", [False, True], ids=["script.py", "-"])
def test_functions_of_a_script_without_a_main_guard_run_in_workers(tmp_path, stdin):
    done = run(saved(tmp_path, SCRIPT), stdin=stdin)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        str([2 * (x + 100) for x in range(20)]),
        "[(True, 0), (True, 1), (True, 2)]",
        "odd no",
        "0",
    ]


# Workers that die


def test_workers_killed_at_random_change_no_result(pool):
    dataset = Dataset.range(4000).map(lambda x: time.sleep(0.002) or np.full(700, x)).batch(2)
    made = pool(dataset, 4)
    killed, over = [], threading.Event()

    def kill():
        choose = random.Random(0)
        while not over.wait(0.2) and len(killed) < 25:
            alive = workers_of(os.getpid())
            if alive:
                killed.append(choose.choice(alive))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        futures = [submit(made, dataset, k, k + 1) for k in range(2000)]
        for k, future in enumerate(futures):
            got = block(future).rows()[0]
            assert (got == np.repeat([[2 * k], [2 * k + 1]], 700, axis=1)).all()
            futures[k] = got if k % 3 == 0 else None
    finally:
        over.set()
        killer.join()
    assert len(killed) >= 5
    made.close()
    assert not workers_of(os.getpid())
    for k in range(0, 2000, 3):
        assert (futures[k] == np.repeat([[2 * k], [2 * k + 1]], 700, axis=1)).all()


def test_the_others_go_on_when_one_worker_dies(pool):
    dataset = Dataset.range(10).map(lambda x: time.sleep(0.5) or os.getpid())
    made = pool(dataset, 2)
    first, second = (submit(made, dataset, k, k + 1) for k in range(2))
    wait_until(lambda: sum(bool(w.tasks) for w in made._supervisor.workers) == 2)
    victim, other = (w.process.pid for w in made._supervisor.workers)
    os.kill(victim, signal.SIGKILL)
    pids = {int(block(f).rows()[0]) for f in (first, second)}
    assert other in pids
    assert victim not in pids
    wait_until(lambda: len(made._supervisor.workers) == 2)
    assert not is_alive(victim)


def test_only_the_worker_that_died_is_replaced(pool):
    dataset = Dataset.range(10)
    made = pool(dataset, 4)

    def pids():
        workers = list(made._supervisor.workers)
        return {w.process.pid for w in workers if w.ready and not w.leaving}

    block(submit(made, dataset, 0, 1))
    wait_until(lambda: len(pids()) == 4)
    before = pids()
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(pids()) == 4 and victim not in pids())
    assert before - {victim} < pids()


def test_a_worker_that_dies_is_noticed_though_a_process_it_left_behind_keeps_its_pipe_open(
    pool, tmp_path
):
    note = tmp_path / "left behind"

    def forking(x):
        if not note.exists():
            left = os.fork()
            if left == 0:
                time.sleep(600)
            note.write_text(str(left))
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    dataset = Dataset.range(3).map(forking)
    future = submit(pool(dataset, 1), dataset, 2, 3)
    try:
        assert block(future).rows() == [2]
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


def test_a_function_that_exits_fails_as_any_other(pool):
    dataset = Dataset.range(3).map(lambda x: sys.exit(4))
    error = submit(pool(dataset, 1), dataset, 2, 3).result(PATIENCE).error
    assert isinstance(error, SystemExit) and error.code == 4


@pytest.mark.parametrize(
    "end", [lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL)], ids=["exit", "kill"]
)
def test_a_task_that_kills_its_workers_is_given_up_with_its_record(pool, end):
    dataset = Dataset.range(10).map(lambda x: end() if x == 4 else x)
    made = pool(dataset, 1)
    futures = [submit(made, dataset, k, k + 1) for k in range(10)]
    for k, future in enumerate(futures):
        if k != 4:
            assert block(future).rows() == [k]
            continue
        with pytest.raises(WorkerLost, match=r"range\[4\]") as caught:
            block(future)
        assert caught.value.records == ["range[4]"]
        assert caught.value.exitcode in (3, -signal.SIGKILL)


def test_a_worker_that_cannot_load_the_pipeline_says_why(pool, tmp_path, monkeypatch):
    (tmp_path / "gone_later.py").write_text("def fn(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_later

    (tmp_path / "gone_later.py").unlink()
    dataset = Dataset.range(3).map(gone_later.fn)
    made = pool(dataset)
    futures = [submit(made, dataset, k, k + 1) for k in range(3)]
    for future in [*futures, submit(made, dataset, 0, 1)]:
        with pytest.raises(PipelineError, match="cannot load this pipeline") as caught:
            future.result(PATIENCE)
        assert "gone_later" in str(caught.value.__cause__)


def test_workers_that_cannot_start_are_not_tried_for_ever(pool, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    dataset = Dataset.range(3)
    with pytest.raises(
        WorkerLost, match="no worker process can be started: it ended with exit code 1"
    ):
        submit(pool(dataset), dataset, 0, 1).result(PATIENCE)


# Errors and warnings


class Wound(Exception):
    def __init__(self, depth, *, tool):
        super().__init__(depth, tool)
        self.depth = depth
        self.tool = tool

    def __reduce__(self):
        return _wound, (self.depth, self.tool)


def _wound(depth, tool):
    return Wound(depth, tool=tool)


def failing(x):
    if x == 3:
        error = Wound(7, tool="saw")
        error.add_note("mind the hand")
        error.where = "here"
        raise error
    return x


def test_what_a_function_prints_is_printed(tmp_path):
    script = """
        from playhead import Dataset
        list(Dataset.range(3).map(lambda x: print("element", x)).prefetch(on="processes", workers=1))
    """
    done = run(saved(tmp_path, script))
    assert (done.stdout, done.stderr) == ("element 0\nelement 1\nelement 2\n", "")


def test_an_exception_keeps_its_type_arguments_notes_and_traceback():
    dataset = Dataset.range(8).map(failing).prefetch(on="processes", workers=2)
    got = []
    with pytest.raises(Wound) as caught, contextlib.closing(dataset.iterator()) as iterator:
        got.extend(iterator)
    error = caught.value
    assert got == [0, 1, 2]
    assert (error.depth, error.tool, error.where) == (7, "saw", "here")
    assert error.__notes__[0] == "mind the hand"
    assert any("range[3]" in note for note in error.__notes__)
    assert "raise error" in str(error.__cause__) and "in failing" in str(error.__cause__)


def test_an_exception_that_cannot_be_pickled_comes_without_what_holds_it_back(pool):
    class Held(Exception):
        def __init__(self):
            super().__init__("held")
            self.lock = threading.Lock()

        def __reduce__(self):
            raise TypeError("never")

    def fn(x):
        raise Held

    dataset = Dataset.range(2).map(fn)
    error = submit(pool(dataset), dataset, 0, 1).result(PATIENCE).error
    assert type(error).__name__ == "Held" and str(error) == "held" and not hasattr(error, "lock")
    assert "raise Held" in str(error.__cause__)
    assert any("range[0]" in note for note in error.__notes__)


def test_a_result_that_cannot_be_pickled_is_an_error_with_help(pool):
    dataset = Dataset.range(2).map(lambda x: threading.Lock())
    made = pool(dataset)
    error = submit(made, dataset, 0, 1).result(PATIENCE).error
    assert isinstance(error, PipelineError) and "a result cannot be sent" in str(error)
    assert isinstance(submit(made, dataset, 1, 2).result(PATIENCE).error, PipelineError)


def test_a_pipeline_that_cannot_be_pickled_is_refused_and_its_function_named(tmp_path):
    with open(tmp_path / "file", "w") as file:
        dataset = Dataset.range(2).map(lambda x: file.write("x"), name="logged")
        with pytest.raises(
            PipelineError, match=r"map\(<lambda>\) at .*test_processes.py"
        ) as caught:
            ProcessPool(dataset.node, 1)
    assert "open files, locks" in str(caught.value)


def test_warnings_of_playhead_in_workers_are_given_here():
    def fn(x):
        return x + random.random()

    dataset = Dataset.range(4).map(fn).prefetch(on="processes", workers=1)
    with pytest.warns(GlobalRandomness, match="draws from the global random state"):
        list(dataset)


def test_a_warning_that_is_an_error_here_fails_the_element_and_not_the_pool(pool):
    dataset = Dataset.range(4).map(lambda x: x + random.random())
    made = pool(dataset, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(submit(made, dataset, 0, 1).result(PATIENCE).error, GlobalRandomness)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(block(submit(made, dataset, 1, 3))) == 2


# Memory


def private(pid):
    """Bytes of a process that no other shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(
        int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")
    )


def test_arrays_of_the_plan_are_in_memory_once_however_many_workers(pool):
    size = 128 << 20
    rows = np.ones((size >> 12, 512))
    table = np.ones(size // 8)[::2]
    dataset = Dataset.from_tensor_slices(rows).map(lambda row: row.sum() + table.sum())
    made = pool(dataset, 3)
    block(submit(made, dataset, 0, 1))
    workers = made._supervisor.workers
    wait_until(lambda: [worker.ready for worker in workers] == [True] * 3)
    expected = np.float64(512 + len(table))
    for _ in range(3):
        futures = [submit(made, dataset, 3 * k, 3 * k + 3) for k in range(9)]
        assert all(block(future).rows() == [expected] * 3 for future in futures)
    pids = [worker.process.pid for worker in workers]
    assert all(private(pid) < size // 4 for pid in pids)


def test_arrays_that_do_not_fit_into_memory_twice_are_refused(monkeypatch):
    monkeypatch.setattr("playhead.execution.processes.free_memory", lambda: 1 << 20)
    dataset = Dataset.from_tensor_slices(np.zeros(3 << 18, np.float64))
    with pytest.raises(PipelineError, match=r"holds 6 MiB of arrays.* 1 MiB of memory are free"):
        ProcessPool(dataset.node, 1)


def test_mapped_files_are_mapped_by_the_workers_and_not_copied(pool, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(3000 * 100).reshape(3000, 100))
    mapped = np.load(path, mmap_mode="r")
    dataset = Dataset.from_tensor_slices((mapped[1000:], np.asarray(mapped)[::-1][:2000, 5:8]))
    made = pool(dataset)
    assert made._supervisor._shelf.memory.size < 100_000
    first, second = block(submit(made, dataset, 7, 9)).nest
    assert (first == mapped[1007:1009]).all()
    assert (second == mapped[[2992, 2991], 5:8]).all()


# Leaving


def state():
    gc.collect()
    maps = [x for x in Path("/proc/self/maps").read_text().splitlines() if "memfd:playhead" in x]
    threads = [t.name for t in threading.enumerate() if t.name.startswith("playhead")]
    return len(os.listdir("/proc/self/fd")), maps, threads, workers_of(os.getpid())


def test_twenty_pools_leave_nothing(pool):
    dataset = Dataset.range(100).map(lambda x: np.full(5000, x)).batch(5)
    ProcessPool(dataset.node, 1).close()  # what all pools share is there from now on
    block(submit(warm := ProcessPool(dataset.node, 1), dataset, 0, 1))
    warm.close()
    del warm
    wait_until(lambda: state()[1:] == ([], [], []))
    before = state()
    for k in range(20):
        made = ProcessPool(dataset.node, 1)
        if k % 4:
            futures = [submit(made, dataset, j, j + 1) for j in range(6)]
            block(futures[0])
            del futures
        if k % 2:
            made.close()
        del made
    wait_until(lambda: state() == before)


def test_a_closed_pool_that_is_kept_holds_no_memory_and_no_files(pool):
    dataset = Dataset.range(100).map(lambda x: np.full(5000, x))
    block(submit(warm := pool(dataset, 1), dataset, 0, 1))
    warm.close()
    before = state()
    made = pool(dataset, 2)
    futures = [submit(made, dataset, k, k + 5) for k in range(0, 50, 5)]
    assert sum(len(block(f)) for f in futures) == 50
    del futures
    made.close()
    assert state() == before


def test_workers_do_not_take_all_cores_each(pool, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    dataset = Dataset.range(3).map(lambda x: os.environ["OMP_NUM_THREADS"])
    made = pool(dataset, cores())
    assert block(submit(made, dataset, 0, 1)).rows() == ["1"]


def test_closing_ends_what_runs_for_ever_and_tells_who_waits_for_it(pool):
    dataset = Dataset.range(9).map(lambda x: time.sleep(1000) if x else x)
    made = pool(dataset, 2)
    assert block(submit(made, dataset, 0, 1)).rows() == [0]
    futures = [submit(made, dataset, k, k + 1) for k in range(1, 9)]
    wait_until(lambda: futures[0].running())
    made.close()
    assert not workers_of(os.getpid())
    assert isinstance(futures[0].result(0).error, WorkerLost)
    assert futures[7].cancelled()
    assert submit(made, dataset, 0, 1).cancelled()


def test_closing_lets_what_has_begun_end(pool):
    dataset = Dataset.range(5).map(lambda x: time.sleep(0.3) or x)
    made = pool(dataset, 1)
    block(submit(made, dataset, 0, 1))
    future = submit(made, dataset, 1, 2)
    wait_until(future.running)
    made.close()
    assert block(future).rows() == [1]


def test_fewer_and_more_workers_while_it_runs(pool):
    dataset = Dataset.range(400).map(lambda x: time.sleep(0.005) or os.getpid())
    made = pool(dataset, 3)
    made.resize(1)
    assert made.workers == 1
    assert len({int(p) for p in block(submit(made, dataset, 0, 9)).rows()}) == 1
    made.resize(3)
    wait_until(lambda: sum(w.ready for w in made._supervisor.workers) == 3)
    made.resize(2)
    futures = [submit(made, dataset, k, k + 1) for k in range(50)]
    assert all(len(block(f)) == 1 for f in futures)
    wait_until(lambda: len(workers_of(os.getpid())) == 2)


def test_a_forked_child_leaves_its_parents_workers_alone(pool):
    dataset = Dataset.range(100).map(lambda x: np.full(3000, x))
    made = pool(dataset, 1)
    kept = block(submit(made, dataset, 0, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            del kept
            refused = submit(made, dataset, 0, 1).exception(0)
            made.close()
            if isinstance(refused, WorkerLost) and made.empty((9,), np.dtype(np.int8)) is None:
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (kept.rows()[3] == 3).all()
    assert block(submit(made, dataset, 9, 10)).rows()[0][0] == 9


DYING = """
    import os, signal, sys, time
    import numpy as np
    from playhead import Dataset

    def slow(x):
        time.sleep(0.05)
        return np.full(100_000, x)

    iterator = Dataset.range(100_000).map(slow).prefetch(on="processes", workers=2).iterator()
    held = [next(iterator) for _ in range(5)]
    print("ready", flush=True)
    for x in iterator:
        held.append(x)
        held = held[-20:]
"""


@contextlib.contextmanager
def started(script, **options):
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": SOURCE},
        start_new_session=True,
        **options,
    )
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_workers_end_when_the_parent_is_killed_and_nothing_is_left(tmp_path):
    before = sorted(os.listdir("/dev/shm"))
    with started(saved(tmp_path, DYING)) as process:
        workers = workers_of(process.pid)
        assert len(workers) == 2
        assert sorted(os.listdir("/dev/shm")) == before
        process.kill()
        said = process.communicate()
    wait_until(lambda: not any(map(is_alive, workers)))
    assert sorted(os.listdir("/dev/shm")) == before
    assert said == ("", "")


def test_an_interrupt_of_the_whole_group_is_quiet_and_leaves_no_process(tmp_path):
    with started(saved(tmp_path, DYING)) as process:
        workers = workers_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")
    assert out == ""
    assert len(workers) == 2 and not any(map(is_alive, workers))


def test_an_interrupt_while_workers_start_is_quiet_too(tmp_path):
    script = """
        import os, signal
        from playhead import Dataset
        iterator = Dataset.range(9).map(lambda x: x).prefetch(on="processes", workers=2).iterator()
        iterator.start() if hasattr(iterator, "start") else None
        print("ready", flush=True)
        try:
            for x in iterator:
                signal.pause()
        except KeyboardInterrupt:
            pass
        os._exit(5)
    """
    with started(saved(tmp_path, script)) as process:
        wait_until(lambda: workers_of(process.pid))
        workers = workers_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (5, "", "")
    wait_until(lambda: not any(map(is_alive, workers)))


def test_threads_need_nothing_of_the_extra(tmp_path):
    script = """
        import sys
        sys.modules["loky"] = sys.modules["cloudpickle"] = None
        from playhead import Dataset
        from playhead.errors import PipelineError
        print(len(list(Dataset.range(9).prefetch())))
        try:
            list(Dataset.range(9).prefetch(on="processes"))
        except PipelineError as error:
            print(error.help)
    """
    done = run(saved(tmp_path, script))
    assert done.stdout.splitlines() == ["9", 'pip install "playhead[processes]"'], done.stderr


def test_a_file_that_took_the_place_of_a_mapped_one_is_noticed(pool, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(1000))
    dataset = Dataset.from_tensor_slices(np.load(path, mmap_mode="r"))
    made = pool(dataset, 1)
    np.save(tmp_path / "others.npy", np.arange(1000) + 1)
    os.replace(tmp_path / "others.npy", path)
    with pytest.raises(SourceChanged, match=r"rows\.npy was replaced"):
        block(submit(made, dataset, 0, 4))
