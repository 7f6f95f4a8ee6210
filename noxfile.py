"""The tests on every Python that playhead supports: `nox`."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests"]


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """The whole suite in a fresh environment."""
    session.install("--editable", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python="3.11")
def estimator(session: nox.Session) -> None:
    """`playhead.tensorflow.input_fn` under the last TensorFlow that has Estimator: `nox -s estimator`."""
    session.install(
        "tensorflow-cpu==2.15.1", "tensorflow-estimator==2.15.0", "numpy<2", "pytest>=8.2"
    )
    session.install("--editable", ".")
    # Its dependencies warn of each other's age, which is not what is tested here.
    quiet = ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
    session.run("python", "-m", "pytest", "tests/estimator", *quiet, *session.posargs)


@nox.session(python="3.13t")
def free_threaded(session: nox.Session) -> None:
    """What needs no framework, in a Python without the lock: `nox -s free_threaded`."""
    session.install("--editable", ".[arrow,images,remote]")
    session.install("pytest>=8.2", "hypothesis>=6.100", "psutil>=5.9", "pandas>=2.2")
    rooms = ["conformance", "execution", "kernels", "plan", "sources"]
    top = ["changes", "dataset", "frame", "iterator", "machine", "ownership", "position", "testing"]
    tests = [f"tests/{room}" for room in rooms] + [f"tests/test_{file}.py" for file in top]
    without = ["--ignore-glob=tests/sources/kafka_*"]
    for test in (
        "tests/test_dataset.py::test_every_public_name_is_there",  # frameworks are among them,
        "tests/conformance/test_operations.py::test_every_operation_of_dataset_has_a_row",  # here too,
        "tests/conformance/test_operations.py::test_it_gives_what_a_list_says[tf.data pipeline]",
        "tests/conformance/test_operations.py::"
        "test_it_resumes_exactly_after_every_step_with_any_number_of_workers[tf.data pipeline]",
        "tests/test_frame.py::test_rooms_import_one_way",  # import-linter has no release for it
        # in a process as large as the tests' resident memory grew there; alone it did not
        "tests/execution/test_faults.py::"
        "test_ten_thousand_iterators_leave_threads_files_and_memory_as_they_were",
    ):
        without += ["--deselect", test]
    # Iterators that are dropped, not closed, wait for the garbage collector there, and so do their files.
    quiet = ["-W", "ignore:unclosed file:ResourceWarning"]
    # google-crc32c, which the tests compare with, has not declared that it needs no lock.
    environment = {"PYTHON_GIL": "0", "PLAYHEAD_REQUIRE_NATIVE": "1"}
    arguments = [*tests, *without, *quiet, *session.posargs]
    session.run("python", "-m", "pytest", *arguments, env=environment)
