"""Rows to model: the only place that knows the columns of the SELECTs."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from dray.backends.database import Row
from dray.model.job import Job

# Who reads jobs alone need not load what schedules, workers and logs are.
if TYPE_CHECKING:
    from dray.model.job import LogLine
    from dray.model.schedule import Schedule
    from dray.model.worker import Worker
    from dray.model.workflow import Workflow

_JOB_FIELDS = [field.name for field in fields(Job)]
_TAGS = _JOB_FIELDS.index("tags")
_FANOUT = _JOB_FIELDS.index("fanout_pending")


def job(row: Row) -> Job:
    values = list(row)
    values[_TAGS] = _tags(values[_TAGS]) if values[_TAGS] else ()
    values[_FANOUT] = bool(values[_FANOUT])
    return Job(*values)


def _tags(text: str) -> tuple[str, ...]:
    """A row that somebody wrote by hand must not keep all others from being listed."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def worker(row: Row) -> Worker:
    from dray.model.worker import Worker  # noqa: PLC0415

    values = list(row)
    values[6], values[7] = tuple(json.loads(values[6])), tuple(json.loads(values[7]))
    return Worker(*values)


def schedule(row: Row) -> Schedule:
    from dray.model.schedule import Schedule  # noqa: PLC0415

    return Schedule(*row)


def workflow(row: Row) -> Workflow:
    from dray.model.workflow import Workflow  # noqa: PLC0415

    return Workflow(*row)


def log_line(row: Row) -> LogLine:
    from dray.model.job import LogLine  # noqa: PLC0415

    return LogLine(*row)
