"""The two databases beside the model, and all their rows in the model's form."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import psycopg

from dray.backends import Backend, rows
from dray.model.job import Attempt, LogLine, Queue
from dray.model.schedule import Schedule
from dray.model.worker import Lease, Worker
from dray.model.workflow import Workflow
from tests.backends.state_machine.results import wordless
from tests.manual_clock import ManualClock

ATTEMPTS_KEPT, LOG_LINES = 2, 4  # instead of 100 and 1,000, so that a short run reaches them
_TABLES = ("jobs", "attempts", "edges", "workflows", "queues", "workers", "leases", "schedules", "logs")


@dataclass
class Sides:
    """The two databases, with the test's own connection to each, and the model."""

    clock: ManualClock
    sqlite: Backend
    sqlite_user: sqlite3.Connection
    postgres: Backend
    postgres_user: psycopg.Connection[Any]
    schema: str

    def empty(self) -> None:
        """Resets all tables and the clock."""
        tables = [f"dray_{name}" for name in (*_TABLES, "outcomes")]
        for table in reversed(tables):
            self.sqlite_user.execute(f"DELETE FROM {table}")
        self.sqlite_user.execute("COMMIT")
        names = ", ".join(f'"{self.schema}".{table}' for table in tables)
        self.postgres_user.execute(f"TRUNCATE {names}".encode())
        self.postgres_user.commit()
        for backend in (self.sqlite, self.postgres):
            backend.jobs._known_queues.clear()
        vars(self.clock).update(vars(ManualClock()))

    def on_sqlite(self) -> dict[str, Any]:
        user = self.sqlite_user
        return _stored(
            self.sqlite, lambda table, columns: user.execute(f"SELECT {columns} FROM dray_{table}").fetchall()
        )

    def on_postgres(self) -> dict[str, Any]:
        cursor = self.postgres_user.cursor(binary=True)

        def select(table: str, columns: str) -> list[tuple[Any, ...]]:
            return cursor.execute(f'SELECT {columns} FROM "{self.schema}".dray_{table}'.encode()).fetchall()

        stored = _stored(self.postgres, select)
        self.postgres_user.commit()
        return stored


def _stored(backend: Backend, select: Callable[[str, str], list[tuple[Any, ...]]]) -> dict[str, Any]:
    """Returns all tables in the form of the model."""

    def table(name: str, row: Any) -> list[Any]:
        return [row(*each) for each in select(name, ", ".join(column.name for column in fields(row)))]

    logs: dict[str, tuple[LogLine, ...]] = {}
    for line in table("logs ORDER BY seq", LogLine):
        logs[line.job_id] = (*logs.get(line.job_id, ()), line)
    worker_columns = ", ".join(column.name for column in fields(Worker))
    return {
        "jobs": {job.id: wordless(job) for job in backend.jobs.newest(limit=10_000)},
        "attempts": {(each.job_id, each.claim): wordless(each) for each in table("attempts", Attempt)},
        "edges": {(row[0], row[1]): row[2] for row in select("edges", "parent_id, child_id, satisfied")},
        "workflows": {workflow.id: workflow for workflow in table("workflows", Workflow)},
        "queues": {queue.name: queue for queue in table("queues", Queue)},
        "workers": {row[0]: rows.worker(row) for row in select("workers", worker_columns)},
        "leases": {lease.duty: lease for lease in table("leases", Lease)},
        "schedules": {schedule.name: schedule for schedule in table("schedules", Schedule)},
        "logs": logs,
    }
