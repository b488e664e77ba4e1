"""The doctor in the process of the test: the same checks as ``dray doctor`` makes, in a tenth of the time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dray.clock import Clock, SystemClock
from dray.instants import SECOND
from dray.ops.doctor import Result, examine
from dray.ops.doctor.check import Code, Subject, Verdict
from dray.settings import Settings
from tests.backends.processes import raw_sql

MINUTE = 60
HOUR = 60 * MINUTE


def subject_of(url: str, clock: Clock | None = None, **facts: Any) -> Subject:
    settings = replace(Settings.of(url), migrate=False, busy_timeout=2.0)
    used = clock or SystemClock()
    return Subject(settings, settings.open(used), used, **facts)


def examined(
    url: str, *, tasks: Collection[str] = (), skip: Collection[str] = ("listen",), **facts: Any
) -> dict[str, Result]:
    """All results by name."""
    subject = subject_of(url, code=Code("tasks:app", tasks), **facts)
    try:
        return {result.name: result for result in examine(subject, skip)}
    finally:
        subject.backend.close()


def found(url: str, name: str, **facts: Any) -> tuple[str, str]:
    """One verdict, and what it says."""
    result = examined(url, **facts)[name]
    assert (result.fix is None) is (result.verdict is Verdict.OK) or result.verdict is Verdict.NOTE
    return result.verdict.value, result.text


def set_back(url: str, table: str, column: str, seconds: int) -> None:
    """Makes rows older than they are."""
    if url.startswith("sqlite"):
        raw_sql(url, f"UPDATE {table} SET {column} = {column} - {seconds * SECOND}")
    else:
        raw_sql(url, f"UPDATE {table} SET {column} = {column} - interval '{seconds} seconds'")
