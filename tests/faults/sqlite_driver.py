"""A sqlite3 whose Nth call fails: real connections to a real file, with a count at the driver's edge.

Every way into SQLite that Dray has goes through `sqlite3.connect` and the cursors of what it returns. A thread can be
spared, so that a test can use the file while others' calls fail.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from urllib.parse import quote

from tests.faults.count import Count, Fault

T = TypeVar("T")

CONNECT, STATEMENT, FETCH = "connect", "statement", "fetch"
_ALL = frozenset({CONNECT, STATEMENT, FETCH})


@dataclass(frozen=True, slots=True)
class SqliteFault(Fault):
    """An error of the driver's, and what has become of the transaction when it is raised."""

    code: int
    text: str
    when: str = "before"  # undone: SQLite has rolled the transaction back by itself; after: the call did its work

    @property
    def error(self) -> sqlite3.OperationalError:
        """As the driver makes it."""
        error = sqlite3.OperationalError(self.text)
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = _NAMES[self.code]
        return error


_NAMES = {
    sqlite3.SQLITE_BUSY: "SQLITE_BUSY",
    sqlite3.SQLITE_IOERR_WRITE: "SQLITE_IOERR_WRITE",
    sqlite3.SQLITE_FULL: "SQLITE_FULL",
    sqlite3.SQLITE_READONLY: "SQLITE_READONLY",
    sqlite3.SQLITE_CANTOPEN: "SQLITE_CANTOPEN",
}
_WRITE = frozenset({STATEMENT})
_IO = (sqlite3.SQLITE_IOERR_WRITE, "disk I/O error")
_FULL = (sqlite3.SQLITE_FULL, "database or disk is full")

BUSY = SqliteFault("busy", _WRITE, sqlite3.SQLITE_BUSY, "database is locked")
IO = SqliteFault("I/O error", frozenset({STATEMENT, FETCH}), *_IO)
IO_UNDONE = SqliteFault("I/O error, rolled back", _WRITE, *_IO, when="undone")
IO_AFTER = SqliteFault("I/O error after it was done", _WRITE, *_IO, when="after")
FULL = SqliteFault("full", _WRITE, *_FULL)
FULL_UNDONE = SqliteFault("full, rolled back", _WRITE, *_FULL, when="undone")
READ_ONLY = SqliteFault("read-only", _WRITE, sqlite3.SQLITE_READONLY, "attempt to write a readonly database")
CANNOT_OPEN = SqliteFault(
    "cannot open", frozenset({CONNECT}), sqlite3.SQLITE_CANTOPEN, "unable to open database file"
)
FAULTS = (BUSY, IO, IO_UNDONE, IO_AFTER, FULL, FULL_UNDONE, READ_ONLY, CANNOT_OPEN)


class Driver:
    """Stands in for `sqlite3.connect`."""

    def __init__(self, count: Count) -> None:
        self.count = count
        self.spared: threading.Thread | None = None
        self._folder = ""
        self._real = sqlite3.connect
        self._connections: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()

    @contextmanager
    def at_work(self) -> Generator[None]:
        with patch.object(sqlite3, "connect", self._connect):
            yield

    def watch(self, folder: Path) -> None:
        """Counts what is done on connections to files in a folder."""
        self._folder = quote(str(folder))

    def fault_for(self, unit: str, what: str) -> SqliteFault | None:
        """How the call that is about to be made fails; None: it does not."""
        if threading.current_thread() is self.spared:
            return None
        fault = self.count.fault_for(unit, what)
        assert fault is None or isinstance(fault, SqliteFault)
        return fault

    def open_transactions(self) -> list[sqlite3.Connection]:
        """Connections that were left in a transaction."""
        return [each for each in self._connections if _is_in_transaction(each)]

    def _connect(self, database: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        if self._folder not in str(database):
            return self._real(database, *args, **options)
        fault = self.fault_for(CONNECT, "connect")
        if fault is not None:
            raise fault.error
        options["factory"] = _counted(options.get("factory", sqlite3.Connection))
        connection = self._real(database, *args, **options)
        connection.driver = self  # type: ignore[attr-defined]
        self._connections.add(connection)
        return connection


def _is_in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False


@cache
def _counted(factory: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    class Counted(factory):
        driver: Driver | None = None

        def cursor(self, *args: Any, **options: Any) -> Any:
            return super().cursor(*args, **(options or {"factory": Cursor}))

        def execute(self, *args: Any) -> Any:
            return self.cursor().execute(*args)

        def executemany(self, *args: Any) -> Any:
            return self.cursor().executemany(*args)

        def executescript(self, *args: Any) -> Any:
            return self.cursor().executescript(*args)

    return Counted


class Cursor(sqlite3.Cursor):
    """Asks before each call into SQLite whether it is to fail."""

    def execute(self, sql: str, *args: Any) -> Any:
        return self._call(STATEMENT, sql, lambda: super(Cursor, self).execute(sql, *args))

    def executemany(self, sql: str, *args: Any) -> Any:
        return self._call(STATEMENT, sql, lambda: super(Cursor, self).executemany(sql, *args))

    def executescript(self, sql: str) -> Any:
        return self._call(STATEMENT, sql, lambda: super(Cursor, self).executescript(sql))

    def fetchone(self) -> Any:
        return self._call(FETCH, "fetch", super().fetchone)

    def fetchmany(self, size: int | None = None) -> Any:
        rows = self.arraysize if size is None else size
        return self._call(FETCH, "fetch", lambda: super(Cursor, self).fetchmany(rows))

    def fetchall(self) -> Any:
        return self._call(FETCH, "fetch", super().fetchall)

    def __next__(self) -> Any:
        return self._call(FETCH, "fetch", super().__next__)

    def _call(self, unit: str, what: str, work: Callable[[], T]) -> T:
        driver: Driver | None = getattr(self.connection, "driver", None)
        fault = None if driver is None else driver.fault_for(unit, what)
        if fault is None:
            return work()
        if fault.when == "after":
            work()
        if fault.when == "undone":
            sqlite3.Connection.rollback(self.connection)
        # The driver resets a statement that failed: no read lock stays with it.
        self.close()
        raise fault.error
