"""Time and chance, so that nothing else asks the machine for them.

Instants are whole microseconds since 1970 in UTC (names end in ``_at``); durations in microseconds end in
``_us``. ``now()`` is the wall clock and may jump; ``steady()`` never does and counts through suspend.
"""

from __future__ import annotations

import os
import random
import threading
import time
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Protocol

from dray import forks
from dray.instants import MILLISECOND

UNKNOWN_BOOT = "unknown"

_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ONE_CLOCK = 0  # no time namespace has this number
_RANDOM_BITS = 74  # of an id: 12 beside the version, 62 beside the variant
_LOW_MASK = (1 << 62) - 1
_VARIANT = 1 << 63


class Clock(Protocol):
    """What the rest of Dray may know of time."""

    def now(self) -> int:
        """Wall time, microseconds since 1970 UTC."""
        ...

    def steady(self) -> int:
        """Microseconds of a clock that never steps and goes on through suspend; comparable within `boot`."""
        ...

    @property
    def boot(self) -> str:
        """Names the boot and time namespace within which `steady()` values can be compared: the same in every process
        of it. `UNKNOWN_BOOT`: the system does not name it, and no two values can be compared."""
        ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000

    def steady(self) -> int:
        return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000

    @property
    def boot(self) -> str:
        return _boot()


@cache
def _boot() -> str:
    # A time namespace shifts CLOCK_BOOTTIME under the same boot id, so both name the clock.
    boot_id = _boot_id()
    return UNKNOWN_BOOT if boot_id is None else f"{boot_id}:{_time_namespace()}"


def _boot_id() -> str | None:
    """What the kernel calls this boot; None: it does not say. When it began is no name: it moves with every change of
    the wall clock, and no two processes would read the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return _system_value("kern.bootsessionuuid") or _system_value("kern.boot_id")


def _time_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/time").st_ino  # noqa: PTH116 - follows the magic link
    except OSError:
        return _ONE_CLOCK  # Linux before 5.6, and every other system


def _system_value(name: str) -> str | None:
    """A value of macOS and the BSDs, which have no /proc; None elsewhere."""
    import ctypes  # noqa: PLC0415 - Linux does without

    buffer = ctypes.create_string_buffer(128)
    size = ctypes.c_size_t(len(buffer))
    try:
        read = ctypes.CDLL(None, use_errno=True).sysctlbyname
    except (OSError, AttributeError, TypeError):
        return None
    if read(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return buffer.raw[: size.value].hex() or None  # some are text, some are not


def _spelled(value: int) -> str:
    """The 122 bits of an id that are its own, with its version and variant."""
    high, low = value >> 62, value & _LOW_MASK | _VARIANT
    time = f"{high >> 28:08x}-{high >> 12 & 0xFFFF:04x}"
    return f"{time}-7{high & 0xFFF:03x}-{low >> 48:04x}-{low & 0xFFFFFFFFFFFF:012x}"


class Ids:
    """Time-ordered ids (UUID version 7), strictly increasing within a process, unique across all of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.after_fork_in_child()
        forks.watch_child(self)

    def new(self) -> str:
        """The next id, in the usual 36-character form: text order is time order."""
        now_ms = self._clock.now() // MILLISECOND
        with self._lock:
            if now_ms > self._last >> _RANDOM_BITS:
                value = (now_ms << _RANDOM_BITS) | self._rng.getrandbits(_RANDOM_BITS - 1)
            else:
                # The same millisecond, or the clock was set back: count on from the last id.
                value = self._last + 1 + self._rng.getrandbits(32)
            self._last = value
        return _spelled(value)

    def many(self, count: int) -> list[str]:
        """The next ids, in a third of the time."""
        ids = [self.new()] if count else []
        if count <= 1:
            return ids
        with self._lock:
            getrandbits, value = self._rng.getrandbits, self._last
            values = [value := value + 1 + getrandbits(32) for _ in range(count - 1)]
            self._last = value
        for high, alike in groupby(values, lambda value: value >> 48):
            begin = _spelled(high << 48)[:24]
            ids += [f"{begin}{value & 0xFFFFFFFFFFFF:012x}" for value in alike]
        return ids

    def after_fork_in_child(self) -> None:
        """Starts over: with its parent's counter and seed it would make the parent's next ids again."""
        self._rng = random.Random()  # noqa: S311 - ids are unique, not secret
        self._lock = threading.Lock()
        self._last = 0
