"""``dray import``: jobs of another queue, brought over with their history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import click

import dray
from dray.app_interface import core_of
from dray.backends.migrate import command as how
from dray.cli.apps import app_with_tasks_on_tables, person
from dray.cli.exits import Code, Failure, say
from dray.cli.options import all_of, command, option, warn_of_password
from dray.cli.output import Column, line, progress, put_either, table
from dray.cli.root import LazyGroup
from dray.errors import ConfigError
from dray.integrations import importing
from dray.model.values import check_name
from dray.wording import counted

_COMMANDS = {
    "gigq": ("commands.importing", "bring the jobs of a GigQ file over"),
    "lilota": ("commands.importing", "bring the tasks of a lilota database over"),
}
_VARIABLE = "DRAY_IMPORT_LILOTA_SOURCE"
_SHOWN = 20  # problems, and tasks, that are named

_COLUMNS = (
    Column("state there", "state"),
    Column("becomes", "becomes", lambda value, _: value or "not carried"),
    Column("jobs", "jobs", is_number=True),
    Column("", "why", is_elastic=True),
)


@click.group("import", cls=LazyGroup, lazy=_COMMANDS)
def import_() -> None:
    """Bring jobs over from another queue, with their attempts, results, errors and logs."""


def _task_map(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in value:
        old, equals, new = word.partition("=")
        if not (old and equals and new):
            raise click.BadParameter(f"{word!r} is no pair; write OLD=NEW, such as shop.send=mail.send", ctx, param)
        try:
            found[old] = check_name("task", new)
        except ConfigError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return found


_shared = all_of(
    option("--queue", default="default", show_default=True, metavar="NAME", help="The queue that the jobs get into."),
    option(
        "--task-map",
        multiple=True,
        metavar="OLD=NEW",
        callback=_task_map,
        help="A task's name there and here (repeat for several).",
    ),
    option(
        "--running",
        type=click.Choice(["requeue", "skip"]),
        help="What to do with jobs that run there now: enqueue them here, so that they run again, or leave them out.",
    ),
    option("--dry-run", is_flag=True, help="Only say what would be carried."),
)


@command()
@click.argument("file", type=click.Path(path_type=Path))
@option("--timezone", metavar="ZONE", help="Of the machine that GigQ ran on; by default that of this one.")
@_shared
def gigq(
    file: Path, timezone: str | None, queue: str, task_map: dict[str, str], running: str | None, *, dry_run: bool
) -> None:
    """Bring the jobs of a GigQ file over. FILE is only read, and may be in use.

    Stop GigQ's workers first. Run again, it brings over what is new and nothing twice. In a pipe: state there, state
    here (empty: not carried), jobs, why not.
    """
    _import(
        lambda wishes: importing.GigQ(file, wishes),
        queue,
        task_map,
        running,
        dry_run=dry_run,
        zone=timezone and importing.zone(timezone),
    )


@command()
@click.argument("source", metavar="URL", envvar=_VARIABLE)
@option(
    "--argument",
    default="data",
    show_default=True,
    metavar="NAME",
    help="The argument that gets a task's input, where no code here knows the task.",
)
@_shared
def lilota(
    source: str, argument: str, queue: str, task_map: dict[str, str], running: str | None, *, dry_run: bool
) -> None:
    """Bring the tasks of a lilota database over. URL is lilota's own, of SQLite or PostgreSQL; it is only read.

    Stop lilota's workers first. A task and its retries are one job here. Run again, it brings over what is new and
    nothing twice. In a pipe: state there, state here (empty: not carried), jobs, why not.
    DRAY_IMPORT_LILOTA_SOURCE keeps a password out of the list of processes.
    """
    warn_of_password("source", source, _VARIABLE)
    importing.place(source)  # an address that is none is refused before anything is opened
    _import(
        lambda wishes: importing.Lilota(source, wishes), queue, task_map, running, dry_run=dry_run, argument=argument
    )


def _import(
    open_source: Callable[[importing.Wishes], importing.Source],
    queue: str,
    task_map: dict[str, str],
    running: str | None,
    *,
    dry_run: bool,
    **more: Any,
) -> None:
    app = app_with_tasks_on_tables()
    core = core_of(app)
    check_name("queue", queue)
    if core.backend.schema_version() is None:
        what = f"there are no tables; run {how('init', core.settings.place)}"
        raise Failure(f"{core.settings.place}: {what}", Code.NO_DATABASE)
    core.backend.queues.all()  # raises if the tables are of another version
    wishes = importing.Wishes(
        queue=queue,
        tasks=task_map,
        running=cast("importing.Running", running or "refuse"),
        now=core.backend.now(),
        known=importing.TasksHere(core),
        **more,
    )
    with closing(open_source(wishes)) as source:
        if dry_run:
            found = importing.look(source, core.backend)
        else:
            _refuse_running(source, running)
            found = _carried(app, source)
    _put(app, found)
    if found.is_done and found.failures:
        raise Failure(
            f"{counted(found.failures, 'job')} could not be carried, and {_stays(found.failures)} in the source; "
            "mend them there, and import again: what was carried is not carried twice"
        )


def _stays(jobs: int) -> str:
    return "stays" if jobs == 1 else "stay"


def _refuse_running(source: importing.Source, running: str | None) -> None:
    jobs = source.running()
    if jobs and running is None:
        are = "job runs" if jobs == 1 else "jobs run"
        raise Failure(
            f"{jobs:,} {are} in {source.place} at this moment; stop its workers and let them end, or say what to do: "
            "--running requeue runs them here again, even if they end there too; --running skip leaves them there"
        )


def _carried(app: dray.App, source: importing.Source) -> importing.Imported:
    core = core_of(app)
    try:
        with progress("carrying", percent=True) as report:
            return importing.carry(source, core.backend, core.new_id(), person(), report)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise


def _put(app: dray.App, found: importing.Imported) -> None:
    lines = [{**each._asdict(), "jobs": jobs} for each, jobs in sorted(found.lines.items(), key=_order)]
    unknown = _unknown_tasks(app, found)
    shape = {
        "system": found.system,
        "source": found.source,
        "done": found.is_done,
        "jobs": found.total,
        "carried": found.count(carried=True),
        "left_out": found.count(carried=False),
        "states": lines,
        "problems": [each._asdict() for each in found.problems],
        "problem_count": found.problem_count,
        "unknown_tasks": [{"task": task, "jobs": jobs} for task, jobs in unknown],
    }
    keys = ("state", "becomes", "jobs", "why")
    put_either(shape, lambda: table(lines, _COLUMNS), lambda: (line(*(each[key] for key in keys)) for each in lines))
    for each in found.problems[:_SHOWN]:
        say(f"{found.system} job {each.key}: {'not carried: ' if each.is_lost else 'carried without '}{each.what}")
    if found.problem_count > _SHOWN:
        say(f"and {found.problem_count - _SHOWN:,} more; --json names the first {len(found.problems):,}")
    _say_unknown(app, unknown, is_done=found.is_done)


def _order(item: tuple[importing.Line, int]) -> tuple[str, bool, str]:
    found = item[0]
    return found.state, found.becomes is None, found.becomes or found.why or ""


def _unknown_tasks(app: dray.App, found: importing.Imported) -> list[tuple[str, int]]:
    registry = core_of(app).registry
    return [(task, jobs) for task, jobs in sorted(found.to_run.items()) if task not in registry]


def _say_unknown(app: dray.App, unknown: Sequence[tuple[str, int]], *, is_done: bool) -> None:
    if not unknown:
        return
    named = ", ".join(task for task, _ in unknown[:_SHOWN]) + (", …" if len(unknown) > _SHOWN else "")
    jobs = counted(sum(jobs for _, jobs in unknown), "job")
    if not len(core_of(app).registry):
        say(f"no app is known here, so it was not checked that these tasks exist: {named}")
        return
    wait = "wait until a worker knows them" if is_done else "would wait until a worker knows them"
    say(f"no code here has these tasks, and {jobs} of them {wait} (--task-map gives them other names): {named}")
