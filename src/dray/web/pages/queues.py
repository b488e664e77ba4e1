"""Queues: how deep, how old, paused or not; one queue with its chart, its newest jobs and its pauses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dray.instants import moment, to_datetime
from dray.model.action import Action
from dray.model.bounds import NAME_CHARS
from dray.model.values import check_name
from dray.ops import acting, attention, limits
from dray.ops.top import COUNTED, queue_row
from dray.web import figures, queue_rows, show
from dray.web.page import Done, Form, NotFound, Page, Post, View
from dray.web.visit import Visit

_NEWEST = 20  # jobs of a queue
_PAUSES = 20


def show_queues(visit: Visit) -> View:
    span = figures.span_of(visit)
    part = visit.query.get("name", "").strip()[:NAME_CHARS]
    found = queue_rows.rows(visit, span, part)
    rows = found.rows[: queue_rows.SHOWN]
    seen = visit.site.snapshot()
    data = {
        "queues": rows,
        "part": part,
        "total": found.total,
        "is_total_capped": found.is_total_capped,
        "limits": _limits(visit),
        "span": span,
        "words": figures.WORDS[span],
        "windows": figures.windows(visit, span),
        "now": seen.at,
    }
    listed = [queue_rows.shape(visit, row, span) for row in rows]
    return View("queues.html", "Queues", data, {"queues": listed, "more": found.total - len(rows)})


def show_queue(visit: Visit) -> View:
    span = figures.span_of(visit)
    name = _named(visit)
    row = queue_rows.one(visit, span, name)
    newest = visit.backend.overview.newest_of_queue(name, _NEWEST)
    if row is None and not newest:
        raise NotFound(f"There is no queue {name}: none was set, served or paused by this name, and it has no job.")
    if row is None:
        row = {**queue_row(name, None, 0), "slots": 0, "depth": "0", **figures.rated(None)}
    seen = visit.site.snapshot()
    found = figures.series(visit, span, queue=name)
    actions = visit.backend.actions.newest(limit=_PAUSES, kind="queue", target=name)
    servers = [worker for worker in seen.workers if not worker["queues"] or name in worker["queues"]]
    jobs = [
        {**job._asdict(), "created_at": to_datetime(job.created_at), "finished_at": moment(job.finished_at)}
        for job in newest
    ]
    data: dict[str, Any] = {
        "queue": row,
        "limits": _limits(visit).get(name, ""),
        "why": attention.who_paused(visit.backend, name) if row["paused_at"] is not None else "",
        "span": span,
        "words": figures.WORDS[span],
        "windows": figures.windows(visit, span),
        "chart": figures.ended_chart(found),
        "waits": figures.times_chart(found),
        "total": found.total,
        "failed_share": show.percent(
            found.total.failed, found.total.completed + found.total.failed + found.total.cancelled
        ),
        "jobs": jobs,
        "actions": [_shown(action) for action in actions],
        "servers": servers if visit.access.queues is None else [],
        "has_server": bool(servers),
        "now": seen.at,
    }
    shape = {
        **queue_rows.shape(visit, row, span),
        "series": figures.series_shape(found),
        "newest": [{key: job[key] for key in _JOB} for job in jobs],
        "actions": [_shown(action) for action in actions],
        "counted_up_to": COUNTED,
    }
    return View("queue.html", f"Queue {name}", data, shape)


def _limits(visit: Visit) -> dict[str, str]:
    """What is in force, in words, by the name of the queue."""
    return {name: limits.words(options) for name, options in figures.limited(visit, "queue").items()}


_JOB = ("id", "task", "state", "reason", "attempt", "error", "created_at", "finished_at")


def _shown(action: Action) -> dict[str, Any]:
    return {**asdict(action), "at": to_datetime(action.at)}


def pause(visit: Visit, form: Form) -> Done:
    name = _named(visit)
    note = " ".join(form.get("note", "").split()) or None
    changed = acting.pause_queue(visit.core, name, visit.by, note)
    return Done(_back(form, name), f"Queue {name} is paused." if changed else f"Queue {name} was paused already.")


def resume(visit: Visit, form: Form) -> Done:
    name = _named(visit)
    changed = acting.resume_queue(visit.core, name, visit.by)
    return Done(_back(form, name), f"Queue {name} goes on." if changed else f"Queue {name} was not paused.")


def _named(visit: Visit) -> str:
    """The queue of the path. One that a visitor may not see does not exist for them."""
    name = check_name("queue", visit.params["name"])
    if not visit.access.sees(name):
        raise NotFound(f"There is no queue {name}, or you may not see it.")
    return name


def _back(form: Form, name: str) -> str:
    """The page that the button was on."""
    back = form.get("back", "")
    return back if back in {"/", "/queues"} else f"/queues/{show.in_path(name)}"


_TOPICS = frozenset({"queues", "jobs", "workers"})
PAGES: list[Page] = [
    Page("/queues", show_queues, "queues", _TOPICS),
    Page("/queues/{name}", show_queue, "queues", _TOPICS | {"actions"}),
]
POSTS: list[Post] = [
    Post("/queues/{name}/pause", pause, "pause"),
    Post("/queues/{name}/resume", resume, "resume"),
]
