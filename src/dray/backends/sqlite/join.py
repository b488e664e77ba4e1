"""A user's own connection, inside the transaction they have open: Dray's writes stand or fall with theirs."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dray.backends.sqlite import faults
from dray.errors import ConfigError


@contextmanager
def joined(connection: object, path: Path) -> Generator[sqlite3.Connection]:
    """Checks the connection and keeps what happens inside to itself if it fails: the caller may go on and commit."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigError(f"connection= takes a sqlite3.Connection for {path}, not {type(connection).__name__}")
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        _check(connection, path)
        connection.execute("SAVEPOINT dray_join")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK TO dray_join")
            raise
        finally:
            connection.execute("RELEASE dray_join")
    except sqlite3.Error as error:
        raise faults.translate(error, str(path)) from error
    finally:
        connection.text_factory = text_factory


def _check(connection: sqlite3.Connection, path: Path) -> None:
    cursor = connection.cursor()
    cursor.row_factory = None
    files = [file for _, name, file in cursor.execute("PRAGMA database_list") if name == "main"]
    if not files[0] or not path.exists() or not Path(files[0]).samefile(path):
        raise ConfigError(
            f"this connection is on {files[0] or 'a database in memory'}, the queue on {path}; "
            "use a connection to the same file"
        )
    if connection.in_transaction:
        return
    if connection.isolation_level is None:
        raise ConfigError("this connection is in autocommit mode: open a transaction first (BEGIN)")
    # As the module itself would at the next write; IMMEDIATE, because a lock that is taken later can fail at once.
    connection.execute("BEGIN IMMEDIATE")
