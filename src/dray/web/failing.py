"""Groups of failures, as pages show them: what a page reads of them does not grow with the number of failures.

A page counts 3,000 failures at most. Groups that are larger than their share of these are counted beside the pages
(`beside.py`), and shown with the time of that count. Counting 24,000 failures of a million jobs reads 13,000 blocks
of PostgreSQL's table, which took up to 95 ms of a page, and that after each action. Where the last count of all took
10 ms or less, the page takes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from dray.instants import to_datetime
from dray.ops import failures
from dray.ops.failures import ErrorGroup

if TYPE_CHECKING:
    from datetime import datetime

    from dray.app_interface import AppCore
    from dray.web.beside import Beside
    from dray.web.shared import Shared

_FRESH = 3_000  # failures that a page counts
_CHEAP_S = 0.01  # if counting all took no longer, a page does it
_SHARE = 50  # a fiftieth of the time at most goes into counting beside the pages
_OLDEST = 300.0  # seconds that a count is shown


class Asked(NamedTuple):
    """A list of groups that pages show."""

    since_s: float | None  # of failures of the last seconds; None: of all
    limit: int
    kept_s: float  # how long a reading is kept


class _Count(NamedTuple):
    groups: dict[str, ErrorGroup]
    at: datetime
    took_s: float
    until: float  # when it is too old to be shown
    next_at: float  # when it is taken again, if it is asked for


class Failing:
    """From any thread. `on_counted` is called when pages can show more than before."""

    def __init__(self, core: AppCore, shared: Shared, beside: Beside, on_counted: Callable[[], None]) -> None:
        self._core = core
        self._shared = shared
        self._beside = beside
        self._on_counted = on_counted
        self._lock = Lock()
        self._counts: dict[Asked, _Count] = {}
        self._forgotten = 0

    def groups(self, asked: Asked) -> list[ErrorGroup]:
        """The groups with the newest failures, newest first. `counted_at` says when a large one was counted; one that
        has not been yet is capped at its share."""
        with self._lock:
            last = self._counts.get(asked)
        if last is not None and last.took_s <= _CHEAP_S:
            return self._shared.get(asked, asked.kept_s, lambda: self._count(asked))
        fresh = self._shared.get(asked, asked.kept_s, lambda: self._read(asked, _FRESH))
        if not any(group.is_capped for group in fresh):
            return fresh
        count = self._count_of(asked)
        return fresh if count is None else [_with_count(group, count) for group in fresh]

    def forget(self) -> None:
        """An action has changed something: counts are taken again when they are asked for. The last are shown until
        then."""
        with self._lock:
            self._forgotten += 1
            self._counts = {asked: count._replace(next_at=0.0) for asked, count in self._counts.items()}

    def _read(self, asked: Asked, in_all: int | None = None) -> list[ErrorGroup]:
        return failures.groups(self._core.backend, asked.since_s, asked.limit, in_all=in_all)

    def _count_of(self, asked: Asked) -> _Count | None:
        with self._lock:
            now = time.monotonic()
            count = self._counts.get(asked)
            if count is None or now >= count.next_at:
                self._beside.do(asked, partial(self._count_beside, asked))
        return count if count is not None and now < count.until else None

    def _count_beside(self, asked: Asked) -> None:
        self._count(asked)
        self._shared.drop(asked)
        self._on_counted()

    def _count(self, asked: Asked) -> list[ErrorGroup]:
        forgotten, began, at = self._forgotten, time.monotonic(), self._core.backend.now()
        found = self._read(asked)
        ended = time.monotonic()
        took = ended - began
        next_at = ended + max(asked.kept_s, _SHARE * took)
        by_key = {group.key: group for group in found}
        with self._lock:
            is_current = forgotten == self._forgotten  # else an action happened meanwhile: it may not be in it
            next_at = next_at if is_current else 0.0
            self._counts[asked] = _Count(by_key, to_datetime(at), took, ended + _OLDEST, next_at)
        return found


def _with_count(group: ErrorGroup, count: _Count) -> ErrorGroup:
    """A small group is counted with each reading, and right as it is."""
    found = count.groups.get(group.key)
    if not group.is_capped or found is None or found.count < group.count:
        return group
    return replace(group, count=found.count, is_capped=found.is_capped, points=found.points, counted_at=count.at)
