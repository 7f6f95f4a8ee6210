"""One process of a run: `python -m benchmarks.soak.train LOOP RUN DATA SEED EPOCHS EVERY`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.soak.loops import Run

if __name__ == "__main__":
    name, run, data, *numbers = sys.argv[1:]
    Run(name, Path(run), Path(data), *map(int, numbers)).train()
