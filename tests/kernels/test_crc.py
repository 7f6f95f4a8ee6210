"""CRC-32C: published values, google-crc32c, and every path of the kernels."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead import kernels, reference

# RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
PUBLISHED = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
            "0200000000000000"
        ),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def ways():
    found = {"chosen": kernels.crc32c, "reference": reference.crc32c}
    if kernels.NATIVE:
        found["portable"] = kernels._c.crc32c_portable
    return found


@pytest.mark.parametrize("way", ways())
def test_published_values_come_out(way):
    for data, crc in PUBLISHED:
        assert ways()[way](data) == crc


@pytest.mark.parametrize("way", ways())
def test_every_length_and_alignment_agrees_with_google_crc32c(way):
    data = np.random.default_rng(0).bytes(7000)
    view = memoryview(data)
    crc = ways()[way]
    for size in [*range(300), *range(3060, 3085), 6143, 6144, 6145, 6999]:
        start = size % 13 if size < 6000 else 0
        expected = google_crc32c.value(data[start : start + size])
        assert crc(view[start : start + size]) == expected, size


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_agree_with_google_crc32c(data, repeat):
    data *= repeat
    expected = google_crc32c.value(data)
    assert {crc(data) for crc in ways().values()} == {expected}
    assert kernels.masked_crc32c(data) == reference.masked_crc32c(data)


@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, memoryview, lambda d: np.frombuffer(d, "<u2")],
    ids=["bytes", "bytearray", "memoryview", "numbers"],
)
def test_any_contiguous_buffer_is_taken(make):
    data = bytes(range(200))
    for crc in ways().values():
        assert crc(make(data)) == google_crc32c.value(data)


def test_what_is_not_contiguous_or_no_buffer_is_refused():
    for crc in ways().values():
        with pytest.raises(BufferError):
            crc(memoryview(bytes(10))[::2])
        with pytest.raises(TypeError):
            crc("text")
