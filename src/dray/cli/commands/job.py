"""``dray job``: shows jobs, waits for them, and retries, cancels or deletes them.

Actions take ids, or ``--all`` with filters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import click

import dray
from dray.cli import shapes, waiting
from dray.cli.apps import app_on_tables
from dray.cli.cells import Shape, cell, relative, short, state
from dray.cli.exits import Code, say
from dray.cli.options import Group, option, wants_json
from dray.cli.output import Column, fields, flat, line, one_or_all, put_either, put_line, put_list
from dray.cli.parsing import confirm, filters, given, time_option
from dray.handle import job as handles
from dray.model.job import CancelResult
from dray.ops import listing
from dray.sanitize import escape_control
from dray.wording import counted, span

_CHUNK = 500  # jobs in one transaction
_PAGE = 1000


@click.group(cls=Group)
def job() -> None:
    """Show, wait for, retry, cancel or delete jobs. An id may be shortened to any unique part of it."""


@job.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@option("--show-args", is_flag=True, help="Show arguments of unknown tasks too; they may hold secrets.")
def show(ids: Sequence[str], *, show_args: bool) -> None:
    """Show everything about jobs.

    With --json one job is an object, several are an array. In a pipe: a line for each value, its name first.
    Arguments that a task redacts are shown as ***. So are all arguments of a task whose code is not here.
    """
    app = app_on_tables()
    app.hides_unknown_args = not show_args
    found = [shapes.whole_job(app.job(job_id)) for job_id in _named(app, ids)]
    put_either(
        one_or_all(found),
        lambda: (each for shape in found for each in described(shape)),
        lambda: (each for shape in found for each in flat(shape)),
    )


@job.command()
@click.argument("job_id", metavar="ID")
@option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number, oldest first.")
@option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Those after this one.")
def logs(job_id: str, limit: int, after: int) -> None:
    """Show what was logged inside a job, oldest first. In a pipe: at, level, logger, message."""
    app = app_on_tables()
    found = app.job(listing.job_named(app.backend, job_id))
    lines = [shapes.log_line(each) for each in found.logs(after=after, limit=limit)]
    put_either(
        lines,
        lambda: (_log_words(each) for each in lines),
        lambda: (line(each["at"], each["level"], each["logger"], each["message"]) for each in lines),
    )


def _log_words(shape: Shape) -> str:
    when = shape["at"].astimezone()
    return f"{when:%Y-%m-%d %H:%M:%S} {cell(shape['level']):<7} {cell(shape['logger'])}: {cell(shape['message'])}"


@job.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@time_option("--timeout", help="Wait no longer than this (exit code 4).")
def wait(ids: Sequence[str], timeout: float | None) -> int:
    """Wait for jobs to end (exit code 3: one of them failed or was cancelled).

    Prints the result of one job as JSON; of several: id, state and result.
    """
    app = app_on_tables()
    known = _named(app, ids)
    ended = waiting.wait(app, known, timeout)
    found = [ended[job_id] for job_id in known]

    def results() -> Iterator[str]:
        if len(found) > 1:
            for each in found:
                yield line(each.id, each.state, shapes.result_text(each.result))
        elif found[0].state == "completed":
            yield shapes.result_text(found[0].result)

    shown = [shapes.whole_job(app.job(each.id)) for each in found] if wants_json() else []
    put_either(one_or_all(shown), results, results)
    return waiting.judge(found)


_FIELDS = (
    Column("job", "id"),
    Column("task", "task"),
    Column("name", "name"),
    Column("description", "description"),
    Column("queue", "queue"),
    Column("priority", "priority"),
    Column("tags", "tags"),
    Column("state", "state", state),
    Column("attempt", "attempt", "{attempt} of {max_attempts}"),
    Column("worker", "worker"),
    Column("enqueued", "created_at", relative),
    Column("runs", "run_at", lambda at, job: relative(at, job) if job["state"] in {"scheduled", "waiting"} else ""),
    Column("started", "started_at", relative),
    Column("finished", "finished_at", relative),
    Column("expires", "expires_at", relative),
    Column("waits for", "waiting_on", lambda jobs, _: counted(jobs, "job") if jobs else ""),
    Column("unique", "unique"),
    Column("progress", "progress", lambda percent, job: f"{percent:g}% {job['progress_message'] or ''}".rstrip()),
    Column("args", "args", lambda value, _: json.dumps(value)),
    Column("result", "result", lambda value, _: json.dumps(value)),
    Column("error", "error"),
)


def described(shape: dict[str, Any]) -> list[str]:
    """Returns the lines of `dray job show`."""
    lines = fields(shape, _FIELDS)
    for attempt in shape["attempts"]:
        began, ended, error = attempt["started_at"], attempt["finished_at"], attempt["error"]
        took = f" in {span((ended - began).total_seconds())}" if began and ended else ""
        what = f": {cell(error['type'])}: {cell(error['message'])}" if error else ""
        lines.append(f"  attempt {attempt['number']} {attempt['outcome']}{took} on {short(attempt['worker'])}{what}")
    last = shape["attempts"][-1]["error"] if shape["attempts"] else None
    traceback = (last and last["traceback"]) or ""
    return [*lines, *(f"    {escape_control(each)}" for each in traceback.splitlines())]


_Act: TypeAlias = "Callable[[dray.App, Sequence[str]], Collection[str]]"  # returns the ids of the jobs it was done to


def _action(done: str, why_not: str, *all_states: str) -> Callable[[_Act], click.Command]:
    """Makes ``dray job VERB ID...``, or ``--all`` with filters, of a function with the verb's name.

    ``done``: the verb's participle; ``why_not``: possible reasons if it was not done; ``all_states``: what --all
    means, unless states are named.
    """

    def make(act: _Act) -> click.Command:
        verb = act.__name__

        @job.command(verb, help=act.__doc__)
        @click.argument("ids", nargs=-1, metavar="[ID...]")
        @option(
            "--all", "everything", is_flag=True, help=f"All that fit; {', '.join(all_states)} if no state is named."
        )
        @filters
        @option("--yes", is_flag=True, help="Do not ask.")
        @option("--dry-run", is_flag=True, help="Only say how many jobs it would be.")
        def run(ids: Sequence[str], *, everything: bool, yes: bool, dry_run: bool, **options: Any) -> int:
            fit = given(options)
            if bool(ids) is everything:
                raise click.UsageError("name jobs by their ids, or give --all with filters; one of the two")
            if ids and fit:
                raise click.UsageError(f"--{next(iter(fit))} goes with --all")
            app = app_on_tables()
            chosen = _fitting(app, {"state": all_states, **fit}) if everything else _named(app, ids)
            if dry_run:
                untouched = [{"id": job_id, done: False} for job_id in chosen]
                put_line(lambda: untouched, f"would {verb} {counted(len(chosen), 'job')}")
                return Code.DONE
            if everything and not yes:
                confirm(verb, len(chosen), "nothing was done")
            acted = {i for start in range(0, len(chosen), _CHUNK) for i in act(app, chosen[start : start + _CHUNK])}
            return _report(chosen, acted, done, None if everything else why_not)

        return run

    return make


def _named(app: dray.App, parts: Sequence[str]) -> list[str]:
    """Returns the ids of the jobs that parts of ids name, each once; raises if one of them does not exist."""
    ids = list(dict.fromkeys(listing.job_named(app.backend, part) for part in parts))
    for job_id in ids:
        app.job(job_id)
    return ids


def _fitting(app: dray.App, fit: dict[str, Any]) -> list[str]:
    ids: list[str] = []
    page = app.jobs(**fit, limit=_PAGE)
    while page:
        ids += [job.id for job in page]
        page = app.jobs(**fit, limit=_PAGE, after=page[-1].id)
    return ids


def _report(chosen: Sequence[str], acted: Collection[str], done: str, why_not: str | None) -> int:
    """Says what was done to which jobs and, unless ``why_not`` is None, to which it was not."""
    if why_not is None or wants_json():
        results = [{"id": job_id, done: job_id in acted} for job_id in chosen]
        put_line(lambda: results, f"{done} {len(acted)} of {counted(len(chosen), 'job')}")
    else:
        happened = [{"id": job_id} for job_id in chosen if job_id in acted]
        put_list(happened, [Column(done, "id", short)], f"{done} none")
    refused = [] if why_not is None else [job_id for job_id in chosen if job_id not in acted]
    for job_id in refused:
        say(f"job {short(job_id)} was not {done}: {why_not}")
    return Code.FAILED if refused else Code.DONE


@_action("retried", "it has not ended, or its arguments were not kept", "failed")
def retry(app: dray.App, ids: Sequence[str]) -> Collection[str]:
    """Start ended jobs over, with their attempts at 0."""
    return handles.retry(app, ids)


@_action("cancelled", "it had ended already", "waiting", "scheduled", "queued", "running")
def cancel(app: dray.App, ids: Sequence[str]) -> Collection[str]:
    """Cancel jobs that have not started, and ask running ones to stop."""
    return [job_id for job_id, result in handles.cancel(app, ids).items() if result is not CancelResult.FINAL]


@_action("deleted", "it runs, or a live job needs it", "completed", "failed", "cancelled")
def delete(app: dray.App, ids: Sequence[str]) -> Collection[str]:
    """Remove jobs with their history, except running ones and those that a live job needs."""
    return app.backend.jobs.delete(ids)
