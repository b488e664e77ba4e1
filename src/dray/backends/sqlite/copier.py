"""Copies of a SQLite file by SQLite's own backup, never by copying the file.

All pages are read in one read transaction: it keeps the write-ahead log from starting over, and keeps no connection
from writing. Without it every write of another process would make the backup start over, and under load it would
never end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from dray.backends.database import Progress
from dray.backends.sqlite import faults, files
from dray.backends.sqlite.connect import Lender, connect_plainly, patiently
from dray.backends.sqlite.files import Way
from dray.backends.statements import Catalogue
from dray.errors import StorageError

_PAGES = 2_000  # copied in one step


class SqliteCopier:
    """One file, through a connection that its database lends."""

    ending = ".db"

    def __init__(self, path: Path, reader: Lender, patience: float) -> None:
        self._path = path
        self._reader = reader
        self._patience = patience

    @property
    def name(self) -> str:
        return self._path.stem

    def mode(self) -> int:
        return self._path.stat().st_mode & 0o777

    def refuse(self, target: Path) -> None:
        # A log that is read into another file than it was written for ruins that file.
        beside = [files.beside(target, suffix) for suffix in ("-wal", "-journal")]
        found = [file for file in beside if file.exists()]
        if found:
            raise StorageError(
                f"{target}: may be a database in use, {found[0].name} is beside it; choose another name"
            )
        if target.exists() and target.samefile(self._path):
            raise StorageError(f"{target}: is the database itself; choose another name")

    def copy(self, draft: Path, progress: Progress) -> int:
        try:
            with self._snapshot() as source:
                with closing(connect_plainly(draft, Way.WRITE)) as target:
                    # No other process has this file, and it is worth nothing unless all is well: no journal, no
                    # syncs.
                    target.execute("PRAGMA journal_mode = OFF")
                    target.execute("PRAGMA synchronous = OFF")
                    source.backup(target, pages=_PAGES, progress=lambda _, left, pages: progress(pages - left, pages))
                return _checked(source, draft)
        except sqlite3.Error as error:
            raise faults.translate(error, str(draft.parent)) from error

    @contextmanager
    def _snapshot(self) -> Generator[sqlite3.Connection]:
        with self._reader() as source:

            def begin() -> None:
                source.execute("BEGIN")
                try:
                    source.execute(_COUNTS).fetchall()  # the first read is what it begins with
                except sqlite3.Error:
                    source.execute("ROLLBACK")
                    raise

            patiently(begin, self._patience, str(self._path))
            try:
                yield source
            finally:
                source.execute("ROLLBACK")


def _checked(source: sqlite3.Connection, draft: Path) -> int:
    """Opened as if nothing else were there; the number of jobs in it."""
    with closing(connect_plainly(draft, Way.FROZEN)) as copy:
        damage = [row[0] for row in copy.execute("PRAGMA quick_check(1)") if row[0] != "ok"]
        counts = [] if damage else copy.execute(_COUNTS).fetchall()
    if damage or counts != source.execute(_COUNTS).fetchall():
        why = damage[0] if damage else "it has not as many rows"
        raise StorageError(f"the copy is not whole ({why}), and was not kept; run `dray db check`")
    return counts[0][0]


_COUNTS = Catalogue("sqlite")["copy_counts"].text
