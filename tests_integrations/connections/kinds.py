"""Users' own PostgreSQL connections of other drivers than Dray's, behind one interface."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg2
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dray.address import PostgresAddress, parse_address

_numbers = itertools.count(1)


@dataclass
class User:
    """A program with its own connection and a table `orders`."""

    connection: Any

    async def run(self, sql: str) -> Any:
        """Runs one statement, as this kind of connection does it."""
        if isinstance(self.connection, psycopg2.extensions.connection):
            return self.connection.cursor().execute(sql)
        is_sqlalchemys = type(self.connection).__module__.startswith("sqlalchemy")
        return await _done(self.connection.execute(text(sql) if is_sqlalchemys else sql))

    async def order(self, n: int) -> None:
        await self.run(f"INSERT INTO orders (n) VALUES ({n})")

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """Commits at its end, rolls back after an error."""
        if isinstance(self.connection, psycopg2.extensions.connection):
            block: Any = self.connection
        else:
            is_asyncpg = isinstance(self.connection, asyncpg.Connection)
            block = self.connection.transaction() if is_asyncpg else self.connection.begin()
        if hasattr(block, "__aenter__"):
            async with block:
                yield
        else:
            with block:
                yield

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None]:
        """As `transaction`, for a part of one."""
        if hasattr(self.connection, "begin_nested"):
            block = self.connection.begin_nested()
            await _done(block if hasattr(block, "__await__") else None)
            try:
                yield
            except BaseException:
                await _done(block.rollback())
                raise
            await _done(block.commit())
            return
        if isinstance(self.connection, asyncpg.Connection):
            async with self.connection.transaction():
                yield
            return
        name = f"theirs_{next(_numbers)}"
        await self.run(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            await self.run(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        await self.run(f"RELEASE SAVEPOINT {name}")


async def _done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


Opens = Callable[..., AbstractAsyncContextManager[User]]


def _parts(url: str) -> tuple[str, str]:
    address = parse_address(url)
    assert isinstance(address, PostgresAddress)
    return address.conninfo, address.schema or "public"


async def connect_asyncpg(url: str, **options: Any) -> asyncpg.Connection:
    conninfo, schema = _parts(url)
    return await asyncpg.connect(conninfo, server_settings={"search_path": schema}, **options)


def connect_psycopg2(url: str, **options: Any) -> Any:
    conninfo, schema = _parts(url)
    return psycopg2.connect(conninfo, options=f"-c search_path={schema}", **options)


@asynccontextmanager
async def asyncpg_raw(url: str) -> AsyncGenerator[User]:
    connection = await connect_asyncpg(url)
    try:
        yield User(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncGenerator[User]:
    conninfo, schema = _parts(url)
    async with (
        asyncpg.create_pool(conninfo, min_size=1, max_size=1, server_settings={"search_path": schema}) as pool,
        pool.acquire() as connection,
    ):
        yield User(connection)


def _over_asyncpg(opens: Callable[[Any], Awaitable[Any]]) -> Opens:
    @asynccontextmanager
    async def kind(url: str, **options: Any) -> AsyncGenerator[User]:
        engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: connect_asyncpg(url), **options)
        connection = await opens(engine)
        try:
            yield User(connection)
        finally:
            await connection.close()
            await engine.dispose()

    return kind


async def _async_connection(engine: Any) -> Any:
    return await engine.connect()


async def _async_session(engine: Any) -> Any:
    return AsyncSession(engine)


@asynccontextmanager
async def psycopg2_raw(url: str) -> AsyncGenerator[User]:
    connection = connect_psycopg2(url)
    try:
        yield User(connection)
    finally:
        connection.close()


def _over_psycopg2(opens: Callable[[Any], Any]) -> Opens:
    @asynccontextmanager
    async def kind(url: str, **options: Any) -> AsyncGenerator[User]:
        engine = create_engine("postgresql+psycopg2://", creator=lambda: connect_psycopg2(url), **options)
        connection = opens(engine)
        try:
            yield User(connection)
        finally:
            connection.close()
            engine.dispose()

    return kind


ASYNCPG: dict[str, Opens] = {
    "asyncpg": asyncpg_raw,
    "asyncpg pool": asyncpg_pool,
    "AsyncConnection over asyncpg": _over_asyncpg(_async_connection),
    "AsyncSession over asyncpg": _over_asyncpg(_async_session),
}
PSYCOPG2: dict[str, Opens] = {
    "psycopg2": psycopg2_raw,
    "Connection over psycopg2": _over_psycopg2(lambda engine: engine.connect()),
    "Session over psycopg2": _over_psycopg2(Session),
}
ALL = ASYNCPG | PSYCOPG2
