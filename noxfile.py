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
