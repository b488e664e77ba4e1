"""What a fork does to SQLite, and how Dray survives it.

POSIX locks do not pass to a child, but SQLite's memory does: in the child it believes that this process still
holds the shared lock on the file and the one that guards the -shm, and takes neither again, also for connections
opened again. Another process could then, as the seemingly last one, delete the -wal under the child. So the child
takes those two locks itself, for the process, through descriptors that are never closed; inherited connections
are never used and never closed. Transactions are waited for before the fork; one that is open across it leaves
locks in SQLite's memory that cannot be taken back: the child may not use that database.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sqlite3
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dray.backends.sqlite import files

# Of SQLite's file format: the bytes on which a reader holds its shared lock, and the guard byte of the -shm.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510
_SHM_GUARD = 128
_OPEN = "/proc/self/fd"  # the descriptors of this process; /dev/fd where there is no /proc


class Forking(Protocol):
    """A database that wants to know of forks."""

    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


class _Forks:
    """Tells databases of every fork, one fork at a time."""

    def __init__(self) -> None:
        self._databases: set[weakref.ref[Forking]] = set()
        self.happened = False  # this process is a child, forked after this module was imported
        self._one_at_a_time = threading.Lock()
        self._told: list[Forking] = []
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def watch(self, database: Forking) -> None:
        """Tells a database of every fork of this process."""
        self._databases.add(weakref.ref(database, self._databases.discard))

    def _before(self) -> None:
        self._one_at_a_time.acquire()
        # A copy first, in one step of the interpreter: other threads open and close databases while a WeakSet is gone
        # through, and a fork that fails here tells no database, or those of the fork before.
        self._told = [database for ref in self._databases.copy() if (database := ref()) is not None]
        for database in self._told:
            database.before_fork()

    def _in_parent(self) -> None:
        told, self._told = self._told, []  # they live no longer for having been told
        for database in told:
            database.after_fork_in_parent()
        self._one_at_a_time.release()

    def _in_child(self) -> None:
        self.happened = True
        self._one_at_a_time = threading.Lock()
        told, self._told = self._told, []
        for database in told:
            database.after_fork_in_child()


_forks = _Forks()
watch = _forks.watch


def leak(connection: sqlite3.Connection) -> None:
    """Makes sure that an inherited connection is never closed, not even when the child's interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


class ProcessLocks:
    """The locks that SQLite believes this process to hold, taken for real after a fork."""

    def __init__(self, path: Path) -> None:
        self._shm = files.beside(path, "-shm")
        self._ranges = {path: (_SHARED_FIRST, _SHARED_SIZE), self._shm: (_SHM_GUARD, 1)}
        self._descriptors: dict[Path, int] = {}
        self._inodes: dict[Path, int] = {}

    def remember(self) -> None:
        """Before the fork: which files SQLite has open."""
        self._inodes = {}
        for file in self._ranges:
            with suppress(OSError):  # the process that closes it last takes the -shm away
                self._inodes[file] = file.stat().st_ino

    def take(self) -> bool:
        """In the child: takes the locks. False: the files are no longer those that SQLite has open."""
        try:
            taken = [self._take(file, *self._ranges[file]) for file in self._ranges]
            return all(taken)
        except OSError:
            return False

    def _take(self, file: Path, start: int, length: int) -> bool:
        if file not in self._descriptors:
            self._descriptors[file] = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        descriptor = self._descriptors[file]
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
        found = os.fstat(descriptor)
        return found.st_ino == self._inodes.get(file) and found.st_nlink > 0

    def are_inherited(self) -> bool:
        """Whether a connection that is not Dray's, a user's own, came through a fork: it has the -shm open."""
        return _forks.happened and not self._descriptors and _has_open(self._shm)


def _has_open(file: Path) -> bool:
    try:
        wanted = file.stat()
        with os.scandir(_OPEN if os.path.isdir(_OPEN) else "/dev/fd") as entries:  # noqa: PTH112
            return any(_leads_to(int(entry.name), wanted) for entry in entries)
    except OSError:
        return False


def _leads_to(descriptor: int, wanted: os.stat_result) -> bool:
    try:
        found = os.fstat(descriptor)
    except OSError:  # closed meanwhile
        return False
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
