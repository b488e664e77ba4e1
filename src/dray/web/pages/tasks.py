"""Tasks: options, arguments, rates and who runs them; a form to enqueue one."""

from __future__ import annotations

from typing import Any

from dray.errors import ConfigError, DrayError
from dray.model.bounds import NAME_CHARS
from dray.model.values import canonical_id, check_name
from dray.ops import acting, limits, listing
from dray.ops import tasks as ops
from dray.ops.listing import WorkerInfo
from dray.task.task import Task
from dray.web import enqueueing, figures, seen, show
from dray.web.enqueueing import Field, Option
from dray.web.page import Done, Form, NotFound, Page, Post, View
from dray.web.values import shown_value
from dray.web.visit import Visit
from dray.wording import interval

_TOPICS = frozenset({"workers"})
_KNOWN = 5.0  # seconds that the workers' lists of tasks are kept
_SCHEDULES = 20
_ROWS = 500  # tasks that are shown


def show_tasks(visit: Visit) -> View:
    span = figures.span_of(visit)
    part = visit.query.get("name", "").strip().lower()[:NAME_CHARS]
    workers, rates = _workers(visit), figures.rates(visit, span, "task")
    known = ops.tasks(visit.core.registry, workers)
    names = {each["name"] for each in known}
    others = sorted({task for worker in workers for task in worker.tasks} | set(rates))
    foreign = [_foreign(name, workers) for name in others if name not in names]
    listed = [task for task in [*known, *foreign] if part in task["name"].lower()]
    limited = figures.limited(visit, "task")
    rows = [
        {**task, **figures.rated(rates.get(task["name"])), "limits": limits.words(limited.get(task["name"]))}
        for task in listed[:_ROWS]
    ]
    data = {
        "tasks": rows,
        "total": len(listed),
        "part": part,
        "known": names,
        "span": span,
        "words": figures.WORDS[span],
        "windows": figures.windows(visit, span),
    }
    shown = [_shape(task, rates, limited) for task in listed[:_ROWS]]
    return View("tasks.html", "Tasks", data, {"tasks": shown, "more": len(listed) - len(shown)})


def show_task(visit: Visit) -> View:
    span, name = figures.span_of(visit), check_name("task", visit.params["name"])
    task, workers = _task(visit, name), _workers(visit)
    found = figures.series(visit, span, task=name)
    ended = found.total.completed + found.total.failed + found.total.cancelled
    serving = [worker for worker in workers if name in worker.tasks]
    if task is None and not serving and not ended:
        raise NotFound(f"No task is named {name}: neither the code here nor a live worker knows it.")
    shape = ops.tasks([task], workers)[0] if task else _foreign(name, workers)
    schema = None if task is None else ops.argument_schema(task)
    schedules = [
        each for each in visit.backend.pages.schedules(limit=_SCHEDULES, part=name).rows if each.task == name
    ]
    limited = figures.limited(visit, "task").get(name)
    data: dict[str, Any] = {
        "task": shape,
        "is_known": task is not None,
        "options": None if task is None else task.options,
        "errors": {} if task is None else _errors(task),
        "rule": _rule(shape),
        "limits": limits.words(limited),
        "schema": None if schema is None else shown_value(schema),
        "fields": [] if task is None else enqueueing.fields_of(task),
        "serving": serving,
        "workers": len(workers),
        "schedules": schedules,
        "span": span,
        "words": figures.WORDS[span],
        "windows": figures.windows(visit, span),
        "chart": figures.ended_chart(found),
        "waits": figures.times_chart(found),
        "total": found.total,
        "failed_share": show.percent(found.total.failed, ended),
    }
    whole = {**shape, "limits": limited, "schema": schema, "ended": figures.series_shape(found)}
    return View("task.html", f"Task {name}", data, whole)


def _workers(visit: Visit) -> list[WorkerInfo]:
    """Those that live."""

    def read() -> list[WorkerInfo]:
        return [each for each in listing.workers(visit.backend) if each.stopped_at is None and each.state != "dead"]

    return visit.site.shared.get("workers of tasks", _KNOWN, read)


def _task(visit: Visit, name: str) -> Task[..., Any] | None:
    return visit.core.registry.get(name) if name in visit.core.registry else None


_NOTHING = ("queue", "priority", "runner", "max_attempts", "max_crashes", "timeout", "retry", "cron", "every", "tz")


def _foreign(name: str, workers: list[WorkerInfo]) -> dict[str, Any]:
    """A task whose code is not here."""
    ids = [worker.id for worker in workers if name in worker.tasks]
    return {"name": name, **dict.fromkeys(_NOTHING), "description": None, "workers": ids}


def _shape(task: dict[str, Any], rates: dict[str, Any], limited: dict[str, Any]) -> dict[str, Any]:
    found = rates.get(task["name"])
    ended = None if found is None else figures.rates_shape(found)
    return {**task, "limits": limited.get(task["name"]), "ended": ended}


def _errors(task: Task[..., Any]) -> dict[str, str]:
    """Which errors are retried, and which are not, by name."""
    kinds = {"Retries": task.options.retry_on, "Does not retry": task.options.fail_on}
    return {word: ", ".join(kind.__name__ for kind in each) for word, each in kinds.items() if each}


def _rule(shape: dict[str, Any]) -> str | None:
    if shape["every"] is not None:
        return f"every {interval(shape['every'])}"
    if shape["cron"] is None:
        return None
    return shape["cron"] if shape["tz"] == "UTC" else f"{shape['cron']} {shape['tz']}"


# Enqueueing


def show_form(visit: Visit) -> View:
    name = check_name("task", visit.params["name"])
    task = _task(visit, name)
    fields, options = enqueueing.fields_of(task), enqueueing.options({})
    like = visit.query.get("like")
    if like:
        fields, options = _like(visit, name, like, fields)
    return _form(visit, name, fields, options, like=like)


def _like(visit: Visit, name: str, given: str, fields: list[Field]) -> tuple[list[Field], list[Option]]:
    job_id = canonical_id(given) or seen.whole_id(visit, given)
    if job_id is None:
        raise ConfigError(f"like={given} is not enough of an id; give the whole one")
    job = seen.job_of(visit, job_id)
    if job.task != name:
        raise ConfigError(f"job {job.id} is of task {job.task}, not of {name}")
    args = seen.args_of(job)
    if args is None:
        raise ConfigError(f"the arguments of job {job.id} were not kept; fill in the form without it")
    task = _task(visit, name)
    usual = "default" if task is None else task.options.queue
    values = {"queue": job.queue if job.queue != usual else "", "unique": job.row.unique_key or ""}
    if job.row.priority != (0 if task is None or task.options.priority is None else task.options.priority):
        values["priority"] = str(job.row.priority)
    if task is None or task.options.key is None:  # else the task makes it of the arguments
        values["key"] = job.row.key or ""
    if task is None:
        args = {enqueueing.ARGS: args}
    return enqueueing.filled(fields, args), enqueueing.options(values)


def _form(
    visit: Visit, name: str, fields: list[Field], options: list[Option], *, like: str | None = None, error: str = ""
) -> View:
    task = _task(visit, name)
    wrong = bool(error) or any(each.error for each in [*fields, *options])
    data: dict[str, Any] = {
        "task": name,
        "is_known": task is not None,
        "description": None if task is None else ops.tasks([task], None)[0]["description"],
        "queue": None if task is None else task.options.queue,
        "fields": fields,
        "options": options,
        "like": like,
        "error": error,
        "is_wrong": wrong,
    }
    shape = {"task": name, "schema": None if task is None else ops.argument_schema(task)}
    if wrong:
        problems = {each.name: each.error for each in [*fields, *options] if each.error}
        shape = {**shape, "error": error or None, "problems": problems}
    return View("enqueue.html", f"Enqueue {name}", data, shape, 422 if wrong else 200, nav="tasks")


def enqueue(visit: Visit, form: Form) -> Done | View:
    name = check_name("task", visit.params["name"])
    task = _task(visit, name)
    fields = enqueueing.typed(enqueueing.fields_of(task), form)
    given = enqueueing.options(
        {option.name: form.get(f"option:{option.name}", "") for option in enqueueing.options({})}
    )
    chosen, options = enqueueing.read_options(given)
    try:
        args, fields = enqueueing.read(fields, task)
        if any(each.error for each in [*fields, *options]):
            return _form(visit, name, fields, options)
        job = acting.enqueue(visit.core, name, args, chosen, visit.by)
    except (DrayError, TypeError) as error:
        return _form(visit, name, fields, options, error=str(error))
    if job.duplicate:
        return Done(f"/jobs/{job.id}", "This job has the unique key; nothing was enqueued.")
    return Done(f"/jobs/{job.id}", f"Job {job.id} of {name} was enqueued.")


PAGES: list[Page] = [
    Page("/tasks", show_tasks, "tasks", _TOPICS, is_whole=True),
    Page("/tasks/{name}/enqueue", show_form, "tasks", is_whole=True, verb="enqueue"),
    Page("/tasks/{name}", show_task, "tasks", _TOPICS, is_whole=True),
]
POSTS: list[Post] = [Post("/tasks/{name}/enqueue", enqueue, "enqueue", is_whole=True)]
