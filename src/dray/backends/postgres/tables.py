"""Whole tables of a PostgreSQL schema: read through a cursor of the server's, written by COPY."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from typing import Any, cast

import psycopg
from psycopg.abc import QueryNoTemplate
from psycopg.rows import tuple_row

from dray.backends.database import Row
from dray.backends.postgres import bulk
from dray.backends.postgres.adapt import adapt_reading
from dray.backends.statements import Catalogue, Statement, table_statement
from dray.backends.tables import GROUP, Key, Portion, Shape, Table, bounds, portions, slots
from dray.instants import to_datetime

_PATIENCE_MS = "30000"
_TRUTH, _INSTANT, _TEXT = "bool", "timestamptz", "text"


class PostgresTables:
    """The tables behind one connection, in the transaction it has open; not in a pipeline."""

    def __init__(self, connection: psycopg.Connection[Any], catalogue: Catalogue, schema: str | None) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._schema = schema

    def names(self) -> list[str]:
        return [row[0] for row in self._execute(self._catalogue["table_names"])]

    def columns(self, table: Table) -> tuple[str, ...]:
        return tuple(self._types(table))

    def count(self, table: Table) -> int:
        return self._execute(self._filled("table_count", slots(table))).fetchall()[0][0]

    def _types(self, table: Table) -> dict[str, str]:
        return dict(self._execute(self._filled("table_columns", slots(table))).fetchall())

    # Reading

    def read(self, shape: Shape, after: Key, upto: Key, portion: Portion) -> Generator[list[Row]]:
        types = self._types(shape.table)
        statement = self._filled("table_read", slots(shape.table, shape.columns) | _spelled(shape, types))
        with self._connection.cursor("dray_rows", row_factory=tuple_row) as cursor:
            adapt_reading(cursor)
            cursor.execute(cast(QueryNoTemplate, statement.text), bounds(after, upto), binary=True)
            groups = iter(lambda: cursor.fetchmany(min(GROUP, portion.rows)), [])
            yield from portions(groups, portion)

    # Writing

    def append(self, shape: Shape, rows: Sequence[Row]) -> None:
        types = self._types(shape.table)
        statement = self._filled("table_append", slots(shape.table, shape.columns))
        bulk.append(self._connection, statement, [types[name] for name in shape.columns], rows)

    def mend(self, shape: Shape, rows: Sequence[Row]) -> None:
        types = self._types(shape.table)
        statement = self._filled("table_mend", slots(shape.table, shape.columns))
        kinds = [types[name] for name in shape.columns]
        given = [
            {name: _in_json(kind, value) for name, kind, value in zip(shape.columns, kinds, row, strict=True)}
            for row in rows
        ]
        self._execute(statement, {"rows": json.dumps(given)})

    def remove(self, table: Table, keys: Sequence[Key]) -> None:
        statement = self._filled("table_remove", slots(table))
        given = [dict(zip(table.key, key, strict=True)) for key in keys]
        self._connection.cursor().executemany(cast(QueryNoTemplate, statement.text), given)

    def clear(self, table: Table) -> None:
        self._execute(self._filled("table_clear", slots(table)))

    def tidy(self, tables: Iterable[Table]) -> None:
        self._execute(self._catalogue["log_number"])
        for table in tables:
            self._execute(self._filled("table_analyze", slots(table)))

    # Closing

    def close(self, sentence: str) -> None:  # noqa: ARG002 - the trigger reads it where it is noted
        self._execute(self._catalogue["close_patience"], {"milliseconds": _PATIENCE_MS})
        self._execute(self._catalogue["close_function"])
        for table in self.names():
            self._execute(self._filled("table_close", {"table": table}))

    def open(self) -> None:
        for table in self.names():
            self._execute(self._filled("table_open", {"table": table}))
        self._execute(self._catalogue["open_function"])

    def _execute(self, statement: Statement, params: dict[str, Any] | None = None) -> psycopg.Cursor[Row]:
        cursor = self._connection.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute(cast(QueryNoTemplate, statement.text), params or {})

    def _filled(self, name: str, given: dict[str, str]) -> Statement:
        return table_statement("postgres", self._schema, name, tuple(given.items()))


def _spelled(shape: Shape, types: dict[str, str]) -> dict[str, str]:
    """Names in the order of their bytes, whatever the database's language."""
    order = [f'{name} COLLATE "C"' if types[name] == _TEXT else name for name in shape.table.key]
    return {"order": ", ".join(order)}


def _in_json(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == _INSTANT:
        return to_datetime(value).isoformat()
    return bool(value) if kind == _TRUTH else value
