"""``dray dev``: a worker for development, which restarts when the code changes and writes a line for each event."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from logging import LogRecord
from typing import Any

import click

import dray
from dray.app_interface import core_of
from dray.cli import door, logs
from dray.cli.apps import app_with_tasks, choice, name_of
from dray.cli.beside import Beside
from dray.cli.cells import short
from dray.cli.commands.worker import until_told
from dray.cli.exits import Code, Failure
from dray.cli.logs import users_lines
from dray.cli.options import command, import_option, option, same_command, told
from dray.cli.output import COLOURS
from dray.cli.parsing import given, time_option
from dray.cli.reloading import RELOADED, Reloader, places_of
from dray.cli.source import configured_app
from dray.instants import SECOND
from dray.model.job import FINAL
from dray.model.settlement import Settlement
from dray.runtime.execution import Execution, current
from dray.runtime.in_flight import End
from dray.runtime.signals import SUPERVISED
from dray.runtime.supervisor import Supervisor
from dray.sanitize import escape_control, redact
from dray.wording import counted, span

_SHOWN = 30  # tasks
_ERROR_LINES = 12
_LEVELS = {"debug": "bright_black", "info": "blue", "warning": "yellow", "error": "red", "critical": "red"}


@command()
@click.argument("target", required=False, metavar="[APP]")
@option("-q", "--queues", metavar="LIST", help="Queues in order (mail,default) or by weight (mail:4,default:1).")
@option("-c", "--concurrency", type=int, metavar="N", help="Maximum number of jobs to run at a time.")
@import_option
@time_option(
    "--grace",
    default=2.0,
    help="How long running jobs may take to end, at a change and at the end (2s); then they go back to their queue.",
)
@option("--no-reload", is_flag=True, help="Do not look for changes; tasks can then read the terminal, as pdb does.")
@option("--no-web", is_flag=True, help="Do not serve the dashboard.")
@option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log.")
def dev(
    target: str | None, log_level: str, imports: tuple[str, ...], *, no_reload: bool, no_web: bool, **options: Any
) -> int:
    """Run jobs of the tasks in APP (module:object) and of schedules; restart when a *.py changes.

    At a change running jobs have --grace to end; then they go back to their queue, and the attempt does not count.
    An import error is shown, and nothing runs until the next change. Ctrl-C ends it.
    It serves the dashboard too, and prints a link to it.
    """
    if SUPERVISED in os.environ:
        return _work(target, imports, log_level, options, None if no_web else door.Door.inherited())
    with nullcontext() if no_web else door.shared() as opened:
        if no_reload:
            door.Door.inherited()  # what tasks start does not see it
            return _work(target, imports, log_level, options, opened)
        return _supervise(target, imports, log_level, options["grace"])


def _supervise(target: str | None, imports: tuple[str, ...], log_level: str, grace: float) -> int:
    # This command runs as a child process, with SUPERVISED in its environment. Only that loads the user's code.
    _configure("info" if log_level == "debug" else "warning")
    places = places_of(target or told("app") or configured_app(), imports)
    reloader = Reloader(places, lambda files: _put(_line("info", f"{files} changed")))
    watched = f"{', '.join(map(str, places))} ({reloader.files.how})"
    _put(_line("info", f"looking for changes of *.py in {watched}; Ctrl-C ends it"))
    return Supervisor(same_command(), 1, grace, reload=reloader).run()


def _work(
    target: str | None,
    imports: tuple[str, ...],
    log_level: str,
    options: dict[str, Any],
    opened: door.Door | None,
) -> int:
    from dray.runtime.worker import Worker  # noqa: PLC0415 - `--help` needs no worker

    try:
        app = app_with_tasks(target, imports)
    except Failure as error:
        if error.__cause__ is None:
            raise
        said = users_lines(error.__cause__)
        shown = said if len(said) <= _ERROR_LINES else ["...", *said[-_ERROR_LINES:]]
        _put(_line("error", "the code cannot be imported; its jobs wait", more=shown, colour="red"))
        return Code.FAILED
    _configure(log_level)
    made = Worker(core_of(app), owns_process=True, observer=_BodyLines(log_level), **given(options))
    is_first = RELOADED not in os.environ
    _announce(app, options["queues"])
    with nullcontext() if opened is None else _dashboard(app, opened, tells=is_first or opened.link.is_live()):
        return until_told(made, burst=False)


def _dashboard(app: dray.App, opened: door.Door, *, tells: bool) -> AbstractContextManager[object]:
    """Serves the dashboard during the block, if it can be served."""
    try:
        beside = Beside(app, opened, lambda link: _put(_line("info", f"dashboard {link}")))
    except Failure as error:
        if tells:
            _put(_line("warning", f"without a dashboard: {error}"))
        return nullcontext()
    if tells:
        _put(_line("info", f"dashboard {beside.link} (works once, for ten minutes)"))
    return beside


def _announce(app: dray.App, queues: str | None) -> None:
    names = core_of(app).registry.names()
    changed = os.environ.pop(RELOADED, None)
    if changed is not None:
        _put(_line("info", f"reloaded: {changed} changed; {counted(len(names), 'task')}", colour="green"))
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    for title, value in {
        "app": choice() or name_of(app) or "?",
        "database": core_of(app).settings.place,
        "queues": queues or "all",
        "tasks": ", ".join(names[:_SHOWN]) + more or "none",
    }.items():
        _put(_line("info", f"{title:<9} {value}"))


class _DevFormatter(logging.Formatter):
    """``21:57:31.084 info    1a2b3c4d tasks.add: completed in 12ms``"""

    def format(self, record: LogRecord) -> str:
        execution = current.get()
        ours = {"dray"} if execution is None else {"dray", f"dray.task.{execution.claim.task}"}
        logger = "" if record.name in ours else f"{record.name}: "
        more = logs.details(self, record)
        return _line(record.levelname.lower(), logger + record.getMessage(), execution, more, at=record.created)


def _line(
    level: str,
    text: str,
    execution: Execution | None = None,
    more: list[str] | None = None,
    colour: str | None = None,
    at: float | None = None,
) -> str:
    """Returns a line, and ``more`` on indented ones. Control characters are escaped and passwords hidden."""
    when = datetime.fromtimestamp(time.time() if at is None else at).astimezone()
    job = "" if execution is None else f"{short(execution.claim.id)} {execution.claim.task}: "
    head = " ".join(
        [
            _styled(f"{when:%H:%M:%S}.{when.microsecond // 1000:03}", "bright_black"),
            _styled(f"{level:<7}", _LEVELS.get(level)),
            _styled(escape_control(redact(job)), "cyan") + _styled(escape_control(redact(text)), colour),
        ]
    )
    return "\n".join([head, *(_styled(f"    {escape_control(redact(each))}", "bright_black") for each in more or ())])


def _put(text: str) -> None:
    """Writes to stderr. A terminal that is gone must not fail a job."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _configure(level: str) -> None:
    logs.configure(level, _DevFormatter())


def _styled(text: str, colour: str | None) -> str:
    has_colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return click.style(text, fg=colour) if colour and text and has_colours else text


class _BodyLines:
    """Writes what a worker's bodies do; see `dray.runtime.parts.Observer`."""

    def __init__(self, level: str) -> None:
        self._level = logging.getLevelNamesMapping()[level.upper()]

    def began(self, execution: Execution) -> None:
        claim = execution.claim
        again = f", attempt {claim.attempt} of {claim.max_attempts}" if claim.attempt > 1 else ""
        self._say("info", f"started{again}", execution, "bright_black")

    def tick(self, *, is_over: bool = False) -> None:
        """Does nothing: every line is written at once."""

    def ended(self, ends: Sequence[End]) -> None:
        for execution, settlement in ends:
            if execution.started is not None:  # else it was handed back unrun
                self._ended(execution, settlement)

    def _ended(self, execution: Execution, settlement: Settlement | None) -> None:
        if settlement is None:
            self._say("info", "completed in its own transaction", execution)
            return
        took = span((settlement.finished - settlement.started) / SECOND)
        if settlement.state == "completed":
            self._say("info", f"completed in {took}", execution, "green")
        elif settlement.error_message is not None or settlement.error is not None:
            self._failed(execution, settlement, took)
        elif settlement.gives_back:
            self._say("info", f"{_again(settlement)}, without counting this attempt", execution, "yellow")
        else:
            self._say("info", f"{settlement.state} after {took}", execution, COLOURS.get(settlement.state))

    def _failed(self, execution: Execution, settlement: Settlement, took: str) -> None:
        is_over = settlement.state in FINAL
        level = "error" if settlement.state == "failed" else "warning"
        end = f"{settlement.state} after {took}" if is_over else f"raised after {took}; {_again(settlement)}"
        why = settlement.error or settlement.error_message
        trace = (settlement.traceback or "").splitlines()
        self._say(level, f"{end}: {why}", execution, "red" if level == "error" else "yellow", trace)

    def _say(
        self, level: str, text: str, execution: Execution, colour: str | None = None, more: list[str] | None = None
    ) -> None:
        if logging.getLevelNamesMapping()[level.upper()] >= self._level:
            _put(_line(level, text, execution, more, colour))


def _again(settlement: Settlement) -> str:
    if settlement.delay_us:
        return f"runs again in {span(settlement.delay_us / SECOND)}"
    return "goes back to its queue"
