"""SQLite's errors as Dray's: which file, what happened, what to do."""

from __future__ import annotations

import os
import sqlite3

from dray.backends import migrate
from dray.backends.database import DataRefused
from dray.errors import (
    DatabaseClosed,
    DrayError,
    ForkedConnection,
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageLocked,
    StorageUnavailable,
)
from dray.sanitize import escape_control

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_REFUSED = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}


def primary_code(error: Exception) -> int:
    """SQLite's result code without the extension; 0 for an error of the Python module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: Exception) -> bool:
    """Whether another connection holds the lock: trying again may help."""
    return primary_code(error) in _BUSY


# What the driver raises for values that it cannot write.
UNWRITABLE = (UnicodeEncodeError, OverflowError)


def translate(error: Exception, place: str) -> DrayError:
    """The error to raise for an error of the driver."""
    if isinstance(error, UNWRITABLE):
        return DataRefused(f"{place}: {error}")
    code, said = primary_code(error), escape_control(str(error))
    if code in _BUSY:
        return locked(place, None)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        return DatabaseClosed(f"{place}: {said}")  # only a move puts triggers on our tables
    if code in _REFUSED or isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
        return DataRefused(f"{place}: {said}")
    if "no such table: dray_" in said:
        return migrate.missing(place)
    kind, text = _SAID.get(code, (StorageError, "{said}"))
    return kind(f"{place}: " + text.format(said=said, user=os.getuid()))


_NOT_WRITABLE = (
    StorageUnavailable,
    "cannot be written by user {user}: {said}; the file, its -wal and -shm and their directory must be writable",
)
_SAID: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_FULL: (
        StorageFull,
        "the disk is full; nothing of this call was written. Free space and repeat it",
    ),
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_AUTH: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: (
        StorageUnavailable,
        "cannot be opened by user {user}: {said}; check the path and its rights",
    ),
    sqlite3.SQLITE_NOTADB: (
        StorageUnavailable,
        "is not a SQLite database; choose another path, it was left as it is",
    ),
    sqlite3.SQLITE_CORRUPT: (StorageDamaged, "is damaged ({said}); stop all workers and restore a backup"),
    sqlite3.SQLITE_IOERR: (
        StorageError,
        "the disk did not answer ({said}); this call may or may not have been written",
    ),
}


def locked(place: str, seconds: float | None) -> StorageLocked:
    """Another connection kept the write lock."""
    waited = "" if seconds is None else f" for {seconds:g} s"
    return StorageLocked(
        f"{place}: another connection kept the write lock{waited}; nothing was written. If it is one of this "
        "process, enqueue with connection= on it; otherwise look for a long transaction in another program"
    )


def moved(place: str) -> StorageUnavailable:
    """The path leads to another file than the one that is open, or to none."""
    return StorageUnavailable(
        f"{place}: the file was removed or replaced while this process had it open; nothing was written. "
        "Stop all that use it before you do that. The next call opens what is there then"
    )


def forked(place: str) -> ForkedConnection:
    """This process was forked in the middle of a transaction."""
    return ForkedConnection(
        f"{place}: a transaction was open while this process was forked, so this child cannot use it; "
        "fork outside transactions, or start a new process (spawn, forkserver)"
    )
