"""Programs that write an order and enqueue its job on one connection. Each returns the orders that must be there at
its end; their jobs must be there too, and no others.

They run on every kind of connection: `test_join_together.py`, and tests_integrations/connections for other drivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import pytest

from dray.errors import StorageError
from tests.backends.beside import Gate

TABLES = (
    "CREATE TABLE orders (n integer NOT NULL UNIQUE)",
    "CREATE TABLE invoices (n integer NOT NULL REFERENCES orders (n) DEFERRABLE INITIALLY DEFERRED)",
)
_FAILS = "INTO orders (n) VALUES (NULL)"


class User(Protocol):
    """A connection of one kind."""

    connection: Any

    async def run(self, sql: str) -> Any: ...
    async def order(self, n: int) -> None: ...
    def transaction(self) -> AbstractAsyncContextManager[None]: ...
    def savepoint(self) -> AbstractAsyncContextManager[None]: ...


class Enqueue(Protocol):
    """Enqueues the job of an order on the user's connection. `held`: with the statement `HELD` among the others."""

    def __call__(self, n: int, connection: Any, *, held: bool = False) -> Awaitable[object]: ...


HELD = "parent_states"


class OutOfStock(Exception):
    """Something went wrong in the program."""


@asynccontextmanager
async def rolled_back(block: AbstractAsyncContextManager[None]) -> AsyncGenerator[None]:
    """A transaction or a savepoint that ends with an error of the program's."""
    try:
        async with block:
            yield
            raise OutOfStock  # noqa: TRY301 - through the block
    except OutOfStock:
        return
    raise AssertionError("its error was swallowed")


class Shop:
    """A program. `first`: is added to the numbers of its orders; `job_first`: it enqueues before it orders."""

    def __init__(self, user: User, enqueue: Enqueue, first: int, *, job_first: bool, is_sqlite: bool) -> None:
        self.user, self.is_sqlite = user, is_sqlite
        self.transaction, self.savepoint, self.run = user.transaction, user.savepoint, user.run
        self._enqueue, self._first, self._job_first = enqueue, first, job_first

    def __getitem__(self, n: int) -> int:
        return self._first + n

    async def sell(self, n: int) -> None:
        for write in (self.enqueue, self.order) if self._job_first else (self.order, self.enqueue):
            await write(n)

    async def order(self, n: int) -> None:
        await self.user.order(self[n])

    async def enqueue(self, n: int) -> None:
        await self._enqueue(self[n], self.user.connection)

    async def fail(self, statement: str = "INSERT") -> None:
        with pytest.raises(Exception, match=r"(?i)not.null"):
            await self.run(f"{statement} {_FAILS}")

    async def refused(self, n: int) -> None:
        """A broken transaction of PostgreSQL takes neither."""
        for write, error in ((self.enqueue, StorageError), (self.order, Exception)):
            with pytest.raises(error, match="current transaction is aborted"):
                await write(n)

    async def enqueue_cancelled(self, n: int) -> None:
        """Is cancelled while it enqueues."""
        with pytest.MonkeyPatch.context() as patches:
            gate = Gate(patches, HELD)
            under_way = asyncio.ensure_future(self._enqueue(self[n], self.user.connection, held=True))
            assert await asyncio.to_thread(gate.reached.wait, 10)
            under_way.cancel()
            await asyncio.sleep(0)
            gate.open()
            await under_way


async def committed(shop: Shop) -> list[int]:
    async with shop.transaction():
        await shop.sell(1)
    return [1]


async def undone(shop: Shop) -> list[int]:
    async with rolled_back(shop.transaction()):
        await shop.sell(1)
    return []


async def undone_and_done_again(shop: Shop) -> list[int]:
    async with rolled_back(shop.transaction()):
        await shop.sell(1)
    async with shop.transaction():
        await shop.sell(1)
    return [1]


async def savepoint_released(shop: Shop) -> list[int]:
    async with shop.transaction():
        await shop.sell(1)
        async with shop.savepoint():
            await shop.sell(2)
        await shop.sell(3)
    return [1, 2, 3]


async def savepoint_undone(shop: Shop) -> list[int]:
    async with shop.transaction():
        await shop.sell(1)
        async with rolled_back(shop.savepoint()):
            await shop.sell(2)
        await shop.sell(3)
    return [1, 3]


async def savepoint_undone_in_a_released_one(shop: Shop) -> list[int]:
    async with shop.transaction():
        await shop.sell(1)
        async with shop.savepoint():
            await shop.sell(2)
            async with rolled_back(shop.savepoint()):
                await shop.sell(3)
            await shop.sell(4)
    return [1, 2, 4]


async def savepoint_released_in_one_that_is_undone(shop: Shop) -> list[int]:
    async with shop.transaction():
        await shop.sell(1)
        async with rolled_back(shop.savepoint()):
            await shop.sell(2)
            async with shop.savepoint():
                await shop.sell(3)
    return [1]


async def savepoint_released_and_all_undone(shop: Shop) -> list[int]:
    async with rolled_back(shop.transaction()):
        await shop.sell(1)
        async with shop.savepoint():
            await shop.sell(2)
    return []


async def broken_and_undone(shop: Shop) -> list[int]:
    async with rolled_back(shop.transaction()):
        await shop.sell(1)
        await shop.fail()
        await (shop.sell(2) if shop.is_sqlite else shop.refused(2))
    async with shop.transaction():
        await shop.sell(3)
    return [3]


async def broken_in_a_savepoint(shop: Shop) -> list[int]:
    """The savepoint makes the transaction whole again."""
    async with shop.transaction():
        await shop.sell(1)
        async with rolled_back(shop.savepoint()):
            await shop.sell(2)
            await shop.fail()
            if not shop.is_sqlite:
                await shop.refused(2)
        await shop.sell(3)
    return [1, 3]


async def broken_and_committed(shop: Shop) -> list[int]:
    """PostgreSQL undoes such a transaction at its commit; some drivers raise then. To SQLite it is whole."""
    try:
        async with shop.transaction():
            await shop.sell(1)
            await shop.fail()
            await (shop.sell(2) if shop.is_sqlite else shop.refused(2))
    except Exception:
        if shop.is_sqlite:
            raise
    return [1, 2] if shop.is_sqlite else []


async def broken_by_the_commit(shop: Shop) -> list[int]:
    if shop.is_sqlite:
        async with shop.transaction():
            await shop.run("PRAGMA foreign_keys = ON")

    async def order() -> None:
        async with shop.transaction():
            await shop.sell(1)
            await shop.run(f"INSERT INTO invoices (n) VALUES ({shop[2]})")

    with pytest.raises(Exception, match=r"(?i)foreign key"):
        await order()
    return []


async def undone_by_sqlite_itself(shop: Shop) -> list[int]:
    """What the program writes afterwards is a transaction of its own: order and job alike."""
    async with shop.transaction():
        await shop.sell(1)
        await shop.fail("INSERT OR ROLLBACK")
        await shop.sell(2)
    return [2]


async def cancelled_and_undone(shop: Shop) -> list[int]:
    async def order() -> None:
        async with shop.transaction():
            await shop.sell(1)
            await shop.order(2)
            await shop.enqueue_cancelled(2)

    with pytest.raises(asyncio.CancelledError):
        await order()
    async with shop.transaction():
        await shop.sell(3)
    return [3]


async def cancelled_in_a_savepoint(shop: Shop) -> list[int]:
    async def order() -> None:
        async with shop.savepoint():
            await shop.order(2)
            await shop.enqueue_cancelled(2)

    async with shop.transaction():
        await shop.sell(1)
        with pytest.raises(asyncio.CancelledError):
            await order()
        await shop.sell(3)
    return [1, 3]


async def cancelled_and_tried_again(shop: Shop) -> list[int]:
    async with shop.transaction():
        await shop.sell(1)
        await shop.order(2)
        with pytest.raises(asyncio.CancelledError):
            await shop.enqueue_cancelled(2)
        await shop.enqueue(2)
    return [1, 2]


Scenario = Callable[[Shop], Awaitable[list[int]]]

_EACH: tuple[Scenario, ...] = (
    committed,
    undone,
    undone_and_done_again,
    savepoint_released,
    savepoint_undone,
    savepoint_undone_in_a_released_one,
    savepoint_released_in_one_that_is_undone,
    savepoint_released_and_all_undone,
    broken_and_undone,
    broken_in_a_savepoint,
    broken_and_committed,
    broken_by_the_commit,
)
EACH = {scenario.__name__: scenario for scenario in _EACH}  # pyright: ignore[reportFunctionMemberAccess]
ASYNC = {
    scenario.__name__: scenario
    for scenario in (cancelled_and_undone, cancelled_in_a_savepoint, cancelled_and_tried_again)
}


async def play(
    scenario: Scenario, opens: Callable[[], AbstractAsyncContextManager[User]], enqueue: Enqueue, *, is_sqlite: bool
) -> list[int]:
    """Plays a scenario twice, once with each job before its order; returns the orders that must stand."""
    expected: list[int] = []
    for first, job_first in ((0, False), (100, True)):
        async with opens() as user:
            shop = Shop(user, enqueue, first, job_first=job_first, is_sqlite=is_sqlite)
            expected += [shop[n] for n in await scenario(shop)]
    return expected
