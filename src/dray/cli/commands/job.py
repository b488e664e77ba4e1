"""``dray job``: what became of jobs, and what is to become of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dray import ops
from dray.cli import shapes, waiting
from dray.cli.acting import Action, command, named
from dray.cli.commands.jobs import state
from dray.cli.output import (
    Column,
    Shape,
    cell,
    fields,
    is_terminal,
    put,
    put_flat,
    put_json,
    put_line,
    relative,
    short,
)
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.times import Duration, span
from dray.model.job import CancelResult
from dray.sanitize import escape_control
from dray.wording import counted

if TYPE_CHECKING:
    from dray.app import App


@click.group()
@shared
def job() -> None:
    """Show, wait for, retry, cancel or delete jobs. An id may be shortened to any unique part of it."""


# Looking


@job.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@option("--show-args", is_flag=True, help="Arguments of tasks whose code is not here, too: they may hold secrets.")
@shared
def show(ids: Sequence[str], *, show_args: bool) -> None:
    """All that is known of jobs.

    With --json one job is an object, several are an array. In a pipe: a line each, the name of the value first.
    What a task redacts is shown as ***; so are all arguments of a task whose code is not here to say what it redacts.
    """
    app = app_on_tables()
    app.hides_unknown_args = not show_args
    found = [shapes.whole_job(app.job(job_id)) for job_id in named(app, ids)]
    if wants_json():
        put_json(found[0] if len(found) == 1 else found)
        return
    for shape in found:
        if is_terminal():
            _show(shape)
        else:
            put_flat(shape)


@job.command()
@click.argument("job_id", metavar="ID")
@option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most so many, the oldest.")
@option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Those after this one.")
@shared
def logs(job_id: str, limit: int, after: int) -> None:
    """What was logged inside a job, oldest first. In a pipe: at, level, logger, message."""
    app = app_on_tables()
    found = app.job(ops.job_named(app.backend, job_id))
    lines = [shapes.log_line(line) for line in found.logs(after=after, limit=limit)]
    if wants_json():
        put_json(lines)
        return
    for line in lines:
        if is_terminal():
            when = line["at"].astimezone()
            put(f"{when:%Y-%m-%d %H:%M:%S} {cell(line['level']):<7} {cell(line['logger'])}: {cell(line['message'])}")
        else:
            put_line(line["at"], line["level"], line["logger"], line["message"])


@job.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@option("--timeout", type=Duration(), metavar="TIME", help="Wait no longer than this (exit code 4).")
@shared
def wait(ids: Sequence[str], timeout: float | None) -> int:
    """Wait for jobs to end (exit code 3: one of them failed or was cancelled).

    Prints the result of one, as JSON; of several: id, state and result.
    """
    app = app_on_tables()
    known = named(app, ids)
    ended = waiting.wait(app, known, timeout)
    jobs = [ended[job_id] for job_id in known]
    if wants_json():
        found = [shapes.whole_job(app.job(each.id)) for each in jobs]
        put_json(found[0] if len(found) == 1 else found)
    elif len(jobs) > 1:
        for each in jobs:
            put_line(each.id, each.state, shapes.result_text(each.result))
    elif jobs[0].state == "completed":
        put(shapes.result_text(jobs[0].result))
    return waiting.judge(jobs)


# Acting


def _cancel(app: App, ids: Sequence[str]) -> list[str]:
    return [job_id for job_id, result in ops.cancel(app, ids).items() if result is not CancelResult.FINAL]


def _delete(app: App, ids: Sequence[str]) -> list[str]:
    return app.backend.jobs.delete(ids)


_ACTIONS = (
    Action(
        verb="retry",
        done="retried",
        about="Start jobs over that have ended, their attempts at 0.",
        why_not="it has not ended, or its arguments were not kept",
        states=("failed",),
        act=ops.retry,
    ),
    Action(
        verb="cancel",
        done="cancelled",
        about="End jobs that have not started, and ask running ones to stop.",
        why_not="it had ended already",
        states=("waiting", "scheduled", "queued", "running"),
        act=_cancel,
    ),
    Action(
        verb="delete",
        done="deleted",
        about="Remove jobs with their history. Not running ones, nor those that a live job needs.",
        why_not="it runs, or a live job needs it",
        states=("completed", "failed", "cancelled"),
        act=_delete,
    ),
)
for action in _ACTIONS:
    job.add_command(command(action))


# On a terminal


def _of(value: Any, shape: Shape) -> str:
    return f"{value} of {shape['max_attempts']}"


def _progress(value: Any, shape: Shape) -> str:
    return f"{value:g}% {shape['progress_message'] or ''}".rstrip()


def _jobs(value: Any, _: Shape) -> str:
    return counted(value, "job") if value else ""


def _if_to_come(value: Any, shape: Shape) -> str:
    return relative(value, shape) if shape["state"] in {"scheduled", "waiting"} else ""


def _json(value: Any, _: Shape) -> str:
    return shapes.json_text(value)


_FIELDS = (
    Column("job", "id"),
    Column("task", "task"),
    Column("name", "name"),
    Column("description", "description"),
    Column("queue", "queue"),
    Column("priority", "priority"),
    Column("tags", "tags"),
    Column("state", "state", state),
    Column("attempt", "attempt", _of),
    Column("worker", "worker"),
    Column("enqueued", "created_at", relative),
    Column("runs", "run_at", _if_to_come),
    Column("started", "started_at", relative),
    Column("finished", "finished_at", relative),
    Column("expires", "expires_at", relative),
    Column("waits for", "waiting_on", _jobs),
    Column("unique", "unique"),
    Column("progress", "progress", _progress),
    Column("args", "args", _json),
    Column("result", "result", _json),
    Column("error", "error"),
)


def _show(shape: dict[str, Any]) -> None:
    for line in described(shape):
        put(line)


def described(shape: dict[str, Any]) -> list[str]:
    """A whole job as people read it, line by line."""
    lines = fields(shape, _FIELDS)
    for attempt in shape["attempts"]:
        began, ended, error = attempt["started_at"], attempt["finished_at"], attempt["error"]
        took = f" in {span((ended - began).total_seconds())}" if began and ended else ""
        what = f": {cell(error['type'])}: {cell(error['message'])}" if error else ""
        lines.append(f"  attempt {attempt['number']} {attempt['outcome']}{took} on {short(attempt['worker'])}{what}")
    last = shape["attempts"][-1]["error"] if shape["attempts"] else None
    traceback = (last and last["traceback"]) or ""
    return [*lines, *(f"    {escape_control(line)}" for line in traceback.splitlines())]
