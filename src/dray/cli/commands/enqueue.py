"""``dray enqueue``: puts one job into its queue, by the name of its task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from dray.cli import shapes, waiting
from dray.cli.exits import Code, say
from dray.cli.output import put, put_json, short
from dray.cli.shared import app_for_enqueueing, load_tasks, option, shared, task_to_fit, wants_json
from dray.cli.times import Duration, Instant
from dray.cli.values import arguments

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import Job


@click.command()
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE...]")
@option("--args", metavar="JSON", help="Arguments as a JSON object; - reads it from stdin.")
@option("--queue", help="Another queue than the task's.")
@option("--priority", type=int, help="Higher runs first.")
@option("--delay", type=Duration(), metavar="TIME", help="Not before this time has passed: 30, 5m, 1h30m.")
@option("--at", "run_at", type=Instant(), metavar="TIME", help="Not before: 2026-11-15T08:00, or 08:00.")
@option("--unique", metavar="KEY", help="Not while another job with this key is live; the answer is then that one.")
@option("--unique-args", is_flag=True, help="The same, with the task and its arguments as the key.")
@option("--max-attempts", type=click.IntRange(1), metavar="N", help="All attempts.")
@option("--tag", "tags", multiple=True, help="A tag (repeat for several).")
@option("--name", help="A name for people to read.")
@option("--unchecked", is_flag=True, help="Enqueue it though no task of this name is known here.")
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

    A VALUE that reads as JSON is taken as JSON, all else as text (always so where the parameter is a str);
    NAME:=VALUE must be JSON.
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
        job = app.enqueue(task, arguments(words, args, known), **_given(using))
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    if job.duplicate:
        say(f"job {short(job.id)} has this unique key; nothing was enqueued")
    return _await(app, job, timeout) if wait else _put(job)


def _given(using: dict[str, Any]) -> Any:
    return {name: value for name, value in using.items() if value is not None and value != ()}


def _put(job: Job[Any]) -> int:
    if wants_json():
        put_json({**shapes.job(job), "duplicate": job.duplicate})
    else:
        put(job.id)
    return Code.DONE


def _await(app: App, job: Job[Any], timeout: float | None) -> int:
    ended = waiting.wait(app, [job.id], timeout)[job.id]
    if wants_json():
        put_json({**shapes.whole_job(job), "duplicate": job.duplicate})
    elif ended.state == "completed":
        put(shapes.result_text(ended.result))
    return waiting.judge([ended])
