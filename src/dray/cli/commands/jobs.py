"""``dray jobs``: a list of jobs, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dray.app_interface import core_of
from dray.cli.apps import app_on_tables
from dray.cli.cells import Shape, relative, short, state, step_of
from dray.cli.options import command, option, wants_json
from dray.cli.output import TRIES, Column, is_terminal, put_list
from dray.cli.parsing import filters, given, meant
from dray.ops import listing, shapes
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
_STEP = Column("step", "workflow_name", step_of, is_elastic=True, rank=3)
_KEYS = (
    "id task queue state reason attempt max_attempts priority created_at run_at started_at finished_at error "
    "workflow step schedule"
)


@command()
@click.argument("words", nargs=-1, metavar="[SEARCH]...")
@filters
@option("--limit", type=click.IntRange(1, listing.MAX_LIMIT), default=100, show_default=True, help="Maximum number.")
@option("--after", metavar="ID", help="Those that come after this job in the list.")
def jobs(words: Sequence[str], limit: int, after: str | None, **options: Any) -> None:
    """List jobs, newest first.

    A search is "state:failed task:mail.* since:1h"; docs/reference/search.md has all filters. Jobs that have all
    ended come in the order in which they ended.

    In a pipe: id, task, queue, state, reason, attempt, max_attempts, priority, created_at, run_at, started_at,
    finished_at, error, workflow, step, schedule, separated by tabs.
    """
    if words:
        from dray.cli import searching  # noqa: PLC0415 - most lists are not searched

        search = searching.searched(words)
        app = app_on_tables()
        found = searching.found(app, searching.narrowed(search, meant(app, given(options))), limit, after)
    else:
        app = app_on_tables()
        cursor = None if after is None else listing.job_named(core_of(app).backend, after)
        found = app.jobs(**meant(app, given(options)), limit=limit, after=cursor)
    has_steps = any(job.row.workflow_id is not None for job in found)
    columns = (*_COLUMNS[:3], _STEP, *_COLUMNS[3:]) if has_steps else _COLUMNS
    put_list(shapes.jobs(core_of(app), found), columns, "no jobs", _KEYS)
    if len(found) == limit and is_terminal() and not wants_json():
        click.echo(f"there may be more: --limit {limit * 10}, or --after {short(found[-1].id)}", err=True)
