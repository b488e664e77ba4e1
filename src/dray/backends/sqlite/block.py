"""The connection of one `transaction()` block: plain SQL is the user's, its beginning and end are the block's."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from typing import Any, NoReturn

from dray.backends.sqlite import faults
from dray.clock import Clock
from dray.errors import ConfigError, ForkedConnection
from dray.instants import SECOND

log = logging.getLogger("dray")

LONG_US = SECOND // 2  # nobody else writes meanwhile


class Block(sqlite3.Connection):
    """A sqlite3.Connection that leaves COMMIT and ROLLBACK to its block, and an inherited one to the parent."""

    forked = False  # set in a child: the locks are the parent's, a write here would damage the file
    began: int | None = None

    def begin(self, clock: Clock) -> None:
        """Takes the write lock; fails at once if somebody else has it."""
        self.execute("BEGIN IMMEDIATE")
        self.began = clock.steady()

    def finish(self, place: str) -> None:
        """Commits. A deferred constraint of the user's own is reported as the driver does."""
        if not self.forked and not self.in_transaction:
            raise ConfigError(
                f"{place}: this block's transaction was ended inside the block; leave COMMIT and ROLLBACK to it"
            )
        try:
            self.execute("COMMIT")
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise faults.translate(error, place) from error

    def abandon(self) -> None:
        """Rolls back what is open and closes; an inherited one is left alone."""
        if self.forked:
            return
        if self.in_transaction:
            with suppress(sqlite3.Error):  # closing does it too
                self.execute("ROLLBACK")
        super().close()

    def warn_if_long(self, clock: Clock, place: str) -> None:
        open_us = 0 if self.began is None else clock.steady() - self.began
        if open_us > LONG_US:
            log.warning(
                "%s: a transaction() block was open for %.1f s, in which nobody else could write; do slow work first",
                place,
                open_us / SECOND,
            )

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
