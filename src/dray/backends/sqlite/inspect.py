"""A look at the file by a connection that can only read, and what the file system and the kernel tell of it.

Nothing is made, switched or repaired: not even a -wal or a -shm, which any other connection to a file in WAL mode
leaves beside it. A file that no process has open is read as it lies there.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from dray.backends import migrate
from dray.backends.database import FileFacts, Row, TookTooLong
from dray.backends.sqlite import faults, files, trust
from dray.backends.sqlite.connect import connect_plainly, patiently
from dray.backends.sqlite.files import Way
from dray.errors import FileMissing, StorageUnavailable
from dray.wording import counted

T = TypeVar("T")

_STEPS = 1_000  # of SQLite's machine between two looks at the clock
_HEADER = 20
_JOURNAL = 18  # where the header says how the file is written
_JOURNALS = {1: "rollback", 2: "wal"}
_WRITE_LOCK = 120  # the byte of the -shm that a writer has locked
_HELD = 1.0  # seconds after which a lock is not on its way
_GLANCE = 0.05

_PLAIN = "mode=ro"  # of a file that has no write-ahead log


def inspected(path: Path, work: Callable[[sqlite3.Connection], T], seconds: float) -> T:
    """Runs `work` on a connection of its own; `TookTooLong` if it is not over in time."""
    place, deadline = str(path), time.monotonic() + seconds
    try:
        with closing(connect_plainly(path, _way(path))) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            return patiently(lambda: _look(connection, work, place, seconds), seconds, place)
    except sqlite3.Error as error:
        raise faults.translate(error, place) from error


def _look(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T], place: str, seconds: float) -> T:
    try:
        connection.execute("BEGIN")
        try:
            return work(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if faults.primary_code(error) != sqlite3.SQLITE_INTERRUPT:
            raise
        raise TookTooLong(f"{place}: this took longer than {seconds:g} s") from error


def _way(path: Path) -> str:
    if files.way(path) is None:
        raise FileMissing(f"{path}: there is no such file; run {migrate.command('init', str(path))}")
    wal, shm = files.beside(path, "-wal"), files.beside(path, "-shm")
    if wal.exists() and shm.exists():
        return Way.READ
    if _journal(path) != "wal":
        return _PLAIN
    if wal.exists() and wal.stat().st_size:
        # Without it the file may be half of an old state and half of a new one; reading it would make a -shm.
        raise StorageUnavailable(f"{path}: its -wal has not been read in since it was put here; run `dray db status`")
    return Way.FROZEN


_headers: dict[tuple[int, int], int] = {}


def _journal(path: Path) -> str | None:
    """How the file is written, by its header; None: it has none.

    The descriptor stays open until the process ends: closing it would drop the locks that any SQLite connection of
    this process holds on the file.
    """
    found = path.stat()
    if not found.st_size:
        return None
    key = found.st_dev, found.st_ino
    if key not in _headers:
        _headers[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    header = os.pread(_headers[key], _HEADER, 0)
    return _JOURNALS.get(header[_JOURNAL]) if len(header) == _HEADER else None


def file_facts(path: Path) -> FileFacts:
    """What can be told without SQLite; an error if there is no file."""
    found, folder, disk = path.stat(), path.parent.stat(), os.statvfs(path.parent)
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "is not an ordinary file", str(path))
    can_read = files.may(path, os.R_OK)
    file_system = trust.kind_of(path)
    beside = [files.beside(path, suffix) for suffix in ("-wal", "-shm")]
    there = [file for file in beside if file.exists()]
    return FileFacts(
        path=str(path),
        size=found.st_size,
        mode=found.st_mode & 0o777,
        folder_mode=folder.st_mode & 0o1777,
        owner=found.st_uid,
        can_read=can_read,
        can_write=files.may(path, os.W_OK) and _can_make(path.parent, there),
        strange=tuple(str(file) for file in there if file.stat().st_uid != found.st_uid),
        log_size=beside[0].stat().st_size if beside[0].exists() else None,
        journal=_journal(path) if can_read else None,
        file_system=file_system,
        is_network=trust.is_shared(file_system),
        free=disk.f_bavail * disk.f_frsize,
    )


def _can_make(folder: Path, there: list[Path]) -> bool:
    if len(there) == 2:
        return all(files.may(file, os.W_OK) for file in there)
    return files.may(folder, os.W_OK | os.X_OK)


def lock_holder(path: Path) -> int | None:
    """The process that keeps the write lock, if the same one does at every look for a second; by the kernel's list
    of locks, which takes none itself. None: no process, or it cannot be told here."""
    try:
        found = files.beside(path, "-shm").stat()
    except OSError:
        return None
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    ends, first = time.monotonic() + _HELD, _writer(file)
    while first is not None and time.monotonic() < ends:
        time.sleep(_GLANCE)
        if _writer(file) != first:
            return None
    return first


def _writer(file: str) -> int | None:
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 4711 fe:00:131 120 120
        words = line.split()
        if len(words) == 8 and words[3] == "WRITE" and words[5] == file and words[6].isdigit():
            first, last = int(words[6]), words[7]
            if first <= _WRITE_LOCK and (last == "EOF" or int(last) >= _WRITE_LOCK):
                return int(words[4])
    return None


Ask = Callable[[str], list[Row]]  # the rows of a statement, each in a read of its own


def verify(ask: Ask, *, full: bool) -> list[str]:
    """A sentence for each thing; at most a hundred of a kind."""
    there = {row[0] for row in ask("check_names")}
    references = ask("check_references") if full else []  # an audit goes through them, too
    return [
        *(str(row[0]) for row in ask("check_full" if full else "check_quick")),
        *(
            counted(count, f"row of {table} refers", f"rows of {table} refer") + " to what is not there"
            for table, count in references
        ),
        *(f"{name} is missing" for name in sorted(migrate.names("sqlite") - there)),
    ]
