"""What people type: durations, times, states, filters of jobs, and the arguments of a task."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import click

import dray
from dray.app_interface import core_of
from dray.cli.exits import Failure
from dray.cli.options import all_of, option
from dray.model.job import states_named
from dray.model.values import shown
from dray.ops import listing
from dray.wording import counted

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


def duration(value: str | float) -> float:
    """Seconds (``90``), or with units: ``1h30m``, ``500ms``, ``7d``."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise click.BadParameter(f"{value!r} is no duration: write seconds, or 500ms, 30s, 5m, 1h30m, 7d")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


time_option = partial(option, type=duration, metavar="TIME")


def instant(value: str) -> datetime:
    """A time such as ``2026-11-15T08:00``, local if it names no zone, or ``08:00``: the next one."""
    text = value.strip()
    try:
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
            return _next(text)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        message = f"{value!r} is no time: write 2026-11-15T08:00, 2026-11-15T08:00Z, or 08:00"
        raise click.BadParameter(message) from None


def _next(clock_time: str) -> datetime:
    now = datetime.now().astimezone()
    hour, minute, *second = (int(part) for part in clock_time.split(":"))
    today = now.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
    return today if today > now else (today.replace(tzinfo=None) + timedelta(days=1)).astimezone()


def since(value: str) -> float | datetime:
    """How long ago (``1h``), or a time."""
    for read in (duration, instant):
        with suppress(click.BadParameter):
            return read(value)
    raise click.BadParameter(f"{value!r} is neither a duration such as 1h nor a time such as 2026-11-15T08:00")


def job_state(value: str) -> str:
    """A job's state, or a word that other queues use for one."""
    try:
        states_named(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


state_option = partial(option, "--state", type=job_state, metavar="STATE", multiple=True)
filters = all_of(  # the options that choose jobs, as `App.jobs` takes them
    state_option(help="In this state (repeat for several)."),
    option("--queue", help="In this queue."),
    option("--task", help="Of this task."),
    option("--tag", help="With this tag."),
    option("--workflow", metavar="WORKFLOW", help="Of this workflow, by its id, or of all workflows of this name."),
    option("--schedule", metavar="SCHEDULE", help="Enqueued by this schedule."),
    option("--since", type=since, metavar="TIME", help="Enqueued since then: 1h, or 2026-11-15T08:00."),
)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that were given, for a function that has its own defaults."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def meant(app: dray.App, fit: Mapping[str, Any]) -> dict[str, Any]:
    """Returns filters with the workflow and the schedule that were meant by a part of an id or a name."""
    whole = dict(fit)
    if "workflow" in fit:
        whole["workflow"] = listing.workflow_meant(core_of(app).backend, fit["workflow"])
    if "schedule" in fit:
        whole["schedule"] = listing.schedule_meant(core_of(app).backend, fit["schedule"])
    return whole


def confirm(verb: str, count: int, otherwise: str) -> None:
    """Asks before something is done to many jobs; fails if the answer is no, or without a terminal to ask on."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"this would {verb} {counted(count, 'job')}; give --yes where there is no terminal")
    if not click.confirm(f"{verb.capitalize()} {counted(count, 'job')}?", err=True):
        raise Failure(otherwise)


def arguments(words: Sequence[str], text: str | None, task: dray.Task[..., Any] | None) -> dict[str, Any]:
    """Returns the task's arguments by name, from ``k=v`` and ``k:=json`` words and the text of ``--args``.

    ``k=v`` is JSON if it reads as JSON, else text. It is always text for a parameter of type ``str``, so that a
    telephone number stays one. ``k:=json`` must be JSON, for values that must not be taken for text.
    """
    found: dict[str, Any] = {}
    if text is not None:
        value = _json(sys.stdin.read() if text == "-" else text, "--args")
        if not isinstance(value, Mapping):
            raise click.UsageError(f"--args must be a JSON object, arguments by name, not {shown(value)}")
        found = dict(cast("Mapping[str, Any]", value))
    parameters = {} if task is None else task.signature.parameters
    texts = [name for name, parameter in parameters.items() if parameter.annotation in (str, "str")]
    for word in words:
        name, value = _pair(word, texts)
        if name in found:
            raise click.UsageError(f"{name} is given twice")
        found[name] = value
    return found


def _pair(word: str, texts: Collection[str]) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    is_strict = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise click.UsageError(f"{shown(word)} is no argument; write name=value, or name:=JSON")
    if is_strict:
        return name, _json(value, name)
    if name in texts:
        return name, value
    try:
        return name, _json(value, name)
    except click.UsageError:
        return name, value


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise click.UsageError(f"{what} is JSON that is nested too deep") from None
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")
