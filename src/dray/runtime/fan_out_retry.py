"""When a worker tells children of the end of their parents once more: another transaction had locked them."""

from __future__ import annotations

from dray.backends.store.graph import FanOut
from dray.instants import SECOND

_PAUSE, _MOST_TRIES = SECOND // 100, 7  # doubled each time, 1.3 s in all; then it is left to the duty


class FanOutRetry:
    def __init__(self) -> None:
        self.at: int | None = None  # by the steady clock; None: there is nothing to try again
        self._tries = 0

    def is_due(self, now: int) -> bool:
        return self.at is not None and now >= self.at

    def goes_on(self, step: FanOut, now: int) -> bool:
        """After a step. Whether the next one follows without a pause."""
        if step.decided or not step.left:
            self._tries, self.at = 0, None
            return True
        if self.at is None or now >= self.at:
            # Another transaction does it, mostly the duty's: what it frees cannot be seen until it commits.
            is_last = self._tries == _MOST_TRIES
            self.at = None if is_last else now + (_PAUSE << self._tries)
            self._tries = 0 if is_last else self._tries + 1
        return False
