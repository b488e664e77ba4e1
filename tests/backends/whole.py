"""All rows of a database as seen at a SQL prompt, in the same form for both databases.

It shares no code with the move, which copies rows from one to the other.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from tests.prompt import prompt

CARRIED = (
    *("queues", "schedules", "limits", "starts", "workflows", "jobs", "attempts", "edges", "logs", "outcomes"),
    *("actions", "rollups"),
)

Rows = list[dict[str, Any]]


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def sql(url: str, text: str) -> list[tuple[Any, ...]]:
    """Runs one statement."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url), timeout=30)) as connection:
            found = connection.execute(text).fetchall()
            connection.commit()
            return found
    server, _, schema = url.rpartition("&schema=")
    with prompt(server, schema) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def everything(url: str) -> dict[str, Rows]:
    """Returns every table that a move copies, with its rows in a fixed order; without the row that says who moved."""
    found = _on_sqlite(path_of(url)) if url.startswith("sqlite") else _on_postgres(url)
    found["actions"] = [row for row in found["actions"] if row["verb"] != "move"]
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def rolled_up(url: str) -> list[tuple[Any, ...]]:
    """Before when everything is rolled up, which a move carries too."""
    return sql(url, "SELECT value FROM dray_meta WHERE name = 'rollups'")


def _on_sqlite(path: Path) -> dict[str, Rows]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        tables: dict[str, Rows] = {
            name: connection.execute(f"SELECT * FROM dray_{name}").fetchall() for name in CARRIED
        }
        beside = {row["job_id"]: row for row in connection.execute("SELECT * FROM dray_payloads")}
    for job in tables["jobs"]:
        for name in ("args", "result"):
            if job[name] is None and job["id"] in beside:
                job[name] = beside[job["id"]][name]
    return {name: [dict(sorted(row.items())) for row in rows] for name, rows in tables.items()}


def _on_postgres(url: str) -> dict[str, Rows]:
    server, _, schema = url.rpartition("&schema=")
    with prompt(server, schema) as connection, connection.cursor(row_factory=dict_row) as cursor:
        return {
            name: [
                {column: _spelled(value) for column, value in sorted(row.items())}
                for row in cursor.execute(f"SELECT * FROM dray_{name}".encode()).fetchall()
            ]
            for name in CARRIED
        }


def _spelled(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(value, UUID):
        return str(value)
    return int(value) if isinstance(value, bool) else value
