"""Where Ray is not installed."""

from __future__ import annotations

import sys

import pytest

import playhead as ph


@pytest.mark.parametrize("missing", ["ray", "cloudpickle"])
def test_without_ray_the_error_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "cloudpickle":
        monkeypatch.setitem(sys.modules, "ray", sys)
    with pytest.raises(ph.errors.PipelineError, match=missing) as raised:
        next(ph.Dataset.range(4).prefetch(on="ray").iterator())
    assert raised.value.help == 'pip install "playhead[ray]"'
