"""Copies SQLite's write-ahead log back into the file, and gives unused pages back, so that no enqueue has to.

Whether there is anything to copy is told by the size and the time of the log's file, without asking the database. A
log that is written all the time is never empty at the moment in which it could be started over, and would grow for
ever: past a limit the checkpoint makes writers wait for that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.instants import SECOND
from dray.maintenance.pace import jittered

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.clock import Clock, Rng

_PAUSE = 1.0
_BUSY_PAUSE = 0.25
_GROWTH = 16 * 1024 * 1024  # bytes of log that are worth a checkpoint at once
_LIMIT = 64 * 1024 * 1024  # bytes of log that are worth making writers wait
_LATEST_US = 10 * SECOND  # after which any write is copied back
_VACUUM_US = 60 * SECOND
_PAGES = 1_000


class Checkpointer:
    name = "checkpoint"
    is_exclusive = True

    def __init__(self, backend: Backend, clock: Clock, rng: Rng) -> None:
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._copied: tuple[int, int] | None = None  # size and time of the log when it was last copied back
        self._due_at = 0
        self._vacuum_at = 0

    def tick(self) -> float:
        now = self._clock.steady()
        copied = self._copy_back(now)
        if now >= self._vacuum_at and self._backend.file_vacuum(_PAGES):
            return _BUSY_PAUSE
        if now >= self._vacuum_at:
            self._vacuum_at = now + _VACUUM_US
        return jittered(_BUSY_PAUSE if copied else _PAUSE, self._rng)

    def _copy_back(self, now: int) -> bool:
        """Whether there was much to copy."""
        log = self._backend.file_log()
        if log is None or log == self._copied:
            return False
        grown = log.size - (self._copied[0] if self._copied else 0)
        if grown < _GROWTH and log.size < _LIMIT and now < self._due_at:
            return False
        left = self._backend.file_checkpoint()
        if left and log.size >= _LIMIT:
            self._backend.file_checkpoint(waits=True)
        # From before: what was written meanwhile counts as new.
        self._copied, self._due_at = log, now + _LATEST_US
        return grown >= _GROWTH or log.size >= _LIMIT
