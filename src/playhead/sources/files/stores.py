"""What the packages of stores are told beside what the user tells them: how long, and how often, they try.

They are asked again by playhead, which bounds the whole; what they try on their own would multiply with that.
"""

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
    """`options`, with limits where they have none.

    For the silence of a web server (aiohttp's is 5 minutes), and for how often botocore tries (5 times).
    """
    if is_web(url):
        client = options.get("client_kwargs", {})
        if "timeout" in client or importlib.util.find_spec("aiohttp") is None:
            return options
        import aiohttp

        limits = aiohttp.ClientTimeout(sock_connect=_CONNECTING, sock_read=_SILENCE)
        return {**options, "client_kwargs": {**client, "timeout": limits}}
    config = options.get("config_kwargs", {})
    if not url.startswith(("s3://", "s3a://")) or "retries" in config:
        return options
    return {**options, "config_kwargs": {**config, "retries": {"total_max_attempts": 1}}}


def once(system: Any, url: str, options: Mapping[str, Any]) -> None:
    """Have a file system that `bounded` made its own try once, too: s3fs has no option for it."""
    if bounded(url, options) is not options and url.startswith("s3"):
        system.retries = 1
