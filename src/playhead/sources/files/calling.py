"""A call of a file system of fsspec that nobody has to wait for longer than they want."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from playhead.plan.leaving import BEAT, left


def call(system: Any, method: str, *args: Any, **keywords: Any) -> Any:
    """What a method of `system` returns; raises what it raises.

    Where it stands for an asynchronous one, and the caller is interrupted or nobody waits for it any more
    (then `InterruptedError`), the request is taken back. Else it is waited for.
    """
    plain = getattr(system, method)
    behind = getattr(plain, "__wrapped__", None)  # what fsspec makes the plain ones of
    if not inspect.iscoroutinefunction(behind):
        return plain(*args, **keywords)
    future = asyncio.run_coroutine_threadsafe(behind(*args, **keywords), system.loop)
    try:
        while not left():
            try:
                return future.result(BEAT)
            except TimeoutError:
                if future.done():  # else it is this wait that ended
                    return future.result()
        raise InterruptedError("nobody waits for this request any more")
    finally:
        future.cancel()
