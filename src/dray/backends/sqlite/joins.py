"""Work inside the transactions that users' own connections have open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dray.backends import migrate, user_connection
from dray.backends.database import DataRefused
from dray.backends.sqlite import faults, trust
from dray.backends.sqlite.connect import refuse_missing, run_script
from dray.backends.sqlite.session import SqliteSession
from dray.backends.statements import Catalogue
from dray.backends.user_connection import Cancellation
from dray.clock import Clock
from dray.errors import ConfigError
from dray.log import log

T = TypeVar("T")
Inside = Callable[[sqlite3.Connection, Cancellation], T]

_FULL = 2  # of PRAGMA synchronous


class MakeTables(Protocol):
    """Makes missing tables; returns whether the tables are there, and what this Dray needs."""

    def __call__(self, *, in_transaction: bool) -> bool: ...


class Joins:
    """Joins users' transactions; neither commits them nor rolls them back.

    A database in memory holds no queue at first: it is joined only after `migrate` has made the tables in it, as the
    migrations of a program do whose tests run in memory.
    """

    def __init__(self, path: Path, catalogue: Catalogue, clock: Clock, make_tables: MakeTables) -> None:
        self._path = path
        self._place = str(path)
        self._catalogue = catalogue
        self._clock = clock
        self._make_tables = make_tables
        self._has_tables = False  # makes sure of that before the first transaction is joined
        self._is_admitted = False
        self._has_warned = False

    def run(self, given: Any, work: Callable[[SqliteSession], T]) -> T:
        """Does the work in the transaction of a synchronous connection."""
        return self._work(work, self._synchronous(given), Cancellation())

    async def run_async(self, given: Any, work: Callable[[SqliteSession], T]) -> T:
        """Does the work in the transaction of any connection; a synchronous one is used in the calling thread."""
        return await self._join_async(given, partial(self._work, work), prepares=True)

    def migrate(self, given: Any) -> int:
        """Makes or upgrades the tables in the transaction of a synchronous connection."""
        return self._migrate(self._synchronous(given), Cancellation())

    async def migrate_async(self, given: Any) -> int:
        """As `migrate`, for any connection."""
        return await self._join_async(given, self._migrate)

    def _synchronous(self, given: Any) -> sqlite3.Connection:
        found = user_connection.unwrap(given)
        if user_connection.is_aiosqlite(found):
            raise user_connection.needs_await(given)
        if not isinstance(found, sqlite3.Connection):
            raise user_connection.refusal(given, found, self._place)
        return found

    async def _join_async(self, given: Any, inside: Inside[T], *, prepares: bool = False) -> T:
        from dray.backends.awaiting import in_a_thread, in_its_thread, to_the_end  # noqa: PLC0415 - it loads asyncio

        found, cancellation = await user_connection.unwrap_async(given), Cancellation()
        if isinstance(found, sqlite3.Connection):
            if prepares and self._must_prepare(found):  # which may wait for a lock, and must not stop the loop
                await in_a_thread(partial(self._prepare, in_transaction=found.in_transaction))
            return inside(found, cancellation)
        if not user_connection.is_aiosqlite(found):
            raise user_connection.refusal(given, found, self._place)
        joining = in_its_thread(found, lambda theirs: inside(theirs, cancellation))
        return await to_the_end(joining, cancellation)

    def _must_prepare(self, connection: sqlite3.Connection) -> bool:
        """Whether the tables may have to be made. Refuses what `joined` would; begins nothing on the connection."""
        if self._has_tables:
            return False
        with _borrowed(connection, self._path):
            _check(connection, self._path)
            return not _is_in_memory(connection)

    def _prepare(self, *, in_transaction: bool) -> None:
        """Makes missing tables, if they may be made, by a connection of our own."""
        self._make_tables(in_transaction=in_transaction)
        self._has_tables = True

    def _work(
        self, work: Callable[[SqliteSession], T], connection: sqlite3.Connection, cancellation: Cancellation
    ) -> T:
        cancellation.check()
        if self._must_prepare(connection):
            self._prepare(in_transaction=connection.in_transaction)  # before theirs is touched
        with joined(connection, self._path) as theirs:
            self._warn_if_forgetful(theirs)
            session = SqliteSession(theirs, self._catalogue, self._clock)
            if not self._is_admitted:
                self._admit(session, theirs)
            try:
                answer = work(session)
            except faults.UNWRITABLE as error:
                raise DataRefused(f"{self._place}: {error}") from error
            cancellation.check()
            return answer

    def _migrate(self, connection: sqlite3.Connection, cancellation: Cancellation) -> int:
        cancellation.check()
        with joined(connection, self._path, makes_tables=True) as theirs:
            session = SqliteSession(theirs, self._catalogue, self._clock)
            version = migrate.upgrade("sqlite", session, self._place, lambda text: run_script(theirs, text))
            cancellation.check()
            # In this transaction at least: another connection could not make them while it is open.
            self._has_tables = self._has_tables or not _is_in_memory(theirs)
            return version

    def _admit(self, session: SqliteSession, connection: sqlite3.Connection) -> None:
        known, in_file = session.known(), not _is_in_memory(connection)
        self._has_tables = self._has_tables and bool(known)  # what `migrate` has made may have been rolled back
        if in_file and migrate.is_behind("sqlite", known) and self._make_tables(in_transaction=True):
            raise migrate.unseen(self._place)
        refuse_missing(known, self._place)
        migrate.admit("sqlite", known, self._place)
        self._is_admitted = in_file

    def _warn_if_forgetful(self, connection: sqlite3.Connection) -> None:
        if not self._has_warned and _rows(connection, "PRAGMA synchronous")[0][0] < _FULL:
            self._has_warned = True
            log.warning(
                "%s: a connection= of this program has PRAGMA synchronous below FULL: a power loss may forget the "
                "jobs it commits, with the data that caused them",
                self._place,
            )


@contextmanager
def _borrowed(connection: sqlite3.Connection, path: Path) -> Generator[None]:
    """Reads text as text, whatever the user's connection makes of it, and raises errors as ours."""
    trust.refuse_old(path)
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        yield
    except sqlite3.Error as error:
        raise faults.translate(error, str(path)) from error
    finally:
        connection.text_factory = text_factory


@contextmanager
def joined(
    connection: sqlite3.Connection, path: Path, *, makes_tables: bool = False
) -> Generator[sqlite3.Connection]:
    """Checks the connection and keeps what happens inside to itself if it fails: the caller may go on and commit."""
    with _borrowed(connection, path):
        _check(connection, path, makes_tables=makes_tables)
        if not connection.in_transaction:
            # As the module itself would at the next write; IMMEDIATE, because a lock that is taken later can fail
            # at once.
            connection.execute("BEGIN IMMEDIATE")
        connection.execute("SAVEPOINT dray_join")
        try:
            yield connection
            connection.execute("RELEASE dray_join")
        except BaseException:
            # A full disk, among others, makes SQLite roll the user's whole transaction back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK TO dray_join")
                connection.execute("RELEASE dray_join")
            raise


def _check(connection: sqlite3.Connection, path: Path, *, makes_tables: bool = False) -> None:
    _refuse_elsewhere(connection, path, makes_tables=makes_tables)
    if connection.in_transaction:
        return
    # Python 3.12 says whether commit() would have nothing to do; -1, and before: the isolation level does.
    autocommit = getattr(connection, "autocommit", -1)
    if connection.isolation_level is None if autocommit == -1 else autocommit:
        raise ConfigError(
            f"this connection to {path} is in autocommit mode: open a transaction first (BEGIN; with SQLAlchemy, "
            "another isolation level than AUTOCOMMIT)"
        )


def _refuse_elsewhere(connection: sqlite3.Connection, path: Path, *, makes_tables: bool) -> None:
    file = _file(connection)
    if not file and (makes_tables or _rows(connection, "SELECT 1 FROM sqlite_master WHERE name = 'dray_meta'")):
        return
    if not file or not path.exists() or not Path(file).samefile(path):
        raise ConfigError(
            f"this connection is on {file or 'a database in memory'}, the queue on {path}; use a connection to the "
            "same file" + ("" if file else ", or make the tables in memory with app.init(connection=…), for tests")
        )


def _is_in_memory(connection: sqlite3.Connection) -> bool:
    return not _file(connection)


def _file(connection: sqlite3.Connection) -> str:
    """The file of a connection; empty for a database in memory."""
    return next(file for _, name, file in _rows(connection, "PRAGMA database_list") if name == "main")


def _rows(connection: sqlite3.Connection, sql: str) -> list[Any]:
    cursor = connection.cursor()
    cursor.row_factory = None  # a user's connection may have its own
    return cursor.execute(sql).fetchall()
