"""Jobs under a limit that a worker has claimed ahead.

A standby is claimed and not counted. It starts only in the place of a job of the same task and queue that has just
ended in this worker, and that the limit still counts: no more run than before. The next exchange ends the one and
counts the other, in one transaction. If the worker dies before that, the place is kept by the job that has ended,
until both are taken back.

A limit may be lowered meanwhile. So standbys start only within a moment after the claim that brought the last of
them, and a change of limits returns when that moment is over (`store/limits.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from dray.clock import Clock
from dray.instants import SECOND
from dray.model.job import Claim
from dray.model.limit import STANDBY_US
from dray.model.settlement import Settlement
from dray.runtime.execution import Execution
from dray.task.task import Task

_PAUSE = SECOND  # without standbys, after one could not follow a job that had ended


def standby_tasks(tasks: Iterable[Task[..., Any]]) -> tuple[str, ...]:
    """The tasks of which jobs may stand by. In a thread of the worker the next body can follow at once; a key is not
    known to limits by its task."""
    return tuple(task.name for task in tasks if task.options.runner == "thread" and task.options.key is None)


class Standbys:
    """They are of one task and queue. `follow` is for the threads of bodies, all else for the engine's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Execution] = deque()
        self._start_until = 0  # by the steady clock
        self._none_until = 0
        self.was_missed = False  # a job has ended, and none could follow it though some were there

    def __len__(self) -> int:
        return len(self._waiting)

    def are_wanted(self, now: int) -> bool:
        return now >= self._none_until

    def add(self, executions: Sequence[Execution], claimed_at: int) -> None:
        """`claimed_at`: when the claim began. A change of limits that it has not seen came later."""
        self._waiting.extend(executions)
        self._start_until = claimed_at + STANDBY_US

    def follow(self, ended: Execution, settlement: Settlement | None) -> Execution | None:
        """The job that starts in the place of this one; None: the place goes back to all workers."""
        if not self._are_like(ended.claim):
            return None
        has_place = settlement is not None and ended.claim.held and ended.stop is None
        # What its own transaction has completed is not counted any more; what adds steps ends by itself.
        if not has_place or ended.is_written or ended.grown or self._clock.steady() >= self._start_until:
            self.was_missed = True
            return None
        try:
            follower = self._waiting.popleft()
        except IndexError:
            return None
        follower.claim = follower.claim._replace(held=True, is_standby=False)
        ended.follower = follower
        return follower

    def _are_like(self, claim: Claim) -> bool:
        """Whether some wait for the place of such a job."""
        try:
            first = self._waiting[0].claim
        except IndexError:
            return False
        return (first.task, first.queue) == (claim.task, claim.queue)

    def take_back(self) -> list[Execution]:
        """Those that have not started, and now never will."""
        taken: deque[Execution] = deque()
        while True:
            try:
                taken.appendleft(self._waiting.pop())  # from the other end than those that start
            except IndexError:
                return list(taken)

    def pause(self, now: int) -> None:
        """Wants none for a while: bodies do not end in such a way that one can follow the other."""
        self.was_missed = False
        self._none_until = now + _PAUSE
