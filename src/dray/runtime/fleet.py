"""What a supervisor knows of its worker processes: the last report of each (`reporting.py`), and all added up.

The supervisor's loop hears the reports. What is asked for on other threads comes from memory, but for the metrics of
the database: the first worker process that answers reads them, for all.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dray.log import log
from dray.runtime.condition import Condition
from dray.runtime.ends_counted import MOST_NAMES, OTHER, Attempts
from dray.runtime.reporting import DATABASE

_LONGEST_LINE = 16 * 1024 * 1024  # bytes
_CHUNK = 1 << 16
_STALE = 10.0  # seconds after which the last report counts for nothing
_PATIENCE = 3.0  # seconds for the metrics of the database: a worker gives up after two


@dataclass(eq=False)
class _Process:
    """One worker process, by its number."""

    channel: socket.socket
    received: bytearray = field(default_factory=bytearray)
    condition: Condition | None = None  # None: it has not started yet
    heard_at: float = 0.0
    steps: int = -1
    stepped_at: float = field(default_factory=time.monotonic)
    slots: int = 0
    attempts: Attempts = field(default_factory=Attempts)

    @property
    def answers(self) -> bool:
        """Whether it works and has reported lately."""
        return self.condition is not None and time.monotonic() - self.heard_at <= _STALE


class Fleet:
    """`open`, `hear` and `ended` are for the supervisor's thread, all else for any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._processes: dict[int, _Process] = {}
        self._past: Counter[tuple[str, str]] = Counter()  # attempts of processes that have ended
        self._named: set[str] = set()  # queues that are told apart
        self._database: str | None = None
        self._database_reads = 0
        self._has_reported = False

    def open(self, number: int) -> socket.socket:
        """A socket for a process that is about to start."""
        ours, its = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003
        with self._changed:
            self._processes[number] = _Process(ours)
        return its

    def filenos(self) -> list[int]:
        return [each.channel.fileno() for each in self._processes.values() if each.channel.fileno() >= 0]

    def hear(self) -> None:
        """Takes in what has come, without waiting."""
        for number, process in self._processes.items():
            for line in _lines(process):
                self._take(number, process, line)

    def ended(self, number: int) -> None:
        """This process has ended. What it has counted stays: a sum must not go down."""
        with self._changed:
            process = self._processes.pop(number, None)
            if process is not None:
                process.channel.close()
                self._past.update(process.attempts)

    def is_ready(self, number: int) -> bool:
        """Whether this process has started to work."""
        process = self._processes.get(number)
        return process is not None and process.condition is not None

    def unturned(self, number: int) -> float:
        """Seconds since the engine of this process is known to have taken a step, or since the process started."""
        process = self._processes.get(number)
        return 0.0 if process is None or process.condition is None else time.monotonic() - process.stepped_at

    def condition(self) -> Condition:
        """All together: healthy if each is, ready if one is."""
        with self._changed:
            there = list(self._processes.values())
        conditions = [each.condition for each in there if each.condition is not None]
        is_silent = any(each.condition is not None and not each.answers for each in there)
        if not conditions:
            reason = "no worker process runs" if self._has_reported else None
            return Condition(
                None, "starting", 0, None, is_healthy=not self._has_reported, is_ready=False, reason=reason
            )
        ages = [each.last_beat_age for each in conditions if each.last_beat_age is not None]
        return Condition(
            None,
            "active" if any(each.state == "active" for each in conditions) else conditions[0].state,
            sum(each.running for each in conditions),
            max(ages, default=None),
            is_healthy=not is_silent and all(each.is_healthy for each in conditions),
            is_ready=any(each.is_ready for each in conditions),
            reason="a worker process does not report"
            if is_silent
            else next((each.reason for each in conditions if each.reason is not None), None),
        )

    @property
    def size(self) -> int:
        """How many processes have started."""
        with self._changed:
            return sum(each.condition is not None for each in self._processes.values())

    @property
    def slots(self) -> int:
        with self._changed:
            return sum(each.slots for each in self._processes.values())

    def attempts(self) -> Attempts:
        """Of all processes that there were. Queues that are too many to be told apart count as one."""
        with self._changed:
            total = self._past + Counter[tuple[str, str]]()
            for process in self._processes.values():
                total.update(process.attempts)
            found = Counter[tuple[str, str]]()
            for (queue, event), count in total.items():
                if len(self._named) < MOST_NAMES:
                    self._named.add(queue)
                found[queue if queue in self._named else OTHER, event] += count
        return dict(found)

    def database(self) -> str | None:
        """The metrics of the database, as a worker process reads them; None: none could."""
        until = time.monotonic() + _PATIENCE
        with self._changed:
            asked = self._database_reads
            for process in self._processes.values():
                if process.answers:
                    with suppress(OSError):  # full or closed: the next one
                        process.channel.send(DATABASE)
                        break
            else:
                return None
            while self._database_reads == asked:
                if not self._changed.wait(until - time.monotonic()):
                    return None
            return self._database

    def _take(self, number: int, process: _Process, line: bytes) -> None:
        told: dict[str, Any] = json.loads(line)
        with self._changed:
            if "database" in told:
                self._database = told["database"]
                self._database_reads += 1
                self._changed.notify_all()
                return
            process.heard_at = time.monotonic()
            if told["steps"] != process.steps:
                process.steps, process.stepped_at = told["steps"], process.heard_at
            if process.condition is None:
                log.info("worker %d is ready", number)
            process.condition = Condition(**told["condition"])
            process.slots = told["slots"]
            process.attempts = {(queue, event): count for queue, event, count in told["attempts"]}
            self._has_reported = True


def _lines(process: _Process) -> list[bytes]:
    """The whole lines that have come."""
    while process.channel.fileno() >= 0:
        try:
            part = process.channel.recv(_CHUNK)
        except BlockingIOError:
            break
        except OSError:
            part = b""
        process.received += part
        if not part or len(process.received) > _LONGEST_LINE:
            process.channel.close()
    *lines, rest = bytes(process.received).split(b"\n")
    process.received = bytearray(rest)
    return lines
