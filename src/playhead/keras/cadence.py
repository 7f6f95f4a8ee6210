"""When to save: every so many steps, epochs, or so much time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

_SECONDS: Final = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
}
# At an epoch's end: seconds, and times what the loop waited for the last save, that must have passed since.
_BETWEEN: Final = 5.0
_SHARE: Final = 20.0


class Cadence:
    """`Cadence(500)`, `Cadence("500 steps")`, `Cadence("10min")`, `Cadence("30s")`, `Cadence("1 epoch")`.

    Steps are counted from the beginning of the run, so a resumed run saves at the same steps as one that
    was never broken off. Time counts from the last save; with it, a save is also due at the end of an epoch
    that has none, except where epochs are so short that saving would take a good part of the time. Raises
    ValueError for anything else.
    """

    def __init__(self, every: int | str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = self._epochs = 0
        self._seconds = 0.0
        amount, unit = _parse(every)
        if unit in ("", "step"):
            self._steps = int(amount)
        elif unit == "epoch":
            self._epochs = int(amount)
        else:
            self._seconds = amount * _SECONDS[unit]
        if amount <= 0 or (not self._seconds and amount != int(amount)):
            raise ValueError(_message(every))
        self._clock = clock
        self._since = clock()
        self._took = 0.0
        self._in_epoch = False

    def after_steps(self, before: int, now: int) -> bool:
        """Whether a save is due at step `now` when the last look was at step `before`."""
        if self._steps:
            return now // self._steps > before // self._steps
        return bool(self._seconds) and self._clock() - self._since >= self._seconds

    def after_epoch(self, epochs_done: int) -> bool:
        """Whether a save is due at the end of an epoch, `epochs_done` having ended."""
        if not self._seconds:
            return bool(self._epochs) and epochs_done % self._epochs == 0
        since = self._clock() - self._since
        enough = min(self._seconds, max(_BETWEEN, _SHARE * self._took))
        return not self._in_epoch and since >= enough

    def begin_epoch(self) -> None:
        """Nothing is saved in it yet."""
        self._in_epoch = False

    def now(self) -> float:
        """The time, as `saved` takes it."""
        return self._clock()

    def saved(self, began: float | None = None) -> None:
        """Time starts anew after a save for which the loop has waited since `began`."""
        self._since = self._clock()
        self._in_epoch = True
        if began is not None:
            self._took = self._since - began


def _parse(every: int | str) -> tuple[float, str]:
    if isinstance(every, int) and not isinstance(every, bool):
        return every, ""
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", every) if isinstance(every, str) else None
    )
    if found is None:
        raise ValueError(_message(every))
    unit = found[2]
    unit = unit[:-1] if len(unit) > 1 and unit.endswith("s") else unit
    if unit not in _SECONDS and unit not in ("step", "epoch"):
        raise ValueError(_message(every))
    return float(found[1]), unit


def _message(every: object) -> str:
    return f'save_every={every!r} is not understood: say 500 (steps), "10min", "30s", "2h" or "1 epoch"'
