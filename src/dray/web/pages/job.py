"""One job: why it is where it is, where its body is, timeline, attempts, log, arguments, result and neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from dray.errors import PayloadError
from dray.handle.job import Job
from dray.model.job import State
from dray.model.values import canonical_id
from dray.ops import acting, shapes
from dray.ops.why import Why, why
from dray.sanitize import escape_control
from dray.waiter import unknown_job
from dray.web import seen
from dray.web.job_view import STILL, view_of
from dray.web.page import Done, Download, Form, Goto, NotFound, Page, Post, Refused, Shown, View
from dray.web.values import whole_value
from dray.web.visit import Visit


def show(visit: Visit) -> Shown:
    part = visit.params["id"]
    whole = canonical_id(part)
    if whole is None:
        end = ".json" if visit.path.endswith(".json") else ""
        if (found_id := seen.whole_id(visit, part)) is not None:
            return Goto(f"/jobs/{found_id}{end}")
        return Goto(f"/jobs{end}?{urlencode({'q': f'id:{part}'})}")
    return view_of(visit, _explained(visit, whole))


def _explained(visit: Visit, job_id: str) -> Why:
    found = why(visit.backend, job_id, registry=visit.core.registry)
    if not visit.access.sees(found.job.queue):
        raise unknown_job(job_id)
    return found


# Attachments


def arguments(visit: Visit) -> Shown:
    job = _named(visit)
    return _attachment(job, "args", lambda: job.args)


def result(visit: Visit) -> Shown:
    job = _named(visit)
    return _attachment(job, "result", lambda: shapes.result(job))


def log(visit: Visit) -> Shown:
    """All lines: as JSON in the shape of `dray job logs --json`, or as text."""
    job = _named(visit)
    lines = [shapes.log_line(each) for each in job.logs()]
    if visit.path.endswith(".json"):
        return View("", "", {}, lines)
    text = (
        f"{each['at']:%Y-%m-%dT%H:%M:%S.%fZ} {each['level']} {escape_control(each['logger'])}: "
        f"{escape_control(each['message'])}\n"
        for each in lines
    )
    return Download(f"{job.id}-log.txt", "text/plain; charset=utf-8", text)


def _attachment(job: Job[Any], what: str, read: Callable[[], Any]) -> Download:
    try:
        text = whole_value(read())
    except PayloadError as error:  # written by hand
        raise NotFound(f"This cannot be saved: {error}.") from error
    return Download(f"{job.id}-{what}.json", "application/json", [text])


def _named(visit: Visit) -> Job[Any]:
    whole = canonical_id(visit.params["id"])
    if whole is None:
        raise NotFound("This needs the whole id of a job.")
    return seen.job_of(visit, whole)


# Actions


def retry(visit: Visit, form: Form) -> Done:  # noqa: ARG001 - it needs nothing of it
    job = _named(visit)
    return _acted(job, acting.retry(visit.core, [job.id], visit.by), "It starts over.", "retried")


def cancel(visit: Visit, form: Form) -> Done:  # noqa: ARG001
    job = _named(visit)
    said = "It was asked to stop." if job.state == State.RUNNING else "It is cancelled."
    return _acted(job, acting.cancel(visit.core, [job.id], visit.by), said, "cancelled")


def delete(visit: Visit, form: Form) -> Done:  # noqa: ARG001
    job = _named(visit)
    _acted(job, acting.delete(visit.core, [job.id], visit.by), "", "deleted")
    return Done("/jobs", f"Job {job.id[-8:]} ({job.task}) is deleted.")


def _acted(job: Job[Any], acted: acting.Acted, said: str, done: str) -> Done:
    if job.id in acted.refused:
        raise Refused(f"Job {job.id[-8:]} was not {done}: {acted.refused[job.id]}.")
    return Done(f"/jobs/{job.id}", said)


def ask(visit: Visit, form: Form) -> Done:  # noqa: ARG001
    """Has the worker say where the body is. It changes no job, so nothing is written into Actions."""
    job = _named(visit)
    found = visit.site.asker.ask(visit.core, job.id)
    return Done(f"/jobs/{job.id}", "Its worker has answered." if found.stack else "Its worker has not answered.")


def reveal(visit: Visit, form: Form) -> View:  # noqa: ARG001
    job = _named(visit)
    args = acting.reveal(visit.core, job.id, visit.by)
    return view_of(visit, why(visit.backend, job.id, registry=visit.core.registry), revealed=args)


PAGES: list[Page] = [
    Page("/jobs/{id}/args", arguments, "jobs"),
    Page("/jobs/{id}/result", result, "jobs"),
    Page("/jobs/{id}/log", log, "jobs"),
    Page("/jobs/{id}", show, "jobs", STILL),
]
POSTS: list[Post] = [
    Post("/jobs/{id}/retry", retry, "retry"),
    Post("/jobs/{id}/cancel", cancel, "cancel"),
    Post("/jobs/{id}/delete", delete, "delete"),
    Post("/jobs/{id}/ask", ask, "ask"),
    Post("/jobs/{id}/reveal", reveal, "reveal"),
]
