"""Transactions that users fill, on the connection of a block."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dray.backends.sqlite import faults
from dray.backends.sqlite.connect import connect, patiently
from dray.backends.sqlite.readers import Visit
from dray.backends.sqlite.upkeep import Deference
from dray.clock import Clock
from dray.errors import ConfigError, ForkedConnection
from dray.instants import SECOND
from dray.log import log

LONG_US = SECOND // 2  # no other connection can write meanwhile


class SqliteBlock(sqlite3.Connection):
    """A sqlite3.Connection that leaves COMMIT and ROLLBACK to its block, and an inherited one to the parent."""

    forked = False  # set in a child: the locks are the parent's, a write here would damage the file

    # sqlite3 finds each of these by a way of its own

    def execute(self, *args: Any) -> sqlite3.Cursor:
        self._check()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        self._check()
        return super().executemany(*args)

    def cursor(self, *args: Any, **options: Any) -> Any:
        self._check()
        return super().cursor(*args, **options)

    def _check(self) -> None:
        if self.forked:
            raise ForkedConnection(
                "this process was forked inside a transaction() block, which stays the parent's; fork outside it"
            )

    def _leave_it(self, *_: object) -> NoReturn:
        raise ConfigError(
            "a transaction() block commits at its end, and rolls back after an error: do not commit, roll back, "
            "close, enter or run scripts on its connection"
        )

    commit = rollback = close = executescript = __enter__ = _leave_it


@dataclass
class SqliteTransaction:
    """An `OpenTransaction` on a connection of its own."""

    _path: Path
    _visit: Visit
    _blocks: dict[SqliteBlock, int]
    _clock: Clock
    _busy_timeout: float
    _open_file: Callable[[], None]
    _deference: Callable[[], Deference]
    _block: SqliteBlock | None = None
    _began: int | None = None
    _has_ended: bool = False

    def begin(self) -> SqliteBlock:
        self._open_file()
        block = self.open()
        patiently(self.take_lock, self._busy_timeout, str(self._path))
        return block

    def open(self) -> SqliteBlock:
        """The connection, on which no transaction is open yet."""
        self._visit.begin()
        self._block = block = patiently(
            lambda: connect(self._path, SqliteBlock, check_same_thread=True), self._busy_timeout, str(self._path)
        )
        patiently(lambda: block.execute("PRAGMA synchronous = FULL"), self._busy_timeout, str(self._path))
        self._deference().pay_once(block)
        self._blocks[block] = threading.get_ident()
        return block

    def take_lock(self) -> None:
        """Takes the write lock; fails at once if another connection has it."""
        assert self._block is not None
        self._block.execute("BEGIN IMMEDIATE")
        self._began = self._clock.steady()

    def commit(self) -> None:
        block = self._block
        assert block is not None
        if not block.forked and not block.in_transaction:
            raise ConfigError(
                f"{self._path}: this block's transaction was ended inside the block; leave COMMIT and ROLLBACK to it"
            )
        try:
            block.execute("COMMIT")
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise faults.translate(error, str(self._path)) from error

    def end(self) -> None:
        block = self._block
        if block is not None:
            if not block.forked:  # an inherited one is left alone
                with suppress(sqlite3.Error):  # closing does it too; and it may be closed already
                    if block.in_transaction:
                        block.execute("ROLLBACK")
                sqlite3.Connection.close(block)
            self._blocks.pop(block, None)
            self._warn_if_long()
        self._has_ended = True
        self._visit.end()

    def _warn_if_long(self) -> None:
        open_us = 0 if self._began is None or self._has_ended else self._clock.steady() - self._began
        if open_us > LONG_US:
            log.warning(
                "%s: a transaction() block was open for %.1f s, and no other process could write; do slow work first",
                self._path,
                open_us / SECOND,
            )
