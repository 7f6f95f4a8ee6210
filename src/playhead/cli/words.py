"""Numbers and names as they are said to people."""

from __future__ import annotations


def count(n: int, one: str, many: str | None = None) -> str:
    """
    >>> count(1, "record"), count(14376, "record"), count(2, "batch", "batches")
    ('1 record', '14,376 records', '2 batches')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """
    >>> percent(0), percent(44.83), percent(99.97), percent(100)
    ('0 %', '44.8 %', '99.9 %', '100 %')
    """
    # Never rounded up to a whole that is not there yet.
    return f"{int(share * 10) / 10:.1f} %" if 0 < share < 100 else f"{share:.0f} %"


def size(n: int) -> str:
    """
    >>> size(612), size(4_200_000)
    ('612 bytes', '4.2 MB')
    """
    if n < 10_000:
        return count(n, "byte")
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if n >= factor:
            return f"{n / factor:.1f} {unit}"
    return f"{n / 1e3:.0f} kB"


def seconds(t: float) -> str:
    """
    >>> seconds(0.0123), seconds(2.34), seconds(200), seconds(20_000), seconds(400_000)
    ('12 ms', '2.3 s', '3 min', '6 h', '5 days')
    """
    for unit, factor in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if t >= 2 * factor:
            return f"{t / factor:.0f} {unit}"
    return f"{t:.1f} s" if t >= 1 else f"{t * 1000:.0f} ms"


def printable(text: str) -> str:
    """`text` with what a terminal would obey, rather than show, made visible.

    >>> printable("step\\x1b[2J")
    'step\\\\x1b[2J'
    """
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
