"""Beside the backend: SQL as a person at a prompt types it, connections of a user's own, lost answers, bad timing."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, LiteralString, TypeVar, cast

import psycopg
import pytest

from dray.address import SqliteAddress, parse_address
from dray.backends import Backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.session import PostgresSession
from dray.backends.sqlite import SqliteDatabase
from dray.backends.sqlite.session import SqliteSession
from dray.errors import StorageUnavailable
from tests.backends import raw

T = TypeVar("T")
Connection = sqlite3.Connection | psycopg.Connection[Any]

BLOCKED = 0.2  # seconds after which a call that has not returned is taken to wait for somebody


@contextmanager
def connect(url: str, *, autocommit: bool = False, timeout: float = 30.0) -> Generator[Connection]:
    """A connection as the driver makes it by default, on the tables of an address; closed at the end."""
    connection = _open(url, autocommit=autocommit, timeout=timeout)
    try:
        yield connection
    finally:
        connection.close()


def _open(url: str, *, autocommit: bool, timeout: float) -> Connection:
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        opened = sqlite3.connect(address.path, timeout=timeout, check_same_thread=False)
        if autocommit:
            opened.isolation_level = None
        return opened
    return psycopg.connect(
        address.conninfo, autocommit=autocommit, options=f"-c search_path={address.schema or 'public'}"
    )


def execute(connection: Connection, sql: LiteralString, *params: object) -> list[Any]:
    """One statement with `?` for its values, in the transaction that the connection has open."""
    if isinstance(connection, sqlite3.Connection):
        cursor = connection.execute(sql, params)
    else:
        cursor = connection.execute(sql.replace("?", "%s"), params)
    return cursor.fetchall() if cursor.description is not None else []


def rows(url: str, sql: LiteralString, *params: object) -> list[Any]:
    """One statement in a transaction of its own, committed."""
    with connect(url) as connection:
        found = execute(connection, sql, *params)
        connection.commit()
    return found


def count(url: str, table: LiteralString) -> int:
    """How many rows a table has."""
    return rows(url, "SELECT count(*) FROM " + table)[0][0]


def lose_next_answer(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction commits, and its connection is gone before the answer arrives."""
    if isinstance(backend.db, PostgresDatabase):
        _cut_after_commit(backend.db, monkeypatch)
    else:
        _fail_after_commit(cast("SqliteDatabase", backend.db), monkeypatch)


def _cut_after_commit(db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    again, losses = db._again, [1]

    def cut(transaction: Callable[[Any], Any]) -> Any:
        def committed(connection: psycopg.Connection[Any]) -> Any:
            answer = transaction(connection)
            if losses:
                losses.pop()
                connection.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return answer

        return again(committed)

    monkeypatch.setattr(db, "_again", cut)


def _fail_after_commit(db: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no wire to cut: the nearest is a disk error that is reported once the commit is in the log.
    transact, losses = db._transact, [1]

    def failing(connection: sqlite3.Connection, work: Callable[[Any], Any], *, durable: bool) -> Any:
        answer = transact(connection, work, durable=durable)
        if losses:
            losses.pop()
            raise StorageUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(db, "_transact", failing)


def insist(call: Callable[[], T]) -> T:
    """What a careful caller does where the backend does not do it itself: the same again."""
    try:
        return call()
    except StorageUnavailable:
        return call()


class Gate:
    """Stops the first transaction that comes to a statement until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        self._statement, self._first = statement, threading.Lock()
        for session in (SqliteSession, PostgresSession):
            for method in ("rows", "run"):
                monkeypatch.setattr(session, method, self._guard(getattr(session, method)))

    def _guard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(session: Any, name: str, /, **params: Any) -> Any:
            if name == self._statement and self._first.acquire(blocking=False):
                self.reached.set()
                assert self._open.wait(10)
            return method(session, name, **params)

        return guarded

    def interleave(
        self, pool: ThreadPoolExecutor, first: Callable[[], Any], second: Callable[[], T]
    ) -> tuple[Any, T]:
        """`first` as far as the gate, then `second` as far as it gets, then both to their ends."""
        one = pool.submit(first)
        assert self.reached.wait(10)
        two = pool.submit(second)
        wait([two], BLOCKED)
        self._open.set()
        return one.result(10), two.result(10)

    def overtake(self, pool: ThreadPoolExecutor, first: Callable[[], Any], second: Callable[[], T]) -> T:
        """`first` as far as the gate, `second` to its end meanwhile, then `first` to its own."""
        one = pool.submit(first)
        assert self.reached.wait(10)
        try:
            return pool.submit(second).result(10)
        finally:
            self._open.set()
            one.result(10)


class Stall:
    """Stops a statement of a PostgreSQL database after its snapshot and before its first row, until it is let go."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
        self._backend, self._key = backend, random.getrandbits(31)
        db = cast("PostgresDatabase", backend.db)
        found = db._catalogue[statement]
        # Asked once, when the first row is looked at; nobody else uses the key.
        stop = f"WHERE (SELECT pg_advisory_xact_lock_shared({self._key}) IS NOT NULL) AND "
        slow = replace(found, text=found.text.replace("WHERE ", stop, 1))
        monkeypatch.setattr(db, "_catalogue", {**db._catalogue, statement: slow})

    def interleave(
        self, pool: ThreadPoolExecutor, first: Callable[[], Any], second: Callable[[], T]
    ) -> tuple[Any, T]:
        """`first` as far as the statement, then `second` to its end, then the rest of `first`."""
        with raw.transaction(self._backend) as execute:
            execute("SELECT pg_advisory_xact_lock(?)", self._key)
            one, deadline = pool.submit(first), time.monotonic() + 10
            while not execute("SELECT 1 FROM pg_locks WHERE NOT granted AND objid = CAST(? AS bigint)", self._key):
                assert not one.done(), one.result()
                assert time.monotonic() < deadline, "it does not come to the statement"
                time.sleep(0.001)
            two = second()
        return one.result(10), two
