"""Transactions that users fill: on their own connection, or on that of a block."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import QueryCanceled
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from dray import forks
from dray.backends.postgres import faults
from dray.backends.postgres.connect import MAKE_DURABLE, leave_to_parent
from dray.backends.postgres.foreign import ForeignConnection
from dray.errors import ConfigError, ForkedConnection, StorageError
from dray.log import log

_UNDO_TRIES = 3
_CANCEL_PATIENCE = 5.0


UsersConnection = psycopg.Connection[Any] | ForeignConnection


@contextmanager
def joined(user: UsersConnection, place: str) -> Generator[UsersConnection]:
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


def _undo(user: UsersConnection) -> None:
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
    """A user's session: never closed from here, and nothing prepared in it, for names would collide."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.prepare_threshold = None

    def __del__(self, *_: Any) -> None:
        """Not an open connection that was forgotten."""


def _leave_it(self: object) -> NoReturn:  # noqa: ARG001 - a method of both
    raise ConfigError(
        "a transaction() block commits at its end, and rolls back after an error: do not do so on its connection"
    )


class PostgresBlock(psycopg.Connection[Any]):
    """A psycopg.Connection that leaves COMMIT and ROLLBACK to its block."""

    commit = rollback = _leave_it


class AsyncPostgresBlock(psycopg.AsyncConnection[Any]):
    """As `PostgresBlock`, for an event loop."""

    commit = rollback = _leave_it


class PostgresTransaction:
    """An `OpenTransaction` on a connection of its own."""

    def __init__(self, conninfo: str, place: str, settings: dict[str, Any]) -> None:
        self._conninfo = conninfo
        self._place = place
        self._settings = settings
        self._connection: PostgresBlock | None = None

    def begin(self) -> PostgresBlock:
        with _translated(self._place):
            self._connection = connection = PostgresBlock.connect(
                self._conninfo, prepare_threshold=None, **self._settings
            )
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            self._owner = _Owner(connection)
            connection.execute(MAKE_DURABLE)
        return connection

    def commit(self) -> None:
        assert self._connection is not None
        self._owner.refuse_unless_whole(self._place)
        with _translated(self._place):
            psycopg.Connection.commit(self._connection)

    def end(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.close()  # the server rolls back what was not committed


@asynccontextmanager
async def async_block(conninfo: str, place: str, settings: dict[str, Any]) -> AsyncGenerator[AsyncPostgresBlock]:
    """A fresh connection: committed at the end, rolled back after an error, then closed."""
    with _translated(place):
        connection = await AsyncPostgresBlock.connect(conninfo, prepare_threshold=None, **settings)
    owner = _Owner(connection)
    try:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        with _translated(place):
            await connection.execute(MAKE_DURABLE)
        yield connection
        owner.refuse_unless_whole(place)
        with _translated(place):
            await psycopg.AsyncConnection.commit(connection)
    except BaseException:
        with suppress(psycopg.Error):
            await psycopg.AsyncConnection.rollback(connection)
        raise
    finally:
        await connection.close()


class _Owner:
    """The process that opened a connection."""

    def __init__(self, connection: PostgresBlock | AsyncPostgresBlock) -> None:
        self._connection = connection
        self._pid = os.getpid()
        forks.watch_child(self)

    def after_fork_in_child(self) -> None:
        leave_to_parent([self._connection])

    def refuse_unless_whole(self, place: str) -> None:
        """Before a COMMIT that PostgreSQL would answer with ROLLBACK, or that another process has to say."""
        if os.getpid() != self._pid:
            raise ForkedConnection(
                f"{place}: this process was forked inside a transaction() block, which stays the parent's; fork "
                "outside it"
            )
        if self._connection.info.transaction_status == TransactionStatus.INERROR:
            raise StorageError(
                f"{place}: a statement in this transaction() block failed, so PostgreSQL keeps nothing of it; let "
                "the error out of the block, or put that statement into `with tx.transaction():`"
            )


@contextmanager
def _translated(place: str) -> Generator[None]:
    try:
        yield
    except psycopg.IntegrityError:
        raise  # a deferred constraint of the user's own, reported as the driver does
    except psycopg.ProgrammingError:
        # The driver's text would repeat the part of the address it stumbled over, maybe the password.
        raise ConfigError(
            f"{place}: the address has a part that PostgreSQL does not know; write postgresql://user:password@host/db?option=value"
        ) from None
    except psycopg.Error as error:
        raise faults.translate(error, place) from error
