"""SQL of the tests themselves at a PostgreSQL, on sessions that are kept: a new one costs the server 4 ms."""

from __future__ import annotations

import os
import select
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

_idle: dict[tuple[int, str], list[psycopg.Connection[Any]]] = {}  # by process, since forks must not share them


@contextmanager
def prompt(conninfo: str, schema: str | None) -> Generator[psycopg.Connection[Any]]:
    """A transaction that finds the tables of a schema and commits at the end. An error closes its session."""
    connection = _take(conninfo)
    try:
        if schema is not None:
            connection.execute(SQL("SET LOCAL search_path TO {}").format(Identifier(schema)))
        yield connection
        connection.commit()
    except BaseException:
        connection.close()
        raise
    _idle.setdefault((os.getpid(), conninfo), []).append(connection)


def _take(conninfo: str) -> psycopg.Connection[Any]:
    idle = _idle.get((os.getpid(), conninfo), [])
    with suppress(IndexError):  # another thread may take the last one
        while True:
            connection = idle.pop()
            if not connection.closed and not select.select([connection], [], [], 0)[0]:
                return connection
            connection.close()  # the server has ended it
    # None is prepared: a plan would outlive the tables it was made for.
    return psycopg.connect(conninfo, prepare_threshold=None)


def close_prompts() -> None:
    for idle in _idle.values():
        for connection in idle:
            connection.close()
    _idle.clear()
