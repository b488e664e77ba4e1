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
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dray import forks
from dray.backends.sqlite import files

if TYPE_CHECKING:
    from dray.backends.sqlite.session import SqliteSession
    from dray.backends.sqlite.transaction import SqliteBlock

# Of SQLite's file format: the bytes on which a reader holds its shared lock, and the guard byte of the -shm.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510
_SHM_GUARD = 128
_OPEN = "/proc/self/fd"  # the descriptors of this process; /dev/fd where there is no /proc


def leak(connection: sqlite3.Connection) -> None:
    """Makes sure that an inherited connection is never closed, not even when the child's interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def disown(
    blocks: Iterable[SqliteBlock],
    writer: sqlite3.Connection | None,
    session: SqliteSession | None,
    *,
    amid_a_write: bool,
) -> None:
    """In a child: leaves the connections that it has inherited, and their transactions, to the parent.

    `amid_a_write`: the handler of a signal has forked in the middle of one, and the child goes on with it too. At no
    line of it may it write by the parent's connection, which would damage the file: that refuses all statements now.
    """
    for block in blocks:
        leak(block)
        block.forked = True
    if writer is not None:
        leak(writer)
        if amid_a_write:
            writer.set_authorizer(_refuse)
    if session is not None:
        session.forked = True


def _refuse(*_: object) -> int:
    return sqlite3.SQLITE_DENY


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
        return forks.has_happened() and not self._descriptors and _has_open(self._shm)


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
