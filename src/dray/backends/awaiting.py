"""Synchronous work on behalf of a coroutine, on a connection that the coroutine lends.

The lender gets it back whole: a coroutine that is cancelled returns only when the work has ended, so that nothing
else uses the connection meanwhile. The work is told of the cancellation, and undoes what it did unless it was done.

Imported only by those who await: asyncio takes 40 ms to load.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from dray.backends.joined import SessionDatabase
from dray.backends.user_connection import Cancellation, is_idle, unwrap_async

if TYPE_CHECKING:
    import sqlite3

    from dray.backends.database import Database

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs work in a thread of its own.

    Not in the loop's executor: it could be full of work that waits, in the database, for the transaction in which
    this work is to be done.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="dray-join")
    future = asyncio.get_running_loop().run_in_executor(executor, contextvars.copy_context().run, work)
    executor.shutdown(wait=False)
    return future


def in_its_thread(connection: Any, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
    """Runs work in the thread of a connection of aiosqlite's, in turn with whatever else it was given to do."""
    # Not public there, and the only way to do more than one statement in one turn; the same since its version 0.8.
    return asyncio.ensure_future(connection._execute(lambda: work(connection._conn)))  # noqa: SLF001


async def read(db: Database, connection: Any, look: Callable[[Database], T]) -> T:
    """What a user's connection of any kind sees of the tables; see `LentDatabase`."""
    if is_idle(await unwrap_async(connection)):
        return await in_a_thread(lambda: look(db))
    return await db.join_async(connection, lambda tx: look(SessionDatabase(db, tx)))


async def to_the_end(
    future: asyncio.Future[T],
    cancellation: Cancellation,
    interrupt: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> T:
    """Waits for work, also when cancelled: tells it to stop, interrupts it where that can be undone, waits on."""
    pending: set[asyncio.Future[Any]] = {future}
    cancelled: asyncio.CancelledError | None = None
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancellation.is_set = True
            pending = {each for each in pending if not each.done()}
            if cancelled is None and interrupt is not None and cancellation.is_guarded and not future.done():
                # Waited for like the work: an interruption that arrives late would hit what the user does next.
                pending.add(asyncio.ensure_future(interrupt()))
            cancelled = error
    if cancelled is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # looked at: or asyncio would log that its exception was never retrieved
    raise cancelled
