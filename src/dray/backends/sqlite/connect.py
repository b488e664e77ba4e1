"""Opening SQLite connections, and waiting for its locks our own way.

SQLite's busy handler sleeps ever longer and starves under contention (2.4 s measured, against 0.12 s), and the
switch to WAL does not honour it at all. So every connection has a timeout of 0 and `patiently` tries again.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from dray.backends import migrate
from dray.backends.sqlite import faults, trust
from dray.backends.sqlite.files import Way
from dray.errors import StorageError
from dray.log import log

T = TypeVar("T")
C = TypeVar("C", bound=sqlite3.Connection)
Lender = Callable[[], AbstractContextManager[sqlite3.Connection]]

_SHORTEST_PAUSE, _SHORT_PAUSE, _LONG_PAUSE = 0.000_05, 0.000_2, 0.05
# A commit that makes the log longer takes up to twice as long as one that writes over it: the file system has to note
# the new size too. With 4,000 the first 1,300 jobs of a producer took 230 µs each instead of 180.
CHECKPOINT_FRAMES = 1_000
_SETTINGS = (
    "foreign_keys = ON",
    "mmap_size = 0",
    f"wal_autocheckpoint = {CHECKPOINT_FRAMES}",
    f"journal_size_limit = {64 * 1024 * 1024}",
)
# Room for the pages of a large table's indexes. With SQLite's 2,000 KiB, settle and claim fell to 70 % at two million
# rows; with this, not at all.
WRITER_CACHE = "PRAGMA cache_size = -16000"


class QuietConnection(sqlite3.Connection):
    """A connection of an App, which is often a module's and never closed.

    Without this, Python 3.13 warns of each, which fails a program that makes warnings errors.
    """

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # the file could not be opened
            self.close()


def patiently(work: Callable[[], T], seconds: float, place: str) -> T:
    """Runs `work`, again and again while another connection holds the lock, until the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except sqlite3.Error as error:
            _give_up_unless_busy(error, deadline, seconds, place)
        time.sleep(_pause(deadline - seconds))


def tolerantly(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Runs `work`, once more if it meets text that is no UTF-8, which then comes with its bytes escaped.

    Dray stores none; one row of it that was written by hand must not keep all others from being claimed or listed.
    """
    try:
        return work()
    except sqlite3.OperationalError as error:
        if connection.text_factory is not str or "Could not decode to UTF-8" not in str(error):
            raise
    # From here on: a function for each value costs what most need not pay.
    connection.text_factory = partial(bytes.decode, errors="backslashreplace")
    return work()


async def patiently_awaiting(work: Callable[[], T], seconds: float, place: str) -> T:
    """As `patiently`, for work in the thread of an event loop: others run between two tries."""
    import asyncio  # noqa: PLC0415 - 40 ms for those who do not have it loaded

    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except sqlite3.Error as error:
            _give_up_unless_busy(error, deadline, seconds, place)
        await asyncio.sleep(_pause(deadline - seconds))


def _give_up_unless_busy(error: sqlite3.Error, deadline: float, seconds: float, place: str) -> None:
    if not faults.is_busy(error):
        raise faults.translate(error, place) from error
    if time.monotonic() >= deadline:
        raise faults.locked(place, seconds) from error


def _pause(since: float) -> float:
    """Grows with the time waited: a hundred waiters that never let go leave the holder of the lock no CPU. Short at
    first: a producer that waits for a slow disk leaves the lock alone for a tenth of a millisecond at a time."""
    longest = min(max((time.monotonic() - since) / 5, _SHORT_PAUSE), _LONG_PAUSE)
    return random.uniform(_SHORTEST_PAUSE, longest)  # noqa: S311 - SQLite wakes no waiter


def connect(
    path: Path, factory: type[C] = QuietConnection, *, way: Way = Way.WRITE, check_same_thread: bool = False
) -> C:
    """As `connect_plainly`, with the settings that a database in use needs."""
    trust.refuse_old(path)
    connection = connect_plainly(path, way, factory, check_same_thread=check_same_thread, cached_statements=256)
    return closed_on_error(connection, lambda: [connection.execute(f"PRAGMA {each}") for each in _SETTINGS])


def closed_on_error(connection: C, work: Callable[[], object]) -> C:
    """The connection, after `work` has made it ready. What cannot be made ready is not left open."""
    try:
        work()
    except BaseException:
        sqlite3.Connection.close(connection)  # that of a transaction() block refuses to be closed by its user
        raise
    return connection


def connect_plainly(path: Path, way: str, factory: type[C] = QuietConnection, **options: Any) -> C:
    """A connection that waits for no lock, opens no transactions by itself and never creates a file."""
    url = f"file:{quote(os.fsencode(path))}?{way}"
    return sqlite3.connect(url, uri=True, timeout=0, isolation_level=None, factory=factory, **options)


def enter_wal(connection: sqlite3.Connection, place: str, *, is_new: bool) -> None:
    """Brings the file into write-ahead logging if it is not; try it again while another connection holds a lock."""
    if is_new:
        # Ignored once the file is in WAL mode, so it comes first; without effect if another process was faster.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageError(
            f"{place}: cannot use a write-ahead log here (it stays in mode {mode!r}); use a local disk"
        )
    if not is_new:
        log.warning("%s: switched to write-ahead logging (journal_mode=WAL), once", place)


def refuse_missing(known: Mapping[str, str], place: str) -> None:
    """An error where there are no tables, and none may be made."""
    if not known:
        raise migrate.missing(place)


def run_script(connection: sqlite3.Connection, text: str) -> None:
    """Runs every statement of a text. Not by `executescript`: it commits what is open first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
