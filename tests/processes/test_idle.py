"""How often an idle worker wakes up: all its threads together, as the kernel counts them."""

from __future__ import annotations

import sys
import time

import pytest

from benchmarks.processes import wake_ups
from tests.processes.harness import Fleet

SETTLED = 3.0  # seconds until the work of a start is done
SECONDS = 5.0  # a whole beat
MOST = 12.0  # a second, three times what a worker on SQLite takes


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts them")
def test_an_idle_worker_rarely_wakes(fleets: list[Fleet]) -> None:
    """`pytest -s` shows the figures."""
    workers = [fleet.start() for fleet in fleets]
    time.sleep(SETTLED)
    before = [wake_ups(worker.pid) for worker in workers]
    time.sleep(SECONDS)
    each = [(wake_ups(worker.pid) - early) / SECONDS for worker, early in zip(workers, before, strict=True)]

    print(f"{each} wake-ups a second")
    assert max(each) <= MOST
