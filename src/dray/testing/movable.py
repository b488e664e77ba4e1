"""The clock of an App in a test."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from dray.clock import SystemClock
from dray.interrupts import CleanExit


class _Times(NamedTuple):
    now: int
    steady: int


class MovableClock:
    """Goes on as the machine's clock does, or stands still; it can be moved, and never goes back by itself."""

    def __init__(self) -> None:
        self._machine = SystemClock()
        self._ahead = _Times(0, 0)  # of the machine's clock
        self._stands_at: _Times | None = None
        self.boot = f"testing:{secrets.token_hex(8)}"  # its steady time means nothing to other processes

    def now(self) -> int:
        return self._times().now

    def steady(self) -> int:
        return self._times().steady

    @property
    def stands_still(self) -> bool:
        return self._stands_at is not None

    def _times(self) -> _Times:
        if self._stands_at is not None:
            return self._stands_at
        return _Times(self._machine.now() + self._ahead.now, self._machine.steady() + self._ahead.steady)

    def advance(self, us: int) -> None:
        if self._stands_at is not None:
            self._stands_at = _Times(self._stands_at.now + us, self._stands_at.steady + us)
        else:
            self._ahead = _Times(self._ahead.now + us, self._ahead.steady + us)

    def set(self, at: int) -> None:
        """Sets the wall clock."""
        if self._stands_at is not None:
            self._stands_at = self._stands_at._replace(now=at)
        else:
            self._ahead = self._ahead._replace(now=at - self._machine.now())

    def stop(self) -> None:
        self._stands_at = self._times()

    def go_on(self) -> None:
        """Goes on from where it stands."""
        times = self._times()
        self._ahead = _Times(times.now - self._machine.now(), times.steady - self._machine.steady())
        self._stands_at = None


class Stopped(CleanExit):
    """``with Stopped(clock)``: the clock stands still, and goes on afterwards unless it stood still before."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        self._goes_on = not clock.stands_still

    def __enter__(self) -> None:
        if self._goes_on:
            self._clock.stop()

    def leave(self, error: BaseException | None) -> None:  # noqa: ARG002 - the end is the same
        self.cleanup()

    def cleanup(self) -> None:
        if self._goes_on and self._clock.stands_still:
            self._clock.go_on()
