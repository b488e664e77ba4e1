"""``dray job``: shows jobs, waits for them, and retries, cancels or deletes them.

Actions take ids, or ``--all`` with a search and filters.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import click

import dray
from dray.app_interface import core_of
from dray.cli import waiting
from dray.cli.apps import app_on_tables, person
from dray.cli.cells import Shape, cell, relative, short, state
from dray.cli.exits import Code, say
from dray.cli.options import Group, option, wants_json
from dray.cli.output import Column, fields, flat, line, one_or_all, progress, put_either, put_line, put_list
from dray.cli.parsing import confirm, filters, given, meant, time_option
from dray.cli.searching import narrowed, searched
from dray.model.values import canonical_id
from dray.ops import acting, bulk, listing, shapes
from dray.ops.bulk import Bulk, BulkVerb
from dray.sanitize import escape_control
from dray.wording import attempt_name, counted, span, with_short_ids


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
    core_of(app).hides_unknown_args = not show_args
    found = shapes.whole_jobs(core_of(app), _named(app, ids))
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
    found = app.job(listing.job_named(core_of(app).backend, job_id))
    lines = [shapes.log_line(each) for each in found.logs(after=after, limit=limit)]
    put_either(
        lines,
        lambda: log_words(found, lines),
        lambda: (line(each["at"], each["level"], each["logger"], each["message"]) for each in lines),
    )


def log_words(job: dray.Job[Any], lines: Sequence[Shape]) -> Iterator[str]:
    """Returns the lines of `dray job logs`; where several attempts logged, each has a heading."""
    claims = {shape["claim"] for shape in lines}
    tries = {each.claim: each for each in job.attempts()} if len(claims) > 1 else {}
    has_started_over = any(each.start > 1 for each in tries.values())
    last = None
    for shape in lines:
        if len(claims) > 1 and shape["claim"] != last:
            last = shape["claim"]
            attempt = tries.get(last)  # None: it was given back, or is not kept
            start = attempt.start if attempt and has_started_over else None
            yield f"{attempt_name(attempt.number, start)}:" if attempt else "an attempt that was not counted:"
        when = shape["at"].astimezone()
        yield f"{when:%Y-%m-%d %H:%M:%S} {cell(shape['level']):<7} {cell(shape['logger'])}: {cell(shape['message'])}"


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

    shown = shapes.whole_jobs(core_of(app), [each.id for each in found]) if wants_json() else []
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
    Column("key", "key"),
    Column("state", "state", state),
    Column("attempt", "attempt", "{attempt} of {max_attempts}"),
    Column("worker", "worker"),
    Column("enqueued", "created_at", relative),
    Column("runs", "run_at", lambda at, job: relative(at, job) if job["state"] in {"scheduled", "waiting"} else ""),
    Column("started", "started_at", relative),
    Column("finished", "finished_at", relative),
    Column("expires", "expires_at", relative),
    Column("workflow", "workflow", lambda run, job: f"{job['workflow_name'] or ''} {run}".strip()),
    Column("step", "step"),
    Column("schedule", "schedule"),
    Column("waits for", "waiting_on", lambda jobs, job: counted(jobs, "job") if job["state"] == "waiting" else ""),
    Column("unique", "unique"),
    Column("headers", "headers", lambda value, _: json.dumps(value)),
    Column("retry", "retry"),
    Column("retry on", "retry_on"),
    Column("kept for", "keep_for", lambda seconds, _: span(seconds)),
    Column("progress", "progress", lambda percent, job: f"{percent:g}% {job['progress_message'] or ''}".rstrip()),
    Column("args", "args", lambda value, _: json.dumps(value)),
    Column("result", "result", lambda value, _: json.dumps(value)),
    Column("error", "error"),
)


def described(shape: dict[str, Any]) -> list[str]:
    """Returns the lines of `dray job show`."""
    lines = fields(shape, _FIELDS)
    has_started_over = any(attempt["start"] > 1 for attempt in shape["attempts"])
    for attempt in shape["attempts"]:
        began, ended, error = attempt["started_at"], attempt["finished_at"], attempt["error"]
        took = f" in {span((ended - began).total_seconds())}" if began and ended else ""
        what = f": {cell(error['type'])}: {cell(error['message'])}" if error else ""
        name = attempt_name(attempt["number"], attempt["start"] if has_started_over else None)
        lines.append(f"  {name} {attempt['outcome']}{took} on {short(attempt['worker'])}{what}")
    last = shape["attempts"][-1]["error"] if shape["attempts"] else None
    traceback = (last and last["traceback"]) or ""
    return [*lines, *(f"    {escape_control(each)}" for each in traceback.splitlines())]


def _action(done: str, verb: BulkVerb, doc: str) -> None:
    """Makes ``dray job VERB ID...``, or ``--all`` with a search; ``done``: the verb's participle."""

    @job.command(verb, help=doc)
    @click.argument("ids_or_search", nargs=-1, metavar="[ID... | SEARCH...]")
    @option(
        "--all",
        "everything",
        is_flag=True,
        help=f'All that fit: --all "task:mail.* since:1h"; {", ".join(bulk.STATES[verb])} if no state is named.',
    )
    @filters
    @option("--yes", is_flag=True, help="Do not ask.")
    @option("--dry-run", is_flag=True, help="Only say how many jobs it would be.")
    def run(ids_or_search: Sequence[str], *, everything: bool, yes: bool, dry_run: bool, **options: Any) -> int:
        words, fit = ids_or_search, given(options)
        if not (words or everything) or (everything and any(map(canonical_id, words))):
            raise click.UsageError("name jobs by their ids, or give --all with a search or filters; one of the two")
        if words and fit and not everything:
            raise click.UsageError(f"--{next(iter(fit))} goes with --all")
        search = searched(words) if everything else None
        app = app_on_tables()
        if search is None:
            return _on_named(app, verb, done, _named(app, words), is_dry=dry_run)
        selection = bulk.freeze(core_of(app), narrowed(search, meant(app, fit)))
        return _on_all(Bulk(core_of(app), selection, verb, person()), done, asks=not yes, is_dry=dry_run)


def _on_named(app: dray.App, verb: BulkVerb, done: str, ids: Sequence[str], *, is_dry: bool) -> int:
    if is_dry:
        return _would(verb, done, ids)
    act = {"retry": acting.retry, "cancel": acting.cancel, "delete": acting.delete}[verb]
    acted = act(core_of(app), ids, person())
    _report(ids, set(acted.done), done, are_listed=True)
    for job_id in (each for each in ids if each in acted.refused):
        say(f"job {short(job_id)} was not {done}: {with_short_ids(acted.refused[job_id])}")
    return Code.FAILED if acted.refused else Code.DONE


def _on_all(action: Bulk, done: str, *, asks: bool, is_dry: bool) -> int:
    with progress("found") as report:
        while (found := action.step()).is_looking:
            report(found.left_known, None)
    chosen = sorted(action.ids, reverse=True)
    if is_dry:
        return _would(action.verb, done, chosen)
    if asks:
        confirm(action.verb, len(chosen), "nothing was done")
    acted = set[str]()
    with progress(done) as report:
        while not (found := action.step()).is_over:
            acted.update(action.acted.done)
            report(len(chosen) - found.left_known, len(chosen))
        acted.update(action.acted.done)
    _report(chosen, acted, done, are_listed=False)
    if found.refused:
        job_id, why = next(iter(found.first_refusals.items()))
        what = f"{counted(found.refused, 'job was', 'jobs were')} not {done}"
        say(f"{what}; the first is {short(job_id)}: {with_short_ids(why)}")
    return Code.DONE


def _would(verb: str, done: str, ids: Sequence[str]) -> int:
    untouched = [{"id": job_id, done: False} for job_id in ids]
    put_line(lambda: untouched, f"would {verb} {counted(len(ids), 'job')}")
    return Code.DONE


def _named(app: dray.App, parts: Sequence[str]) -> list[str]:
    """Returns the ids of the jobs that parts of ids name, each once; raises if one of them does not exist."""
    ids = list(dict.fromkeys(listing.job_named(core_of(app).backend, part) for part in parts))
    for job_id in ids:
        app.job(job_id)
    return ids


def _report(chosen: Sequence[str], acted: Collection[str], done: str, *, are_listed: bool) -> None:
    """Says to which jobs it was done, or to how many."""
    if not are_listed or wants_json():
        results = [{"id": job_id, done: job_id in acted} for job_id in chosen]
        put_line(lambda: results, f"{done} {len(acted)} of {counted(len(chosen), 'job')}")
    else:
        happened = [{"id": job_id} for job_id in chosen if job_id in acted]
        put_list(happened, [Column(done, "id", short)], f"{done} none")


_action("retried", "retry", "Start ended jobs over, with their attempts at 0.")
_action("cancelled", "cancel", "Cancel jobs that have not started, and ask running ones to stop.")
_action("deleted", "delete", "Remove jobs with their history, except running ones and those that others need.")
