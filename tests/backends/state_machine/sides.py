"""The two databases beside the model, and all their rows in the model's form."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import psycopg

from dray.backends import Backend, rows
from dray.backends.store.turns import Turns
from dray.model.job import Attempt, LogLine, Queue
from dray.model.limit import StoredRule
from dray.model.schedule import Schedule
from dray.model.worker import Lease, Worker
from dray.model.workflow import Workflow
from tests.backends.state_machine.results import wordless
from tests.manual_clock import ManualClock

ATTEMPTS_KEPT, LOG_LINES = 2, 4  # instead of 100 and 1,000, so that a short run reaches them
TABLES = (
    *("jobs", "attempts", "edges", "workflows", "queues", "workers", "leases", "schedules", "logs"),
    *("limits", "starts"),
)
# What a job does not show of its row.
HIDDEN = {"held": "jobs WHERE held", "parked": "jobs WHERE state = 'parked'"}
Select = Callable[[str, str], list[tuple[Any, ...]]]  # of a table, these columns


@dataclass
class Sides:
    """The two databases, with the test's own connection to each, and the model.

    Only tables that were written to since the last look are read again: reading all of them after each step took
    half the time.
    """

    clock: ManualClock
    sqlite: Backend
    sqlite_user: sqlite3.Connection
    sqlite_reader: sqlite3.Connection  # writes nothing: SQLite tells a connection of the writes of all others
    postgres: Backend
    postgres_user: psycopg.Connection[Any]
    postgres_reader: psycopg.Connection[Any]
    schema: str
    _sqlite_version: int | None = None
    _sqlite_tables: dict[str, Any] = field(default_factory=dict[str, Any])
    _postgres_versions: dict[str, Any] = field(default_factory=dict[str, Any])
    _postgres_tables: dict[str, Any] = field(default_factory=dict[str, Any])

    def empty(self) -> None:
        """Resets all tables and the clock."""
        tables = [f"dray_{name}" for name in ("outcomes", *reversed(TABLES))]
        for table in tables:
            self.sqlite_user.execute(f"DELETE FROM {table}")
        self.sqlite_user.execute("COMMIT")
        # TRUNCATE would take longer than all steps of a short run: it makes new files for every table and index, and
        # every session has to plan its statements again.
        self.postgres_user.execute("; ".join(f'DELETE FROM "{self.schema}".{table}' for table in tables).encode())
        self.postgres_user.commit()
        for backend in (self.sqlite, self.postgres):
            backend.jobs._known_queues.clear()
            backend.work._turns = Turns()
        vars(self.clock).update(vars(ManualClock()))

    def on_sqlite(self) -> dict[str, Any]:
        """Returns all rows by table, each the same object as at the last look if it has not changed."""
        ((version,),) = self.sqlite_reader.execute("PRAGMA data_version").fetchall()
        if version != self._sqlite_version:
            read = {name: _read(name, self.sqlite, self._select_from_sqlite) for name in (*TABLES, *HIDDEN)}
            known = self._sqlite_tables
            self._sqlite_tables = {n: known[n] if known.get(n) == table else table for n, table in read.items()}
            self._sqlite_version = version
        return self._sqlite_tables

    def on_postgres(self) -> dict[str, Any]:
        """As `on_sqlite`. A version of a row is known by its place and by the transaction that wrote it."""
        version = "SELECT string_agg(ctid::text || xmin::text, ' ' ORDER BY ctid) FROM"
        asked = ", ".join(f'({version} "{self.schema}".dray_{name})' for name in TABLES)
        found = self.postgres_reader.execute(f"SELECT {asked}".encode()).fetchall()[0]
        versions: dict[str, Any] = dict(zip(TABLES, found, strict=True))
        changed = [name for name in TABLES if self._postgres_versions.get(name, self) != versions[name]]
        changed += HIDDEN if "jobs" in changed else ()
        read = {name: _read(name, self.postgres, self._select_from_postgres) for name in changed}
        self._postgres_tables = {**self._postgres_tables, **read}
        self._postgres_versions = versions
        return self._postgres_tables

    def _select_from_sqlite(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        return self.sqlite_reader.execute(f"SELECT {columns} FROM dray_{table}").fetchall()

    def _select_from_postgres(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        cursor = self.postgres_reader.cursor(binary=True)
        return cursor.execute(f'SELECT {columns} FROM "{self.schema}".dray_{table}'.encode()).fetchall()


def _read(name: str, backend: Backend, select: Select) -> dict[Any, Any]:
    """Returns a table in the form of the model."""

    def table(row: Any, order: str = "") -> list[Any]:
        return [row(*each) for each in select(f"{name}{order}", _columns(row))]

    match name:
        case "jobs":
            return {job.id: wordless(job) for job in backend.jobs.newest(limit=10_000)}
        case "attempts":
            return {(each.job_id, each.claim): wordless(each) for each in table(Attempt)}
        case "edges":
            return {(row[0], row[1]): row[2] for row in select(name, "parent_id, child_id, satisfied")}
        case "held" | "parked":
            return {str(row[0]): True for row in select(HIDDEN[name], "id")}
        case "limits":
            rules = [StoredRule(*row) for row in select(name, ", ".join(StoredRule._fields))]
            return {(r.scope, r.name, r.kind, r.source, r.period_us): r for r in rules}
        case "starts":
            return {tuple(row[:-1]): row[-1] for row in select(name, "scope, name, key, period_us, at, n")}
        case "workers":
            return {row[0]: rows.worker(row) for row in select(name, _columns(Worker))}
        case "logs":
            logs: dict[str, tuple[LogLine, ...]] = {}
            for line in table(LogLine, " ORDER BY seq"):
                logs[line.job_id] = (*logs.get(line.job_id, ()), line)
            return logs
        case _:
            row, key = {
                "workflows": (Workflow, "id"),
                "queues": (Queue, "name"),
                "leases": (Lease, "duty"),
                "schedules": (Schedule, "name"),
            }[name]
            return {getattr(each, key): each for each in table(row)}


def _columns(row: Any) -> str:
    return ", ".join(column.name for column in fields(row))
