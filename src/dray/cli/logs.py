"""What goes to stderr: log records, as lines for people or as JSON, and tracebacks."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from logging import LogRecord
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from dray.cli.exits import say
from dray.instants import iso
from dray.log import END_FIELDS
from dray.runtime.execution import current
from dray.sanitize import escape_control, redact
from dray.wording import short_id

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_FRAMES = 100  # from the outside in: a recursion has a thousand equal ones
_OURS = str(Path(__file__).parents[1]) + "/"
_LOOP = str(Path(os.__file__).parent / "asyncio") + "/"
_IMPORT = ("<frozen importlib", str(Path(importlib.__file__).parent) + "/")


def configure(level: str, formatter: logging.Formatter | None = None) -> bool:
    """Writes records of this level and above to stderr. False: the app has set up logging by itself.

    Records of lower levels still reach the logs that are kept with the jobs.
    """
    root = logging.getLogger()
    if root.handlers:
        return False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter or LogFormatter())
    handler.setLevel(level.upper())
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, handler.level))
    return True


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


def announce(message: str, formatter: logging.Formatter | None = None) -> None:
    """Writes a line to stderr, at any log level and with any logging of the app."""
    record = logging.LogRecord("dray", logging.INFO, __file__, 0, message, None, None)
    click.echo((formatter or LogFormatter()).format(record), err=True)


def formatter_of(log_format: str) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else LogFormatter()


class LogFormatter(logging.Formatter):
    """``2026-11-15 08:00:00.123 warning 1a2b3c4d shop.mail: no such user``."""

    def format(self, record: LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone()
        time = f"{when:%Y-%m-%d %H:%M:%S}.{int(record.msecs):03}"
        execution = current.get()
        job = "" if execution is None else f"{short_id(execution.claim.id)} "
        line = f"{time} {record.levelname.lower():<7} {job}{record.name}: {escape_control(record.getMessage())}"
        # A traceback keeps its line breaks; all other control characters are escaped.
        return redact("\n".join([line, *map(escape_control, details(self, record))]))


class JsonFormatter(logging.Formatter):
    """One object a line; its names are in docs/reference/cli/worker.md."""

    def format(self, record: LogRecord) -> str:
        execution = current.get()
        ended: dict[str, Any] | None = getattr(record, END_FIELDS, None)
        shown: dict[str, Any] = {
            "at": iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if execution is not None:
            shown |= {"job": execution.claim.id, "task": execution.claim.task}
        shown |= {name: value for name, value in (ended or {}).items() if value is not None}
        if record.exc_info or record.stack_info:
            shown["traceback"] = "\n".join(details(self, record))
        return json.dumps({name: redact(value) if isinstance(value, str) else value for name, value in shown.items()})


def details(formatter: logging.Formatter, record: LogRecord) -> list[str]:
    texts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    texts += [record.exc_text] if record.exc_text and not record.exc_info else []
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
