"""``dray jobs``: a list of jobs, newest first."""

from __future__ import annotations

from typing import Any

import click

from dray.cli import shapes
from dray.cli.apps import app_on_tables
from dray.cli.cells import Shape, relative, short, state
from dray.cli.options import command, option, wants_json
from dray.cli.output import TRIES, Column, is_terminal, put_list
from dray.cli.parsing import filters, given
from dray.ops import listing
from dray.wording import span


def _took(value: Any, shape: Shape) -> str:
    started = shape["started_at"]
    return span((value - started).total_seconds()) if value and started else ""


def _note(value: Any, shape: Shape) -> str:
    if shape["state"] == "running" and shape["progress"] is not None:
        return f"{shape['progress']:.0f}% {shape['progress_message'] or ''}".rstrip()
    return value or ""


_COLUMNS = (
    Column("id", "id", short),
    Column("task", "task", is_elastic=True, rank=1),
    Column("queue", "queue", rank=3),
    Column("state", "state", state, is_elastic=True),
    Column("attempt", "attempt", TRIES, rank=5),
    Column("enqueued", "created_at", relative, rank=2),
    Column("took", "finished_at", _took, rank=4),
    Column("", "error", _note, is_elastic=True, rank=2),
)
_KEYS = "id task queue state reason attempt max_attempts priority created_at run_at started_at finished_at error"


@command()
@filters
@option("--limit", type=click.IntRange(1, listing.MAX_LIMIT), default=100, show_default=True, help="Maximum number.")
@option("--after", metavar="ID", help="Those that come after this job in the list.")
def jobs(limit: int, after: str | None, **options: Any) -> None:
    """List jobs, newest first.

    In a pipe: id, task, queue, state, reason, attempt, max_attempts, priority, created_at, run_at, started_at,
    finished_at, error, separated by tabs.
    """
    app = app_on_tables()
    cursor = None if after is None else listing.job_named(app.backend, after)
    found = app.jobs(**given(options), limit=limit, after=cursor)
    put_list([shapes.job(job) for job in found], _COLUMNS, "no jobs", _KEYS)
    if len(found) == limit and is_terminal() and not wants_json():
        click.echo(f"there may be more: --limit {limit * 10}, or --after {short(found[-1].id)}", err=True)
