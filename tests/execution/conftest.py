"""What holds for the tests of read-ahead."""

import pytest

from playhead.feed import needs_processes

ABOUT_PROCESSES = ("test_processes.py", "test_datasets_on_processes.py", "test_kept_workers.py")


def pytest_collection_modifyitems(items):
    """Where threads do the work of processes, a test that kills its worker would kill itself."""
    if needs_processes():
        return
    skip = pytest.mark.skip(reason="in a Python without the lock, threads do the work of processes")
    for item in items:
        if item.path.name in ABOUT_PROCESSES:
            item.add_marker(skip)
