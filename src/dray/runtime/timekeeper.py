"""Stops bodies: in time, and with more force when they do not listen.

On a thread of its own, because the engine may be waiting for a database that is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from dray.clock import Clock
from dray.instants import SECOND
from dray.runtime.execution import Execution, Stop
from dray.runtime.service import Service

KILL_GRACE = 5 * SECOND  # between being told to stop and being made to
_LAST_GRACE = SECOND
_AGAIN = SECOND  # between two tries with a body that swallows the first
_LONGEST = 60 * SECOND


class Timekeeper(Service):
    """Watches over the executions that a worker has begun."""

    def __init__(
        self, clock: Clock, executions: Callable[[], Collection[Execution]], on_stuck: Callable[[Execution], None]
    ) -> None:
        super().__init__("dray-timekeeper")
        self._clock = clock
        self._executions = executions
        self._on_stuck = on_stuck
        self._wake_at = 0
        self._lock = threading.Lock()

    def began(self, execution: Execution) -> None:
        """A body has started; most have no deadline, or one after that which is waited for already."""
        if execution.deadline is not None and execution.deadline < self._wake_at:
            self.wake()

    def stop(self, execution: Execution, cause: Stop) -> None:
        """Has a body stop. The first cause counts, but for a lost claim: then nothing else does."""
        with self._lock:
            if execution.stop is None or cause is Stop.LOST:
                execution.stop = cause
            is_first = execution.stopped_at is None
            if is_first:
                execution.stopped_at = self._clock.steady()
        if is_first and execution.runner is not None:
            execution.runner.stop(execution)
            self.wake()

    def tick(self) -> float:
        now = self._clock.steady()
        self._wake_at = now + _LONGEST  # whoever begins from here on, unseen by what follows, wakes this again
        at = min((self._attend(execution, now) for execution in self._executions()), default=now + _LONGEST)
        self._wake_at = min(at, now + _LONGEST)
        return max(0, self._wake_at - now) / SECOND

    def _attend(self, execution: Execution, now: int) -> int:
        """Does what is due; when there is more to do."""
        if execution.is_over or execution.is_stuck:
            return now + _LONGEST
        if execution.stopped_at is None:
            if execution.deadline is None:
                return now + _LONGEST
            if now < execution.deadline:
                return execution.deadline
            self.stop(execution, Stop.TIMEOUT)
            return now + _AGAIN
        waited = now - execution.stopped_at
        if waited >= KILL_GRACE + _LAST_GRACE:
            execution.is_stuck = True
            self._on_stuck(execution)
        elif waited >= KILL_GRACE:
            execution.runner.abandon(execution)
            return execution.stopped_at + KILL_GRACE + _LAST_GRACE
        elif waited >= _AGAIN:
            execution.runner.stop(execution)
        return min(now + _AGAIN, execution.stopped_at + KILL_GRACE)
