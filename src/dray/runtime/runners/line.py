"""Executions that wait for a slot: the first goes to whoever is free next, the last goes back first.

From the other end than slots take from: else, while a worker hands back what it has claimed, a free slot would get
what comes behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from queue import Empty, SimpleQueue

from dray.runtime.execution import Execution


class Line:
    """Any number of threads may `take`; None tells one of them to leave."""

    def __init__(self) -> None:
        self._waiting: deque[Execution | None] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()  # one for each that waits, put after it: a slot sleeps here

    def extend(self, executions: Iterable[Execution | None]) -> None:
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
