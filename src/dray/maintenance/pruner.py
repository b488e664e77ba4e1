"""Forgets the past: ended jobs past their retention, workers that ended long ago, questions nobody took back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.instants import DAY, MINUTE
from dray.maintenance.pace import jittered
from dray.model.limits import PRUNE_CHUNK
from dray.model.retention import Retention

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.clock import Rng

WORKERS_KEPT_US = DAY
STACKS_KEPT_US = MINUTE  # who asks where a body is waits for seconds
_SOON = 0.05  # seconds between two chunks: others want to write too
_SHORTEST, _LONGEST = 60.0, 600.0


class Pruner:
    name = "prune"
    is_exclusive = True

    def __init__(self, backend: Backend, rng: Rng, retention: Retention | None = None) -> None:
        self._backend = backend
        self._rng = rng
        self._retention = retention or Retention()
        self._pause = _SHORTEST

    def tick(self) -> float:
        removed = self._backend.job_prune(self._retention, PRUNE_CHUNK)
        if removed >= PRUNE_CHUNK:
            self._pause = _SHORTEST
            return _SOON
        now = self._backend.now()
        forgotten = self._backend.worker_prune(now - WORKERS_KEPT_US)
        forgotten += self._backend.stack_prune(now - STACKS_KEPT_US)
        # What nothing comes of is looked at less often.
        self._pause = _SHORTEST if removed or forgotten else min(self._pause * 2, _LONGEST)
        return jittered(self._pause, self._rng)
