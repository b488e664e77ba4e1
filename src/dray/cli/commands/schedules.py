"""``dray schedules``: what is enqueued by the clock, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

import dray
from dray.app_interface import AppInterface, core_of
from dray.cli.apps import app_on_tables, app_with_tasks_on_tables, person, task_to_fit
from dray.cli.cells import relative
from dray.cli.exits import say
from dray.cli.options import Group, option, wants_json
from dray.cli.output import Column, line, put_either, put_line, put_list
from dray.cli.parsing import arguments, given, time_option
from dray.model.action import By
from dray.model.schedule import MISFIRE_LIMIT, MISFIRE_LIMIT_MAX, Misfire, Overlap
from dray.ops import acting, listing, shapes
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
    info = _named(app_on_tables(), [name])[0]
    times = info.next(count)
    put_either(times, lambda: (_local(when, info.tz) for when in times), lambda: map(line, times))
    if info.is_paused and not wants_json():
        say(f"schedule {info.name} is paused; these are its times once it is resumed")


def _local(when: datetime, tz: str) -> str:
    local = when if tz == "UTC" else when.astimezone(ZoneInfo(tz))
    return f"{local:%a %Y-%m-%d %H:%M:%S %Z}  {relative(when, {})}"


@schedules.command()
@click.argument("name")
def run(name: str) -> None:
    """Enqueue a job of a schedule now, in addition to its slots, and print its id."""
    app = app_with_tasks_on_tables()
    job = acting.run_schedule(core_of(app), listing.schedule_named(core_of(app).backend, name), person())
    put_line(lambda: shapes.job(job.refresh()), job.id)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def pause(names: Sequence[str]) -> None:
    """Fire no more slots of these schedules; jobs that are already enqueued go on."""
    _each(names, acting.pause_schedule, "was paused already")


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def resume(names: Sequence[str]) -> None:
    """Let paused schedules go on with their next slots."""
    _each(names, acting.resume_schedule, "was not paused")


def _each(names: Sequence[str], act: Callable[[AppInterface, str, By], bool], otherwise: str) -> None:
    app = app_on_tables()
    found = _named(app, names)
    for each in found:
        if not act(core_of(app), each.name, person()):
            say(f"schedule {each.name} {otherwise}")
    _put(app, [each.name for each in found])


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
        core_of(app).all_schedules.write(name, task, {"args": arguments(words, args, known), **given(rule)})
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    _put(app, [name])


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: Sequence[str]) -> None:
    """Remove schedules; their jobs stay."""
    app = app_on_tables()
    gone = [each.name for each in _named(app, names)]
    for name in gone:
        acting.remove_schedule(core_of(app), name, person())
    removed = [{"name": name, "removed": True} for name in gone]
    put_either(removed, lambda: map(line, gone), lambda: map(line, gone))


def _named(app: dray.App, parts: Sequence[str]) -> list[ScheduleInfo]:
    """Returns the schedules that parts of their names mean, each once; raises before anything is done if one is
    unknown."""
    names = list(dict.fromkeys(listing.schedule_named(core_of(app).backend, part) for part in parts))
    by_name = {info.name: info for info in app.schedules()}
    return [by_name[name] for name in names if name in by_name]
