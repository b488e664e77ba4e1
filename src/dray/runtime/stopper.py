"""Stops bodies: asks first, then uses force.

On a thread of its own, because the engine may be waiting for a database that is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dray.clock import Clock
from dray.instants import MILLISECOND, SECOND
from dray.log import log
from dray.runtime.execution import Execution, StopCause
from dray.runtime.heartbeat import WorkerLease
from dray.runtime.inbox import Inbox
from dray.runtime.service import Service
from dray.wording import short_id

KILL_GRACE = 5 * SECOND  # between asking and force
_LAST_GRACE = SECOND
_AGAIN = SECOND  # between two tries with a body that swallows the first
_VERY_SOON = 2 * MILLISECOND  # until the next try, when the runner could not tell the body
_LONGEST = 60 * SECOND


@dataclass(eq=False)
class Stopper(Service):
    """Watches over the executions that a worker has begun."""

    name = "dray-stopper"
    _clock: Clock
    _executions: Callable[[], Collection[Execution]]
    _lease: WorkerLease
    _inbox: Inbox
    _on_stuck: Callable[[Execution], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wake_at = 0
        self._lock = threading.Lock()

    def began(self, execution: Execution) -> None:
        """A body has started. Most have no deadline, or a later one than the next that is waited for."""
        if execution.deadline is not None and execution.deadline < self._wake_at:
            self.wake()

    def stop(self, execution: Execution, cause: StopCause, by: int | None = None) -> None:
        """Stops a body, by force from the instant `by` on. The first cause counts, unless the claim is lost."""
        with self._lock:
            if execution.stop is None or cause is StopCause.LOST:
                execution.stop = cause
            if execution.abandon_at is None:
                execution.stopped_at = self._clock.steady()
                execution.abandon_at = execution.stopped_at + KILL_GRACE
            if by is not None:
                execution.abandon_at = min(execution.abandon_at, by)
        self.wake()

    def stop_all(self, cause: StopCause) -> None:
        for execution in self._executions():
            if not execution.is_over:
                self.stop(execution, cause)

    def cut_off(self, by: int) -> None:
        """Stops, by the instant `by`, all bodies that another worker may run soon. A body that has completed its job
        goes on: the job will not run again."""
        self._inbox.cut_off()
        log.warning("worker %s is cut off and stops what it runs", short_id(self._lease.worker_id))
        for execution in self._executions():
            if not (execution.is_over or execution.is_written):
                self.stop(execution, StopCause.SHUTDOWN, by)

    def tick(self) -> float:
        now = self._clock.steady()
        self._wake_at = now + _LONGEST  # a body that begins from here on wakes this again
        at = min((self._attend(execution, now) for execution in self._executions()), default=now + _LONGEST)
        self._wake_at = min(at, self._lease.watch_over(now, self.cut_off), now + _LONGEST)
        return max(0, self._wake_at - now) / SECOND

    def _attend(self, execution: Execution, now: int) -> int:
        """Does what is due. Returns when there is more to do."""
        if execution.is_over or execution.is_stuck:
            return now + _LONGEST
        if execution.stopped_at is None:
            if execution.deadline is None:
                return now + _LONGEST
            if now < execution.deadline:
                return execution.deadline
            self.stop(execution, StopCause.TIMEOUT)
        assert execution.abandon_at is not None
        gone_at = execution.abandon_at + _LAST_GRACE + execution.runner.burial_us
        if now >= gone_at:
            execution.is_stuck = True
            self._on_stuck(execution)
            return now + _LONGEST
        if now >= execution.abandon_at:
            execution.runner.abandon(execution)
            return gone_at
        return min(self._tell(execution, now), execution.abandon_at)

    def _tell(self, execution: Execution, now: int) -> int:
        """Makes the runner tell the body to stop, again if it swallows the first. Returns when to come back."""
        if execution.told_at is not None and now < execution.told_at + _AGAIN:
            return execution.told_at + _AGAIN
        if not execution.runner.stop(execution):
            return now + _VERY_SOON
        execution.told_at = now
        return now + _AGAIN
