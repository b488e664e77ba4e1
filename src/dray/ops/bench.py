"""Measures what a database can do, and beside it the rawest thing that does the same on the same disk or server."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_FIRST_JOB = 10.0  # seconds
_PAGE = 4096  # bytes that a durable write takes at least


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something was done."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took, in seconds."""

    p50: float
    p99: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        if len(samples) < 2:
            return cls(samples[0], samples[0], len(samples))
        cuts = statistics.quantiles(samples, n=100, method="inclusive")
        return cls(cuts[49], cuts[98], len(samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured. ``raw``: rates by what was done."""

    raw: dict[str, Rate]
    enqueue: Rate  # one at a time, each durable when the call returns
    enqueue_many: Rate  # jobs, many in one transaction
    drain: Rate  # jobs that do nothing, by one worker process
    pick_up: Spread  # from the end of the enqueue to the start of the body, in an idle worker


def rate_of(step: Callable[[], int], seconds: float, limit: int | None = None) -> Rate:
    """Repeats `step` for a time, or until it was done often enough; `step` returns how much it did."""
    count, began = 0, time.perf_counter()
    while True:
        count += step()
        taken = time.perf_counter() - began
        if taken >= seconds or (limit is not None and count >= limit):
            return Rate(count, taken)


def fsync_rate(folder: Path, seconds: float) -> Rate:
    """A page written and forced to the disk, again and again: what no durable write can be faster than."""
    path = folder / f"dray_bench_{os.getpid()}.fsync"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    page = bytes(_PAGE)

    def step() -> int:
        os.write(descriptor, page)
        os.fsync(descriptor)
        return 1

    try:
        return rate_of(step, seconds)
    finally:
        os.close(descriptor)
        path.unlink()


def drain_rate(
    done: Callable[[], int], start: Callable[[], object], total: int, seconds: float, pause: float = 0.05
) -> Rate:
    """How fast jobs end from `start` on, until all have or the time is over; a busy machine gets the time for one."""
    before, began = done(), time.perf_counter()
    start()
    while True:
        now = done() - before
        taken = time.perf_counter() - began
        if now >= total or taken >= (seconds if now else max(seconds, _FIRST_JOB)):
            return Rate(now, taken)
        time.sleep(pause)
