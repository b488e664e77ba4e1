"""Schemas of PostgreSQL that one test after another uses."""

from __future__ import annotations

import itertools
import os
from typing import Any

import psycopg

from dray.backends import open_backend

_numbers = itertools.count(1)

# Children before what they refer to.
TABLES = [
    f"dray_{name}"
    for name in (
        *("logs", "attempts", "edges", "jobs", "workflows"),
        *("queues", "workers", "leases", "schedules", "stacks", "outcomes", "actions", "rollups", "limits", "starts"),
    )
]
_OBJECTS = """
SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = space),
    (SELECT count(*) FROM pg_proc WHERE pronamespace = space),
    (SELECT count(*) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = space)
FROM CAST('{schema}'::regnamespace AS oid) AS space
"""


class Schemas:
    """Schemas whose tables are made once and emptied between tests: making them takes a hundred times as long."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._free: list[str] = []
        self._as_made: list[Any] = []  # what a new one says of itself
        self._objects: list[Any] = []  # that a new one has
        self._kept: psycopg.Connection[Any] | None = None

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        schema = f"test_{os.getpid()}_again_{next(_numbers)}"
        backend = open_backend(f"{self.server}&schema={schema}")
        backend.migrate()
        backend.close()
        self._as_made = self._as_made or self._look(schema)
        self._objects = self._objects or self._ask(_OBJECTS.format(schema=schema))
        return schema

    def give_back(self, schema: str) -> None:
        try:
            self._empty(schema)
            is_as_made = self._look(schema) == self._as_made or self._tidy(schema)
        except psycopg.Error:
            is_as_made = False
        if is_as_made:
            self._free.append(schema)
        else:
            self._ask(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')

    def _empty(self, schema: str) -> None:
        """One statement, which is planned once: to plan 17 of them took longer than to execute them."""
        changes = [f'DELETE FROM "{schema}".{table}' for table in TABLES]
        changes.append(f"DELETE FROM \"{schema}\".dray_meta WHERE name IN ('rollups', 'web_secret')")
        # The first limit raises it.
        oldest_code = dict(self._as_made)["oldest_code"]
        changes.append(
            f"UPDATE \"{schema}\".dray_meta SET value = '{oldest_code}'"
            f" WHERE name = 'oldest_code' AND value <> '{oldest_code}'"
        )
        parts = ", ".join(f"part_{number} AS ({change})" for number, change in enumerate(changes))
        self._ask(f"WITH {parts} SELECT 1", prepare=True)

    def _tidy(self, schema: str) -> bool:
        """Drops the tables that the test has made for itself. False: that was not all it has changed."""
        for place, table in self._ask(
            f"SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('public', '{schema}')"
        ):
            if place == "public" or table not in {*TABLES, "dray_meta"}:
                self._ask(f'DROP TABLE "{place}"."{table}" CASCADE')
        return self._look(schema) == self._as_made and self._ask(_OBJECTS.format(schema=schema)) == self._objects

    def _look(self, schema: str) -> list[Any]:
        # The code of a page makes its tables in `public`, where the next page would find them.
        count = f"SELECT 'tables', count(*)::text FROM pg_tables WHERE schemaname IN ('public', '{schema}')"
        notes = f'SELECT name, value FROM "{schema}".dray_meta'
        return self._ask(f"{notes} UNION ALL {count} ORDER BY 1", prepare=True)

    def _ask(self, sql: str, *, prepare: bool = False) -> list[Any]:
        if self._kept is None or self._kept.closed:
            self._kept = psycopg.connect(self.server, autocommit=True)
        cursor = self._kept.execute(sql.encode(), prepare=prepare)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
