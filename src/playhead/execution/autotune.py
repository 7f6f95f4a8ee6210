"""How many workers to let work: found by trying, while the consumer waits."""

from __future__ import annotations

from playhead.execution.pool import Pool


class Tuner:
    """Resizes a pool by what its consumer sees."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def delivered(self, records: int, waited: float) -> None:
        """Take note that so many records came after the consumer had waited for `waited` seconds."""
