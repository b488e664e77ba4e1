"""Executions that wait for a slot: the first goes to the slot that is free next, the last goes back first.

From the other end than slots take from: else, while a worker hands back what it has claimed, a free slot would get
what comes behind.

What is claimed later may be more urgent than what waits here: a parent has just freed it, or it was just enqueued. It
goes before the jobs of its queue that have a lower priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from dray.runtime.execution import Execution

E = TypeVar("E", Execution, Execution | None)


class Line:
    """Any number of threads may `take`; None tells one of them to leave."""

    def __init__(self) -> None:
        self._waiting: deque[Execution | None] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()  # one for each that waits, put after it: a slot sleeps here
        self._lowest = 0  # priority of all that came since the line was last empty

    def extend(self, executions: Sequence[Execution | None]) -> None:
        priorities = [each.claim.priority for each in executions if each is not None]
        if not self._waiting:
            self._lowest = min(priorities, default=0)
        elif priorities:
            if max(priorities) > self._lowest:
                executions = in_order([*self.take_back()], [*executions])
            self._lowest = min(self._lowest, *priorities)
        for execution in executions:
            self._waiting.append(execution)
            self._tokens.put(None)

    def take(self, timeout: float | None = None) -> Execution | None:
        """The first, once there is one; `Empty` when the time is over."""
        while True:
            self._tokens.get(timeout=timeout)
            try:
                return self._waiting.popleft()
            except IndexError:
                continue  # it went back

    def take_back(self, most: int | None = None) -> list[Execution]:
        """All that wait, or so many from the end, in their order."""
        taken: deque[Execution] = deque()
        while most is None or len(taken) < most:
            try:
                execution = self._waiting.pop()
            except IndexError:
                return list(taken)
            if execution is not None:
                taken.appendleft(execution)
            try:
                self._tokens.get_nowait()
            except Empty:
                continue  # a slot has it, and finds nothing
        return list(taken)


def _is_urgent(new: Execution | None, old: Execution | None) -> bool:
    """Whether one that comes must not wait behind another."""
    if new is None or old is None:
        return False
    return new.claim.queue == old.claim.queue and new.claim.priority > old.claim.priority


def in_order(waiting: Sequence[E], coming: Sequence[E]) -> list[E]:
    """Both, each that comes before those of its queue that have a lower priority."""
    line = [*waiting]
    for new in coming:
        place = next((n for n, old in enumerate(line) if _is_urgent(new, old)), len(line))
        line.insert(place, new)
    return line
