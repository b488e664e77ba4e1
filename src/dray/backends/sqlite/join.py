"""A user's own connection, inside the transaction they have open: Dray's writes stand or fall with theirs."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dray.backends.sqlite import faults, version
from dray.errors import ConfigError

log = logging.getLogger("dray")

_FULL = 2  # of PRAGMA synchronous


@contextmanager
def joined(connection: sqlite3.Connection, path: Path) -> Generator[sqlite3.Connection]:
    """Checks the connection and keeps what happens inside to itself if it fails: the caller may go on and commit."""
    version.refuse_old(path)
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
    if _is_autocommit(connection):
        raise ConfigError(
            f"this connection to {path} is in autocommit mode: open a transaction first (BEGIN; with SQLAlchemy, "
            "another isolation level than AUTOCOMMIT)"
        )
    # As the module itself would at the next write; IMMEDIATE, because a lock that is taken later can fail at once.
    connection.execute("BEGIN IMMEDIATE")


def _is_autocommit(connection: sqlite3.Connection) -> bool:
    """Whether commit() would have nothing to do. Python 3.12 has `autocommit` for it; -1: it is as it was before."""
    autocommit = getattr(connection, "autocommit", -1)
    return connection.isolation_level is None if autocommit == -1 else bool(autocommit)


def is_below_full(connection: sqlite3.Connection) -> bool:
    """Whether a commit of this connection may be forgotten by a power loss."""
    return _pragma(connection, "synchronous")[0][0] < _FULL


def _pragma(connection: sqlite3.Connection, name: str) -> list[Any]:
    cursor = connection.cursor()
    cursor.row_factory = None  # a user's connection may have its own
    return cursor.execute(f"PRAGMA {name}").fetchall()
