"""Access to the database next to the backend: plain SQL, users' connections, lost responses, bad timing."""

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

from dray.address import PostgresAddress, SqliteAddress, parse_address
from dray.backends import Backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.session import PostgresSession
from dray.backends.sqlite import SqliteDatabase
from dray.backends.sqlite.session import SqliteSession
from dray.errors import StorageUnavailable
from tests.backends import raw
from tests.prompt import prompt

T = TypeVar("T")
Connection = sqlite3.Connection | psycopg.Connection[Any]

BLOCKED = 0.2  # seconds; a call that has not returned by then is assumed to wait for a lock


@contextmanager
def connect(url: str, *, autocommit: bool = False, timeout: float = 30.0) -> Generator[Connection]:
    """Opens a connection with the driver's defaults on the tables of an address; closes it at the end."""
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
    """Runs a statement with `?` placeholders in the connection's open transaction."""
    if isinstance(connection, sqlite3.Connection):
        cursor = connection.execute(sql, params)
    else:
        cursor = connection.execute(sql.replace("?", "%s"), params)
    return cursor.fetchall() if cursor.description is not None else []


def rows(url: str, sql: LiteralString, *params: object) -> list[Any]:
    """Runs a statement in its own transaction and commits."""
    address = parse_address(url)
    if isinstance(address, PostgresAddress):
        with prompt(address.conninfo, address.schema or "public") as kept:
            return execute(kept, sql, *params)
    with connect(url) as connection:
        found = execute(connection, sql, *params)
        connection.commit()
    return found


def remove_job(url: str, job_id: str) -> None:
    """Deletes a job and its edges, though a child may need it: as earlier releases did."""
    rows(url, "DELETE FROM dray_edges WHERE parent_id = ? OR child_id = ?", job_id, job_id)
    rows(url, "DELETE FROM dray_jobs WHERE id = ?", job_id)


def count(url: str, table: LiteralString) -> int:
    """Returns how many rows a table has."""
    return rows(url, "SELECT count(*) FROM " + table)[0][0]


def lose_next_answer(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the next transaction commit, and its connection break before the response arrives."""
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
    # There is no wire to cut. The closest is a disk error that is reported after the commit is in the log.
    transact, losses = db._transact, [1]

    def failing(connection: sqlite3.Connection, work: Callable[[Any], Any], *, durable: bool) -> Any:
        answer = transact(connection, work, durable=durable)
        if losses:
            losses.pop()
            raise StorageUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(db, "_transact", failing)


def insist(call: Callable[[], T]) -> T:
    """Repeats a call, as a careful caller does where the backend does not do so itself."""
    try:
        return call()
    except StorageUnavailable:
        return call()


class Gate:
    """Blocks the first transaction that reaches a statement until the gate is opened."""

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

    def open(self) -> None:
        self._open.set()

    def interleave(
        self, pool: ThreadPoolExecutor, first: Callable[[], Any], second: Callable[[], T]
    ) -> tuple[Any, T]:
        """Runs `first` up to the gate, then `second` as far as it gets, then both to their ends."""
        one = pool.submit(first)
        assert self.reached.wait(10)
        two = pool.submit(second)
        wait([two], BLOCKED)
        self._open.set()
        return one.result(10), two.result(10)

    def overtake(self, pool: ThreadPoolExecutor, first: Callable[[], Any], second: Callable[[], T]) -> T:
        """Runs `first` up to the gate, then `second` to its end, then `first` to its end."""
        one = pool.submit(first)
        assert self.reached.wait(10)
        try:
            return pool.submit(second).result(10)
        finally:
            self._open.set()
            one.result(10)


class Stall:
    """Blocks a statement on PostgreSQL after its snapshot and before its first row, until it is released."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
        self._backend, self._key = backend, random.getrandbits(31)
        db = cast("PostgresDatabase", backend.db)
        found = db._catalogue[statement]
        # Evaluated once, at the first row. Nothing else uses the key.
        stop = f"WHERE (SELECT pg_advisory_xact_lock_shared({self._key}) IS NOT NULL) AND "
        slow = replace(found, text=found.text.replace("WHERE ", stop, 1))
        monkeypatch.setitem(db._catalogue, statement, slow)

    def interleave(
        self, pool: ThreadPoolExecutor, first: Callable[[], Any], second: Callable[[], T]
    ) -> tuple[Any, T]:
        """Runs `first` up to the statement, then `second` to its end, then the rest of `first`."""
        with raw.transaction(self._backend) as execute:
            execute("SELECT pg_advisory_xact_lock(?)", self._key)
            one, deadline = pool.submit(first), time.monotonic() + 10
            while not execute("SELECT 1 FROM pg_locks WHERE NOT granted AND objid = CAST(? AS bigint)", self._key):
                assert not one.done(), one.result()
                assert time.monotonic() < deadline, "it does not come to the statement"
                time.sleep(0.001)
            two = second()
        return one.result(10), two
