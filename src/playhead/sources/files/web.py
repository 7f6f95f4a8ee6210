"""What web servers are asked for beside a file's bytes, and how long their silence is borne."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

_SILENCE = 30.0
_CONNECTING = 15.0


def is_web(url: str) -> bool:
    """Whether a URL is read by HTTP, rather than through a store's own package."""
    return url.startswith(("http://", "https://"))


def asking(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What `cat_file` is told: to have bytes sent as they are stored, and not compressed for the way."""
    if not is_web(url):
        return {}
    return {"headers": {**options.get("headers", {}), "Accept-Encoding": "identity"}}


def bounded(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """`options`, with limits for the silence of a web server where they have none (aiohttp's is 5 minutes)."""
    client = options.get("client_kwargs", {})
    if not is_web(url) or "timeout" in client or importlib.util.find_spec("aiohttp") is None:
        return options
    import aiohttp

    limits = aiohttp.ClientTimeout(sock_connect=_CONNECTING, sock_read=_SILENCE)
    return {**options, "client_kwargs": {**client, "timeout": limits}}
