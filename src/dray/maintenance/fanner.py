"""Passes the end of parents on to their children where whoever ended them was cut off before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.maintenance.duty import jittered

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.clock import Rng

_PAUSE = 1.0


class Fanner:
    name = "fan-out"
    is_exclusive = True

    def __init__(self, backend: Backend, rng: Rng) -> None:
        self._backend = backend
        self._rng = rng

    def tick(self) -> float:
        if not self._backend.jobs.upcoming().has_fanout:
            return jittered(_PAUSE, self._rng)
        step = self._backend.graph.fan_out()
        # Left and nothing done: somebody's open transaction holds the rows.
        return 0.0 if step.left and step.decided else jittered(_PAUSE, self._rng)
