"""What goes to stderr: log records, one line each with the time, the level and the job, and tracebacks."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from logging import LogRecord
from pathlib import Path
from types import TracebackType

import click

from dray.cli.exits import say
from dray.runtime.execution import current
from dray.sanitize import escape_control, redact

LEVELS = ("debug", "info", "warning", "error")
_FRAMES = 100  # from the outside in: a recursion has a thousand equal ones
_OURS = str(Path(__file__).parents[1]) + "/"
_LOOP = str(Path(os.__file__).parent / "asyncio") + "/"
_IMPORT = ("<frozen importlib", str(Path(importlib.__file__).parent) + "/")


def configure(level: str, formatter: logging.Formatter | None = None, *filters: Callable[[LogRecord], bool]) -> None:
    """Writes records of this level and above to stderr, unless the app has set up logging by itself.

    Records of lower levels still reach the logs that are kept with the jobs.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter or LogFormatter())
    for each in filters:
        handler.addFilter(each)
    handler.setLevel(level.upper())
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, handler.level))


def say_warnings() -> None:
    """Writes Dray's own warnings as sentences to stderr, unless the app has set up logging."""
    log = logging.getLogger("dray")
    if not log.hasHandlers():
        handler = _Sentences()
        handler.setLevel(logging.WARNING)
        log.addHandler(handler)


class _Sentences(logging.Handler):
    def emit(self, record: LogRecord) -> None:
        # A worker, or a module with tasks, may have set up logging since: then this would be said twice.
        if not logging.getLogger().handlers:
            say(record.getMessage())


def announce(message: str) -> None:
    """Writes a line to stderr, at any log level and with any logging of the app."""
    record = logging.LogRecord("dray", logging.INFO, __file__, 0, message, None, None)
    click.echo(LogFormatter().format(record), err=True)


class LogFormatter(logging.Formatter):
    """``2026-11-15 08:00:00.123 warning 1a2b3c4d shop.mail: no such user``."""

    def format(self, record: LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone()
        time = f"{when:%Y-%m-%d %H:%M:%S}.{int(record.msecs):03}"
        execution = current.get()
        job = "" if execution is None else f"{execution.claim.id[-8:]} "
        line = f"{time} {record.levelname.lower():<7} {job}{record.name}: {escape_control(record.getMessage())}"
        # A traceback keeps its line breaks; all other control characters are escaped.
        return redact("\n".join([line, *map(escape_control, details(self, record))]))


def details(formatter: logging.Formatter, record: LogRecord) -> list[str]:
    texts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    texts += [record.stack_info] if record.stack_info else []
    return [line for text in texts for line in text.splitlines()]


def users_lines(error: BaseException) -> list[str]:
    """Returns the lines of a traceback, with control characters escaped and passwords hidden."""
    shown = traceback.TracebackException(type(error), error, error.__traceback__, limit=_FRAMES, compact=True)
    _without_ours(shown)
    text = redact("".join(shown.format()))
    return [escape_control(line) for line in text.splitlines()]


def users_trace(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the user's first frame on, for a debugger; all of it if there is none."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith((_OURS, _LOOP)):
        first = first.tb_next
    return first or trace


def _without_ours(shown: traceback.TracebackException) -> None:
    frames = [frame for frame in shown.stack if not frame.filename.startswith((_OURS, *_IMPORT))]
    while frames and frames[0].filename.startswith(_LOOP):  # those that run a coroutine; within it they stay
        frames.pop(0)
    shown.stack = traceback.StackSummary.from_list(frames)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _without_ours(other)
