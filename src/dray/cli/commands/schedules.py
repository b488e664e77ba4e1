"""``dray schedules``: what is enqueued by the clock, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

import dray
from dray.cli import shapes
from dray.cli.apps import app_on_tables, app_with_tasks_on_tables, task_to_fit
from dray.cli.cells import relative
from dray.cli.exits import say
from dray.cli.options import Group, option, wants_json
from dray.cli.output import Column, line, put_either, put_line, put_list
from dray.cli.parsing import arguments, given, time_option
from dray.errors import UnknownSchedule
from dray.model.schedule import MISFIRE_LIMIT, MISFIRE_LIMIT_MAX, Misfire, Overlap
from dray.model.values import shown
from dray.schedules import ScheduleInfo

_COLUMNS = (
    Column("schedule", "name", is_elastic=True),
    Column("task", "task", is_elastic=True, rank=2),
    Column("when", "rule", is_elastic=True),
    Column("next", "next_at", lambda at, each: "paused" if each["paused_at"] else relative(at, each)),
    Column("last", "last_at", relative, rank=1),
    Column("overlap", "overlap", rank=4),
    Column("misfire", "misfire", rank=3),
)
_KEYS = "name task rule next_at last_at paused_at queue misfire overlap args"


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def schedules(ctx: click.Context) -> None:
    """List, add, preview, run, pause, resume and remove schedules.

    In a pipe: name, task, rule, next_at, last_at, paused_at, queue, misfire, overlap, args.
    """
    if ctx.invoked_subcommand is None:
        _put(app_on_tables())


def _put(app: dray.App, only: Sequence[str] | None = None) -> None:
    found = [shapes.schedule(info) for info in app.schedules() if only is None or info.name in only]
    put_list(found, _COLUMNS, "no schedules; add one with app.schedule() or `dray schedules add`", _KEYS)


@schedules.command(name="list")
def list_() -> None:
    """List all schedules, as `dray schedules` does."""
    _put(app_on_tables())


@schedules.command(name="next")
@click.argument("name")
@option("-n", "count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many.")
def next_(name: str, count: int) -> None:
    """Show the next times of a schedule: on a terminal in its own time zone, in a pipe in UTC."""
    info = _named(app_on_tables(), name)
    times = info.next(count)
    put_either(times, lambda: (_local(when, info.tz) for when in times), lambda: map(line, times))
    if info.is_paused and not wants_json():
        say(f"schedule {name} is paused; these are its times once it is resumed")


def _local(when: datetime, tz: str) -> str:
    local = when if tz == "UTC" else when.astimezone(ZoneInfo(tz))
    return f"{local:%a %Y-%m-%d %H:%M:%S %Z}  {relative(when, {})}"


@schedules.command()
@click.argument("name")
def run(name: str) -> None:
    """Enqueue a job of a schedule now, in addition to its slots, and print its id."""
    job = app_with_tasks_on_tables().run_schedule(name)
    put_line(lambda: shapes.job(job.refresh()), job.id)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def pause(names: Sequence[str]) -> None:
    """Fire no more slots of these schedules; jobs that are already enqueued go on."""
    _each(names, lambda app, name: app.pause_schedule(name), "was paused already")


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def resume(names: Sequence[str]) -> None:
    """Let paused schedules go on with their next slots."""
    _each(names, lambda app, name: app.resume_schedule(name), "was not paused")


def _each(names: Sequence[str], act: Callable[[dray.App, str], bool], otherwise: str) -> None:
    app = app_on_tables()
    for found in [_named(app, name) for name in names]:  # an unknown name must fail before anything is done
        if not act(app, found.name):
            say(f"schedule {found.name} {otherwise}")
    _put(app, names)


@schedules.command()
@click.argument("name")
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE...]")
@option("--cron", metavar="LINE", help='Five fields, six with seconds first, or @daily: "0 3 * * *".')
@time_option("--every", help="An interval: 30, 5m, 1h30m.")
@option("--tz", metavar="ZONE", help="The time zone of the cron line, such as Europe/Berlin; else UTC.")
@option("--args", metavar="JSON", help="Arguments as a JSON object; - reads it from stdin.")
@option("--queue", help="A queue other than the task's.")
@option("--priority", type=int, metavar="N", help="Priority of its jobs, else that of the task; higher runs first.")
@option(
    "--misfire",
    type=click.Choice([word.value for word in Misfire]),
    help="Which missed slots to fire [last].",
)
@option(
    "--misfire-limit",
    type=click.IntRange(1, MISFIRE_LIMIT_MAX),
    metavar="N",
    help=f"Maximum number of missed slots to fire, with --misfire all [{MISFIRE_LIMIT}].",
)
@option(
    "--overlap",
    type=click.Choice([word.value for word in Overlap]),
    help="What to do while an earlier job of the schedule is live [allow].",
)
@option("--unchecked", is_flag=True, help="Add it even if no task of this name is known here.")
def add(name: str, task: str, words: Sequence[str], args: str | None, *, unchecked: bool, **rule: Any) -> None:
    """Create a schedule, or change the one of this name. Arguments are given as to `dray enqueue`."""
    app = app_with_tasks_on_tables()
    known = task_to_fit(app, task, unchecked=unchecked)
    try:
        app.all_schedules.write(name, task, {"args": arguments(words, args, known), **given(rule)})
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    _put(app, [name])


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: Sequence[str]) -> None:
    """Remove schedules; their jobs stay."""
    app = app_on_tables()
    for found in [_named(app, name) for name in names]:
        app.remove_schedule(found.name)
    removed = [{"name": name, "removed": True} for name in names]
    put_either(removed, lambda: map(line, names), lambda: map(line, names))


def _named(app: dray.App, name: str) -> ScheduleInfo:
    found = next((info for info in app.schedules() if info.name == name), None)
    if found is None:
        raise UnknownSchedule(f"no schedule is named {shown(name)}; `dray schedules` lists them")
    return found
