"""Bulk writes by COPY. It cannot skip a row that is there already, so a repeated enqueue falls back to INSERT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import psycopg
from psycopg.abc import QueryNoTemplate

from dray.backends.database import Row
from dray.backends.postgres.adapt import adapt_writing
from dray.backends.statements import Statement
from dray.instants import to_datetime

_RUN_AT = 5


def copy(connection: psycopg.Connection[Any], statement: Statement, rows: Iterable[Row], now: int) -> bool:
    """Writes plain rows; False, and nothing is written, if one of them is there already."""
    spelled: dict[int, str] = {now: to_datetime(now).isoformat()}  # rows of one enqueue share their instants
    times = (spelled[now], spelled[now])
    connection.execute("SAVEPOINT dray_copy")
    try:
        with connection.cursor().copy(cast(QueryNoTemplate, statement.text)) as target:
            write = target.write_row
            for row in rows:
                due = row[_RUN_AT]
                if due not in spelled:
                    spelled[due] = to_datetime(due).isoformat()
                write(row[:_RUN_AT] + (spelled[due],) + row[_RUN_AT + 1 :] + times)
    except psycopg.errors.UniqueViolation:
        connection.execute("ROLLBACK TO SAVEPOINT dray_copy")
        return False
    connection.execute("RELEASE SAVEPOINT dray_copy")
    return True


def append(
    connection: psycopg.Connection[Any], statement: Statement, types: Sequence[str], rows: Iterable[Row]
) -> None:
    """Writes rows of plain values, in binary: instants and ids need not be spelled and read again."""
    cursor = connection.cursor()
    adapt_writing(cursor)
    with cursor.copy(cast(QueryNoTemplate, statement.text)) as target:
        target.set_types(types)
        write = target.write_row
        for row in rows:
            write(row)
