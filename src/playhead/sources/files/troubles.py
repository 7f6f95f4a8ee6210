"""What goes wrong with stores: whether asking again may help, and the errors that say it."""

from __future__ import annotations

from playhead.errors import MissingSource, SourceError

_PASSING = {408, 425, 429, 500, 502, 503, 504}


def passing(error: BaseException) -> bool:
    """Whether asking again may help."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status in _PASSING
    if isinstance(error, FileNotFoundError):  # also what some stores make of any trouble
        return error.__cause__ is not None and passing(error.__cause__)
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "aiohttp"


def failed(error: Exception, url: str) -> SourceError:
    """What is said of a request that was asked often enough: `MissingSource`, or `SourceError`."""
    if isinstance(error, FileNotFoundError) and not passing(error):
        return MissingSource(
            f"no file {url}",
            help="check the spelling, and that this machine may read it",
            file=url,
        )
    return SourceError(
        f"{url} cannot be read: {type(error).__name__}: {error}",
        help="check that this machine reaches it and may read it",
        file=url,
    )


def lacking(url: str, why: str, help: str) -> SourceError:
    """What is said where a URL cannot even be asked for."""
    return SourceError(f"{url} is read through fsspec: {why}", help=help, file=url)
