"""Failed jobs grouped by error: the same task, and the same error but for numbers and names in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from dray.backends.store.failures import Chart, FailureGroup
from dray.errors import ConfigError
from dray.instants import DAY, to_datetime
from dray.model.error_group import error_pattern
from dray.model.values import duration_us, shown
from dray.task.checks import instant

if TYPE_CHECKING:
    from dray.backends.base import Backend

COUNTED = 10_000  # where the count of a group ends
MOST = 1_000  # groups in one list
POINTS = 30
_COUNTED_IN_ALL = 100_000  # over all groups of a list: there may be a hundred large ones


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Jobs that failed alike, and were not retried or removed since."""

    key: str
    task: str
    pattern: str  # the error, with · for what differs
    error: str  # of the newest
    count: int  # since the instant that was asked for
    is_capped: bool  # there are more
    first_at: datetime  # of all that are kept
    last_at: datetime
    newest_id: str
    points: list[int]  # how many failed in each of 30 steps since that instant, or in the last day; oldest first
    counted_at: datetime | None = None  # when, if earlier than the rest was read


def groups(
    backend: Backend,
    since: datetime | timedelta | float | None = None,
    limit: int = 100,
    *,
    in_all: int | None = None,
) -> list[ErrorGroup]:
    """The groups with the newest failures, newest first; only of failures since an instant, or of the last seconds.

    A count ends at 10,000, or at the share that each group has of `in_all` (100,000)."""
    if isinstance(limit, bool) or not 1 <= limit <= MOST:
        raise ConfigError(f"limit must be between 1 and {MOST:,}, not {shown(limit)}")
    now = backend.now()
    since_at = 0 if since is None else _since(since, now)
    chart = _chart(since_at, now)
    in_all = _COUNTED_IN_ALL if in_all is None else in_all
    found = backend.failures.groups(since_at, chart, limit=limit, most=COUNTED, in_all=in_all)
    return [_shaped(group) for group in found]


def group(backend: Backend, key: str, most: int = COUNTED) -> ErrorGroup | None:
    """One group with all of its failures, and a chart of the last day; None: no failed job has this key.

    `most`: where its count ends."""
    found = backend.failures.group(key, 0, _chart(0, backend.now()), most=most)
    return None if found is None else _shaped(found)


def _since(value: datetime | timedelta | float, now: int) -> int:
    return instant("since", value) if isinstance(value, datetime) else now - duration_us("since", value)


def _chart(since: int, now: int) -> Chart:
    """30 steps from an instant to now; without one, of the last day."""
    since = since or now - DAY
    return Chart(since, max(1, -((since - now) // POINTS)))


def _shaped(found: FailureGroup) -> ErrorGroup:
    points = [0] * POINTS
    for step, jobs in found.steps.items():
        if step >= 0:
            points[min(step, POINTS - 1)] += jobs
    return ErrorGroup(
        key=found.key,
        task=found.task,
        pattern=error_pattern(found.error),
        error=found.error,
        count=found.jobs,
        is_capped=found.is_capped,
        first_at=to_datetime(found.first_at),
        last_at=to_datetime(found.last_at),
        newest_id=found.newest_id,
        points=points,
    )
