"""``dray stats``: the numbers of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dray.cli.output import Column, Shape, is_terminal, put, put_flat, put_json, put_table
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.states import STATES, state_columns
from dray.cli.times import Duration, span

if TYPE_CHECKING:
    from dray.ops import Stats


def _age(value: Any, _: Shape) -> str:
    return "" if value is None else span(value)


@click.command()
@option("--window", type=Duration(), default=3600.0, metavar="TIME", help="What rates and run times are of (1h).")
@shared
def stats(window: float) -> None:
    """Jobs by state and queue, how long the oldest waits, rates and run times.

    In a pipe: a line each, the name of the number first.
    """
    app = app_on_tables()
    found = app.stats(window)
    shape = {"database": app.settings.place, **found.as_dict()}
    if wants_json():
        put_json(shape)
    elif is_terminal():
        _show(app.settings.place, found)
    else:
        put_flat(shape)


def _show(place: str, found: Stats) -> None:
    put(place)
    rows = [
        {"queue": name, "oldest": found.oldest_queued.get(name), **{state: jobs.get(state, 0) for state in STATES}}
        for name, jobs in found.queues.items()
    ]
    rows.append({"queue": "all", "oldest": found.oldest_queued_age, **found.states})
    columns = (
        Column("queue", "queue", is_elastic=True),
        *state_columns(rows),
        Column("oldest", "oldest", _age, rank=1),
    )
    put_table(rows, columns)
    ended = ", ".join(f"{count:,} {state}" for state, count in found.finished.items())
    put(f"in the last {span(found.window)}: {ended}; {found.throughput:.3g} a second")
    if found.p50 is not None and found.p95 is not None:
        put(f"run time: half at most {span(found.p50)}, 95 of 100 at most {span(found.p95)}")
