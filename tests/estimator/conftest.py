"""These tests need TensorFlow 2.15, the last one with Estimator: `nox -s estimator` runs them, nothing else."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

sys.path.insert(0, str(Path(__file__).parent))  # train_run, which is also run as a program

if importlib.util.find_spec("tensorflow_estimator") is None:
    collect_ignore_glob = ["*"]
