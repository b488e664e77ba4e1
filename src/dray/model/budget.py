"""How much one transaction of a duty may change, so that nobody waits long for the write lock.

Rows differ: a log line takes microseconds, a job with a megabyte of result milliseconds, and a disk that is cold or
shared takes a hundred times as long. So a transaction is bounded twice, in rows and in time, and each statement in it
is sized by what those before it took.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, takewhile

from dray.instants import MILLISECOND

STEP_ROWS = 10_000  # of all tables, in one transaction
STEP_US = 50 * MILLISECOND  # for which a transaction aims
_FIRST = 25  # rows of the first statement: they may be the largest there can be
_GROWTH = 2


class Budget:
    """What is left of one transaction's rows and time. `now` is always a reading of one steady clock."""

    def __init__(self, now: int, rows: int = STEP_ROWS, us: int = STEP_US) -> None:
        self.spent = 0  # rows
        self._began = self._now = now
        self._rows = rows
        self._us = us
        self._last = 0

    @property
    def took_us(self) -> int:
        return self._now - self._began

    def allowed(self) -> int:
        """How many rows the next statement may change; 0: the transaction has to end."""
        left, left_us = self._rows - self.spent, self._us - self.took_us
        if left <= 0 or left_us <= 0:
            return 0
        if not self.spent:
            return min(left, _FIRST)
        in_time = self.spent * left_us // max(1, self.took_us)
        return min(left, in_time, max(_FIRST, _GROWTH * self._last))

    def fitting(self, sizes: Iterable[float]) -> int:
        """How many things of these numbers of rows, from the first on, the next statement may change."""
        allowed = self.allowed()
        return sum(1 for _ in takewhile(lambda rows: rows <= allowed, accumulate(sizes)))

    def spend(self, rows: int, now: int) -> None:
        """A statement has changed so many rows, and is over."""
        self.spent += rows
        self._last = rows
        self._now = now
