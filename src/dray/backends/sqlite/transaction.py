"""Transactions that users fill: on their own connection, or on that of a block."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dray.backends import migrate
from dray.backends.database import DataRefused
from dray.backends.sqlite import faults, trust
from dray.backends.sqlite.connect import connect, patiently, refuse_missing
from dray.backends.sqlite.readers import Visit
from dray.backends.sqlite.session import SqliteSession
from dray.backends.statements import Catalogue
from dray.backends.user_connection import Cancellation
from dray.clock import Clock
from dray.errors import ConfigError, ForkedConnection
from dray.instants import SECOND
from dray.log import log

T = TypeVar("T")

_FULL = 2  # of PRAGMA synchronous


@contextmanager
def joined(connection: sqlite3.Connection, path: Path) -> Generator[sqlite3.Connection]:
    """Checks the connection and keeps what happens inside to itself if it fails: the caller may go on and commit."""
    trust.refuse_old(path)
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        _check(connection, path)
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
    except sqlite3.Error as error:
        raise faults.translate(error, str(path)) from error
    finally:
        connection.text_factory = text_factory


def _check(connection: sqlite3.Connection, path: Path) -> None:
    files = [file for _, name, file in _pragma(connection, "database_list") if name == "main"]
    if not files[0] or not path.exists() or not Path(files[0]).samefile(path):
        raise ConfigError(
            f"this connection is on {files[0] or 'a database in memory'}, the queue on {path}; "
            "use a connection to the same file"
        )
    if connection.in_transaction:
        return
    # Python 3.12 says whether commit() would have nothing to do; -1, and before: the isolation level does.
    autocommit = getattr(connection, "autocommit", -1)
    if connection.isolation_level is None if autocommit == -1 else autocommit:
        raise ConfigError(
            f"this connection to {path} is in autocommit mode: open a transaction first (BEGIN; with SQLAlchemy, "
            "another isolation level than AUTOCOMMIT)"
        )
    # As the module itself would at the next write; IMMEDIATE, because a lock that is taken later can fail at once.
    connection.execute("BEGIN IMMEDIATE")


def _pragma(connection: sqlite3.Connection, name: str) -> list[Any]:
    cursor = connection.cursor()
    cursor.row_factory = None  # a user's connection may have its own
    return cursor.execute(f"PRAGMA {name}").fetchall()


LONG_US = SECOND // 2  # no other connection can write meanwhile


class Joins:
    """Work inside the transactions that users' own connections have open."""

    def __init__(self, path: Path, catalogue: Catalogue, clock: Clock) -> None:
        self._path = path
        self._place = str(path)
        self._catalogue = catalogue
        self._clock = clock
        self._is_admitted = False
        self._has_warned = False

    def run(
        self, connection: sqlite3.Connection, work: Callable[[SqliteSession], T], cancellation: Cancellation
    ) -> T:
        cancellation.check()
        with joined(connection, self._path) as theirs:
            self._warn_if_forgetful(theirs)
            session = SqliteSession(theirs, self._catalogue, self._clock)
            if not self._is_admitted:
                # Missing tables are never made in a user's transaction.
                known = session.known()
                refuse_missing(known, self._place)
                migrate.admit("sqlite", known, self._place)
                self._is_admitted = True
            try:
                answer = work(session)
            except (UnicodeEncodeError, OverflowError) as error:
                raise DataRefused(f"{self._place}: {error}") from error
            cancellation.check()
            return answer

    def _warn_if_forgetful(self, connection: sqlite3.Connection) -> None:
        if not self._has_warned and _pragma(connection, "synchronous")[0][0] < _FULL:
            self._has_warned = True
            log.warning(
                "%s: a connection= of this program has PRAGMA synchronous below FULL: a power loss may forget the "
                "jobs it commits, with the data that caused them",
                self._place,
            )


class SqliteBlock(sqlite3.Connection):
    """A sqlite3.Connection that leaves COMMIT and ROLLBACK to its block, and an inherited one to the parent."""

    forked = False  # set in a child: the locks are the parent's, a write here would damage the file

    # sqlite3 finds each of these by a way of its own

    def execute(self, *args: Any) -> sqlite3.Cursor:
        self._check()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        self._check()
        return super().executemany(*args)

    def cursor(self, *args: Any, **options: Any) -> Any:
        self._check()
        return super().cursor(*args, **options)

    def _check(self) -> None:
        if self.forked:
            raise ForkedConnection(
                "this process was forked inside a transaction() block, which stays the parent's; fork outside it"
            )

    def _leave_it(self, *_: object) -> NoReturn:
        raise ConfigError(
            "a transaction() block commits at its end, and rolls back after an error: do not commit, roll back, "
            "close, enter or run scripts on its connection"
        )

    commit = rollback = close = executescript = __enter__ = _leave_it


@dataclass
class SqliteTransaction:
    """An `OpenTransaction` on a connection of its own."""

    _path: Path
    _visit: Visit
    _blocks: dict[SqliteBlock, int]
    _clock: Clock
    _busy_timeout: float
    _open_file: Callable[[], None]
    _block: SqliteBlock | None = None
    _began: int | None = None
    _has_ended: bool = False

    def begin(self) -> SqliteBlock:
        self._open_file()
        block = self.open()
        patiently(self.take_lock, self._busy_timeout, str(self._path))
        return block

    def open(self) -> SqliteBlock:
        """The connection, on which no transaction is open yet."""
        self._visit.begin()
        self._block = block = patiently(
            lambda: connect(self._path, SqliteBlock, check_same_thread=True), self._busy_timeout, str(self._path)
        )
        patiently(lambda: block.execute("PRAGMA synchronous = FULL"), self._busy_timeout, str(self._path))
        self._blocks[block] = threading.get_ident()
        return block

    def take_lock(self) -> None:
        """Takes the write lock; fails at once if another connection has it."""
        assert self._block is not None
        self._block.execute("BEGIN IMMEDIATE")
        self._began = self._clock.steady()

    def commit(self) -> None:
        block = self._block
        assert block is not None
        if not block.forked and not block.in_transaction:
            raise ConfigError(
                f"{self._path}: this block's transaction was ended inside the block; leave COMMIT and ROLLBACK to it"
            )
        try:
            block.execute("COMMIT")
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise faults.translate(error, str(self._path)) from error

    def end(self) -> None:
        block = self._block
        if block is not None:
            if not block.forked:  # an inherited one is left alone
                with suppress(sqlite3.Error):  # closing does it too; and it may be closed already
                    if block.in_transaction:
                        block.execute("ROLLBACK")
                sqlite3.Connection.close(block)
            self._blocks.pop(block, None)
            self._warn_if_long()
        self._has_ended = True
        self._visit.end()

    def _warn_if_long(self) -> None:
        open_us = 0 if self._began is None or self._has_ended else self._clock.steady() - self._began
        if open_us > LONG_US:
            log.warning(
                "%s: a transaction() block was open for %.1f s, and no other process could write; do slow work first",
                self._path,
                open_us / SECOND,
            )
