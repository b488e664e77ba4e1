"""Whole tables of a PostgreSQL schema: read through a cursor of the server's, written by COPY."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import psycopg
from psycopg.abc import QueryNoTemplate
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier

from dray.backends import migrate
from dray.backends.database import Row, Session
from dray.backends.postgres import adapt
from dray.backends.postgres.adapt import Connection, TruthLoader
from dray.backends.statements import Catalogue
from dray.backends.tables import GROUP, Key, Portion, Shape, Table, Tables, bounds, portions, slots
from dray.instants import to_datetime
from dray.log import log

_TRUTH, _INSTANT, _TEXT = "bool", "timestamptz", "text"


class PostgresTables(Tables):
    """The tables behind one connection, in the transaction it has open; not in a pipeline."""

    def __init__(self, connection: psycopg.Connection[Any], catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def run(self, name: str, given: Mapping[str, str], **params: str) -> psycopg.Cursor[Row]:
        cursor = self._connection.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute(cast(QueryNoTemplate, self._catalogue.filled(name, given).text), params)

    def _types(self, table: Table) -> dict[str, str]:
        return dict(self.run("table_columns", slots(table)).fetchall())

    def read(self, shape: Shape, after: Key, upto: Key, portion: Portion) -> Generator[list[Row]]:
        types = self._types(shape.table)
        # Names in the order of their bytes, whatever the database's language.
        order = ", ".join(f'{name} COLLATE "C"' if types[name] == _TEXT else name for name in shape.table.key)
        statement = self._catalogue.filled("table_read", slots(shape.table, shape.columns) | {"order": order})
        with self._connection.cursor("dray_rows", row_factory=tuple_row) as cursor:
            cursor.adapters.register_loader("bool", TruthLoader)
            between = bounds(_spelled(shape.table, types, after), _spelled(shape.table, types, upto))
            cursor.execute(cast(QueryNoTemplate, statement.text), between, binary=True)
            groups = iter(lambda: cursor.fetchmany(min(GROUP, portion.rows)), [])
            yield from portions(groups, portion)

    def append(self, shape: Shape, rows: Sequence[Row]) -> None:
        types = self._types(shape.table)
        statement = self._catalogue.filled("table_append", slots(shape.table, shape.columns))
        adapt.append(self._connection, statement, [types[name] for name in shape.columns], rows)

    def mend(self, shape: Shape, rows: Sequence[Row]) -> None:
        types = self._types(shape.table)
        kinds = [types[name] for name in shape.columns]
        given = [
            {name: _in_json(kind, value) for name, kind, value in zip(shape.columns, kinds, row, strict=True)}
            for row in rows
        ]
        self.run("table_mend", slots(shape.table, shape.columns), rows=json.dumps(given))

    def remove(self, table: Table, keys: Sequence[Key]) -> None:
        statement = self._catalogue.filled("table_remove", slots(table))
        types = self._types(table)
        given = [dict(zip(table.key, _spelled(table, types, key), strict=True)) for key in keys]
        self._connection.cursor().executemany(cast(QueryNoTemplate, statement.text), given)

    def tidy(self, tables: Iterable[Table]) -> None:
        self.run("log_number", {})
        for table in tables:
            self.run("table_analyze", slots(table))

    def close(self, sentence: str) -> None:  # noqa: ARG002 - the trigger reads it where it is noted
        self.run("close_patience", {}, milliseconds="30000")
        self.run("close_function", {})
        for table in self.names():
            self.run("table_close", {"table": table})

    def open(self) -> None:
        for table in self.names():
            self.run("table_open", {"table": table})
        self.run("open_function", {})


def _spelled(table: Table, types: Mapping[str, str], key: Key) -> Key:
    """A key as parameters of a statement."""
    parts = zip(table.key, key, strict=True)
    return tuple(_in_json(types[name], value) for name, value in parts)


def _in_json(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == _INSTANT:
        return to_datetime(value).isoformat()
    return bool(value) if kind == _TRUTH else value


class TableCheck(NamedTuple):
    """What the catalogue tells, and what to look into further."""

    problems: list[str]
    indexes: dict[str, int]  # valid ones, and their oids
    extension: str | None  # the schema of amcheck, where it is installed


def look(tx: Session, table: str) -> TableCheck:
    namespace = tx.rows("table_namespace", table=table)[0][0]
    indexes = tx.rows("check_indexes", namespace=namespace)
    loose = tx.rows("check_constraints", namespace=namespace)
    there = {row[0] for row in tx.rows("check_names", namespace=namespace)}
    problems = [
        *(
            f"index {name} was never finished and is not used; REINDEX it"
            for name, _, is_used in indexes
            if not is_used
        ),
        *(f"constraint {name} of {table} was never validated" for table, name in loose),
        *(f"{name} is missing" for name in sorted(migrate.names("postgres") - there)),
    ]
    extension = tx.rows("check_extension")
    return TableCheck(
        problems, {name: oid for name, oid, is_used in indexes if is_used}, extension[0][0] if extension else None
    )


def look_into(connection: Connection, found: TableCheck, *, full: bool) -> list[str]:
    """What amcheck finds in the indexes; no writer waits for it. Full: every row has to be in them, too."""
    assert found.extension is not None
    check = SQL("SELECT {}.bt_index_check(CAST(%s AS oid), %s)").format(Identifier(found.extension))
    problems: list[str] = []
    for name, oid in found.indexes.items():
        try:
            connection.execute(check, (oid, full))
        except psycopg.errors.InsufficientPrivilege:
            log.warning("amcheck is installed, but this user may not use it; the indexes were not looked into")
            return problems
        except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
            problems.append(f"index {name} is damaged ({str(error).strip().partition(chr(10))[0]}); REINDEX it")
    return problems
