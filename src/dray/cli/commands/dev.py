"""``dray dev``: a worker for development, started anew when the code changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dray.cli import logs
from dray.cli.exits import Code, Failure
from dray.cli.shared import app_with_tasks, import_option, load_tasks, option, same_command, shared, told
from dray.cli.times import Duration
from dray.wording import counted

if TYPE_CHECKING:
    from dray.app import App

_SHOWN = 30  # tasks
_ERROR_LINES = 12


@click.command()
@click.argument("target", required=False, metavar="[APP]")
@option("-q", "--queues", metavar="LIST", help="Queues in order (mail,default) or by weight (mail:4,default:1).")
@option("-c", "--concurrency", type=int, metavar="N", help="How many bodies may run at a time.")
@import_option
@option(
    "--grace",
    type=Duration(),
    default=2.0,
    metavar="TIME",
    help="How long running jobs may take to end, at a change and at the end (2s); then they are handed back.",
)
@option(
    "--no-reload", is_flag=True, help="Do not look for changes; bodies then have the terminal's input, as for pdb."
)
@option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log.")
@shared
def dev(target: str | None, log_level: str, imports: tuple[str, ...], *, no_reload: bool, **options: Any) -> int:
    """Run jobs of the tasks in APP (module:object) and what is due by schedules; start anew when a *.py changes.

    Jobs that run at a change have --grace to end and are else handed back, unburned. Code that cannot be imported is
    shown, and nothing runs until the next change. Ctrl-C ends it.
    """
    from dray.runtime.signals import SUPERVISED  # noqa: PLC0415 - `dray dev --help` needs none

    if no_reload or SUPERVISED in os.environ:
        return _work(target, imports, log_level, options)
    return _supervise(target, imports, log_level, options["grace"])


def _supervise(target: str | None, imports: tuple[str, ...], log_level: str, grace: float) -> int:
    """Runs this same command, which finds by its environment that it is the worker: only there users' code runs."""
    from dray.cli.dev import lines  # noqa: PLC0415
    from dray.cli.dev.watch import Watch, places_of  # noqa: PLC0415
    from dray.cli.finding import configured  # noqa: PLC0415
    from dray.runtime.supervisor import Supervisor  # noqa: PLC0415

    lines.configure("info" if log_level == "debug" else "warning")
    watch = Watch(places_of(target or told("app") or configured(), imports), _say_changed)
    places = ", ".join(map(str, watch.places))
    lines.put(lines.line("info", f"looking for changes of *.py in {places} ({watch.files.how}); Ctrl-C ends it"))
    return Supervisor(same_command(), 1, grace, reload=watch).run()


def _say_changed(files: str) -> None:
    from dray.cli.dev import lines  # noqa: PLC0415

    lines.put(lines.line("info", f"{files} changed"))


def _work(target: str | None, imports: tuple[str, ...], log_level: str, options: dict[str, Any]) -> int:
    from dray.cli.commands.worker import until_told  # noqa: PLC0415
    from dray.cli.dev import lines  # noqa: PLC0415
    from dray.runtime.worker import Worker  # noqa: PLC0415

    try:
        app = app_with_tasks(target)
        load_tasks(app, imports)
    except Failure as error:
        if error.__cause__ is None:
            raise
        return _cannot_import(error)
    lines.configure(log_level)
    given = {name: value for name, value in options.items() if value is not None}
    made = Worker(app, owns_process=True, observer=lines.Told(log_level), **given)
    _announce(app, options["queues"])
    return until_told(made, burst=False)


def _announce(app: App, queues: str | None) -> None:
    from dray.cli.dev import lines  # noqa: PLC0415
    from dray.cli.dev.watch import RELOADED  # noqa: PLC0415
    from dray.cli.finding import name_of  # noqa: PLC0415

    names = app.registry.names()
    changed = os.environ.pop(RELOADED, None)
    if changed is not None:
        lines.put(lines.line("info", f"reloaded: {changed} changed; {counted(len(names), 'task')}", colour="green"))
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    for title, value in {
        "app": name_of(app) or "?",
        "database": app.settings.place,
        "queues": queues or "all",
        "tasks": ", ".join(names[:_SHOWN]) + more or "none",
    }.items():
        lines.put(lines.line("info", f"{title:<9} {value}"))


def _cannot_import(error: Failure) -> int:
    """A few lines of what Python says: where it is, and what."""
    from dray.cli.dev import lines  # noqa: PLC0415
    from dray.cli.frames import users_lines  # noqa: PLC0415

    assert error.__cause__ is not None
    said = users_lines(error.__cause__)
    shown = said if len(said) <= _ERROR_LINES else ["...", *said[-_ERROR_LINES:]]
    lines.put(lines.line("error", "the code cannot be imported; its jobs wait", more=shown, colour="red"))
    return Code.FAILED
