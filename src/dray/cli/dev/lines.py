"""What `dray dev` writes to the terminal: a line when a job starts, logs something or ends, with its id and task."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from dray.cli.output import short
from dray.cli.times import span
from dray.instants import SECOND
from dray.sanitize import escape_control, redact

if TYPE_CHECKING:
    from logging import LogRecord

    from dray.model.settlement import Settlement
    from dray.runtime.execution import Execution

_LEVELS = {"debug": "bright_black", "info": "blue", "warning": "yellow", "error": "red", "critical": "red"}
_SAID_BY_US = ("dray", "_say_failed")  # `Told` words a failed attempt with its traceback
_STATES = {"completed": "green", "failed": "red", "cancelled": "yellow"}


class Lines(logging.Formatter):
    """``21:57:31.084 info    1a2b3c4d tasks.add: completed in 12ms``"""

    def format(self, record: LogRecord) -> str:
        from dray.runtime.execution import current  # noqa: PLC0415 - loaded by then

        execution = current.get()
        logger = "" if record.name in {"dray", f"dray.task.{_task(execution)}"} else f"{record.name}: "
        details = [self.formatException(record.exc_info)] if record.exc_info else []
        details += [record.stack_info] if record.stack_info else []
        more = [line for text in details for line in text.splitlines()]
        return line(record.levelname.lower(), logger + record.getMessage(), execution, more, at=record.created)


def line(
    level: str,
    text: str,
    execution: Execution | None = None,
    more: list[str] | None = None,
    colour: str | None = None,
    at: float | None = None,
) -> str:
    """One line, and what belongs to it on indented ones; nothing in it can steer a terminal or show a password."""
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


def put(text: str) -> None:
    """Writes to stderr; a terminal that is gone is no reason to end a job."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def configure(level: str) -> None:
    """Writes records of this level and above, unless the app has set up logging by itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    handler.addFilter(lambda record: (record.name, record.funcName) != _SAID_BY_US)
    handler.setLevel(level.upper())
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, handler.level))


def _styled(text: str, colour: str | None) -> str:
    return click.style(text, fg=colour) if colour and text and _wants_colour() else text


def _wants_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _task(execution: Execution | None) -> str:
    return "" if execution is None else execution.claim.task


class Told:
    """Says what a worker's bodies do; see `dray.runtime.worker.Observer`."""

    def __init__(self, level: str) -> None:
        self._level = logging.getLevelNamesMapping()[level.upper()]

    def began(self, execution: Execution) -> None:
        claim = execution.claim
        again = f", attempt {claim.attempt} of {claim.max_attempts}" if claim.attempt > 1 else ""
        self._say("info", f"started{again}", execution, "bright_black")

    def ended(self, execution: Execution, settlement: Settlement | None) -> None:
        if settlement is None:
            what = "completed in its own transaction" if execution.is_written else "its claim was lost"
            self._say("info", what, execution)
            return
        took = span((settlement.finished - settlement.started) / SECOND)
        if settlement.state == "completed":
            self._say("info", f"completed in {took}", execution, "green")
        elif settlement.error_message is not None or settlement.error is not None:
            self._failed(execution, settlement, took)
        elif settlement.gives_back:
            self._say("info", f"{_again(settlement)}, without counting this attempt", execution, "yellow")
        else:
            self._say("info", f"{settlement.state} after {took}", execution, _STATES.get(settlement.state))

    def _failed(self, execution: Execution, settlement: Settlement, took: str) -> None:
        is_over = settlement.state in _STATES
        level = "error" if settlement.state == "failed" else "warning"
        end = f"{settlement.state} after {took}" if is_over else f"raised after {took}; {_again(settlement)}"
        why = settlement.error or settlement.error_message
        trace = (settlement.traceback or "").splitlines()
        self._say(level, f"{end}: {why}", execution, "red" if level == "error" else "yellow", trace)

    def _say(
        self, level: str, text: str, execution: Execution, colour: str | None = None, more: list[str] | None = None
    ) -> None:
        if logging.getLevelNamesMapping()[level.upper()] >= self._level:
            put(line(level, text, execution, more, colour))


def _again(settlement: Settlement) -> str:
    if settlement.delay_us:
        return f"runs again in {span(settlement.delay_us / SECOND)}"
    return "goes back to its queue"
