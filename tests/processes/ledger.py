"""What bodies really did: one line for each start and end, in a file that everybody appends to.

The database says what Dray believes; this says what happened. A line is one write of a file opened with O_APPEND, so
lines of many processes do not mix, and one that was written is there, whatever happens to its process afterwards.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "DRAY_TEST_LEDGER"


class Entry(NamedTuple):
    """One line."""

    what: str  # "start" of a body, its "end", its "stop" by an error, or whatever else it has to say
    label: str  # which body: a name that the test gave it
    attempt: int
    pid: int
    thread: int
    at: float  # CLOCK_MONOTONIC, the same in all processes
    more: Any


# In a worker


def write(what: str, label: str, attempt: int = 0, more: Any = None) -> None:
    entry = Entry(what, label, attempt, os.getpid(), threading.get_native_id(), time.monotonic(), more)
    # Opened each time: a fork, an exec or a child of a fork server needs nothing from its parent.
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


@contextmanager
def recorded(label: str, attempt: int) -> Generator[None]:
    """The body of one attempt. One that was killed has a start and nothing else.

    A later attempt looks whether an earlier one still lives: that is what must never be.
    """
    beside = [] if attempt == 1 else Ledger(Path(os.environ[VARIABLE]), only=label).alive(label)
    write("start", label, attempt)
    if beside:
        write("overlap", label, attempt, beside)
    how = "stop"
    try:
        yield
        how = "end"
    finally:
        write(how, label, attempt)


# In the test


class Ledger:
    """The lines so far, or only those with a label: to read all took each retry longer than its body."""

    def __init__(self, path: Path, *, only: str | None = None) -> None:
        self.path = path
        self._part = b"" if only is None else json.dumps(only).encode()
        self._lock = threading.Lock()
        self._read: list[Entry] = []  # so far: tests ask for it a hundred times a second
        self._end = 0

    def entries(self, what: str | None = None, label: str | None = None) -> list[Entry]:
        with self._lock:
            self._read_on()
            return [e for e in self._read if what in {None, e.what} and label in {None, e.label}]

    def _read_on(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._end)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += [Entry(*json.loads(line)) for line in whole.split(b"\n") if newline and self._part in line]
        self._end += len(whole) + len(newline)

    def starts(self, label: str | None = None) -> list[Entry]:
        return self.entries("start", label)

    def ends(self, label: str | None = None) -> list[Entry]:
        return self.entries("end", label)

    def alive(self, label: str) -> list[Entry]:
        """Attempts that have started, not ended, and whose thread still runs."""
        entries = self.entries(label=label)
        over = {(e.attempt, e.pid, e.thread) for e in entries if e.what in {"end", "stop"}}
        begun = [e for e in entries if e.what == "start" and (e.attempt, e.pid, e.thread) not in over]
        return [e for e in begun if _runs(e.pid, e.thread)]


def _runs(pid: int, thread: int) -> bool:
    # A dead one may take a moment to go. One that stands still (SIGSTOP) does nothing.
    for _ in range(5):
        try:
            status = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
        except OSError:
            return False
        if status.rpartition(")")[2].split()[0] in {"Z", "X", "T"}:
            return False
        time.sleep(0.01)
    return True
