"""Schedules: the rule in words, the next times, the last jobs; run one now, pause, resume, remove it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from dray.backends.store.live import LiveJob
from dray.errors import ConfigError
from dray.instants import from_datetime, moment
from dray.model import cron
from dray.model.bounds import NAME_CHARS
from dray.model.schedule import Schedule
from dray.ops import acting, shapes
from dray.sanitize import HIDDEN
from dray.schedules import ScheduleInfo
from dray.web.page import Done, Form, Page, Post, Refused, View
from dray.web.pages.workflows import took
from dray.web.show import in_path
from dray.web.values import shown_value
from dray.web.visit import Visit
from dray.wording import interval

_ROWS = 100
_NEXT = 5
_JOBS = 20
_TOPICS = frozenset({"schedules", "jobs"})

MISFIRES = {
    "skip": "missed times are not made up for",
    "last": "of missed times, the last is made up for",
    "all": "missed times are made up for, the newest {limit:,}",
}
OVERLAPS = {
    "allow": "a job is made at each time, even while an earlier one is live",
    "skip": "no job is made while an earlier one is live",
    "queue": "at most one job waits behind the one that runs",
}


def show(visit: Visit) -> View:
    part, after = visit.query.get("name", "").strip()[:NAME_CHARS], visit.query.get("after", "")[:NAME_CHARS]
    found = visit.backend.pages.schedules(limit=_ROWS, after=after, part=part)
    listed = [_info(visit, each) for each in found.rows]
    data = {
        "schedules": listed,
        "rules": {each.name: rule_in_words(each) for each in listed},
        "part": part,
        "after": after,
        "next": found.next,
        "now": visit.now,
    }
    shape = {"schedules": [_shape(each) for each in listed], "next": found.next}
    return View("schedules.html", "Schedules", data, shape)


def show_one(visit: Visit) -> View:
    info = _info(visit, visit.core.all_schedules.stored(visit.params["name"]))
    jobs = visit.backend.pages.schedule_jobs(info.name, _JOBS)
    coming = _coming(info)
    data = {
        "schedule": info,
        "rule": rule_in_words(info),
        "misfire": MISFIRES.get(info.misfire, info.misfire).format(limit=info.misfire_limit),
        "overlap": OVERLAPS.get(info.overlap, info.overlap),
        "coming": [(when, when.astimezone(ZoneInfo(info.tz))) for when in coming],
        "jobs": jobs,
        "took": {job.id: took(job) for job in jobs},
        "times": {job.id: (moment(job.created_at), moment(job.finished_at)) for job in jobs},
        "args": shown_value(info.args),
        "are_hidden": info.task not in visit.core.registry and HIDDEN in info.args.values(),
        "now": visit.now,
    }
    shape = {**_shape(info), "coming": coming, "jobs": [_job(job) for job in jobs]}
    return View("schedule.html", f"Schedule {info.name}", data, shape)


def _info(visit: Visit, stored: Schedule) -> ScheduleInfo:
    """Arguments of a task whose code is not here are hidden, as those of its jobs."""
    info = visit.core.all_schedules.info(stored, from_datetime(visit.now))
    return info if info.task in visit.core.registry else replace(info, args=dict.fromkeys(info.args, HIDDEN))


def _coming(info: ScheduleInfo) -> list[datetime]:
    try:
        return info.next(_NEXT)
    except ConfigError:  # a rule that only a newer release can read
        return []


def rule_in_words(info: ScheduleInfo) -> str:
    if info.cron is None:
        return f"Every {interval(info.every or 0)}"
    try:
        words = cron.in_words(info.cron)
    except ConfigError:
        words = info.cron
    return words if info.tz == "UTC" else f"{words}, {info.tz}"


def _shape(info: ScheduleInfo) -> dict[str, Any]:
    return {**shapes.schedule(info), "in_words": rule_in_words(info)}


def _job(job: LiveJob) -> dict[str, Any]:
    instants = {name: moment(getattr(job, name)) for name in ("created_at", "started_at", "finished_at")}
    return {"id": job.id, "state": job.state, "reason": job.reason, "error": job.error, **instants}


# Acting


def run(visit: Visit, form: Form) -> Done:  # noqa: ARG001 - nothing is chosen
    name = visit.params["name"]
    job = acting.run_schedule(visit.core, name, visit.by)
    return Done(f"/schedules/{in_path(name)}", f"Job {job.id} of schedule {name} was enqueued.")


def pause(visit: Visit, form: Form) -> Done:  # noqa: ARG001
    name = visit.params["name"]
    if not acting.pause_schedule(visit.core, name, visit.by):
        raise Refused(f"Schedule {name} was paused already.")
    return Done(f"/schedules/{in_path(name)}", f"Schedule {name} is paused. Jobs that are enqueued already go on.")


def resume(visit: Visit, form: Form) -> Done:  # noqa: ARG001
    name = visit.params["name"]
    if not acting.resume_schedule(visit.core, name, visit.by):
        raise Refused(f"Schedule {name} was not paused.")
    return Done(f"/schedules/{in_path(name)}", f"Schedule {name} goes on.")


def remove(visit: Visit, form: Form) -> Done:  # noqa: ARG001
    name = visit.params["name"]
    acting.remove_schedule(visit.core, name, visit.by)
    return Done("/schedules", f"Schedule {name} was removed. Its jobs stay.")


PAGES: list[Page] = [
    Page("/schedules", show, "schedules", _TOPICS, is_whole=True),
    Page("/schedules/{name}", show_one, "schedules", _TOPICS, is_whole=True),
]
POSTS: list[Post] = [
    Post("/schedules/{name}/run", run, "run", is_whole=True),
    Post("/schedules/{name}/pause", pause, "pause", is_whole=True),
    Post("/schedules/{name}/resume", resume, "resume", is_whole=True),
    Post("/schedules/{name}/remove", remove, "remove", is_whole=True),
]
