"""The databases of the worker benchmarks, for raw loops, an App and worker processes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, LiteralString

import psycopg

import dray
from benchmarks.places import postgres_place, sqlite_place
from benchmarks.storage import PostgresPlace, SqlitePlace
from dray.backends.postgres.database import PostgresDatabase
from dray.backends.sqlite.database import SqliteDatabase
from dray.task.task import Task


class Arena:
    """One database; `fresh` empties its tables."""

    def __init__(self, place: SqlitePlace | PostgresPlace, url: str) -> None:
        self.place = place
        self.url = url
        self.name = place.name
        self.is_sqlite = isinstance(place, SqlitePlace)
        # What a worker settles and claims at a time while bodies are short.
        self.largest_batch = (SqliteDatabase if self.is_sqlite else PostgresDatabase).most_ahead // 2

    @contextmanager
    def fresh(self) -> Generator[dray.App]:
        """Returns a producer on empty tables."""
        self.place.fresh_dray()
        self.place.close()
        with dray.App(self.url) as app:
            yield app

    def query(self, sqlite: LiteralString, postgres: LiteralString) -> tuple[Any, ...]:
        """Returns the only row of a statement, run on the bare driver."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                return connection.execute(sqlite).fetchone()
        with psycopg.connect(self.url) as connection:
            row = connection.execute(postgres).fetchone()
            assert row is not None
            return row


# The arguments of every no-op: six, of 117 bytes as JSON.
SIX = (18_446_744, "ann.smith@example.com", 129.95, "EUR", True, [3, 17, 42, 812])
SIX_JSON = json.dumps(
    dict(zip(("order", "to", "amount", "currency", "express", "items"), SIX, strict=True)), separators=(",", ":")
)


def noop_of(app: dray.App) -> Task[[int, str, float, str, bool, list[int]], None]:
    """Returns the noop of `benchmarks.tasks`, for a producer without that module."""

    def noop(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None: ...

    return app.task(name="benchmarks.tasks.noop")(noop)


@contextmanager
def arenas(which: str = "both") -> Generator[list[Arena]]:
    """Opens SQLite, PostgreSQL or both."""
    with ExitStack() as stack:
        found: list[Arena] = []
        if which != "postgres":
            url = stack.enter_context(sqlite_place())
            found.append(Arena(SqlitePlace(url), url))
        if which != "sqlite":
            url = stack.enter_context(postgres_place())
            found.append(Arena(PostgresPlace(url), url))
        for arena in found:
            stack.callback(arena.place.close)
        yield found
