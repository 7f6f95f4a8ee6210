"""The random states that a whole program shares, and whether code of the user's draws from them."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from playhead.errors import GlobalRandomness, warn

WATCHED = 4  # first calls that are watched for draws from a global state


class GlobalStates:
    """Whether code draws from the global random states, which no position can keep.

    torch's is looked at in the `first` of several calls alone: no batch is there yet, so that no step of a
    model is under way in another thread, which draws from it too.

    >>> states = GlobalStates(first=True)
    >>> _ = random.random()
    >>> states.drawn()
    ['random']
    """

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._before = self._now()

    def _now(self) -> dict[str, Any]:
        state = np.random.get_state(legacy=False)["state"]
        found = {
            "random": random.getstate(),
            "numpy.random": (int(state["pos"]), state["key"].tobytes()),
        }
        of_torch = getattr(sys.modules.get("torch"), "get_rng_state", None)
        if self._first and of_torch is not None:
            found["torch"] = of_torch().numpy().tobytes()
        return found

    def drawn(self) -> list[str]:
        """The names of the states that have moved on since this was made."""
        after = self._now()
        return [name for name, state in self._before.items() if after.get(name) != state]

    def warn(self, who: str, instead: str) -> bool:
        """Whether there was something to warn of: `who` drew, `instead` says what to do."""
        used = self.drawn()
        if used:
            warn(
                f"{who} draws from the global {' and '.join(used)} state, which cannot be resumed exactly; "
                f"{instead}",
                GlobalRandomness,
            )
        return bool(used)
