"""How often an idle worker wakes up: all its threads together, as the kernel counts them."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes.harness import Fleet

SETTLED = 3.0  # seconds until the work of a start is done
SECONDS = 5.0  # a whole beat
MOST = 12.0  # a second, three times what a worker on SQLite takes


def wake_ups(pid: int) -> int:
    """How often its threads have waited for something."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread has just ended
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            found += int(lines["voluntary_ctxt_switches"])
    return found


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
