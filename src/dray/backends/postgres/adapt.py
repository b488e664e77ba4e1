"""Values on the wire: instants as whole microseconds, ids as text."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, cast

import psycopg
from psycopg.abc import Buffer, QueryNoTemplate
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

from dray.backends.database import Row
from dray.backends.statements import Statement
from dray.instants import FIRST_INSTANT, LAST_INSTANT

_POSTGRES_EPOCH = 946_684_800_000_000  # 2000-01-01, in microseconds since 1970
_INT8 = struct.Struct("!q")
_LINES = 1_000  # rows that are handed to the driver together


class InstantLoader(Loader):
    """timestamptz, binary: microseconds since 2000. What is beyond the calendar, as `infinity`, is its end: the
    server would not take it back as a number."""

    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        at: int = _INT8.unpack(data)[0] + _POSTGRES_EPOCH
        return at if FIRST_INSTANT <= at <= LAST_INSTANT else max(FIRST_INSTANT, min(at, LAST_INSTANT))


class IdLoader(Loader):
    """uuid, binary: 16 bytes."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        text = bytes(data).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class TruthLoader(Loader):
    """bool, binary, as 0 or 1: as SQLite keeps it."""

    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        return bytes(data)[0]


class InstantDumper(Dumper):
    """timestamptz, binary, from microseconds since 1970."""

    format = Format.BINARY
    oid = psycopg.adapters.types["timestamptz"].oid

    def dump(self, obj: int) -> bytes:
        return _INT8.pack(obj - _POSTGRES_EPOCH)


class IdDumper(Dumper):
    """uuid, binary, from its text."""

    format = Format.BINARY
    oid = psycopg.adapters.types["uuid"].oid

    def dump(self, obj: str) -> bytes:
        return bytes.fromhex(obj.replace("-", ""))


def adapt(target: psycopg.Connection[Any] | psycopg.Cursor[Any]) -> None:
    """Makes a connection, or a cursor on a user's connection, speak as the rest of Dray does."""
    target.adapters.register_loader("timestamptz", InstantLoader)
    target.adapters.register_loader("uuid", IdLoader)


def adapt_anew(target: psycopg.Cursor[Any]) -> None:
    """As `adapt`, and takes back what a user may have registered for the types that Dray reads."""
    for name in ("text", "int2", "int4", "int8", "bool", "float8"):
        loader = psycopg.adapters.get_loader(psycopg.adapters.types[name].oid, Format.BINARY)
        if loader is not None:
            target.adapters.register_loader(name, loader)
    adapt(target)


Connection = psycopg.Connection[tuple[object, ...]]


def copy(connection: psycopg.Connection[Any], statement: Statement, lines: Sequence[str]) -> bool:
    """Writes rows, as lines of COPY's text format; False, and nothing is written, if one of them is there already:
    COPY cannot skip it, and a repeated enqueue falls back to INSERT."""
    connection.execute("SAVEPOINT dray_copy")
    try:
        with connection.cursor().copy(cast(QueryNoTemplate, statement.text)) as target:
            for start in range(0, len(lines), _LINES):
                target.write("".join(lines[start : start + _LINES]))
    except psycopg.errors.UniqueViolation:
        connection.execute("ROLLBACK TO SAVEPOINT dray_copy")
        return False
    connection.execute("RELEASE SAVEPOINT dray_copy")
    return True


def as_copied(values: Iterable[Any]) -> str:
    """Values of a row between tabs, as COPY takes them."""
    return "\t".join("\\N" if value is None else escaped(str(value)) for value in values)


def escaped(text: str) -> str:
    """Text as COPY takes it. JSON has no tab and no end of a line in it; names and descriptions may have."""
    text = text.replace("\\", "\\\\")
    return text if text.isprintable() else text.translate(_CONTROL)


_CONTROL = str.maketrans({"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"})


def append(
    connection: psycopg.Connection[Any], statement: Statement, types: Sequence[str], rows: Iterable[Row]
) -> None:
    """Writes rows of plain values, in binary: instants and ids need not be spelled and read again."""
    cursor = connection.cursor()
    cursor.adapters.register_dumper(None, InstantDumper)
    cursor.adapters.register_dumper(None, IdDumper)
    with cursor.copy(cast(QueryNoTemplate, statement.text)) as target:
        target.set_types(types)
        write = target.write_row
        for row in rows:
            write(row)
