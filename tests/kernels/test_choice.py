"""Which kernels are at work, and that nobody can tell from what is read."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from playhead import kernels

READ = """
import hashlib, sys
import numpy as np
import playhead as ph
from playhead import kernels

features = {
    "n": ph.VarLenFeature(np.int64),
    "w": ph.FixedLenFeature((), bytes, b"none"),
}
ds = ph.Dataset.from_tfrecords(sys.argv[1], features=features, index=sys.argv[2]).shuffle(seed=3)
raw = ph.Dataset.from_tfrecords(sys.argv[1], index=sys.argv[2]).shuffle(buffer_size=20, seed=4).batch(7)
said = [(e["n"].tolist(), e["w"]) for e in ds.iterator(epochs=1)]
said += [batch.tolist() for batch in raw.iterator(epochs=1)]
print(kernels.NATIVE, hashlib.sha256(repr(said).encode()).hexdigest())
"""


def run(mode: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", READ, *words],
        env={**os.environ, "PLAYHEAD_KERNELS": mode},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def example(number: int) -> bytes:
    def part(tag: int, data: bytes) -> bytes:
        return bytes([tag, len(data)]) + data

    def entry(name: bytes, feature: bytes) -> bytes:
        return part(0x0A, part(0x0A, name) + part(0x12, feature))

    entries = [entry(b"n", part(0x1A, part(0x0A, bytes(range(number % 5)))))]
    if number % 3:
        entries.append(entry(b"w", part(0x0A, part(0x0A, bytes([number]) * (number % 7)))))
    return part(0x0A, b"".join(entries))


@pytest.mark.skipif("PLAYHEAD_REQUIRE_NATIVE" not in os.environ, reason="may be built without")
def test_the_c_kernels_were_built():
    assert kernels.NATIVE


@pytest.mark.skipif(not kernels.NATIVE, reason="built without the C kernels")
def test_without_the_c_kernels_the_same_is_read(tmp_path):
    path = tmp_path / "data.tfrecord"
    with open(path, "wb") as file:
        for record in map(example, range(100)):
            crc = struct.pack("<I", kernels.masked_crc32c(record))
            file.write(kernels.header(len(record)) + record + crc)
    native, digest = run("", str(path), str(tmp_path / "one"))
    assert native == "True"
    assert run("reference", str(path), str(tmp_path / "other")) == ["False", digest]


def test_kernels_of_another_version_are_left_aside_and_named():
    stale = (
        "import sys, types, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "sys.modules['playhead._kernels'] = types.ModuleType('playhead._kernels')\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    from playhead import kernels\n"
        "print(kernels.NATIVE, [str(w.message) for w in said if 'build them again' in str(w.message)] != [])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", stale],
        env={**os.environ, "PLAYHEAD_KERNELS": "native"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]
