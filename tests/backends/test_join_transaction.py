"""`ctx.transaction()`: what a body writes on this connection commits together with the job's completion."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.sqlite import SqliteDatabase
from dray.clock import Ids
from dray.errors import ConfigError, StaleClaim, StorageError, StorageLocked, StorageUnavailable
from dray.instants import MILLISECOND
from dray.model.job import CancelResult
from tests.backends import beside
from tests.backends.test_join_complete import Held
from tests.backends.users import User
from tests.backends.world import World
from tests.manual_clock import ManualClock

Fence = tuple[str, str, int]


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return request.param == "async"


@pytest.fixture
def orders(url: str, world: World) -> Callable[[], list[int]]:
    beside.rows(url, "CREATE TABLE orders (n integer)")
    return lambda: [row[0] for row in beside.rows(url, "SELECT n FROM orders ORDER BY n")]


@asynccontextmanager
async def block(backend: Backend, is_async: bool, fence: Fence | None = None) -> AsyncGenerator[User]:
    """Both kinds of blocks behind one interface."""
    if is_async:
        async with backend.atransaction(fence=fence) as connection:
            yield await _at_home(backend, User(connection))
        return
    with backend.transaction(fence=fence) as connection:
        yield await _at_home(backend, User(connection))


async def _at_home(backend: Backend, user: User) -> User:
    """Puts the users' tables of these tests into the schema of the test."""
    if isinstance(backend.db, PostgresDatabase):
        await user.run(f'SET LOCAL search_path TO "{backend.db.schema}"')
    return user


def fence_of(held: Held) -> Fence:
    return held.id, held.worker, held.claim.claim


async def finish(held: Held, user: User) -> None:
    await held.world.backend.work.complete_async(held.worker, held.completion("7"), user.connection)


def test_the_bodys_writes_and_the_completion_commit_together(
    world: World, orders: Callable[[], list[int]], is_async: bool
) -> None:
    held = Held(world)

    async def body() -> None:
        async with block(world.backend, is_async, fence_of(held)) as user:
            await user.order(1)
            await finish(held, user)
            assert (held.state, orders()) == ("running", [])

    asyncio.run(body())

    assert (world.job(held.id).state, world.job(held.id).result, orders()) == ("completed", "7", [1])


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, KeyboardInterrupt, SystemExit, asyncio.CancelledError, psycopg.Rollback]
)
def test_an_error_rolls_both_back_and_goes_on(
    world: World, orders: Callable[[], list[int]], is_async: bool, error: type[BaseException]
) -> None:
    held = Held(world)
    left: list[Any] = []

    async def body() -> None:
        try:
            async with block(world.backend, is_async, fence_of(held)) as user:
                left.append(user.connection)
                await user.order(1)
                await finish(held, user)
                interrupt()
        except error:
            left.append("raised")

    def interrupt() -> None:
        raise error

    asyncio.run(body())

    assert left[1:] == ["raised"]
    assert (held.state, orders()) == ("running", [])
    assert is_closed(left[0])
    assert world.complete(held.worker, held.claim).stale == []


def is_closed(connection: Any) -> bool:
    if isinstance(connection, sqlite3.Connection):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
        return True
    return connection.closed


def test_a_lost_claim_is_told_before_the_body_writes(
    world: World, orders: Callable[[], list[int]], is_async: bool
) -> None:
    held = Held(world)
    world.bury(held.worker)

    async def body() -> None:
        async with block(world.backend, is_async, fence_of(held)) as user:
            await user.order(1)

    with pytest.raises(StaleClaim):
        asyncio.run(body())

    assert orders() == []
    world.enqueue()  # no lock is left


def test_the_connection_is_plain_and_durable(world: World, is_async: bool) -> None:
    async def body() -> None:
        async with block(world.backend, is_async) as user:
            if isinstance(user.connection, sqlite3.Connection):
                pragmas = ("synchronous", "foreign_keys", "journal_mode")
                found = [user.connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
                assert found == [2, 1, "wal"]
                assert user.connection.in_transaction
            else:
                shown = "SELECT now(), gen_random_uuid(), current_setting('transaction_isolation'), true"
                values = (await _one(user, shown))[:3]
                assert [type(value).__name__ for value in values] == ["datetime", "UUID", "str"]
                assert values[2] == "read committed"

    asyncio.run(body())


async def _one(user: User, sql: str) -> tuple[Any, ...]:
    cursor = await user.run(sql)
    found = cursor.fetchone()
    return await found if asyncio.iscoroutine(found) else found


def test_its_end_is_the_blocks(world: World, orders: Callable[[], list[int]], is_async: bool) -> None:
    async def body() -> None:
        async with block(world.backend, is_async) as user:
            await user.order(1)
            for end in (user.commit, user.rollback):
                with pytest.raises(ConfigError, match="at its end"):
                    await end()
            if isinstance(user.connection, sqlite3.Connection):
                for call in (user.connection.close, user.connection.__enter__):
                    with pytest.raises(ConfigError, match="at its end"):
                        call()
                with pytest.raises(ConfigError, match="at its end"):
                    user.connection.executescript("SELECT 1")
            assert orders() == []
            await user.order(2)

    asyncio.run(body())

    assert orders() == [1, 2]


def test_a_job_can_be_enqueued_in_it(world: World, is_async: bool) -> None:
    held, new = Held(world), world.new("child")

    async def body(end: type[BaseException] | None) -> None:
        async with block(world.backend, is_async, fence_of(held)) as user:
            await world.backend.jobs.enqueue_async([new], connection=user.connection)
            if end is not None:
                raise end
            await finish(held, user)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(body(ZeroDivisionError))
    assert world.backend.jobs.get([new.id]) == []
    asyncio.run(body(None))

    assert (held.state, world.job(new.id).state) == ("completed", "queued")


class Stand:
    """What bodies get instead of the bare connection."""

    def __init__(self, connection: Any) -> None:
        self.__dray_connection__ = connection


def test_what_stands_for_its_connection_is_taken_for_it(world: World, is_async: bool) -> None:
    new = world.new()

    async def body() -> None:
        async with block(world.backend, is_async) as user:
            await world.backend.jobs.enqueue_async([new], connection=Stand(user.connection))
            if not is_async:
                world.backend.jobs.enqueue([new], connection=Stand(user.connection))

    asyncio.run(body())

    assert [job.id for job in world.backend.jobs.newest()] == [new.id]
    with pytest.raises(ConfigError, match="inside its"):
        world.backend.jobs.enqueue([world.new()], connection=Stand(None))
    with pytest.raises(ConfigError, match="inside its"):
        asyncio.run(world.backend.jobs.enqueue_async([world.new()], connection=Stand(None)))


def test_a_constraint_that_fails_at_the_commit_keeps_nothing(world: World, url: str, is_async: bool) -> None:
    beside.rows(url, "CREATE TABLE customers (id integer PRIMARY KEY)")
    beside.rows(
        url,
        "CREATE TABLE debts (id integer, customer integer REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    held = Held(world)

    async def body() -> None:
        async with block(world.backend, is_async, fence_of(held)) as user:
            await user.run("INSERT INTO debts VALUES (1, 42)")
            await finish(held, user)

    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        asyncio.run(body())

    assert (held.state, beside.count(url, "debts")) == ("running", 0)
    assert world.complete(held.worker, held.claim).stale == []


# SQLite: one writer


@pytest.fixture
def file(tmp_path: Any, clock: ManualClock, ids: Ids) -> Generator[World]:
    backend = open_backend(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock)
    backend.migrate()
    yield World(backend, clock, ids)
    backend.close()


def test_a_write_beside_an_open_block_of_the_same_thread_fails_at_once(file: World) -> None:
    with file.backend.transaction(), pytest.raises(StorageLocked, match="this thread has"):
        file.enqueue()

    file.enqueue()


def test_a_write_of_another_thread_waits_for_the_block(file: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        with file.backend.transaction() as connection:
            other = pool.submit(file.enqueue)
            file.backend.jobs.enqueue([file.new()], connection=connection)
            wait([other], beside.BLOCKED)
            assert not other.done()
        other.result(10)

    assert len(file.backend.jobs.newest()) == 2


def test_the_block_waits_for_another_writer(file: World, tmp_path: Any) -> None:
    with ThreadPoolExecutor(1) as pool, beside.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as other:
        beside.execute(other, "BEGIN IMMEDIATE")

        def body() -> None:
            with file.backend.transaction() as connection:
                file.backend.jobs.enqueue([file.new()], connection=connection)

        waiting = pool.submit(body)
        wait([waiting], beside.BLOCKED)
        assert not waiting.done()
        other.rollback()
        waiting.result(10)

    assert len(file.backend.jobs.newest()) == 1


def test_a_loop_goes_on_while_a_block_waits_for_another_writer(file: World, tmp_path: Any) -> None:
    async def program() -> None:
        with beside.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as other:
            beside.execute(other, "BEGIN IMMEDIATE")
            entered, given_up = asyncio.Event(), asyncio.create_task(body(asyncio.Event()))
            waiting = asyncio.create_task(body(entered))
            for _ in range(20):
                await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert not entered.is_set()
            other.rollback()
            await asyncio.wait_for(waiting, 10)
            assert entered.is_set()

    async def body(entered: asyncio.Event) -> None:
        async with file.backend.atransaction():
            entered.set()

    asyncio.run(program())
    file.enqueue()


def test_a_block_that_is_open_for_long_is_logged_once(file: World, caplog: pytest.LogCaptureFixture) -> None:
    with file.backend.transaction():
        file.clock.advance(400 * MILLISECOND)
    assert caplog.records == []

    with file.backend.transaction():
        file.clock.advance(700 * MILLISECOND)

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("dray", logging.WARNING)
    assert "0.7 s" in record.getMessage()


def test_a_transaction_ended_inside_its_block_is_told(file: World) -> None:
    with pytest.raises(ConfigError, match="ended inside"), file.backend.transaction() as connection:
        connection.execute("COMMIT")


def test_a_block_belongs_to_its_thread(file: World) -> None:
    with ThreadPoolExecutor(1) as pool, file.backend.transaction() as connection:
        elsewhere = pool.submit(connection.execute, "SELECT 1")

        with pytest.raises(sqlite3.ProgrammingError, match="thread"):
            elsewhere.result(10)


# A server that goes away or ends the session


@pytest.mark.parametrize("when", ["before a statement", "before the commit"])
def test_a_session_that_the_server_ends_in_the_block_keeps_nothing(
    server: World, shared_url: str, when: str, is_async: bool
) -> None:
    held = Held(server)

    async def body() -> None:
        async with block(server.backend, is_async, fence_of(held)) as user:
            if when == "before the commit":
                await finish(held, user)
            beside.rows(shared_url, "SELECT pg_terminate_backend(?, 10000)", user.connection.info.backend_pid)
            if when == "before a statement":
                await user.run("SELECT 1")

    with pytest.raises(psycopg.OperationalError if when == "before a statement" else StorageUnavailable):
        asyncio.run(body())

    assert held.state == "running"
    assert server.complete(held.worker, held.claim).stale == []


def test_an_error_that_was_swallowed_in_the_block_is_told(server: World, is_async: bool) -> None:
    async def body() -> None:
        async with block(server.backend, is_async) as user:
            with pytest.raises(psycopg.Error):
                await user.run("SELECT 1 / 0")

    with pytest.raises(StorageError, match="keeps nothing"):
        asyncio.run(body())


def test_a_job_that_is_taken_back_while_the_block_is_open_keeps_nothing_of_it(
    server: World, shared_url: str, is_async: bool
) -> None:
    beside.rows(shared_url, "CREATE TABLE orders (n integer)")
    held = Held(server)

    async def body(pool: ThreadPoolExecutor) -> None:
        async with block(server.backend, is_async, fence_of(held)) as user:
            await user.order(1)
            pool.submit(server.bury, held.worker).result(10)
            await finish(held, user)

    with ThreadPoolExecutor(1) as pool, pytest.raises(StaleClaim, match=held.id):
        asyncio.run(body(pool))

    assert (held.state, beside.count(shared_url, "orders")) == ("scheduled", 0)


def test_nobody_takes_the_job_away_between_its_completion_and_the_commit(server: World) -> None:
    held = Held(server)
    with ThreadPoolExecutor(1) as pool:
        with server.backend.transaction(fence=fence_of(held)) as connection:
            server.backend.work.complete(held.worker, held.completion(), connection)
            pool.submit(server.bury, held.worker).result(10)
        server.backend.workers.rescue([], rng=server.rng)

    assert held.state == "completed"


def test_a_cancel_does_not_wait_for_the_end_of_the_block(server: World) -> None:
    held, other = Held(server), server.enqueue()
    with ThreadPoolExecutor(1) as pool, server.backend.transaction(fence=fence_of(held)) as connection:
        answer = pool.submit(server.backend.jobs.cancel, [held.id, other]).result(10)
        server.backend.work.complete(held.worker, held.completion(), connection)

    assert answer == {held.id: CancelResult.REQUESTED, other: CancelResult.CANCELLED}
    assert held.state == "completed"  # it ignored the request


# Forks

FORK = """
import os, sys, threading
from dray.backends import open_backend
from dray.clock import Ids, SystemClock
from dray.model.new_job import NewJob
backend, ids = open_backend(sys.argv[1], create=True), Ids(SystemClock())
backend.migrate()

def child(connection):
    try:
        connection.execute("CREATE TABLE childs (n integer)")
    except BaseException as error:
        return type(error).__name__

def told(call):
    try:
        call()
    except BaseException as error:
        return type(error).__name__

def whole():
    with backend.transaction() as connection:
        backend.jobs.enqueue([NewJob(id=ids.new(), task="t")], connection=connection)
        if not os.fork():
            print(child(connection), flush=True)
            return
        os.wait()
        backend.jobs.enqueue([NewJob(id=ids.new(), task="t")], connection=connection)

me = os.getpid()
answer = told(whole)
if os.getpid() != me:
    print(answer, told(lambda: backend.jobs.newest()), flush=True)
    os._exit(0)
print(answer, len(backend.jobs.newest()), backend.jobs.enqueue([NewJob(id=ids.new(), task="t")])[0].duplicate)
"""


def test_a_fork_inside_a_block_leaves_it_to_the_parent(empty_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, empty_url], check=False, capture_output=True, text=True, timeout=60
    )

    assert done.stderr == ""
    in_block, at_its_end, parent = done.stdout.splitlines()
    # On SQLite the child cannot use the file at all: it would believe that it holds its parent's locks.
    is_file = empty_url.startswith("sqlite")
    assert in_block == ("ForkedConnection" if is_file else "OperationalError")
    assert at_its_end == "ForkedConnection " + ("ForkedConnection" if is_file else "None")
    assert parent == "None 2 False"


def test_a_fork_waits_a_moment_for_the_blocks_of_other_threads(file: World) -> None:
    entered, leave = threading.Event(), threading.Event()

    def body() -> None:
        with file.backend.transaction():
            entered.set()
            leave.wait(10)

    db = file.backend.db
    assert isinstance(db, SqliteDatabase)

    def fork() -> None:
        db.before_fork()
        db.after_fork_in_parent()

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(body)
        assert entered.wait(10)
        forking = pool.submit(fork)
        wait([forking], beside.BLOCKED)
        assert not forking.done()
        leave.set()
        running.result(10)
        forking.result(10)

    assert db._fork_is_clean
