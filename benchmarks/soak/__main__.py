"""SIGKILL at random moments, hundreds of times: every run must end as one that was never killed.

    python -m benchmarks.soak --kills 200
    python -m benchmarks.soak --loop jax --loop mirrored --kills 20

The loops: "demo", Keras on the demo's TFRecords; "tensorflow", "jax" and "torch", Keras on each
backend over a stream, with validation; "mirrored", a custom loop on two replicas with
tf.train.CheckpointManager. The kills are spread over the loops; one whose packages are not
installed is left out, and said to be.

There is a checkpoint every few steps, so that many kills fall into saving. The moment of a kill is
uniform over the whole life of a process: starting, restoring, tracing, training, saving, after the
last step; for two in three (--stepping) it is uniform from the first step on. A killed run is
started again until it finishes, and what its processes wrote down is compared with an unkilled run:
records and loss of every batch (also of those done again), and the final weights. The records are
also those that the pipeline gives outside of any framework. After each kill the newest checkpoint
must be whole and no older than before, and the next process must go on after it.

Importing a framework is most of a short process's life. So one process in five (--afresh) is
started afresh, and the others are forked from one that has imported it and never used it. The first
run that is compared is a forked one without kills.

Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.soak.killing import Soak, say
from benchmarks.soak.loops import LOOPS


def arguments() -> argparse.Namespace:
    description, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200, help="of all loops together")
    parser.add_argument(
        "--loop", action="append", choices=LOOPS, help="one of them; may be said again"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of a loop, after which no kill is begun"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--every", type=int, default=2, help="steps between checkpoints")
    parser.add_argument("--afresh", type=float, default=0.2, help="share of processes not forked")
    parser.add_argument(
        "--stepping", type=float, default=0.67, help="share of kills that wait for a first step"
    )
    parser.add_argument("--directory", type=Path, help="an empty one to keep everything in")
    return parser.parse_args()


def one(name: str, options: argparse.Namespace) -> bool:
    """Whether all runs of a loop were alike. What they wrote is left where they were not."""
    loop = LOOPS[name]
    os.environ.update(loop.environment())
    for module in loop.needs:
        importlib.import_module(module)
    directory = options.directory or Path(tempfile.mkdtemp(prefix=f"playhead-soak-{name}-"))
    soak = Soak(name, options, directory)
    soak.run()
    if soak.faults:
        say(f"everything is left in {directory}")
    elif options.directory is None:
        shutil.rmtree(directory)
    return not soak.faults


def each(names: list[str], options: argparse.Namespace) -> bool:
    """Each loop in a process of its own, as Keras has one backend a process."""
    failed = []
    for number, name in enumerate(names):
        kills = options.kills // len(names) + (number < options.kills % len(names))
        settings = ("minutes", "seed", "epochs", "every", "afresh", "stepping")
        command = [sys.executable, "-m", "benchmarks.soak", "--loop", name, "--kills", str(kills)]
        for setting in settings:
            command += [f"--{setting}", str(getattr(options, setting))]
        if options.directory is not None:
            command += ["--directory", str(options.directory / name)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        say("")
    say(f"loops: {', '.join(names)}" + (f"; NOT ALIKE: {', '.join(failed)}" if failed else ""))
    return not failed


def main() -> int:
    options = arguments()
    asked = list(dict.fromkeys(options.loop or LOOPS))
    missing = {name: LOOPS[name].missing() for name in asked}
    for name in asked:
        if missing[name]:
            say(f"{name}: left out, as {' and '.join(missing[name])} is not installed")
    names = [name for name in asked if not missing[name]]
    if not names:
        return 1
    return 0 if (one(names[0], options) if len(names) == 1 else each(names, options)) else 1


if __name__ == "__main__":
    # A child that is forked leaves through os._exit, so nothing below runs twice.
    sys.exit(main())
