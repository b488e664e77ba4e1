"""A value as one cell of a table or one field of a line: as people say it, or as programs read it.

A name, an argument or an error may hold anything. It is written on one line, with its control characters escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast

from dray.instants import iso
from dray.sanitize import escape_control
from dray.wording import short_id, span

Shape = Mapping[str, Any]


def cell(value: Any) -> str:
    """Returns a value as one field of a line."""
    if value is None:
        return ""
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, bool | Mapping):
        return escape_control(json.dumps(value, default=jsonable, ensure_ascii=False))
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Iterable):
        return ",".join(cell(each) for each in cast("Iterable[Any]", value))
    return str(value)


def short(job_id: Any, _: Shape | None = None) -> str:
    return "" if job_id is None else short_id(str(job_id))


def ago(when: datetime | None, now: datetime) -> str:
    """Returns an instant as people say it."""
    if when is None:
        return ""
    seconds = (now - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def relative(when: Any, shape: Shape) -> str:
    """Returns an instant as people say it, now or at the time of the row."""
    return ago(when, shape.get("now") or datetime.now(UTC))


def paused(when: Any, shape: Shape) -> str:
    return f"paused {relative(when, shape)}" if when else ""


def seconds(value: Any, _: Shape) -> str:
    """Returns a number of seconds as people say it; empty if it is None."""
    return "" if value is None else span(value)


def state(value: Any, shape: Shape) -> str:
    return f"{value}({shape['reason']})" if shape["reason"] else str(value)


def step_of(workflow: Any, shape: Shape) -> str:
    """Returns the workflow of a job, by its name, and its step: ``etl / load``; empty if it has none."""
    return " / ".join(part for part in (workflow, shape["step"]) if part)


def state_word(text: str) -> str:
    """The state in ``failed(error)`` or ``paused 3m ago``."""
    return text.partition(" ")[0].partition("(")[0]


def queues(value: Any, _: Shape) -> str:
    return ",".join(value) or "all"


def jsonable(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no shape in JSON")
