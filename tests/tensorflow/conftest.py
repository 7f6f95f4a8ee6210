"""TensorFlow tests run on the CPU, quietly."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

sys.path.insert(0, str(Path(__file__).parent))  # programs that tests here also import

collect_ignore = ["mirrored_run.py"]  # importing it makes the CPU three devices
