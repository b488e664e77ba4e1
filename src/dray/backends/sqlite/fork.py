"""What a fork does to SQLite, and how Dray survives it.

POSIX locks do not pass to a child, but SQLite's memory does: in the child it believes that this process still
holds the shared lock on the file and the one that guards the -shm, and takes neither again, also for connections
opened anew. Another process could then, as the seemingly last one, delete the -wal under the child. So the child
takes those two locks itself, for the process, through descriptors that are never closed; inherited connections
are never used and never closed. Transactions are waited for before the fork; one that is open across it leaves
locks in SQLite's memory that nobody can take back: the child may not use that database.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sqlite3
import weakref
from pathlib import Path
from typing import Protocol

# Of SQLite's file format: the bytes on which a reader holds its shared lock, and the guard byte of the -shm.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510
_SHM_GUARD = 128


class Forking(Protocol):
    """A database that wants to know of forks."""

    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


_databases: weakref.WeakSet[Forking] = weakref.WeakSet()


def watch(database: Forking) -> None:
    """Tells a database of every fork of this process."""
    _databases.add(database)


def _tell(what: str) -> None:
    for database in list(_databases):
        getattr(database, what)()


os.register_at_fork(
    before=lambda: _tell("before_fork"),
    after_in_parent=lambda: _tell("after_fork_in_parent"),
    after_in_child=lambda: _tell("after_fork_in_child"),
)


def leak(connection: sqlite3.Connection) -> None:
    """Makes sure that an inherited connection is never closed, not even when the child's interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


class ProcessLocks:
    """The locks that SQLite believes this process to hold, taken for real after a fork."""

    def __init__(self, path: Path) -> None:
        self._files = {
            path: (_SHARED_FIRST, _SHARED_SIZE),
            path.with_name(f"{path.name}-shm"): (_SHM_GUARD, 1),
        }
        self._descriptors: dict[Path, int] = {}
        self._inodes: dict[Path, int] = {}

    def remember(self) -> None:
        """Before the fork: which files SQLite has open."""
        self._inodes = {file: file.stat().st_ino for file in self._files if file.exists()}

    def take(self) -> bool:
        """In the child: takes the locks. False: the files are no longer those that SQLite has open."""
        for file, (start, length) in self._files.items():
            try:
                if file not in self._descriptors:
                    self._descriptors[file] = os.open(file, os.O_RDWR | os.O_CLOEXEC)
                descriptor = self._descriptors[file]
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
                if os.fstat(descriptor).st_ino != self._inodes.get(file) or not os.fstat(descriptor).st_nlink:
                    return False
            except OSError:
                return False
        return True
