"""Removes old rows: ended jobs past their retention, workers that ended long ago, questions left unanswered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.history import Pruned
from dray.instants import DAY, MINUTE
from dray.maintenance.duty_runner import jittered
from dray.model.limits import PRUNE_CHUNK
from dray.model.retention import Retention
from dray.model.settlement import Rng

WORKERS_KEPT_US = DAY
STACKS_KEPT_US = MINUTE  # `dray why` waits for seconds
_SOON = 0.05  # seconds between two steps, as long as a step takes: others want to write too
_SHORTEST, _LONGEST = 60.0, 600.0


@dataclass
class Pruner:
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
        if PRUNE_CHUNK in {forgotten, stacks}:
            return _SOON
        # A pass that finds nothing doubles the pause.
        found = self._removed + forgotten + stacks
        self._pause = _SHORTEST if found else min(self._pause * 2, _LONGEST)
        return jittered(self._pause, self._rng)
