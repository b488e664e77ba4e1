"""The file's upkeep: checkpoints, and unused pages.

A connection that commits past 1,000 frames of log would copy them back, in the middle of an enqueue or a claim, and
two that do so at once can damage the file (SQLite before 3.51.3). So while a live worker has the duty `checkpoint`,
all others leave it to that worker, up to 40,000 frames, in case it does not keep its word.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from dray.backends.database import Checkpoint, FileFacts, LogFile
from dray.backends.sqlite import faults, files, inspect
from dray.backends.sqlite.connect import CHECKPOINT_FRAMES, Lender, patiently
from dray.backends.statements import Catalogue
from dray.clock import Clock
from dray.instants import SECOND

_PATIENT_FRAMES = 40_000
_ASK_AGAIN_US = 5 * SECOND
_WAIT = 1.0  # seconds that a log too large is worth
_PATIENCE = 2.0
_INCREMENTAL = 2
_HEADER, _STARTS = 32, slice(12, 16)  # of the log's file format
_UNUSED_PAGES = 1_000
_UNUSED_SHARE = 4


class Upkeep:
    """One file, through connections that its database lends."""

    def __init__(self, path: Path, reader: Lender, writer: Lender) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer

    @cached_property
    def _log(self) -> Path:
        return files.beside(Path(os.path.realpath(self._path)), "-wal")

    def facts(self) -> FileFacts:
        """What the file system tells of it; OSError if there is no file."""
        return inspect.file_facts(Path(os.path.realpath(self._path)))

    def lock_holder(self) -> int | None:
        """The process that has kept the write lock for a second; None: no process, or it cannot be told. Takes a
        second only while a process holds it."""
        return inspect.lock_holder(Path(os.path.realpath(self._path)))

    def log(self) -> LogFile | None:
        """The write-ahead log; None: there is none at the moment."""
        try:
            # SQLite locks the database and its -shm, never this file: closing it drops nothing.
            with self._log.open("rb") as file:
                found, header = os.fstat(file.fileno()), file.read(_HEADER)
        except OSError:
            return None
        return LogFile(found.st_size, found.st_mtime_ns, int.from_bytes(header[_STARTS], "big"))

    def checkpoint(self, *, waits: bool = False) -> Checkpoint:
        """Copies the log back. Waits: keeps writers out until the log can start over, for a second at most."""
        deadline, mode = time.monotonic() + _WAIT, "RESTART" if waits else "PASSIVE"
        with self._reader() as connection:
            while True:
                is_busy, frames, copied = self._run(connection, f"PRAGMA wal_checkpoint({mode})")
                if not (waits and is_busy) or time.monotonic() >= deadline:
                    return Checkpoint(max(0, frames), max(0, frames - copied))
                time.sleep(0.001)  # SQLite does not tell when the writers and readers are out of the way

    def vacuum(self, pages: int) -> bool:
        """Gives at most `pages` unused pages back to the file system; returns whether there are more."""
        with self._reader() as connection:
            mode, unused, in_all = patiently(lambda: _pages(connection), _PATIENCE, str(self._path))
        spare = max(_UNUSED_PAGES, in_all // _UNUSED_SHARE)  # the next jobs want pages too
        if mode != _INCREMENTAL or unused <= spare:
            return False
        with self._writer() as connection:
            # A script, because it frees one page a step, and anything else steps but once.
            patiently(
                lambda: connection.executescript(f"PRAGMA incremental_vacuum({int(pages)})"),
                _PATIENCE,
                str(self._path),
            )
        return unused - pages > spare

    def _run(self, connection: sqlite3.Connection, pragma: str) -> tuple[bool, int, int]:
        try:
            ((is_busy, frames, copied),) = connection.execute(pragma).fetchall()
        except sqlite3.Error as error:
            if not faults.is_busy(error):
                raise faults.translate(error, str(self._path)) from error
            return True, 0, 0
        return bool(is_busy), frames, copied


def _pages(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """How the file gives pages back, how many it could, and how many it has."""
    mode, unused, in_all = (
        connection.execute(f"PRAGMA {name}").fetchall()[0][0]
        for name in ("auto_vacuum", "freelist_count", "page_count")
    )
    return mode, unused, in_all


class Deference:
    """How far the log may grow before commits of this process copy it back."""

    def __init__(self, clock: Clock, catalogue: Catalogue) -> None:
        self._clock = clock
        self._statement = catalogue["checkpoint_holder"]
        self._frames = self._writer_frames = CHECKPOINT_FRAMES  # as `connect` leaves each connection
        self._known_until = -1

    def pay(self, writer: sqlite3.Connection) -> None:
        """Asks now and then whether another process does it."""
        frames = self._allowed(writer)
        if frames != self._writer_frames:
            writer.execute(f"PRAGMA wal_autocheckpoint = {frames}")
            self._writer_frames = frames

    def pay_once(self, block: sqlite3.Connection) -> None:
        """For a connection that was opened for one transaction, as each body with `ctx.transaction()` opens one."""
        frames = self._allowed(block)
        if frames != CHECKPOINT_FRAMES:
            block.execute(f"PRAGMA wal_autocheckpoint = {frames}")

    def _allowed(self, connection: sqlite3.Connection) -> int:
        steady = self._clock.steady()
        if steady >= self._known_until:
            self._known_until = steady + _ASK_AGAIN_US
            values = {"boot": self._clock.boot, "steady": steady}
            # Whatever error it is, the transaction that follows meets it too.
            with suppress(sqlite3.Error):
                held = connection.execute(self._statement.text, self._statement.bind(values)).fetchall()
                self._frames = _PATIENT_FRAMES if held else CHECKPOINT_FRAMES
        return self._frames
