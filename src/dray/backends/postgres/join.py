"""A user's own connection, inside the transaction they have open: Dray's writes stand or fall with theirs."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.errors import QueryCanceled
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from dray.backends.postgres import faults
from dray.errors import ConfigError

log = logging.getLogger("dray")

_UNDO_TRIES = 3
_CANCEL_PATIENCE = 5.0


@contextmanager
def joined(user: psycopg.Connection[Any], place: str) -> Generator[psycopg.Connection[Any]]:
    """Keeps what happens inside to itself if it fails: the caller may go on and commit."""
    try:
        user.execute("SAVEPOINT dray_join")
        try:
            yield user
            user.execute("RELEASE SAVEPOINT dray_join")
        except BaseException:
            _undo(user)
            raise
    except psycopg.Error as error:
        raise faults.translate(error, place) from error


def _undo(user: psycopg.Connection[Any]) -> None:
    """Back to the savepoint. A request to cancel that came too late for what it was meant for may hit this."""
    for tries_left in reversed(range(_UNDO_TRIES)):
        if user.closed:
            return
        try:
            user.execute("ROLLBACK TO SAVEPOINT dray_join")
            user.execute("RELEASE SAVEPOINT dray_join")
        except QueryCanceled:
            if not tries_left:
                raise
        else:
            return


def refuse_autocommit(user: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], place: str) -> None:
    """Nothing would be left open for the user to commit or roll back."""
    if user.info.transaction_status == TransactionStatus.IDLE and user.autocommit:
        raise ConfigError(
            f"this connection to {place} is in autocommit mode: open a transaction first (with SQLAlchemy, another "
            "isolation level than AUTOCOMMIT)"
        )


@contextmanager
def borrowed(lender: psycopg.AsyncConnection[Any]) -> Generator[psycopg.Connection[Any]]:
    """A synchronous connection over the same session; the lender's lock has to be held as long as it is used."""
    if lender.pgconn.pipeline_status != PipelineStatus.OFF:
        raise ConfigError("this AsyncConnection is in pipeline mode: enqueue outside its pipeline() block")
    pgconn = lender.pgconn
    on_notice, on_notify = pgconn.notice_handler, pgconn.notify_handler
    notes: list[Any] = []
    connection = _Borrowed(pgconn)
    try:
        # What arrives meanwhile is the lender's, and its handlers belong into the thread of its loop.
        pgconn.notice_handler, pgconn.notify_handler = None, notes.append
        if lender.info.transaction_status == TransactionStatus.IDLE:
            connection.isolation_level = lender.isolation_level
            connection.read_only = lender.read_only
            connection.deferrable = lender.deferrable
        yield connection
    finally:
        pgconn.notice_handler, pgconn.notify_handler = on_notice, on_notify
        for note in notes:
            if on_notify is not None:
                on_notify(note)


async def interrupt(user: psycopg.AsyncConnection[Any]) -> None:
    """Ends the statement under way: a coroutine that is cancelled must not wait for a lock."""
    try:
        await user.cancel_safe(timeout=_CANCEL_PATIENCE)
    except psycopg.Error as error:
        log.debug("a statement could not be cancelled: %s", error)


class _Borrowed(psycopg.Connection[Any]):
    """Somebody else's session: never closed from here, and nothing prepared in it, for names would collide."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.prepare_threshold = None

    def __del__(self, *_: Any) -> None:
        """Not an open connection that somebody forgot."""
