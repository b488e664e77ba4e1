"""Whole tables of a SQLite file. Large arguments and results come out of, and go into, dray_payloads."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from itertools import product

from dray.backends.database import Row
from dray.backends.sqlite.session import PAYLOAD_SIZE
from dray.backends.statements import Catalogue
from dray.backends.tables import GROUP, Key, Portion, Shape, Table, Tables, bounds, portions, slots

_VERBS = ("INSERT", "UPDATE", "DELETE")


class SqliteTables(Tables):
    """The tables behind one connection, in the transaction it has open."""

    def __init__(self, connection: sqlite3.Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def run(self, name: str, given: Mapping[str, str]) -> sqlite3.Cursor:
        return self._connection.execute(self._catalogue.filled(name, given).text)

    def read(self, shape: Shape, after: Key, upto: Key, portion: Portion) -> Generator[list[Row]]:
        statement = self._catalogue.filled("table_read", slots(shape.table, shape.columns))
        cursor = self._connection.execute(statement.text, statement.bind(bounds(after, upto)))
        groups = iter(lambda: cursor.fetchmany(min(GROUP, portion.rows)), [])
        return portions((self._with_payloads(shape, group) for group in groups), portion)

    def _with_payloads(self, shape: Shape, rows: list[Row]) -> list[Row]:
        if shape.table.name != "jobs":
            return rows
        key, args, result = _places(shape)
        between = self._catalogue["payload_between"]
        given = between.bind({"since": rows[0][key], "upto": rows[-1][key]})
        beside = {row[0]: row[1:] for row in self._connection.execute(between.text, given)}
        if not beside:
            return rows
        merged: list[Row] = []
        for row in rows:
            values = list(row)
            for place, large in zip((args, result), beside.get(row[key], (None, None)), strict=True):
                values[place] = large if values[place] is None else values[place]
            merged.append(tuple(values))
        return merged

    def append(self, shape: Shape, rows: Sequence[Row]) -> None:
        self.mend(shape, rows)

    def mend(self, shape: Shape, rows: Sequence[Row]) -> None:
        statement = self._catalogue.filled("table_mend", slots(shape.table, shape.columns))
        if shape.table.name != "jobs":
            self._connection.executemany(statement.text, rows)
            return
        kept, beside = _apart(shape, rows)
        self._connection.executemany(statement.text, kept)
        key = shape.columns.index("id")
        self._connection.executemany(self._catalogue["payload_remove"].text, [(row[key],) for row in rows])
        self._connection.executemany(self._catalogue["payload_write"].text, beside)

    def remove(self, table: Table, keys: Sequence[Key]) -> None:
        self._connection.executemany(self._catalogue.filled("table_remove", slots(table)).text, keys)

    def close(self, sentence: str) -> None:
        # RAISE takes no parameter and no expression, only a literal.
        self._each_trigger("table_close", "'" + sentence.replace("'", "''") + "'")

    def open(self) -> None:
        self._each_trigger("table_open")

    def _each_trigger(self, name: str, literal: str = "") -> None:
        for table, verb in product(self.names(), _VERBS):
            statement = self._catalogue.filled(name, {"table": table, "verb": verb})
            self._connection.execute(statement.text.replace("{sentence}", literal))


def _places(shape: Shape) -> tuple[int, int, int]:
    return shape.columns.index("id"), shape.columns.index("args"), shape.columns.index("result")


def _apart(shape: Shape, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of jobs as they are kept here, and what is too large for them: (id, args, result)."""
    key, *places = _places(shape)
    kept: list[Row] = []
    beside: list[Row] = []
    for row in rows:
        large = [row[place] if row[place] and len(row[place]) > PAYLOAD_SIZE else None for place in places]
        if any(large):
            beside.append((row[key], *large))
            values = list(row)
            for place, value in zip(places, large, strict=True):
                values[place] = values[place] if value is None else None
            row = tuple(values)  # noqa: PLW2901
        kept.append(row)
    return kept, beside
