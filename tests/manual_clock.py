"""A clock that tests set."""

from __future__ import annotations

from dray.instants import SECOND


class ManualClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, now: int = 1_800_000_000 * SECOND, boot: str = "manual") -> None:
        self._now = now
        self._steady = 1_000 * SECOND
        self.boot = boot

    def now(self) -> int:
        return self._now

    def steady(self) -> int:
        return self._steady

    def advance(self, us: int) -> None:
        """Let time pass on both clocks."""
        self._now += us
        self._steady += us

    def step(self, us: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP does; no time passes."""
        self._now += us
