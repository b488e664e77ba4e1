"""``dray queues`` and ``dray stats``: what is in the queues, which are paused, and rates and run times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click

import dray
from dray.app_interface import AppInterface, core_of
from dray.cli.apps import app_on_tables, person
from dray.cli.cells import Shape, paused, seconds
from dray.cli.exits import say
from dray.cli.live.following import putting, repeat
from dray.cli.options import Group, command, option
from dray.cli.output import BESIDE_STATES, STATES, Column, flat, put_either, put_list, state_columns, table
from dray.cli.parsing import time_option
from dray.model.action import By
from dray.model.values import check_name
from dray.ops import acting, limits, shapes
from dray.ops.listing import Stats
from dray.wording import rate, span

_QUEUE_COLUMNS = (
    Column("queue", "name", is_elastic=True),
    Column("priority", "priority", is_number=True, rank=BESIDE_STATES),
    Column("", "paused_at", paused),
)
_LIMITS = Column("limits", "limits", lambda value, _: limits.words(value), is_elastic=True, rank=BESIDE_STATES)


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def queues(ctx: click.Context) -> None:
    """List, pause, resume and set queues.

    In a pipe: name, priority, paused_at, the number of waiting, scheduled, queued, running, completed, failed
    and cancelled jobs, and limits.
    """
    if ctx.invoked_subcommand is None:
        _put_queues(app_on_tables())


def _put_queues(app: dray.App, only: Sequence[str] | None = None) -> None:
    limited = limits.in_force(core_of(app).backend, "queue")
    chosen = [queue for queue in app.queues() if only is None or queue.name in only]
    found = [{**shapes.queue(queue), "limits": limited.get(queue.name)} for queue in chosen]
    columns = (*_QUEUE_COLUMNS, *state_columns(found), *([_LIMITS] if any(each["limits"] for each in found) else []))
    put_list(found, columns, "no queues")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
def pause(names: Sequence[str]) -> None:
    """Start no more jobs of these queues; running jobs go on."""
    _each(names, acting.pause_queue, "was paused already")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
def resume(names: Sequence[str]) -> None:
    """Let paused queues go on."""
    _each(names, acting.resume_queue, "was not paused")


def _each(names: Sequence[str], act: Callable[[AppInterface, str, By], bool], otherwise: str) -> None:
    for name in names:
        check_name("queue", name)
    app = app_on_tables()
    known = {queue.name for queue in app.queues()}
    for name in names:
        if not act(core_of(app), name, person()):
            say(f"queue {name} {otherwise}")
        elif name not in known:
            say(f"queue {name} has not been used so far")
    _put_queues(app, names)


@queues.command(name="set")
@click.argument("name", metavar="QUEUE")
@option("--priority", type=int, required=True, help="Of new jobs without a priority of their own; higher runs first.")
def set_(name: str, priority: int) -> None:
    """Change the settings of a queue."""
    app = app_on_tables()
    app.queue(name, priority=priority)
    _put_queues(app, [name])


_EVERY = 2
_SHORTEST = 0.1


@command()
@time_option("--window", default=3600.0, help="The period that rates and run times are about (1h).")
@time_option(
    "--watch",
    is_flag=False,
    flag_value=f"{_EVERY}s",
    metavar="[TIME]",
    help=f"Repeat every {_EVERY} seconds, or every TIME, until Ctrl-C.",
)
def stats(window: float, watch: float | None) -> None:
    """Show jobs by state and queue, the age of the oldest queued one, rates and run times.

    In a pipe: a line for each number, its name first. With --watch: in a pipe an empty line after each time, with
    --json one object per line.
    """
    app = app_on_tables()
    place = core_of(app).settings.place
    if watch is None:
        found = app.stats(window)
        put_either({"database": place, **found.as_dict()}, lambda: _words(place, found))
        return

    def shape(found: Stats) -> Shape:
        return {"at": datetime.now(UTC), "database": place, **found.as_dict()}

    put_one = putting(lambda found: _words(place, found), lambda found: flat(shape(found)), shape)
    repeat(lambda: app.stats(window), put_one, max(watch, _SHORTEST))


def _words(place: str, found: Stats) -> list[str]:
    rows = [
        {"queue": name, "oldest": found.oldest_queued.get(name), **{state: jobs.get(state, 0) for state in STATES}}
        for name, jobs in found.queues.items()
    ]
    rows.append({"queue": "all", "oldest": found.oldest_queued_age, **found.states})
    columns = (
        Column("queue", "queue", is_elastic=True),
        *state_columns(rows),
        Column("oldest", "oldest", seconds, rank=BESIDE_STATES),
    )
    finished = ", ".join(f"{count:,} {state}" for state, count in found.finished.items())
    lines = [
        place,
        *table(rows, columns),
        f"in the last {span(found.window)}: {finished}; {rate(found.throughput)}",
    ]
    if found.p50 is not None and found.p95 is not None:
        lines.append(f"run time: p50 {span(found.p50)}, p95 {span(found.p95)}")
    return lines
