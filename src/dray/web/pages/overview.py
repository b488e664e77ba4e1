"""The overview: what needs attention, tiles, charts, queues, failures, workers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dray.backends.store.overview import Around
from dray.errors import ConfigError
from dray.instants import moment
from dray.model import cron
from dray.model.job import State
from dray.model.schedule import Schedule
from dray.ops import attention
from dray.ops.attention import Notice
from dray.ops.metrics import Series
from dray.ops.top import Snapshot
from dray.web import figures, menu, queue_rows, show
from dray.web.page import Page, Post, View
from dray.web.site import NOTICES
from dray.web.visit import Visit
from dray.wording import interval, rate

_ROWS = 8  # queues and workers that are shown here; the others have their own page
_FEW = 5
_SOON = 3
_KEPT = 2.0  # seconds that sentences are kept


def show_overview(visit: Visit) -> View:
    span = figures.span_of(visit)
    seen, around = queue_rows.seen_by(visit), menu.around(visit.site)
    if not around.has_jobs:
        return _first_page(visit, seen, around)
    whole = visit.access.queues is None
    found = figures.series_seen(visit, span)
    groups = figures.groups(visit, span) if whole else []
    notices = _notices(visit, seen, around)
    found_queues = queue_rows.rows(visit, span)
    queues = found_queues.rows
    workers = figures.live_workers(visit) if whole else []
    running = [job for job in seen.running if visit.access.sees(job["queue"])]
    data: dict[str, Any] = {
        "span": span,
        "words": figures.WORDS[span],
        "windows": figures.windows(visit, span),
        "now": seen.at,
        "kept": _kept(visit, seen, found),
        "notices": notices,
        "tiles": _tiles(visit, seen, around, found, span),
        "chart": figures.ended_chart(found),
        "total": found.total,
        "waits": figures.times_chart(found) if whole or len(visit.access.queues or ()) == 1 else None,
        "queues": queues[:_ROWS],
        "more_queues": max(0, found_queues.total - _ROWS),
        "groups": groups[:_FEW],
        "workers": workers[:_ROWS],
        "more_workers": max(0, len(workers) - _ROWS),
        "all_slots": sum(worker["concurrency"] for worker in seen.workers),
        "busy": sum(worker["running"] for worker in seen.workers),
        "longest": [{**job, "elapsed": _since(job["started_at"], seen.at)} for job in running[:_FEW]],
        "running": sum(queue["running"] for queue in queues),
        "soon": [_soon(each, seen.at) for each in around.next_schedules[:_SOON]] if whole else [],
        "is_whole": whole,
    }
    shape = {
        "at": seen.at,
        "span": span,
        "needs_attention": [_notice_shape(each) for each in notices],
        "jobs": {tile["state"]: tile["jobs"] for tile in data["tiles"]},
        "counted_up_to": seen.counted,
        "ended": figures.series_shape(found),
        "queues": [queue_rows.shape(visit, each, span) for each in queues[: queue_rows.SHOWN]],
        "more_queues": max(0, found_queues.total - queue_rows.SHOWN),
        "failures": [figures.group_shape(each) for each in groups],
        "workers": workers,
        "running": running,
        "schedules": [{"name": each["name"], "rule": each["rule"], "next_at": each["at"]} for each in data["soon"]],
    }
    return View("overview.html", "Overview", data, shape)


def _first_page(visit: Visit, seen: Snapshot, around: Around) -> View:
    """There is no job yet: what to do next."""
    tasks = list(visit.core.registry.names())
    whole = visit.access.queues is None
    data: dict[str, Any] = {
        "tasks": tasks[:_FEW],
        "more_tasks": max(0, len(tasks) - _FEW),
        "workers": figures.live_workers(visit)[:_ROWS] if whole else [],
        "is_worker_alive": bool(seen.workers),
        "had_workers": around.had_workers,
        "now": seen.at,
    }
    shape: dict[str, Any] = {"at": seen.at, "jobs": {}, "tasks": tasks, "workers": len(seen.workers)}
    return View("first.html", "Overview", data, shape)


def _notices(visit: Visit, seen: Snapshot, around: Around) -> list[Notice]:
    queues = visit.access.queues
    groups = figures.groups(visit, "1h") if queues is None else []
    return visit.site.shared.get(
        (NOTICES, queues), _KEPT, lambda: attention.notices(visit.backend, seen, around, groups, queues)
    )


def _notice_shape(notice: Notice) -> dict[str, Any]:
    return {
        "kind": notice.kind,
        "level": notice.level,
        "text": notice.text,
        "more": notice.more,
        "target": notice.target,
        "jobs": notice.count,
    }


def _kept(visit: Visit, seen: Snapshot, found: Series) -> str:
    number, _, unit = rate(found.total.per_second).partition(" ")
    ended = f"{number} ended {unit}" if found.total.per_second > 0 else "none ended in this time"
    if visit.access.queues is not None:
        return f"{', '.join(sorted(visit.access.queues)[:_FEW]) or 'no queue'}: {ended}"
    total = sum(seen.counts.values())
    return f"{'More than' if seen.is_cut else 'About'} {total:,} jobs kept, {ended}"


def _tiles(visit: Visit, seen: Snapshot, around: Around, found: Series, span: str) -> list[dict[str, Any]]:
    """A tile for each state. Those who may see some queues alone get what is known by queue."""
    words = figures.WORDS[span]
    shown = [queue for queue in seen.queues if visit.access.sees(queue["name"])]
    oldest = max((queue["oldest"] for queue in shown if queue["oldest"] is not None), default=None)
    longest = next((job for job in seen.running if visit.access.sees(job["queue"])), None)
    slots = sum(worker["concurrency"] for worker in seen.workers)
    total = found.total
    ended = total.completed + total.failed + total.cancelled
    subs = {
        State.WAITING: "for their parents",
        State.SCHEDULED: "" if around.next_job_at is None else _in(moment(around.next_job_at), seen.at),
        State.QUEUED: "none waits" if oldest is None else f"oldest {show.duration(oldest)}",
        State.RUNNING: "" if longest is None else f"longest {show.duration(_since(longest['started_at'], seen.at))}",
        State.COMPLETED: f"{total.completed:,} {words}",
        State.FAILED: f"{show.percent(total.failed, ended)} {'of ' if span == '1h' else ''}{words}"
        if ended
        else f"0 {words}",
        State.CANCELLED: f"{total.cancelled:,} {words}",
    }
    if visit.access.queues is None:
        counts: dict[str, int] = dict(seen.counts)
    else:
        counts = {
            State.QUEUED: sum(queue["queued"] for queue in shown),
            State.RUNNING: sum(queue["running"] for queue in shown),
            State.COMPLETED: total.completed,
            State.FAILED: total.failed,
            State.CANCELLED: total.cancelled,
        }
    return [
        {
            "state": state.value,
            "jobs": counts[state],
            "count": show.about(counts[state], seen.cap(state) if visit.access.queues is None else None),
            "of": f"of {slots:,}" if state is State.RUNNING and slots and visit.access.queues is None else "",
            "sub": subs[state] if visit.access.queues is None or state in {State.QUEUED, State.RUNNING} else words,
        }
        for state in State
        if state in counts
    ]


def _soon(schedule: Schedule, now: datetime) -> dict[str, Any]:
    at = moment(schedule.next_at)
    return {"name": schedule.name, "rule": _rule(schedule), "at": at, "words": _in(at, now, "now")}


def _rule(schedule: Schedule) -> str:
    if schedule.every_us is not None:
        return f"every {interval(schedule.every_us / 1_000_000)}"
    rule = schedule.cron or ""
    try:
        words = cron.in_words(rule)
    except ConfigError:  # written by hand
        words = rule
    return f"{words[:1].lower()}{words[1:]}" + ("" if schedule.tz == "UTC" else f", {schedule.tz}")


def _in(at: datetime | None, now: datetime, due: str = "next now") -> str:
    if at is None:
        return ""
    seconds = (at - now).total_seconds()
    word = "" if due == "now" else "next "
    return due if seconds <= 0 else f"{word}in {show.duration(seconds)}"


def _since(started_at: datetime | None, now: datetime) -> float:
    return 0.0 if started_at is None else max(0.0, (now - started_at).total_seconds())


PAGES: list[Page] = [
    Page("/", show_overview, "overview", frozenset({"jobs", "queues", "workers", "schedules"})),
]
POSTS: list[Post] = []
