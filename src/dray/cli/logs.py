"""A worker's log on stderr: one readable line a record, with the time, the level, and the job it belongs to."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from dray.cli.exits import say
from dray.sanitize import escape_control, redact

if TYPE_CHECKING:
    from logging import LogRecord

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str) -> None:
    """Writes records of this level and above to stderr, unless the app has set up logging by itself.

    Lower levels still reach the logs that are kept with the jobs.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    handler.setLevel(level.upper())
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, handler.level))


def say_warnings() -> None:
    """What Dray warns of while a command looks or acts is a sentence on stderr, unless the app has set up logging."""
    log = logging.getLogger("dray")
    if not log.hasHandlers():
        handler = _Sentences()
        handler.setLevel(logging.WARNING)
        log.addHandler(handler)


class _Sentences(logging.Handler):
    def emit(self, record: LogRecord) -> None:
        # A worker, or the modules with its tasks, may have set up logging since: nothing is said twice.
        if not logging.getLogger().handlers:
            say(record.getMessage())


def announce(message: str) -> None:
    """Writes a line to stderr, whatever the level is, and whoever has set up logging."""
    record = logging.LogRecord("dray", logging.INFO, __file__, 0, message, None, None)
    click.echo(_Lines().format(record), err=True)


class _Lines(logging.Formatter):
    """``2026-11-15 08:00:00.123 warning 1a2b3c4d shop.mail: no such user``."""

    def format(self, record: LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone()
        time = f"{when:%Y-%m-%d %H:%M:%S}.{int(record.msecs):03}"
        line = f"{time} {record.levelname.lower():<7} {_job()}{record.name}: {escape_control(record.getMessage())}"
        details = [self.formatException(record.exc_info)] if record.exc_info else []
        details += [record.stack_info] if record.stack_info else []
        # The lines of a traceback stay lines, and nothing else in it can steer a terminal.
        return redact("\n".join([line, *(escape_control(each) for text in details for each in text.splitlines())]))


def _job() -> str:
    from dray.runtime.execution import current  # noqa: PLC0415 - loaded by then; the command line's help needs none

    execution = current.get()
    return "" if execution is None else f"{execution.claim.id[-8:]} "
