"""The duty that counts what has ended, minute by minute, so that charts need not read the jobs."""

from __future__ import annotations

from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.rollups import Ended
from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.model.rollup import KEPT, RECOUNTED_US, Tallies, floor

_SETTLING_US = 5 * SECOND  # after a minute's end: outcomes are written a moment after bodies end
_MINUTES = 10  # in one step: on SQLite no other process writes meanwhile
_JOBS = 50_000  # in one step, about: a minute is counted whole
_KEYS = 500  # given in one step
_SOON = 0.05  # seconds between two steps: others want to write too
_SLACK = 1.0  # the duty runner may be early by this


@dataclass
class RollUp:
    """Counts what ended in each minute, once it is over, and makes hours of minutes.

    A tick goes on from the mark, over at most 10 minutes in which anything ended. Counting a minute twice changes
    nothing. If the clock was set back, so is the mark: what ends then is counted in minutes that were counted before,
    and of two counts the larger stays.

    On the way, failed jobs get the key of their error where a worker of an earlier release has left it out, and jobs
    that such a release has started over lose it.
    """

    name = "rollups"
    is_exclusive = True

    _backend: Backend
    _unkeyed: tuple[int, int] | None = None  # a stretch of time in which failed jobs are still to be given keys
    _recounted: int = 0  # the minute that was counted again last

    def tick(self) -> float:
        if self._unkeyed is not None and self._give_keys(*self._unkeyed):
            return _SOON
        now = self._backend.now()
        until = floor(now - _SETTLING_US, MINUTE)
        if self._roll_up(until) or self._prune(now):
            return _SOON
        self._recount(until - RECOUNTED_US)
        return (until + MINUTE + _SETTLING_US - now) / SECOND + _SLACK

    def _roll_up(self, until: int) -> bool:
        """Counts the next minutes before an instant. Returns whether there are more."""
        rollups = self._backend.rollups
        # From a whole hour on: none has been begun that would have to be written, though nothing has ended in it.
        mark = max(rollups.mark() or 0, floor(until - KEPT["hour"], HOUR))
        if mark > until:
            mark = until - RECOUNTED_US
            rollups.write({}, [], mark)
        minutes: dict[int, Tallies] = {}
        reached, jobs = mark, 0
        first = rollups.next_end(reached, until)
        while first is not None and len(minutes) < _MINUTES and jobs < _JOBS:
            at = floor(first, MINUTE)
            ended = rollups.ended(at, at + MINUTE)
            if not self._keys_are_right(at, ended):
                break
            minutes[at] = ended.tallies
            reached, jobs = at + MINUTE, jobs + ended.jobs
            first = rollups.next_end(reached, until)
        if first is None and reached % HOUR:
            # Nothing more has ended; but the hour that was begun may be over.
            reached = max(reached, min(floor(reached, HOUR) + HOUR, floor(until, HOUR)))
        if reached > mark:
            begun = {floor(at, HOUR) for at in (mark, *minutes)}
            rollups.write(minutes, [at for at in begun if at + HOUR <= reached], reached)
        return first is not None

    def _recount(self, at: int) -> None:
        """Counts a minute that was counted before."""
        if at == self._recounted:
            return
        self._recounted = at
        rollups = self._backend.rollups
        ended = rollups.ended(at, at + MINUTE)
        hour = floor(at, HOUR)
        if ended.jobs and self._keys_are_right(at, ended) and rollups.write({at: ended.tallies}, [], None):
            rollups.write({}, [hour] if hour + HOUR <= (rollups.mark() or 0) else [], None)

    def _keys_are_right(self, at: int, ended: Ended) -> bool:
        """False: first some jobs of this minute must get the keys of their errors."""
        if ended.keyed:
            self._backend.failures.clear_keys(at, at + MINUTE)
        if ended.unkeyed:
            self._unkeyed = (at, at + MINUTE)
        return not ended.unkeyed

    def _give_keys(self, since: int, until: int) -> bool:
        """Returns whether there are more jobs without one."""
        after = self._backend.failures.give_keys(since, until, _KEYS)
        self._unkeyed = None if after is None else (after, until)
        return self._unkeyed is not None

    def _prune(self, now: int) -> bool:
        """Removes what is old, a stretch at a time. Returns whether there is more."""
        prune = self._backend.rollups.prune
        return prune("minute", floor(now - KEPT["minute"], HOUR), HOUR) or prune(
            "hour", floor(now - KEPT["hour"], DAY), DAY
        )
