"""The tests on every Python that playhead supports: `nox`."""

import nox

nox.options.default_venv_backend = "venv"


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """The whole suite in a fresh environment."""
    session.install("--editable", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)
