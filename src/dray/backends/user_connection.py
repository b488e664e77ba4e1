"""Users' own connections: from what they pass as `connection=` to the driver's own connection underneath.

SQLAlchemy, aiosqlite, asyncpg and psycopg2 are recognised where the program has loaded them, and never loaded from
here. What comes out is the driver's connection, inside a transaction that SQLAlchemy knows of: without one its
commit() does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from dray.errors import ConfigError

TAKES = (
    "connection= takes a sqlite3.Connection, a psycopg Connection or AsyncConnection, a psycopg2 or asyncpg "
    "connection, or a SQLAlchemy Session, Connection, AsyncSession or AsyncConnection over pysqlite, aiosqlite, "
    "psycopg 3, psycopg2 or asyncpg"
)
_ASYNC, _ASYNC_SESSIONS = "sqlalchemy.ext.asyncio", ("AsyncSession", "async_scoped_session")


def unwrap(given: Any) -> Any:
    """The driver's connection under a synchronous one."""
    given = _inside(given)
    if isinstance(given, _loaded(_ASYNC, *_ASYNC_SESSIONS, "AsyncConnection")):
        raise needs_await(given)
    with _sqlalchemy_refuses(given):
        if isinstance(given, _loaded("sqlalchemy.orm", "Session", "scoped_session")):
            given = given.connection()
        if not isinstance(given, _loaded("sqlalchemy.engine", "Connection")):
            return given
        alchemys: Any = given
        if not alchemys.in_transaction():
            alchemys.begin()
        return alchemys.connection.driver_connection


async def unwrap_async(given: Any) -> Any:
    """The driver's connection under a synchronous or an asynchronous one."""
    given = _inside(given)
    with _sqlalchemy_refuses(given):
        if isinstance(given, _loaded(_ASYNC, *_ASYNC_SESSIONS)):
            given = await given.connection()
        if isinstance(given, _loaded(_ASYNC, "AsyncConnection")):
            alchemys: Any = given
            if not alchemys.in_transaction():
                await alchemys.begin()
            found: Any = (await alchemys.get_raw_connection()).driver_connection
            if is_asyncpg(found) and not found.is_in_transaction():
                await alchemys.exec_driver_sql("SELECT 1")  # with its first statement it begins the transaction
            return found
    return unwrap(given)


def _inside(given: Any) -> Any:
    """What an object that stands for a connection, as that of `ctx.transaction()`, stands for."""
    found = getattr(given, "__dray_connection__", given)
    if found is None:
        raise ConfigError(f"{_kind(given)} has no open transaction: use it inside its `with` block")
    return found


def is_idle(connection: Any) -> bool:
    """Whether a driver's connection has no transaction open."""
    if hasattr(connection, "in_transaction"):  # of sqlite3 and aiosqlite
        return not connection.in_transaction
    if is_asyncpg(connection):
        return not connection.is_in_transaction()
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return status == 0  # libpq's PQTRANS_IDLE


def is_aiosqlite(connection: object) -> bool:
    """Whether this is a connection of aiosqlite's, which lives in a thread of its own."""
    return isinstance(connection, _loaded("aiosqlite", "Connection"))


def is_asyncpg(connection: object) -> bool:
    """Whether this is a connection of asyncpg's, or what its pool gives out for one."""
    return isinstance(connection, _loaded("asyncpg", "Connection"))


def is_psycopg2(connection: Any) -> bool:
    """Whether this is a connection of psycopg2's that waits for its answers."""
    return isinstance(connection, _loaded("psycopg2.extensions", "connection")) and not connection.async_


def needs_await(given: object) -> ConfigError:
    """An asynchronous connection in a call that cannot wait for it."""
    return ConfigError(
        f"{_kind(given)} is asynchronous: use `await ….aenqueue(…)`, `await app.ajob(…)` (in a body `await ctx.…`) "
        "with it"
    )


def refusal(given: object, found: object, place: str) -> ConfigError:
    """Something that is no connection to this kind of database."""
    over = "" if found is given else f" over {_kind(found)}"
    return ConfigError(f"{place}: {_kind(given)}{over} cannot be used here. {TAKES}, to the App's own database")


def _kind(thing: object) -> str:
    kind = type(thing)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _loaded(module: str, *names: str) -> tuple[Any, ...]:
    """Classes of a module that the program has loaded; none if it has not."""
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))


@contextmanager
def _sqlalchemy_refuses(given: object) -> Generator[None]:
    """A closed connection, a session with several engines or without autobegin, a transaction that has failed."""
    try:
        yield
    except _loaded("sqlalchemy.exc", "SQLAlchemyError") as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"{_kind(given)} gives no connection in an open transaction: {said} (of a session with several engines, "
            "pass the connection to the App's database: session.connection(bind_arguments=…))"
        ) from error


class Abandoned(Exception):
    """The coroutine that waited was cancelled. Raised inside the work, and seen by that alone."""


class Cancellation:
    """Tells work that is done for a coroutine that the coroutine was cancelled; the work tells whether a statement
    under way may be interrupted."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_guarded = False  # whatever fails from here on is undone

    def check(self) -> None:
        """Raises `Abandoned` if the coroutine was cancelled."""
        if self.is_set:
            raise Abandoned

    def guard(self) -> None:
        """For work that has set its savepoint. In this order: it sees the cancellation, or is seen to be guarded."""
        self.is_guarded = True
        self.check()
