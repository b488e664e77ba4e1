"""What a worker says of itself: over HTTP, and in its row in the database.

It is well while its parts did what they are for within the last two beats: a beat got through, the engine's
transactions come back and succeed, bodies have threads and processes to run in. An engine that has nothing to claim
and nothing to write is well too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.instants import SECOND
from dray.model.limits import ERROR_MESSAGE_BYTES
from dray.runtime.condition import Condition, lasting
from dray.sanitize import bounded

if TYPE_CHECKING:
    from dray.clock import Clock
    from dray.runtime.engine import Engine
    from dray.runtime.heartbeat import Heartbeat


class SelfCheck:
    """For any thread; asks nothing of the database."""

    def __init__(self, engine: Engine, heartbeat: Heartbeat, clock: Clock) -> None:
        self._engine = engine
        self._heartbeat = heartbeat
        self._clock = clock

    def condition(self) -> Condition:
        inability, idleness = self._inability(), self._why_no_claims()
        return Condition(
            self._engine.worker_id,
            self._heartbeat.state,
            self._engine.running,
            self._heartbeat.beat_age_us / SECOND,
            is_healthy=inability is None,
            is_ready=inability is None and idleness is None and not self._engine.inbox.is_draining,
            reason=inability or idleness,
        )

    def trouble(self) -> str | None:
        """What the next beat writes into the worker's row, where it is read until the one after: so it counts what
        has lasted for one beat."""
        lasts = lasting(self._engine.obstacles(), self._clock.steady(), self._heartbeat.period_us)
        reason = lasts or self._why_no_claims()
        return None if reason is None else bounded(reason, ERROR_MESSAGE_BYTES)

    def _inability(self) -> str | None:
        """Why it cannot work, if that has been so for two beats."""
        if self._engine.failure is not None:
            return str(self._engine.failure)
        obstacles = [self._heartbeat.obstacle, *self._engine.obstacles()]
        return lasting(obstacles, self._clock.steady(), 2 * self._heartbeat.period_us)

    def _why_no_claims(self) -> str | None:
        """Why it claims nothing, or less than it was asked to, at this moment."""
        if self._engine.inbox.is_cut_off:
            return self._heartbeat.obstacle.reason
        return next((each.reason for each in self._engine.obstacles() if each.stops_claims), None)
