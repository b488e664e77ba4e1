"""Duties that keep the database small: old rows are removed, SQLite's log is copied back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dray.backends import Backend
from dray.backends.database import LogFile
from dray.backends.store.history import Pruned
from dray.clock import Clock
from dray.instants import DAY, MINUTE, SECOND
from dray.maintenance.duty_runner import jittered
from dray.model.bounds import PRUNE_CHUNK
from dray.model.retention import Retention
from dray.model.settlement import Rng

if TYPE_CHECKING:
    from dray.backends.sqlite.upkeep import Upkeep

WORKERS_KEPT_US = DAY
ACTIONS_KEPT_US = 90 * DAY
STACKS_KEPT_US = MINUTE  # `dray why` waits for seconds
_SOON = 0.05  # seconds between two steps, as long as a step takes: others want to write too
_SHORTEST, _LONGEST = 60.0, 600.0

_PAUSE, _IDLE_PAUSE = 1.0, 2.0
_BUSY_PAUSE = 0.25
_GROWTH = 16 * 1024 * 1024  # bytes of log that are worth a checkpoint
_FRAMES = 4_000  # the same in pages
_LIMIT = 4 * _FRAMES  # pages in the log that are worth keeping writers out
_FAST_US = SECOND  # for as many as are worth a checkpoint: little is left to copy while writers are kept out
_LATEST_US = 10 * SECOND
_VACUUM_US = 60 * SECOND
_PAGES = 1_000


@dataclass
class Pruner:
    """Removes ended jobs past their retention, workers that ended and actions done long ago, questions left
    unanswered, and the starts that rates no longer count."""

    name = "prune"
    is_exclusive = True

    _backend: Backend
    _rng: Rng
    _pause: float = _SHORTEST
    _steps: Iterator[Pruned] | None = None  # of the pass under way
    _removed: int = 0  # rows, in this pass

    def tick(self) -> float:
        if self._steps is None:
            self._steps, self._removed = self._backend.history.prune_steps(Retention()), 0
        steps, self._steps = self._steps, None  # a step that fails ends the pass: the next tick starts another
        step = next(steps, None)
        if step is not None:
            self._steps, self._removed = steps, self._removed + step.rows
            return _SOON
        now = self._backend.now()
        forgotten = self._backend.workers.prune(now - WORKERS_KEPT_US, PRUNE_CHUNK)
        stacks = self._backend.stacks.prune(now - STACKS_KEPT_US, PRUNE_CHUNK)
        actions = self._backend.actions.prune(now - ACTIONS_KEPT_US, PRUNE_CHUNK)
        starts = self._backend.limits.prune_starts(PRUNE_CHUNK)
        if PRUNE_CHUNK in {forgotten, stacks, actions, starts}:
            return _SOON
        # A pass that finds nothing doubles the pause.
        removed = self._removed + forgotten + stacks + actions + starts
        self._pause = _SHORTEST if removed else min(self._pause * 2, _LONGEST)
        return jittered(self._pause, self._rng)


@dataclass
class Checkpointer:
    """Copies SQLite's write-ahead log back into the file, and gives unused pages back, so that no enqueue has to.

    The size and the time of the log's file show whether there is anything to copy, without a query. The size shows it
    only while the file grows. Once the log has started over inside the file, the rate of the last checkpoint tells
    when there may be enough. A log that is written all the time is never wholly copied at the moment in which it
    could start over, and would grow for ever: past a limit the checkpoint keeps writers out for that moment. Where it
    grows fast, it does so sooner, and for a shorter moment: a producer of 6,000 jobs a second reached 0.82 of its
    rate alone with a log of 64 MB and more, and 0.90 with one of 35 to 47 MB.
    """

    name = "checkpoint"
    is_exclusive = True

    _upkeep: Upkeep
    _clock: Clock
    _rng: Rng
    _log: LogFile | None = None  # as it was when it was last copied back
    _frames: int = 0
    _copied_at: int = 0  # or when it was last seen to hold nothing new
    _due_at: int = 0
    _vacuum_at: int = 0

    def tick(self) -> float:
        now = self._clock.steady()
        pause = self._copy_back(now)
        if now >= self._vacuum_at:
            if self._upkeep.vacuum(_PAGES):
                return _BUSY_PAUSE
            self._vacuum_at = now + _VACUUM_US
        return pause

    def _copy_back(self, now: int) -> float:
        """Copies the log if it is worth it. Returns the seconds until the next look: fewer while it grows fast."""
        log = self._upkeep.log()
        if log is None or log == self._log:
            self._copied_at = now
            return jittered(_IDLE_PAUSE, self._rng)
        grown = log.size - (self._log.size if self._log else 0)
        if grown < _GROWTH and now < self._due_at:
            return min(_PAUSE if grown > _GROWTH // 16 else _IDLE_PAUSE, (self._due_at - now) / SECOND)
        found = self._upkeep.checkpoint()
        has_started_over = self._log is None or log.starts != self._log.starts
        new_frames = found.frames if has_started_over else found.frames - self._frames
        enough_us = (now - self._copied_at) * _FRAMES // max(1, new_frames)
        is_fast = enough_us < _FAST_US
        if found.frames >= (_FRAMES if is_fast else _LIMIT):
            self._upkeep.checkpoint(waits=True)
        # As read before: what was written meanwhile counts as new.
        self._log, self._frames, self._copied_at = log, found.frames, now
        pause = _FAST_US // 10 if is_fast else min(enough_us, _LATEST_US)
        self._due_at = now + pause
        return min(_IDLE_PAUSE, pause / SECOND)
