"""playhead side by side with its peers, in one run.

    python -m benchmarks [CASE ...] [--repeats N] [--quick]

Every peer has a process of its own and they take turns; the tables show medians, and the median of the ratios
of neighbouring turns. Results go to `benchmarks/results/`: results.md, results.json and two plots.
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
@click.argument("cases", nargs=-1, type=click.Choice([*frame.NAMES, *frame.GROUPS]))
@click.option("--repeats", default=5, show_default=True, help="Rounds, after one to warm up.")
@click.option(
    "--quick", is_flag=True, help="Small data and two rounds: to see that everything runs."
)
def main(cases: tuple[str, ...], repeats: int, quick: bool) -> None:
    """Measure CASES, or all of them. `sources` stands for those of where records lie."""
    names = [name for case in cases for name in frame.GROUPS.get(case, (case,))]
    console = Console(width=112)
    results = []
    with tempfile.TemporaryDirectory() as folder, console.status("") as status:
        for name in names or frame.NAMES:
            found = frame.run(
                name,
                Path(folder, name),
                repeats=2 if quick else repeats,
                quick=quick,
                say=status.update,
            )
            for result in found:
                console.print(report.table(result))
            results += found
    report.write(results, RESULTS / "quick" if quick else RESULTS)
    if not quick:
        for plot in RESULTS.glob("*.png"):
            shutil.copy(plot, frame.ROOT / "docs" / plot.name)


if __name__ == "__main__":
    main()
