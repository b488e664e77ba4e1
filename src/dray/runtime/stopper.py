"""Stops bodies: in time, and with more force when they do not listen.

On a thread of its own, because the engine may be waiting for a database that is away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from dray.clock import Clock
from dray.instants import MILLISECOND, SECOND
from dray.runtime.execution import Execution, StopCause
from dray.runtime.heartbeat import WorkerLease
from dray.runtime.inbox import Inbox
from dray.runtime.service import Service

log = logging.getLogger("dray")

KILL_GRACE = 5 * SECOND  # between being told to stop and being made to
_LAST_GRACE = SECOND
_AGAIN = SECOND  # between two tries with a body that swallows the first
_VERY_SOON = 2 * MILLISECOND  # after the runner could not
_LONGEST = 60 * SECOND


class Stopper(Service):
    """Watches over the executions that a worker has begun."""

    def __init__(
        self,
        clock: Clock,
        executions: Callable[[], Collection[Execution]],
        lease: WorkerLease,
        inbox: Inbox,
        on_stuck: Callable[[Execution], None],
    ) -> None:
        super().__init__("dray-stopper")
        self._clock = clock
        self._executions = executions
        self._lease = lease
        self._inbox = inbox
        self._on_stuck = on_stuck
        self._wake_at = 0
        self._lock = threading.Lock()

    def began(self, execution: Execution) -> None:
        """A body has started; most have no deadline, or one after that which is waited for already."""
        if execution.deadline is not None and execution.deadline < self._wake_at:
            self.wake()

    def stop(self, execution: Execution, cause: StopCause, by: int | None = None) -> None:
        """Has a body stop, by force from the instant `by` on.

        The first cause counts, but for a lost claim: then nothing else does.
        """
        with self._lock:
            if execution.stop is None or cause is StopCause.LOST:
                execution.stop = cause
            if execution.abandon_at is not None:
                execution.abandon_at = execution.abandon_at if by is None else min(execution.abandon_at, by)
                self.wake()
                return
            execution.stopped_at = self._clock.steady()
            latest = execution.stopped_at + KILL_GRACE
            execution.abandon_at = latest if by is None else min(latest, by)
        self.wake()

    def stop_all(self, cause: StopCause) -> None:
        for execution in self._executions():
            if not execution.is_over:
                self.stop(execution, cause)

    def cut_off(self, by: int) -> None:
        """Stops, by the instant `by`, all bodies that another worker may run soon. A body that has completed its job
        goes on: the job will not run again."""
        self._inbox.cut_off()
        log.warning("worker %s is cut off and stops what it runs", self._lease.worker_id)
        for execution in self._executions():
            if not (execution.is_over or execution.is_written):
                self.stop(execution, StopCause.SHUTDOWN, by)

    def watch_lease(self, now: int) -> int:
        """Returns when to look again."""
        return self._lease.watch_over(now, self.cut_off)

    def tick(self) -> float:
        now = self._clock.steady()
        self._wake_at = now + _LONGEST  # whoever begins from here on, unseen by what follows, wakes this again
        at = min((self._attend(execution, now) for execution in self._executions()), default=now + _LONGEST)
        at = min(at, self.watch_lease(now))
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
            self.stop(execution, StopCause.TIMEOUT)
        assert execution.abandon_at is not None
        if now >= execution.abandon_at + _LAST_GRACE:
            execution.is_stuck = True
            self._on_stuck(execution)
            return now + _LONGEST
        if now >= execution.abandon_at:
            execution.runner.abandon(execution)
            return execution.abandon_at + _LAST_GRACE
        return min(self._tell(execution, now), execution.abandon_at)

    def _tell(self, execution: Execution, now: int) -> int:
        """Tells the runner, now and then again, for bodies that swallow the first; when to come back."""
        if execution.told_at is not None and now < execution.told_at + _AGAIN:
            return execution.told_at + _AGAIN
        if not execution.runner.stop(execution):
            return now + _VERY_SOON
        execution.told_at = now
        return now + _AGAIN
