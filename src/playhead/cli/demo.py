"""`playhead demo`: a training, killed again and again, against one that was not, bit by bit."""

from __future__ import annotations

import importlib.util
import itertools
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from playhead.cli.children import Child, ChildFailedError, Training
from playhead.cli.digits import CHECKPOINTS, pipeline
from playhead.cli.logbook import Comparison, compare
from playhead.cli.words import count, printable, seconds, size
from playhead.keras import checkpoint
from playhead.position import Position

SAVE_EVERY = 20
_NEEDS = {
    "tensorflow": "tensorflow",
    "keras": "keras",
    "sklearn": "scikit-learn",
    "matplotlib": "matplotlib",
}
_DIFFERENCES_SHOWN = 5


@dataclass(frozen=True)
class Kill:
    """`step`: the last one logged before the kill. `saved`: that of the newest checkpoint then."""

    step: int
    saved: int


@dataclass(frozen=True)
class Return:
    """The first `step` of a process; `seconds` from its start until then, without `importing`."""

    step: int
    seconds: float
    importing: float

    @classmethod
    def of(cls, child: Child) -> Return:
        """Of a process that has logged a batch."""
        first = child.process.batches[0][0]
        return cls(first, child.seconds_to_first_batch, child.seconds_importing)


@click.command(name="demo")
@click.option("--kills", type=click.IntRange(min=0), default=4, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of data, weights and kills.")
@click.option("--epochs", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="For everything; empty or new.  [default: a temporary one that stays]",
)
def command(kills: int, seed: int, epochs: int, directory: Path | None) -> None:
    """Train on real digits, kill it again and again, and compare bit by bit.

    Trains a small Keras model on scikit-learn's handwritten digits, read from TFRecord files,
    shuffled and randomly augmented: once straight through, and once in processes that are SIGKILLed
    at moments drawn from --seed and started again by the same command line. Then compares what both
    wrote down: the records of every batch, the loss of every batch, the final weights.

    Training is on the CPU, where TensorFlow repeats these bits without a determinism switch. On a
    GPU it needs tf.config.experimental.enable_op_determinism().

    Exit status 0: identical after all the kills asked for. 1: not. 130: interrupted.
    """
    missing = [name for module, name in _NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(f"playhead demo: needs {', '.join(missing)}: pip install 'playhead[demo]'")
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="playhead-demo-"))
    elif directory.exists() and any(directory.iterdir()):
        raise click.UsageError(f"--directory: {directory} is not empty")
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaving kills the child
    try:
        identical = Demo(directory, kills=kills, seed=seed, epochs=epochs, console=console).run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ChildFailedError as error:
        click.echo(f"playhead demo: {printable(str(error))}", err=True)
        raise SystemExit(1) from None
    raise SystemExit(0 if identical else 1)


class Demo:
    """Both trainings, and what comes out."""

    def __init__(
        self, directory: Path, *, kills: int, seed: int, epochs: int, console: Console
    ) -> None:
        data = directory / "data"
        self._directory, self._seed, self._epochs, self._asked = directory, seed, epochs, kills
        self._straight = Training(directory / "straight", data, seed, epochs, SAVE_EVERY)
        self._killed = Training(directory / "killed", data, seed, epochs, SAVE_EVERY)
        self._console = console
        self._kills: list[Kill] = []
        self._returns: list[Return] = []

    def run(self) -> bool:
        """Whether all kills were made and both trainings came to the same, bit for bit."""
        from playhead.cli import plot

        began = time.perf_counter()
        self._say(f"playhead demo in {self._directory}", "bold")
        with self._console.status("training straight through") as status:
            fresh = self._train_straight_through()
            dataset = pipeline(self._straight.data, self._seed)
            per_epoch = len(dataset)
            steps = per_epoch * self._epochs
            self._train_and_kill(
                draw_kills(self._asked, steps, per_epoch, self._seed), per_epoch, status
            )
            status.update("comparing")
            trace = dataset.iterator(epochs=self._epochs).trace
            traced = {
                step: [record.index for record in trace(step)] for step in range(1, steps + 1)
            }
            compared = compare(self._straight.run, self._killed.run, steps=steps, traced=traced)
            if self._kills:
                compared.append(_went_on(self._kills, self._returns))
            picture = self._directory / "losses.png"
            identical = all(comparison.identical for comparison in compared)
            title = f"one run straight through, one killed {count(len(self._kills), 'time')}: "
            title += "bit-identical" if identical else "NOT the same"
            at = [kill.step for kill in self._kills]
            plot.losses(self._straight.run, self._killed.run, at, title, picture)
        self._console.print()
        self._console.print(_table(compared, len(self._kills)))
        for line in _differences(compared):
            self._say(line, "red")
        facts = [*self._facts(fresh), ("all of it", seconds(time.perf_counter() - began))]
        width = max(len(name) for name, _ in facts)
        for name, said in facts:
            self._say(f"{name:<{width}}  {said}")
        self._say(f"plot: {picture}", "bold")
        if len(self._kills) < self._asked:
            made = count(len(self._kills), "kill")
            self._say(f"only {made} of {self._asked} could be made: give it more --epochs", "red")
        return identical and len(self._kills) == self._asked

    def _say(self, text: str, style: str = "") -> None:
        # Neither markup nor folding: paths and lines stay as they are.
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def _train_straight_through(self) -> Return:
        began = time.perf_counter()
        with Child(self._straight) as child:
            child.finish()
        took = seconds(time.perf_counter() - began)
        self._say(f"straight through: {count(child.process.last_step, 'step')} in {took}")
        return Return.of(child)

    def _train_and_kill(self, at: Sequence[int], per_epoch: int, status: Status) -> None:
        delays = random.Random(f"delays {self._seed}")
        for number in range(len(at) + 1):
            kill = self._kills[-1] if self._kills else None
            status.update(
                "training" if kill is None else f"killed at step {kill.step}, starting again"
            )
            with Child(self._killed) as child:
                if not child.reaches(1):
                    self._say("the killed training had just been finished")
                    return
                if kill is not None:
                    self._returns.append(Return.of(child))
                    self._say(_restart(number, kill, self._returns[-1], per_epoch))
                if number == len(at):
                    status.update("training to the end")
                    child.finish()
                    return
                status.update(f"training, to be killed soon after step {at[number]}")
                if not child.reaches(at[number]):
                    self._say(f"the training was over before kill {number + 1}")
                    return
                time.sleep(delays.uniform(0.0, 0.01))
                child.kill()
            self._kills.append(Kill(child.process.last_step, self._killed.newest_checkpoint()))

    def _facts(self, fresh: Return) -> list[tuple[str, str]]:
        between = sum(kill.step > kill.saved > 0 for kill in self._kills)
        again = sum(kill.step - kill.saved for kill in self._kills)
        imports = statistics.median(back.importing for back in (fresh, *self._returns))
        resumed = sorted(back.seconds for back in self._returns)
        facts = [
            ("kills between a checkpoint and the next", f"{between} of {len(self._kills)}"),
            ("steps done again after them", f"{again}, each compared as well"),
            ("process start to first batch, afresh", seconds(fresh.seconds)),
        ]
        if resumed:
            spread = f"{seconds(resumed[0])} to {seconds(resumed[-1])}"
            said = f"{seconds(statistics.median(resumed))} ({spread})"
            facts.append(("process start to first batch, resumed", said))
        facts.append(("not counted: importing TensorFlow", f"{seconds(imports)} each time"))
        facts.append(("size of the saved position", size(self._position_size())))
        return facts

    def _position_size(self) -> int:
        _, state = checkpoint.latest(self._killed.run / CHECKPOINTS)
        return len(Position.from_dict(state["position"]).to_json().encode())


def _table(compared: Sequence[Comparison], kills: int) -> Table:
    table = Table(title=f"straight through against killed {count(kills, 'time')}")
    table.add_column("compared", no_wrap=True)
    table.add_column("equal", justify="right")
    table.add_column("bit-identical")
    for comparison in compared:
        verdict = Text("yes", "green") if comparison.identical else Text("NO", "bold red")
        table.add_row(comparison.what, f"{comparison.equal:,} of {comparison.total:,}", verdict)
    return table


def _differences(compared: Sequence[Comparison]) -> Iterator[str]:
    for comparison in compared:
        for difference in comparison.differences[:_DIFFERENCES_SHOWN]:
            yield f"{comparison.what}: {difference}"
        more = len(comparison.differences) - _DIFFERENCES_SHOWN
        if more > 0:
            yield f"{comparison.what}: and {more:,} more"


def _went_on(kills: Sequence[Kill], returns: Sequence[Return]) -> Comparison:
    wrong = tuple(
        f"checkpoint {kill.saved}, went on at step {back.step}"
        for kill, back in zip(kills, returns, strict=False)
        if back.step != kill.saved + 1
    )
    what = "first step after each checkpoint"
    return Comparison(what, len(returns) - len(wrong), len(kills), wrong)


def draw_kills(kills: int, steps: int, per_epoch: int, seed: int) -> list[int]:
    """The steps after which to kill, in order: one anywhere in each of `kills` equal parts.

    As far as the training is long enough: after the first checkpoint, before the last tenth, not
    next to an epoch's end, and not right after a checkpoint, so that something is to be done again.
    """
    chance = random.Random(f"kills {seed}")
    first, last = min(SAVE_EVERY, steps // 4), steps - max(steps // 10, 1)
    edges = [first + (last - first) * k // max(kills, 1) for k in range(kills + 1)]
    drawn = []
    for begin, end in itertools.pairwise(edges):
        part = range(begin + 1, max(end, begin + 1) + 1)
        good = [s for s in part if 1 < s % per_epoch < per_epoch - 2 and s % SAVE_EVERY > 1]
        drawn.append(chance.choice(good or part))
    return drawn


def _restart(number: int, kill: Kill, back: Return, per_epoch: int) -> str:
    epoch, batch = divmod(kill.step, per_epoch)
    return (
        f"kill {number} at step {kill.step} (epoch {epoch + 1}, {batch}/{per_epoch}), "
        f"back at step {back.step} in {seconds(back.seconds)} + {seconds(back.importing)} imports"
    )
