"""Jobs that a search finds, as a file: CSV for spreadsheets or JSON lines for programs, a page at a time.

Arguments are as the command line shows them: those that a task redacts are hidden.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, Literal, cast

from dray.app_interface import AppInterface
from dray.errors import PayloadError
from dray.handle.job import Job
from dray.instants import iso
from dray.model.search import Search
from dray.ops import shapes
from dray.ops.search import search as find

Form = Literal["csv", "jsonl"]

ROWS = 100_000
KEYS = tuple(
    "id task queue state reason priority attempt max_attempts crashes worker name tags created_at run_at started_at "  # noqa: SIM905
    "finished_at workflow workflow_name step schedule error args".split()
)
_PAGE = 500
_BUDGET = 0.25  # seconds that a page looks for jobs
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for one begins so


def export(
    core: AppInterface,
    text: str | Search,
    form: Form,
    *,
    queues: frozenset[str] | None = None,
    limit: int = ROWS,
) -> Generator[str]:
    """Yields the file in parts, newest job first: at most `limit` of them, and never more than 100,000.

    The first part has the first jobs: an error of the database comes before any of the file."""
    left, before = min(limit, ROWS), None
    head = _line(KEYS) if form == "csv" else ""
    while left > 0:
        found = find(core, text, limit=min(left, _PAGE), before=before, budget=_BUDGET, queues=queues)
        rows = [_row(job, shape) for job, shape in zip(found.jobs, shapes.jobs(core, found.jobs), strict=True)]
        yield head + "".join(_line([row[key] for key in KEYS]) if form == "csv" else _json_line(row) for row in rows)
        head = ""
        left -= len(rows)
        if found.next is None:
            return
        before = found.next


def _row(job: Job[Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    try:
        args = job.args
    except PayloadError:  # written by hand; one such row must not end a file of others
        args = None
    return {**{key: shape[key] for key in KEYS if key != "args"}, "args": args}


def _json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=_written) + "\n"


def _written(value: Any) -> str:
    assert isinstance(value, datetime), value
    return iso(value)


def _line(values: Any) -> str:
    file = io.StringIO()
    csv.writer(file).writerow([cell(value) for value in values])
    return file.getvalue()


def cell(value: Any) -> str:
    """A value that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return _written(value)
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        text = ",".join(map(str, cast("list[Any]", value)))
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    text = text.replace("\0", "\ufffd")
    return f"'{text}" if text.startswith(_FORMULA) else text
