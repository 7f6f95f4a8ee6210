"""The picture of the demo: both loss curves over each other, and which process did which steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from playhead.cli.logbook import Process, processes

_STRAIGHT, _KILLED, _KILL, _AGAIN = "#9ecae1", "#08306b", "#d7301f", "#fdae6b"
_DASHES = (0, (4, 3))


def losses(straight: Path, killed: Path, kills: Sequence[int], title: str, picture: Path) -> None:
    """Draws the runs logged under `straight` and `killed` into the PNG file `picture`.

    kills: the last step that was done before each kill.
    """
    once, again = processes(straight), processes(killed)
    figure = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(*_curve(once), color=_STRAIGHT, linewidth=5, label="straight through")
    top.plot(*_curve(again), color=_KILLED, linewidth=1.1, label="killed and started again")
    for number, step in enumerate(kills):
        label = "SIGKILL" if number == 0 else None
        top.axvline(step, color=_KILL, linestyle=_DASHES, linewidth=1.1, zorder=1, label=label)
        bottom.axvline(step, color=_KILL, linestyle=_DASHES, linewidth=1.1, zorder=3)
    top.set(title=title, ylabel="loss of each batch", ylim=(0, None))
    top.legend(frameon=False)
    reached = 0
    for number, process in enumerate(again, 1):
        steps = [step for step, _ in process.batches]
        if not steps:
            continue
        first, last = steps[0] - 1, steps[-1]
        bottom.barh(number, last - first, left=first, color=_KILLED, height=0.6)
        if reached > first:
            shown = min(reached, last) - first
            label = None if bottom.get_legend_handles_labels()[0] else "steps done again"
            bottom.barh(number, shown, left=first, color=_AGAIN, height=0.6, label=label)
        reached = max(reached, last)
    bottom.set(xlabel="step", ylabel="process", ylim=(len(again) + 0.7, 0.3))
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    if reached and bottom.get_legend_handles_labels()[0]:
        bottom.legend(frameon=False, loc="lower left")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    figure.savefig(picture)


def _curve(run: Sequence[Process]) -> tuple[list[int], list[float]]:
    """Steps and losses; of a step that was done again, the last."""
    found = {step: float.fromhex(batch.loss) for process in run for step, batch in process.batches}
    steps = sorted(found)
    return steps, [found[step] for step in steps]
