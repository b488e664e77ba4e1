"""A coroutine gets the connection it passed back in a usable state, whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import random
import select
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.string import ByteaBinaryLoader

from dray.backends import open_backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.notify import Channels
from dray.clock import Ids
from dray.errors import ConfigError, StorageUnavailable
from tests.backends import beside, users
from tests.backends.world import World
from tests.manual_clock import ManualClock


def ids_of(world: World) -> list[str]:
    return sorted(job.id for job in world.backend.jobs.newest())


# Cancelled during the call, on both databases


@pytest.mark.parametrize("kind", users.ASYNC)
def test_an_enqueue_cancelled_under_way_leaves_nothing_and_the_connection_usable(
    world: World, url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.rows(url, "CREATE TABLE orders (n integer)")
    parent, kept = world.enqueue(), world.new()
    gate = beside.Gate(monkeypatch, "parent_states")

    async def program() -> None:
        async with users.ASYNC[kind](url) as user:
            await user.order(1)
            under_way = asyncio.create_task(
                world.backend.jobs.enqueue_async(
                    [world.new(), world.new(parents=(parent,))], connection=user.connection
                )
            )
            assert await asyncio.to_thread(gate.reached.wait, 10)
            for _ in range(3):  # an impatient caller
                under_way.cancel()
                await asyncio.sleep(0)
            assert not under_way.done(), "the connection is in use"
            gate._open.set()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            await user.order(2)
            await world.backend.jobs.enqueue_async([kept], connection=user.connection)
            await user.commit()

    asyncio.run(program())

    assert ids_of(world) == sorted([parent, kept.id])
    assert beside.rows(url, "SELECT n FROM orders ORDER BY n") == [(1,), (2,)]


def test_one_cancelled_before_its_turn_does_nothing(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = world.enqueue()
    gate = beside.Gate(monkeypatch, "parent_states")
    first = world.new(parents=(parent,))

    async def program() -> None:
        async with users.async_driver(url) as user:
            one = asyncio.create_task(world.backend.jobs.enqueue_async([first], connection=user.connection))
            assert await asyncio.to_thread(gate.reached.wait, 10)
            two = asyncio.create_task(world.backend.jobs.enqueue_async([world.new()], connection=user.connection))
            await asyncio.sleep(0)
            two.cancel()
            gate._open.set()
            await one
            with pytest.raises(asyncio.CancelledError):
                await two
            await user.commit()

    asyncio.run(program())

    assert ids_of(world) == sorted([parent, first.id])


def test_many_at_once_on_one_connection_do_not_get_in_each_others_way(world: World, url: str) -> None:
    good = [world.new() for _ in range(12)]
    bad = [world.new(parents=(world.ids.new(),)) for _ in range(12)]

    async def program() -> list[Any]:
        async with users.async_driver(url) as user:
            calls = [
                world.backend.jobs.enqueue_async([new], connection=user.connection)
                for pair in zip(good, bad, strict=True)
                for new in pair
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            await user.commit()
            return answers

    answers = asyncio.run(program())

    assert ids_of(world) == sorted(new.id for new in good)
    assert [isinstance(answer, list) for answer in answers] == [True, False] * 12


# psycopg's AsyncConnection


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """On PostgreSQL only, for the tests that need it."""
    if "shared_url" not in request.node.fixturenames:
        return World(
            request.getfixturevalue("backend"), request.getfixturevalue("clock"), request.getfixturevalue("ids")
        )
    return request.getfixturevalue("server")


@asynccontextmanager
async def lent(url: str) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    async with users.async_driver(url) as user:
        yield user.connection


def test_a_cancelled_enqueue_does_not_wait_for_a_lock(world: World, shared_url: str) -> None:
    parent = world.enqueue()

    async def program() -> None:
        async with lent(shared_url) as user:
            await user.execute("CREATE TABLE orders (n integer)")
            under_way = asyncio.create_task(
                world.backend.jobs.enqueue_async([world.new(parents=(parent,))], connection=user)
            )
            await _blocked(shared_url, user.info.backend_pid)
            under_way.cancel()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            assert user.info.transaction_status == TransactionStatus.INTRANS
            await user.execute("INSERT INTO orders (n) VALUES (1)")
            await user.commit()

    with beside.connect(shared_url) as other:
        beside.execute(other, "UPDATE dray_jobs SET name = 'mine' WHERE id = ?", parent)
        asyncio.run(program())

    assert beside.rows(shared_url, "SELECT n FROM orders") == [(1,)]
    assert ids_of(world) == [parent]


async def _blocked(url: str, pid: int) -> None:
    """Waits until a session waits for a lock."""
    async with lent(url) as observer:
        await observer.set_autocommit(True)
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        async with asyncio.timeout(10):
            while not await (await observer.execute(query, (pid,))).fetchall():
                await asyncio.sleep(0.01)


def test_those_who_wait_do_not_keep_a_thread_from_the_one_they_wait_for(world: World, shared_url: str) -> None:
    async def program() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with lent(shared_url) as first, lent(shared_url) as second, lent(shared_url) as third:
            await world.backend.jobs.enqueue_async([world.new(unique_key="k")], connection=first)
            waiting = [
                asyncio.create_task(world.backend.jobs.enqueue_async([world.new(unique_key="k")], connection=user))
                for user in (second, third)
            ]
            for user in (second, third):
                await _blocked(shared_url, user.info.backend_pid)
            await world.backend.jobs.enqueue_async([world.new()], connection=first)
            await first.commit()
            assert [(await task)[0].duplicate for task in waiting] == [True, True]

    asyncio.run(program())

    assert len(ids_of(world)) == 2


def test_what_the_user_set_does_not_matter_and_is_not_changed(world: World, shared_url: str) -> None:
    parent = world.enqueue(unique_key="held")

    async def program() -> None:
        async with lent(shared_url) as user:
            user.row_factory = dict_row
            user.prepare_threshold = 0
            user.adapters.register_loader("text", ByteaBinaryLoader)
            user.adapters.register_loader("uuid", ByteaBinaryLoader)
            await user.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            settings = "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name"
            before = await (await user.execute(settings)).fetchall()
            await user.commit()
            handlers = user.pgconn.notice_handler, user.pgconn.notify_handler

            for _ in range(3):
                new = [world.new(parents=(parent,)), world.new(unique_key="held")]
                answer = await world.backend.jobs.enqueue_async(new, connection=user)
                assert [enqueued.duplicate for enqueued in answer] == [False, True]

            shown = await (await user.execute("SHOW transaction_isolation")).fetchall()
            assert shown == [{"transaction_isolation": "repeatable read"}]
            assert await (await user.execute(settings)).fetchall() == before
            assert (user.pgconn.notice_handler, user.pgconn.notify_handler) == handlers
            await user.commit()

    asyncio.run(program())

    assert len(ids_of(world)) == 4


def test_a_notification_that_nobody_had_read_yet_reaches_the_users_handler_in_its_own_thread(
    world: World, shared_url: str
) -> None:
    heard: list[tuple[str, int]] = []

    async def program() -> None:
        async with lent(shared_url) as user:
            user.add_notify_handler(lambda note: heard.append((note.payload, threading.get_ident())))
            await user.execute("LISTEN theirs")
            await user.commit()
            beside.rows(shared_url, "SELECT pg_notify('theirs', 'hello')")
            assert select.select([user.fileno()], [], [], 10)[0]

            await world.backend.jobs.enqueue_async([world.new()], connection=user)

            assert heard == [("hello", threading.get_ident())]

    asyncio.run(program())


def test_pipeline_mode_is_refused(world: World, shared_url: str) -> None:
    async def program() -> None:
        async with lent(shared_url) as user, user.pipeline():
            await world.backend.jobs.enqueue_async([world.new()], connection=user)

    with pytest.raises(ConfigError, match="pipeline"):
        asyncio.run(program())


def test_a_block_of_psycopg_s_own_is_joined(world: World, shared_url: str) -> None:
    kept = world.new()

    async def program() -> None:
        async with lent(shared_url) as user, user.transaction():
            await world.backend.jobs.enqueue_async([kept], connection=user)
            async with user.transaction(force_rollback=True):
                await world.backend.jobs.enqueue_async([world.new()], connection=user)

    asyncio.run(program())

    assert ids_of(world) == [kept.id]


def test_a_session_that_the_server_ended_is_dray_s_own_error(world: World, shared_url: str) -> None:
    async def program() -> None:
        async with lent(shared_url) as user:
            beside.rows(shared_url, "SELECT pg_terminate_backend(?)", user.info.backend_pid)
            with pytest.raises(StorageUnavailable):
                await world.backend.jobs.enqueue_async([world.new()], connection=user)

    asyncio.run(program())


# Notifications at commit


def channels(world: World) -> Channels:
    assert isinstance(world.backend.db, PostgresDatabase)
    return world.backend.db._channels


def listen(url: str, world: World) -> psycopg.Connection[Any]:
    listener = psycopg.connect(url.partition("&schema")[0], autocommit=True)
    for channel in channels(world):
        listener.execute(f'LISTEN "{channel}"'.encode())
    return listener


@pytest.mark.parametrize("kind", ["driver", "async driver", "AsyncSession"])
def test_the_users_commit_wakes_workers_of_the_queues(world: World, shared_url: str, kind: str) -> None:
    async def program() -> None:
        async with users.ALL[kind](shared_url) as user:
            dropped = [world.new(queue="dropped")]
            await world.backend.jobs.enqueue_async(dropped, connection=user.connection)
            await user.rollback()
            new = [world.new(queue="mail"), world.new(queue="mail"), world.new(queue="slow")]
            await world.backend.jobs.enqueue_async(new, connection=user.connection)
            assert list(listener.notifies(timeout=0)) == []
            await user.commit()

    with listen(shared_url, world) as listener:
        asyncio.run(program())
        heard = [note.payload for note in listener.notifies(timeout=5, stop_after=2)]

    assert sorted(heard) == ["mail", "slow"]


def test_without_notify_the_users_commit_tells_nobody(shared_url: str, clock: ManualClock, ids: Ids) -> None:
    backend = open_backend(shared_url, clock=clock, notify=False)
    backend.migrate()
    world = World(backend, clock, ids)
    with listen(shared_url, world) as listener, beside.connect(shared_url) as user:
        world.backend.jobs.enqueue([world.new()], connection=user)
        user.commit()
        beside.rows(shared_url, "SELECT pg_notify(?, 'after')", channels(world).work)

        heard = [note.payload for note in listener.notifies(timeout=5, stop_after=1)]
    backend.close()

    assert heard == ["after"]


def test_a_table_that_the_users_search_path_hides_is_not_written_to_another_one(
    shared_url: str, clock: ManualClock, ids: Ids
) -> None:
    # Without ?schema= the search_path finds the tables: the App's in one schema, the user's in another.
    server, schema = shared_url.partition("&schema=")[::2]
    theirs = open_backend(shared_url, clock=clock)
    theirs.migrate()
    ours_schema = f"{schema}_ours"
    ours = open_backend(f"{server}&options=-csearch_path%3D{ours_schema}", clock=clock)
    beside.rows(shared_url, f'CREATE SCHEMA "{ours_schema}"')  # pyright: ignore[reportArgumentType]
    ours.migrate()
    world = World(ours, clock, ids)
    with beside.connect(shared_url) as user:
        with pytest.raises(ConfigError, match="search_path"):
            ours.jobs.enqueue([world.new()], connection=user)
        user.commit()
        beside.execute(user, f'SET search_path TO "{ours_schema}"')  # pyright: ignore[reportArgumentType]
        (kept,) = ours.jobs.enqueue([world.new()], connection=user)
        user.commit()

    assert ([job.id for job in ours.jobs.newest()], theirs.jobs.newest()) == ([kept.id], [])
    ours.close()
    theirs.close()
    beside.rows(shared_url, f'DROP SCHEMA "{ours_schema}" CASCADE')  # pyright: ignore[reportArgumentType]


# Bad timing, on both databases


@pytest.mark.parametrize("kind", ["async driver", "AsyncSession"])
def test_whenever_it_is_cancelled_it_is_whole_and_the_connection_usable(world: World, url: str, kind: str) -> None:
    beside.rows(url, "CREATE TABLE orders (n integer)")
    rng, rounds = random.Random(11), 60
    batches: list[list[str]] = []

    async def program() -> None:
        async with users.ASYNC[kind](url) as user:
            for n in range(rounds):
                first, second = world.new(), world.new()
                batch = [first, second, world.new(parents=(first.id, second.id))]
                batches.append([new.id for new in batch])
                await user.order(n)
                under_way = asyncio.create_task(world.backend.jobs.enqueue_async(batch, connection=user.connection))
                await asyncio.sleep(rng.uniform(0, 0.008))
                for _ in range(rng.choice((1, 3))):
                    under_way.cancel()
                    await asyncio.sleep(0)
                done.append(isinstance((await asyncio.gather(under_way, return_exceptions=True))[0], list))
                await user.order(n)
                await user.commit()

    done: list[bool] = []
    asyncio.run(program())

    assert beside.count(url, "orders") == 2 * rounds
    there = {job.id for job in world.backend.jobs.newest(limit=10_000)}
    for batch, was_done in zip(batches, done, strict=True):
        kept = there & set(batch)
        assert kept == set(batch) if was_done else kept in (set(), set(batch))
