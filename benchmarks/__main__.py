"""playhead side by side with its peers, in one run.

    python -m benchmarks [CASE ...] [--repeats N] [--quick]

Every peer has a process of its own and they take turns; the tables show medians, and the median of the ratios
of neighbouring turns. Results go to `benchmarks/results/`: results.md, results.json and results.png.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click
from rich.console import Console

from benchmarks import frame, report

RESULTS = frame.ROOT / "benchmarks" / "results"


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(frame.NAMES))
@click.option("--repeats", default=5, show_default=True, help="Rounds, after one to warm up.")
@click.option(
    "--quick", is_flag=True, help="Small data and two rounds: to see that everything runs."
)
def main(cases: tuple[str, ...], repeats: int, quick: bool) -> None:
    """Measure CASES, or all of them."""
    console = Console(width=112)
    results = []
    with tempfile.TemporaryDirectory() as folder, console.status("") as status:
        for name in cases or frame.NAMES:
            found = frame.run(
                name,
                Path(folder, name),
                repeats=2 if quick else repeats,
                quick=quick,
                say=status.update,
            )
            console.print(report.table(found))
            results.append(found)
    report.write(results, RESULTS / "quick" if quick else RESULTS)
    if not quick:
        shutil.copy(RESULTS / "results.png", frame.ROOT / "docs" / "results.png")


if __name__ == "__main__":
    main()
