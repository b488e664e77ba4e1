"""Queues what is due and cancels what was not started in time, where no worker's own claims do so on their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.instants import SECOND
from dray.model.limits import PROMOTE_CHUNK

if TYPE_CHECKING:
    from dray.backends import Backend

_LONGEST = 2.0  # seconds: the wall clock may be set while this waits
_SHORTEST = 0.001


class Promoter:
    name = "promote"
    is_exclusive = True

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def tick(self) -> float:
        upcoming = self._backend.jobs.upcoming()
        done = 0
        if upcoming.due_us is not None and upcoming.due_us <= 0:
            queues = self._backend.jobs.promote(PROMOTE_CHUNK)
            self._backend.announce(queues)
            done = max(done, len(queues))
        if upcoming.expires_us is not None and upcoming.expires_us <= 0:
            expired = self._backend.jobs.expire(PROMOTE_CHUNK)
            if expired:
                self._backend.announce_done()
            done = max(done, len(expired))
        if done:
            return _SHORTEST  # there may be more, and when the next is due has yet to be seen
        # Overdue and not done: somebody's open transaction holds the rows.
        nearest_us = min((us for us in upcoming[:2] if us is not None and us > 0), default=_LONGEST * SECOND)
        return min(max(nearest_us / SECOND, _SHORTEST), _LONGEST)
