"""Failed jobs grouped by error: how many, since when, and "retry this group"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dray.handle.job import Job
from dray.instants import to_datetime
from dray.model import job as model
from dray.model.error_group import error_key, error_pattern
from dray.ops import failures, shapes
from dray.ops.failures import POINTS, ErrorGroup
from dray.ops.listing import values_of
from dray.ops.search import search
from dray.web import traces
from dray.web.failing import Asked
from dray.web.page import NotFound, Page, Post, Shown, View
from dray.web.visit import Visit

_SPANS = {"1h": 3_600, "24h": 86_400, "7d": 7 * 86_400, "all": None}
_GROUPS = 100
_KEPT = 2.0  # seconds that a list of groups is shown
_NEWEST = 500  # failed jobs that groups are made of, for visitors who may see some queues alone
_JOBS = 20  # of one group that are listed


def show(visit: Visit) -> Shown:
    chosen = visit.query.get("since", "all")
    since = _SPANS.get(chosen)
    if visit.access.queues is None:
        found = visit.site.failing.groups(Asked(since, _GROUPS, _KEPT))
    else:
        query = "state:failed" if since is None else f"state:failed since:{chosen}"
        found = _grouped(visit, query)
    data: dict[str, Any] = {
        "groups": found,
        "spans": list(_SPANS),
        "chosen": chosen if chosen in _SPANS else "all",
        "now": visit.now,
        "is_full": len(found) == _GROUPS,
        "counted_at": min((group.counted_at for group in found if group.counted_at is not None), default=None),
        "is_partial": visit.access.queues is not None,
    }
    return View("failures.html", "Failures", data, [_shape(group) for group in found])


def show_group(visit: Visit) -> Shown:
    key = visit.params["key"]
    if len(key) != 16 or not all(letter in "0123456789abcdef" for letter in key):
        raise NotFound("There is no such group of failures.")
    group = _group(visit, key)
    if group is None:
        raise NotFound("No failed job is of this group now: they were retried, deleted or pruned, or none ever was.")
    jobs = search(visit.core, f"state:failed error_key:{key}", limit=_JOBS, queues=visit.access.queues).jobs
    attempts = jobs[0].attempts() if jobs else []
    error = attempts[-1].error if attempts else None
    data: dict[str, Any] = {
        "group": group,
        "jobs": jobs,
        "now": visit.now,
        "newest": jobs[0] if jobs else None,
        "trace": traces.trace(error.traceback) if error is not None and error.traceback else None,
        "query": f"state:failed error_key:{key}",
    }
    shape = {**_shape(group), "jobs": shapes.jobs(visit.core, jobs)}
    return View("failure.html", group.pattern[:80], data, shape)


def _group(visit: Visit, key: str) -> ErrorGroup | None:
    if visit.access.queues is None:
        return failures.group(visit.backend, key)
    return next(iter(_grouped(visit, f"state:failed error_key:{key}")), None)


def _shape(group: ErrorGroup) -> dict[str, Any]:
    return values_of(group, "key task pattern error count is_capped first_at last_at newest_id points counted_at")


def _grouped(visit: Visit, query: str) -> list[ErrorGroup]:
    """Groups of the newest failed jobs of some queues, those with the newest failures first."""
    found = search(visit.core, query, limit=_NEWEST, queues=visit.access.queues)
    by_key: dict[str, list[Job[Any]]] = {}
    for job in found.jobs:
        by_key.setdefault(error_key(job.task, job.error or ""), []).append(job)
    ends = [at for job in found.jobs if (at := job.row.finished_at) is not None]
    first, last = min(ends, default=0), max(ends, default=0)
    return [_made(key, jobs, first, last, is_capped=found.next is not None) for key, jobs in by_key.items()]


def _made(key: str, jobs: list[Job[Any]], first: int, last: int, *, is_capped: bool) -> ErrorGroup:
    newest = jobs[0]
    return ErrorGroup(
        key=key,
        task=newest.task,
        pattern=error_pattern(newest.error or ""),
        error=newest.error or "",
        count=len(jobs),
        is_capped=is_capped,
        first_at=to_datetime(_end(jobs[-1].row)),
        last_at=to_datetime(_end(newest.row)),
        newest_id=newest.id,
        points=_points((_end(job.row) for job in jobs), first, last),
    )


def _end(row: model.Job) -> int:
    return row.finished_at or row.updated_at


def _points(ends: Iterable[int], first: int, last: int) -> list[int]:
    points = [0] * POINTS
    for at in ends:
        points[min(POINTS - 1, (at - first) * POINTS // max(1, last - first))] += 1
    return points


PAGES: list[Page] = [
    Page("/failures", show, "failures", frozenset({"jobs"})),
    Page("/failures/{key}", show_group, "failures", frozenset({"jobs"})),
]
POSTS: list[Post] = []
