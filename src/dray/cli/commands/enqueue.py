"""``dray enqueue``: enqueues one job, by the name of its task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

import dray
from dray.cli import shapes, waiting
from dray.cli.apps import app_for_enqueueing, load_tasks, task_to_fit
from dray.cli.exits import Code, say
from dray.cli.options import option, shared, wants_json
from dray.cli.output import put, put_json, short
from dray.cli.parsing import Duration, Instant, arguments, given

if TYPE_CHECKING:
    from dray.handle import Job


@click.command()
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE...]")
@option("--args", metavar="JSON", help="Arguments as a JSON object; - reads it from stdin.")
@option("--queue", help="A queue other than the task's.")
@option("--priority", type=int, help="Higher runs first.")
@option("--delay", type=Duration(), metavar="TIME", help="Run it after this time: 30, 5m, 1h30m.")
@option("--at", "run_at", type=Instant(), metavar="TIME", help="Run it at this time: 2026-11-15T08:00, or 08:00.")
@option(
    "--unique", metavar="KEY", help="A unique key: if a live job has it, print that job's id and enqueue nothing."
)
@option("--unique-args", is_flag=True, help="As --unique, with the task and its arguments as the key.")
@option("--max-attempts", type=click.IntRange(1), metavar="N", help="Maximum number of attempts.")
@option("--tag", "tags", multiple=True, help="A tag (repeat for several).")
@option("--name", help="A name for people to read.")
@option("--unchecked", is_flag=True, help="Enqueue it even if no task of this name is known here.")
@option("--wait", is_flag=True, help="Wait for its end and print its result (exit code 3: it failed).")
@option("--timeout", type=Duration(), metavar="TIME", help="Wait no longer than this (exit code 4).")
@shared
def enqueue(
    task: str,
    words: Sequence[str],
    args: str | None,
    run_at: datetime | None,
    unique: str | None,
    timeout: float | None,
    *,
    unique_args: bool,
    unchecked: bool,
    wait: bool,
    **options: Any,
) -> int:
    """Put a job of TASK into its queue and print its id.

    A VALUE that reads as JSON is JSON, any other is text; for a parameter of type str it is always text. With
    NAME:=VALUE it must be JSON.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    if unique and unique_args:
        raise click.UsageError("--unique and --unique-args are two keys; give only one of them")
    app = app_for_enqueueing()
    load_tasks(app)
    known = task_to_fit(app, task, unchecked=unchecked)
    using: dict[str, Any] = {**options, "run_at": run_at, "unique": unique_args or unique}
    try:
        job = app.enqueue(task, arguments(words, args, known), **given(using))
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    if job.duplicate:
        say(f"job {short(job.id)} has this unique key; nothing was enqueued")
    return _await(app, job, timeout) if wait else _put(job)


def _put(job: Job[Any]) -> int:
    if wants_json():
        put_json({**shapes.job(job), "duplicate": job.duplicate})
    else:
        put(job.id)
    return Code.DONE


def _await(app: dray.App, job: Job[Any], timeout: float | None) -> int:
    ended = waiting.wait(app, [job.id], timeout)[job.id]
    if wants_json():
        put_json({**shapes.whole_job(job), "duplicate": job.duplicate})
    elif ended.state == "completed":
        put(shapes.result_text(ended.result))
    return waiting.judge([ended])
