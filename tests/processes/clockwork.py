"""A wall clock that a test can set: SIGUSR1 puts this process's an hour forward, SIGUSR2 an hour back. It starts as
many seconds ahead as the variable says.

As an operator or NTP does it: everything in the process that asks for the time of day gets the other time, from one
call to the next; the clocks that count (CLOCK_MONOTONIC, CLOCK_BOOTTIME) know nothing of it.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

VARIABLE = "DRAY_TEST_CLOCK"
HOUR = 3_600

_offset = 0


def install() -> None:
    """Before anything asks for the time, if the test wants it."""
    if VARIABLE not in os.environ:
        return
    global _offset  # noqa: PLW0603
    _offset = int(os.environ[VARIABLE])
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + _offset
    time.time_ns = lambda: real_ns() + _offset * 1_000_000_000
    signal.signal(signal.SIGUSR1, _step)
    signal.signal(signal.SIGUSR2, _step)


def _step(number: int, _: FrameType | None) -> None:
    global _offset  # noqa: PLW0603
    _offset += HOUR if number == signal.SIGUSR1 else -HOUR
