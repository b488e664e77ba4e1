"""What every peer does: the six arguments, the body, and the file into which bodies write when they started.

The file is mapped into memory and has one slot for each job. To write a slot takes well under a microsecond, needs no
lock, and keeps the GIL, so it disturbs threads, event loops and forked children equally little.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

URL = os.environ.get("COMPARE_URL", "")
THREADS = 8
CHUNK = 1_000  # jobs in one call of a bulk enqueue
FIRST = 18_000_000  # the order number of job 0: as many digits as that of benchmarks.arena
REST = ("ann.smith@example.com", 129.95, "EUR", True, [3, 17, 42, 812])
NAMES = ("order", "to", "amount", "currency", "express", "items")


def six(number: int) -> tuple[int, str, float, str, bool, list[int]]:
    """Returns the arguments of a job."""
    return (FIRST + number, *REST)


def named(number: int) -> dict[str, Any]:
    return dict(zip(NAMES, six(number), strict=True))


def encoded(number: int) -> str:
    """Returns the 117 bytes of JSON, for queues that leave the encoding to their users."""
    return json.dumps(named(number), separators=(",", ":"))


def path() -> str:
    """Returns the file of the SQLite database."""
    return URL.removeprefix("sqlite:///")


def stamps_of(file: Path) -> memoryview:
    """Maps the slots: nanoseconds of the monotonic clock, 0 for a job that has not started."""
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")


_stamps = stamps_of(Path(os.environ["COMPARE_STAMPS"])) if "COMPARE_STAMPS" in os.environ else memoryview(b"")


def body(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None:  # noqa: ARG001
    """Does nothing but say when."""
    _stamps[order - FIRST] = time.monotonic_ns()


def started_at(number: int) -> int:
    return _stamps[number]


Enqueue = Callable[[Sequence[int]], object]


@dataclass(frozen=True)
class Producer:
    """Enqueues the jobs of these numbers: each by a call of its own, or in bulk where the queue has that."""

    each: Enqueue
    bulk: Enqueue | None = None


def chunks(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]


def become(module: str, *arguments: str) -> NoReturn:
    """Replaces this process by the queue's own worker program."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
