"""Users' own connections, of every kind that `connection=` takes, behind one interface."""

from __future__ import annotations

import inspect
import itertools
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dray.address import SqliteAddress, parse_address
from tests.server import in_database

_numbers = itertools.count(1)


@dataclass
class User:
    """A program with its own connection and a table `orders`."""

    connection: Any

    async def run(self, sql: str) -> Any:
        """Runs one statement, as this kind of connection does it."""
        is_sqlalchemys = type(self.connection).__module__.startswith("sqlalchemy")
        return await _done(self.connection.execute(text(sql) if is_sqlalchemys else sql))

    async def order(self, n: int) -> None:
        await self.run(f"INSERT INTO orders (n) VALUES ({n})")

    async def commit(self) -> None:
        await _done(self.connection.commit())

    async def rollback(self) -> None:
        await _done(self.connection.rollback())

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """Commits at its end, rolls back after an error, that of the commit too."""
        try:
            yield
            await self.commit()
        except BaseException:
            await self.rollback()
            raise

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None]:
        """As `transaction`, for a part of one: by SQLAlchemy's own means, or by statements."""
        begin: Any = getattr(self.connection, "begin_nested", None)
        if begin is not None:
            block = begin()
            await _done(block)
            ends: tuple[Any, Any] = block.commit, block.rollback
        else:
            name = f"theirs_{next(_numbers)}"
            await self.run(f"SAVEPOINT {name}")
            ends = (
                lambda: self.run(f"RELEASE SAVEPOINT {name}"),
                lambda: self.run(f"ROLLBACK TO SAVEPOINT {name}"),
            )
        try:
            yield
        except BaseException:
            await _done(ends[1]())
            raise
        await _done(ends[0]())


async def _done(answer: Any) -> Any:
    """Returns a result, awaited if this kind of connection needs it."""
    return await answer if inspect.isawaitable(answer) else answer


Opens = Callable[..., AbstractAsyncContextManager[User]]


def _arguments(url: str) -> tuple[str, dict[str, Any]]:
    address = parse_address(url)
    assert not isinstance(address, SqliteAddress)
    return address.conninfo, {"options": f"-c search_path={address.schema or 'public'}"}


@asynccontextmanager
async def driver(url: str, *, autocommit: bool = False) -> AsyncGenerator[User]:
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        connection: Any = sqlite3.connect(address.path)
        if autocommit:
            connection.isolation_level = None
    else:
        conninfo, options = _arguments(url)
        connection = psycopg.connect(conninfo, autocommit=autocommit, **options)
    try:
        yield User(connection)
    finally:
        connection.close()


@asynccontextmanager
async def async_driver(url: str, *, autocommit: bool = False) -> AsyncGenerator[User]:
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        options: dict[str, Any] = {"isolation_level": None} if autocommit else {}
        connection: Any = await aiosqlite.connect(address.path, **options)
    else:
        conninfo, options = _arguments(url)
        connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=autocommit, **options)
    try:
        yield User(connection)
    finally:
        await connection.close()


def elsewhere(url: str, folder: Path) -> str:
    """Returns the address of another database of the same kind; on PostgreSQL it is created once."""
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        return f"sqlite:///{folder / 'elsewhere.db'}"
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        name = f"{connection.info.dbname}_elsewhere"
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchall():
            connection.execute(f"CREATE DATABASE {name}".encode())
    return in_database(url, name)


def engine(url: str, *, autocommit: bool = False) -> Engine:
    address = parse_address(url)
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    if isinstance(address, SqliteAddress):
        return create_engine(f"sqlite:///{address.path}", **options)
    conninfo, arguments = _arguments(url)
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo, **arguments), **options)


def engine_that_begins(url: str) -> Engine:
    """SQLAlchemy's recipe for savepoints on SQLite: the driver opens no transactions, an event sends BEGIN."""
    made = engine(url)
    if made.dialect.name == "sqlite":

        def connected(connection: sqlite3.Connection, _: object) -> None:
            connection.isolation_level = None

        def begins(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        event.listen(made, "connect", connected)
        event.listen(made, "begin", begins)
    return made


def async_engine(url: str, *, autocommit: bool = False) -> AsyncEngine:
    address = parse_address(url)
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    if isinstance(address, SqliteAddress):
        return create_async_engine(f"sqlite+aiosqlite:///{address.path}", **options)
    conninfo, arguments = _arguments(url)

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(conninfo, **arguments)

    return create_async_engine("postgresql+psycopg://", async_creator=connect, **options)


def _with_engine(opens: Callable[[Engine], Any]) -> Opens:
    @asynccontextmanager
    async def kind(url: str, *, autocommit: bool = False) -> AsyncGenerator[User]:
        made = engine(url, autocommit=autocommit)
        connection = opens(made)
        try:
            yield User(connection)
        finally:
            connection.close()
            made.dispose()

    return kind


def _with_async_engine(opens: Callable[[AsyncEngine], Awaitable[Any]]) -> Opens:
    @asynccontextmanager
    async def kind(url: str, *, autocommit: bool = False) -> AsyncGenerator[User]:
        made = async_engine(url, autocommit=autocommit)
        connection = await opens(made)
        try:
            yield User(connection)
        finally:
            await connection.close()
            await made.dispose()

    return kind


async def _async_connection(engine: AsyncEngine) -> Any:
    return await engine.connect()


async def _async_session(engine: AsyncEngine) -> Any:
    return AsyncSession(engine)


async def _async_scoped_session(engine: AsyncEngine) -> Any:
    return async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)


SYNC: dict[str, Opens] = {
    "driver": driver,
    "Connection": _with_engine(lambda engine: engine.connect()),
    "Session": _with_engine(Session),
    "scoped_session": _with_engine(lambda engine: scoped_session(sessionmaker(engine))),
}
ASYNC: dict[str, Opens] = {
    "async driver": async_driver,
    "AsyncConnection": _with_async_engine(_async_connection),
    "AsyncSession": _with_async_engine(_async_session),
    "async_scoped_session": _with_async_engine(_async_scoped_session),
}
ALL = SYNC | ASYNC
