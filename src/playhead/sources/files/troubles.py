"""What goes wrong with stores: whether asking again may help, and what is said of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from playhead.errors import MissingSource, SourceError

_PASSING = {408, 425, 429, 500, 502, 503, 504}
_DENIED = {401, 403, 407}
# What no store takes back: of arguments that are wrong, or of a place that is full or cannot be written.
_LASTING = {errno.EINVAL, errno.ENAMETOOLONG, errno.ENOSPC, errno.ENOSYS, errno.EPERM, errno.EROFS}
# botocore's errors are none of Python's
_BOTOCORE = {"ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseParserError"}


def passing(error: BaseException) -> bool:
    """Whether asking again may help."""
    if isinstance(error, TimeoutError):
        return True
    status = _status(error)
    if status is not None:
        return status in _PASSING
    if isinstance(error, FileNotFoundError):  # also what some stores make of any trouble
        return error.__cause__ is not None and passing(error.__cause__)
    # Of a URL or a certificate that is none
    if isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno in _LASTING):
        return False
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package == "aiohttp" or bool(_BOTOCORE & _ancestors(error))


def _status(error: BaseException) -> int | None:
    """What a server answered, in HTTP's numbers, wherever a store's package keeps it."""
    for status in _numbers(error):
        if isinstance(status, int | str) and str(status).isdecimal() and 300 <= int(status) < 600:
            return int(status)
    return None if error.__cause__ is None else _status(error.__cause__)


def _numbers(error: BaseException) -> Iterator[Any]:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        yield answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    yield getattr(answer, "status_code", None)
    for name in ("status", "status_code", "code"):
        yield getattr(error, name, None)


def _ancestors(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("botocore")}


def plain(error: BaseException) -> str:
    """What an error says, or the one that is behind it."""
    cause: BaseException = error
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        cause = error.__cause__
    return f"{type(cause).__name__}: {cause}".removesuffix(": ")


def failed(error: Exception, url: str) -> SourceError:
    """What is said of a request that was asked often enough: `MissingSource`, or `SourceError`."""
    cause: BaseException = error
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        cause = error.__cause__
    said = f"{url} cannot be read: {plain(error)}"
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
    lasting = not passing(error) and not isinstance(cause, ValueError)
    if isinstance(error, FileNotFoundError) and lasting:
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
    if isinstance(error, PermissionError) or _status(error) in _DENIED:
        return True
    return "Credentials" in type(error).__name__  # botocore's, of which there are several
