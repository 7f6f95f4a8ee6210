"""What goes wrong with stores: whether asking again may help, and what is said of it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from playhead.errors import MissingSource, SourceError

_PASSING = {408, 425, 429, 500, 502, 503, 504}
_DENIED = {401, 403, 407}

# So many seconds a user who watches a program begin waits without a word.
_SAID_AFTER = 10.0


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
    cause: BaseException = error
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        cause = error.__cause__
    said = f"{url} cannot be read: {type(cause).__name__}: {cause}".removesuffix(": ")
    if _denied(cause):
        return MissingSource(
            said,
            help="check the credentials, which come from the environment or from storage_options, and that "
            "they may read it; some stores say the same of a file that is not there",
            file=url,
        )
    if isinstance(cause, TypeError):
        help = "check storage_options: the store's package takes them as they are"
        return SourceError(said, help=help, file=url)
    if isinstance(error, FileNotFoundError) and not passing(error):
        return MissingSource(
            f"no file {url}",
            help="check the spelling, and that this machine may read it",
            file=url,
        )
    return SourceError(said, help="check that this machine reaches it and may read it", file=url)


def lacking(url: str, why: str, help: str) -> SourceError:
    """What is said where a URL cannot even be asked for."""
    return SourceError(f"{url} is read through fsspec: {why}", help=help, file=url)


def _denied(error: BaseException) -> bool:
    if isinstance(error, PermissionError) or getattr(error, "status", None) in _DENIED:
        return True
    return "Credentials" in type(error).__name__  # botocore's, of which there are several


@contextlib.contextmanager
def waited_for(url: str) -> Iterator[None]:
    """Says on stderr, once, that an answer about `url` is waited for, where it takes long."""
    timer = threading.Timer(_SAID_AFTER, _say, (url,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(url: str) -> None:
    if sys.stderr is not None:
        print(f"playhead: {url} does not answer; waiting (Ctrl-C ends it)", file=sys.stderr)
