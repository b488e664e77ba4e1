"""Whole tables as rows of plain values, so that one database's rows can be written into another's.

Plain: ids are lower-case text, instants whole microseconds, truth is 0 or 1, and a job's arguments and results are
in its row wherever a database keeps them. The columns of a table come from the database's own catalogue: one that a
later migration adds is carried without a change here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from marshal import dumps
from typing import NamedTuple, Protocol

from dray.backends.database import Row

Key = tuple[str | int, ...]

GROUP = 100  # rows that are read at once: each may have a megabyte


class Table(NamedTuple):
    """A table, what tells its rows apart, and a key below and one above all of them."""

    name: str
    key: tuple[str, ...]
    lowest: Key
    highest: Key


class Shape(NamedTuple):
    """A table with the columns that are read or written, in an order that both sides use."""

    table: Table
    columns: tuple[str, ...]

    def key_of(self, row: Row) -> Key:
        return tuple(row[self.columns.index(name)] for name in self.table.key)


class Portion(NamedTuple):
    """How much is read before it is handed on."""

    rows: int = 5_000
    size: int = 16_000_000  # bytes, about


class Tables(Protocol):
    """The tables of a database inside one transaction."""

    def run(self, name: str, given: Mapping[str, str]) -> Iterable[Row]:
        """Runs a statement, its slots filled; its rows, if it has any."""
        ...

    def names(self) -> list[str]:
        """All tables, without their prefix and without the one that says what they are."""
        return [row[0] for row in self.run("table_names", {})]

    def columns(self, table: Table) -> tuple[str, ...]:
        return tuple(row[0] for row in self.run("table_columns", slots(table)))

    def count(self, table: Table) -> int:
        ((rows,),) = self.run("table_count", slots(table))
        return rows

    def clear(self, table: Table) -> None:
        """Removes all rows, and what refers to them."""
        self.run("table_clear", slots(table))

    def read(self, shape: Shape, after: Key, upto: Key, portion: Portion) -> Generator[list[Row]]:
        """The rows whose key is above `after` and not above `upto`, in the order of the key, a portion at a time."""
        ...

    def append(self, shape: Shape, rows: Sequence[Row]) -> None:
        """Writes rows whose keys are not there."""

    def mend(self, shape: Shape, rows: Sequence[Row]) -> None:
        """Writes rows over those that have their keys."""

    def remove(self, table: Table, keys: Sequence[Key]) -> None:
        """Removes rows, and what refers to them."""

    def close(self, sentence: str) -> None:
        """Has every change of every table refused with this sentence, also on connections that were open before;
        not in a transaction that has noted a `pass` in dray_meta and takes it back before its end."""

    def open(self) -> None:
        """Undoes `close`."""

    def tidy(self, tables: Iterable[Table]) -> None:
        """After many rows were written with numbers of their own: what the database has to know to go on. SQLite's
        numbers go on from the highest, and its plans do not depend on statistics."""


def slots(table: Table, columns: Sequence[str] = ()) -> dict[str, str]:
    """What a statement for any table is filled with."""
    numbers = range(len(table.key))
    return {
        "table": table.name,
        "columns": ", ".join(columns),
        "values": ", ".join(f":{name}" for name in columns),
        "assignments": ", ".join(f"{name} = excluded.{name}" for name in columns if name not in table.key),
        "key": ", ".join(table.key),
        "order": ", ".join(table.key),
        "match": " AND ".join(f"{name} = :{name}" for name in table.key),
        "after": ", ".join(f":after_{number}" for number in numbers),
        "upto": ", ".join(f":upto_{number}" for number in numbers),
    }


def bounds(after: Key, upto: Key) -> dict[str, str | int]:
    """The parameters of `table_read`."""
    low = {f"after_{number}": value for number, value in enumerate(after)}
    return low | {f"upto_{number}": value for number, value in enumerate(upto)}


def portions(groups: Iterable[list[Row]], portion: Portion) -> Generator[list[Row]]:
    """Puts groups of rows together until they are a portion."""
    gathered: list[Row] = []
    size = 0
    for group in groups:
        gathered += group
        size += len(dumps(group, 2))  # the fastest way to ask
        if len(gathered) >= portion.rows or size >= portion.size:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered
