"""Counts the attempts that a worker has ended, by queue and by how they ended: for `/metrics`.

Attempts and not jobs: a retry is one too, and the tables' rollups know of final ends alone. The number of queues that
are told apart is bounded; the others count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from dray.runtime.end_log import event_of
from dray.runtime.execution import Execution
from dray.runtime.in_flight import End

if TYPE_CHECKING:
    from dray.runtime.parts import Observer

OTHER = "_OTHER"  # the queues and tasks that are not told apart, together; as OpenTelemetry calls them
MOST_NAMES = 100  # that are

Attempts: TypeAlias = dict[tuple[str, str], int]  # (queue, event) -> how many


class EndsCounted:
    """An `Observer` in front of another. `counts` may be read on any thread, by `dict(…)`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._queues: set[str] = set()
        self.counts: Attempts = {}

    @property
    def began(self) -> Callable[[Execution], None] | None:
        return self._observer.began

    def ended(self, ends: Sequence[End]) -> None:
        self._observer.ended(ends)
        counts = self.counts
        for end in ends:
            event = event_of(end.settlement)
            if event is not None:
                key = (self._name(end.execution.claim.queue), event)
                counts[key] = counts.get(key, 0) + 1

    def tick(self, *, is_over: bool = False) -> None:
        self._observer.tick(is_over=is_over)

    def _name(self, queue: str) -> str:
        if queue not in self._queues:
            if len(self._queues) >= MOST_NAMES:
                return OTHER
            self._queues.add(queue)
        return queue
