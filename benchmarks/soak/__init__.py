"""SIGKILL at random moments of training loops: `python -m benchmarks.soak`."""
