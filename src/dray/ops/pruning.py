"""Clearing away jobs that ended long enough ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import timedelta

from dray import backends
from dray.instants import SECOND
from dray.model.action import NewAction
from dray.model.job import FINAL
from dray.model.retention import Retention
from dray.model.values import duration_us

_SHORTEST_REST = 0.005  # seconds; those who wait for the lock try each 2 ms at the latest


def retention(older_than: float | timedelta | None, states: Collection[str] = FINAL) -> Retention:
    """How long jobs of these states are kept: `older_than`, or as usual. Other states are kept for ever."""
    given_us = None if older_than is None else duration_us("older_than", older_than)
    kept = {state: us if given_us is None else given_us for state, us in Retention().by_state().items()}
    return Retention(**{f"{state}_us": us if state in states else None for state, us in kept.items()})


def remove(
    backend: backends.Backend,
    kept: Retention,
    progress: Callable[[int], None] = lambda _: None,
    action: NewAction | None = None,
) -> int:
    """Removes all that may go; `progress` is told how many have gone."""
    removed = 0
    for step in backend.history.prune_steps(kept, action):
        removed += step.jobs
        progress(removed)
        # As long as it took: else the write lock is hardly ever free, and a waiting writer gets it by chance alone.
        time.sleep(max(step.us / SECOND, _SHORTEST_REST))
    return removed
