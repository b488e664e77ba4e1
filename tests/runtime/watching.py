"""Helpers to watch a worker: they wait for what is stored, never for a fixed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dray.app import App
from dray.app_interface import core_of
from dray.handle.job import Job
from tests.backends import raw
from tests.polling import pause

T = TypeVar("T")

LONG = 30.0  # seconds; only a failing test waits this long


def until(look: Callable[[], T], seconds: float = LONG) -> T:
    """Waits for a condition to become true, and returns its value."""
    began = time.monotonic()
    while True:
        looked_at = time.monotonic()
        found = look()
        if found:
            return found
        assert looked_at < began + seconds, f"not within {seconds:g} s"
        pause(began, looked_at)


def state_of(job: Job[Any]) -> str:
    """Returns the current state with its reason: ``failed(error)``."""
    row = job.refresh().row
    return row.state if row.reason is None else f"{row.state}({row.reason})"


def ended(job: Job[Any]) -> str:
    """Waits for the final state and returns it."""
    until(lambda: job.refresh().row.finished_at is not None)
    return state_of(job)


def come_to(job: Job[Any], state: str) -> None:
    """Waits for a job to reach a state."""
    until(lambda: job.refresh().state == state)


def sql(app: App, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """Runs and commits a statement on a separate connection."""
    return raw.run(core_of(app).backend, text, *values)


def outcomes(job: Job[Any]) -> list[str]:
    """Returns how its attempts ended."""
    return [attempt.outcome for attempt in job.attempts()]


class Gate:
    """Bodies wait here until the test lets them continue; at the end all are released."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self._open = threading.Event()

    def pass_through(self) -> None:
        """For bodies: reports its arrival and waits, in small steps so that it can be stopped."""
        self.arrived.release()
        deadline = time.monotonic() + LONG
        while not self._open.wait(0.01):
            assert time.monotonic() < deadline

    def await_arrival(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=LONG)

    def open(self) -> None:
        self._open.set()
