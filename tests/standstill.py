"""Workers that are stopped (SIGSTOP), and hold nothing that others wait for."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path

from tests.polling import pause

_LONG = 60.0  # seconds; only a failing test waits this long


def bring_to_a_stand(url: str, pid: int) -> None:
    """Stops a process; on SQLite not while it writes: it would keep the write lock, and nobody could write any more.

    This connection has the write lock until all threads stand still. The signal alone is not enough: threads go on
    for a moment, and one of them may take the lock.
    """
    with ExitStack() as stack:
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            lock = stack.enter_context(closing(sqlite3.connect(path, timeout=_LONG, isolation_level=None)))
            lock.execute("BEGIN IMMEDIATE")
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        while not _stands_still(pid):
            looked_at = time.monotonic()
            assert looked_at < began + _LONG, f"process {pid} goes on"
            pause(began, looked_at)


def _stands_still(pid: int) -> bool:
    """Whether each of its threads does."""
    stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
