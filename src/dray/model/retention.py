"""How long finished jobs are kept, and how much the pruner removes in one transaction.

Rows differ: a log line takes microseconds, a job with a megabyte of result milliseconds, and a disk that is cold or
shared takes a hundred times as long. So a transaction is bounded twice, in rows and in time, and each statement in it
is sized by what those before it took. No writer waits long for the lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate, takewhile

from dray.errors import ConfigError
from dray.instants import DAY, MILLISECOND
from dray.model.values import shown

STEP_ROWS = 10_000  # of all tables, in one transaction
STEP_US = 50 * MILLISECOND  # for which a transaction aims
_FIRST = 25  # rows of the first statement: they may be the largest there can be
_GROWTH = 2


@dataclass(frozen=True, slots=True)
class Retention:
    """Time from a job's end to its removal, by final state; None keeps it for ever."""

    completed_us: int | None = 7 * DAY
    cancelled_us: int | None = 7 * DAY
    failed_us: int | None = 30 * DAY

    def __post_init__(self) -> None:
        for state, kept_us in self.by_state().items():
            # `type`, because True is an int.
            if kept_us is not None and (type(kept_us) is not int or kept_us < 0):
                raise ConfigError(
                    f"retention of {state} jobs must be microseconds, 0 or more, or None to keep them, "
                    f"not {shown(kept_us)}"
                )

    def cutoffs(self, now: int) -> dict[str, int]:
        """For each state that is pruned at all: jobs that finished before this instant go."""
        return {state: now - kept_us for state, kept_us in self.by_state().items() if kept_us is not None}

    def by_state(self) -> dict[str, int | None]:
        return {field.removesuffix("_us"): kept_us for field, kept_us in asdict(self).items()}


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
        """Notes that a statement has changed this many rows, and is over."""
        self.spent += rows
        self._last = rows
        self._now = now
