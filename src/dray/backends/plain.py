"""Many plain jobs at once: the fast half of a bulk enqueue.

Plain is a job without parents, unique key, expiry, workflow and schedule: what most bulk enqueues consist of. Half
as many columns, and no expressions left for the database to work out, make it a third faster on SQLite and let
PostgreSQL take it by COPY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from dray.backends.database import Row
from dray.model.job import State
from dray.model.workflow import ParentPolicy

MANY = 50  # jobs in one call; below, the look at the queues' priorities is not worth it


# state, expires_at, expires_us, unique_key, workflow_id, schedule; on_parent_failure
_special = itemgetter(6, 11, 12, 13, 16, 20, 19)
_NOTHING_SPECIAL = (None, None, None, None, None, None, ParentPolicy.CANCEL)


def are_plain(rows: Sequence[Row]) -> bool:
    """Whether a batch of inserts is large and none of it needs more than its own values."""
    return len(rows) >= MANY and all(_special(row) == _NOTHING_SPECIAL for row in rows)


def plain_rows(rows: Sequence[Row], now: int, priorities: dict[str, int]) -> Iterator[Row]:
    """The columns (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, timeout, name,
    description, tags, trace) of such inserts."""
    for (
        i,
        task,
        queue,
        own,
        run_at,
        delay,
        _,
        args,
        attempts,
        crashes,
        timeout,
        *_,
        n,
        d,
        tags,
        trace,
    ) in rows:
        due = now + delay if run_at is None else run_at
        state = State.SCHEDULED if due > now else State.QUEUED
        priority = priorities.get(queue, 0) if own is None else own
        yield i, task, queue, state, priority, due, args, attempts, crashes, timeout, n, d, tags, trace
