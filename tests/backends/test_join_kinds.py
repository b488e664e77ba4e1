"""Enqueueing on every kind of user connection: the driver's and SQLAlchemy's, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from dray.backends import open_backend
from dray.errors import ConfigError, DrayError, UnknownJob
from dray.model.job import Enqueued
from dray.model.workflow import Workflow
from tests.backends import beside, users
from tests.backends.users import Opens
from tests.backends.world import World
from tests.manual_clock import ManualClock

LARGE = '"' + "x" * 3_000 + '"'
Enqueue = Callable[..., Coroutine[Any, Any, list[Enqueued]]]


@pytest.fixture(params=users.ALL)
def opens(request: pytest.FixtureRequest) -> Opens:
    """Each kind of connection in turn."""
    return users.ALL[request.param]


@pytest.fixture(autouse=True)
def orders(url: str, world: World) -> Callable[[], list[int]]:
    """Returns the rows of the user's own table."""
    beside.rows(url, "CREATE TABLE orders (n integer)")
    return lambda: [row[0] for row in beside.rows(url, "SELECT n FROM orders ORDER BY n")]


def jobs(world: World) -> list[str]:
    return sorted(job.id for job in world.backend.jobs.newest())


# Commit and rollback with the transaction


def test_the_job_is_there_with_the_commit_and_not_before(world: World, url: str, opens: Opens) -> None:
    async def program() -> str:
        async with opens(url) as user:
            (made,) = await world.backend.jobs.enqueue_async([world.new()], connection=user.connection)
            assert jobs(world) == []
            await user.commit()
            return made.id

    made = asyncio.run(program())

    assert world.claim_one(world.worker()).id == made


def test_a_rollback_leaves_nothing_of_jobs_edges_keys_and_workflows(
    world: World, url: str, opens: Opens, orders: Callable[[], list[int]]
) -> None:
    flow = Workflow(world.ids.new(), "etl", 0)
    first = world.new(args=LARGE, workflow_id=flow.id, step="a", unique_key="k")
    second = world.new(parents=(first.id,), workflow_id=flow.id, step="b")
    many = [world.new() for _ in range(50)]

    async def program() -> None:
        async with opens(url) as user:
            await world.backend.jobs.enqueue_async([first, second], workflow=flow, connection=user.connection)
            await world.backend.jobs.enqueue_async(many, connection=user.connection)
            await user.order(1)
            await user.rollback()
            await user.order(2)
            await user.commit()

    asyncio.run(program())

    for table in ("dray_jobs", "dray_edges", "dray_workflows"):
        assert beside.rows(url, "SELECT count(*) FROM " + table) == [(0,)]
    assert orders() == [2]
    assert not world.backend.jobs.enqueue([world.new(unique_key="k")])[0].duplicate


def test_an_open_transaction_is_joined_and_a_parent_in_it_is_known(
    world: World, url: str, opens: Opens, orders: Callable[[], list[int]]
) -> None:
    parent = world.new("first")
    child = world.new("second", parents=(parent.id,))

    async def program() -> list[Enqueued]:
        async with opens(url) as user:
            await user.order(1)
            await world.backend.jobs.enqueue_async([parent], connection=user.connection)
            await world.backend.jobs.enqueue_async([child], connection=user.connection)
            await user.order(2)
            key = [world.new(unique_key="k"), world.new(unique_key="k")]
            answer = await world.backend.jobs.enqueue_async(key, connection=user.connection)
            await user.commit()
            return answer

    first, second = asyncio.run(program())

    assert (second.id, second.duplicate) == (first.id, True)
    assert orders() == [1, 2]
    assert (world.job(parent.id).state, world.job(child.id).state) == ("queued", "waiting")
    worker = world.worker()
    world.complete(worker, world.claim_one(worker, tasks=("first",)))
    assert world.job(child.id).state == "queued"


def test_a_failed_enqueue_leaves_the_transaction_fit_to_be_committed(
    world: World, url: str, opens: Opens, orders: Callable[[], list[int]]
) -> None:
    orphan, flow = world.new(parents=(world.ids.new(),)), Workflow(world.ids.new(), "etl", 0)
    refused = replace(world.new(), id="no id")

    async def program() -> None:
        async with opens(url) as user:
            await user.order(1)
            for new, error in ((orphan, UnknownJob), (refused, DrayError)):
                with pytest.raises(error):
                    await world.backend.jobs.enqueue_async(
                        [world.new(), new], workflow=flow, connection=user.connection
                    )
            await user.order(2)
            await world.backend.jobs.enqueue_async([kept], connection=user.connection)
            await user.commit()

    kept = world.new()
    asyncio.run(program())

    assert (orders(), jobs(world)) == ([1, 2], [kept.id])
    assert world.backend.workflows.get(flow.id) is None


@pytest.mark.parametrize("kind", users.SYNC)
def test_synchronous_kinds_work_without_a_loop(world: World, url: str, kind: str) -> None:
    kept, dropped = world.new(), world.new()

    async def program() -> None:
        async with users.SYNC[kind](url) as user:
            world.backend.jobs.enqueue([kept], connection=user.connection)
            await user.commit()
            world.backend.jobs.enqueue([dropped], connection=user.connection)
            await user.rollback()

    asyncio.run(program())

    assert jobs(world) == [kept.id]


# SQLAlchemy's own blocks


def test_a_block_of_a_session_decides_over_the_job_too(world: World, url: str) -> None:
    kept, dropped, nested = world.new(), world.new(), world.new()
    engine = users.engine(url)
    make = sessionmaker(engine)

    def fail() -> None:
        with make.begin() as session:
            world.backend.jobs.enqueue([dropped], connection=session)
            session.execute(text("SELECT 1"))
            raise ZeroDivisionError

    with make.begin() as session:
        session.execute(text("INSERT INTO orders (n) VALUES (1)"))
        world.backend.jobs.enqueue([kept], connection=session)
        savepoint = session.begin_nested()
        world.backend.jobs.enqueue([nested], connection=session)
        savepoint.rollback()
    with pytest.raises(ZeroDivisionError):
        fail()
    engine.dispose()

    assert jobs(world) == [kept.id]


def test_a_connection_that_begins_by_an_event_is_joined(world: World, url: str) -> None:
    engine = users.engine_that_begins(url)
    kept = world.new()
    with engine.connect() as user:
        world.backend.jobs.enqueue([kept], connection=user)
        user.commit()
        world.backend.jobs.enqueue([world.new()], connection=user)
        user.rollback()
    engine.dispose()

    assert jobs(world) == [kept.id]


def test_a_session_inside_a_connections_transaction_is_joined(world: World, url: str) -> None:
    engine = users.engine_that_begins(url)
    with engine.connect() as outer:
        transaction = outer.begin()
        with Session(outer, join_transaction_mode="create_savepoint") as session:
            world.backend.jobs.enqueue([world.new()], connection=session)
            session.commit()
        transaction.rollback()
    engine.dispose()

    assert jobs(world) == []


def test_a_session_that_gives_no_connection_is_refused(world: World, url: str) -> None:
    engine = users.engine(url)
    closed = engine.connect()
    closed.close()
    for session in (Session(), Session(engine, autobegin=False), closed):
        with pytest.raises(ConfigError, match="gives no connection"):
            world.backend.jobs.enqueue([world.new()], connection=session)
    engine.dispose()


# Transactions that cannot be joined


def test_autocommit_is_refused(world: World, url: str, opens: Opens) -> None:
    async def program() -> None:
        async with opens(url, autocommit=True) as user:
            with pytest.raises(ConfigError, match="open a transaction first"):
                await world.backend.jobs.enqueue_async([world.new()], connection=user.connection)
            await user.rollback()

    asyncio.run(program())

    assert jobs(world) == []


@pytest.mark.parametrize("kind", users.ASYNC)
def test_an_asynchronous_connection_in_a_synchronous_call_is_refused(world: World, url: str, kind: str) -> None:
    async def program() -> None:
        async with users.ASYNC[kind](url) as user:
            with pytest.raises(ConfigError, match="aenqueue"):
                world.backend.jobs.enqueue([world.new()], connection=user.connection)
            # and its argument stays unchanged
            await user.order(1)
            await user.commit()

    asyncio.run(program())


def test_a_synchronous_session_over_an_asynchronous_driver_is_refused_too(world: World, url: str) -> None:
    async def program() -> None:
        async with users.ASYNC["AsyncSession"](url) as user:
            await user.connection.run_sync(
                lambda session: world.backend.jobs.enqueue([world.new()], connection=session)  # pyright: ignore[reportUnknownLambdaType]
            )

    with pytest.raises(ConfigError, match="aenqueue"):
        asyncio.run(program())


def test_other_drivers_are_refused_with_what_is_supported(
    world: World, url: str, postgres_server: str, tmp_path: Path
) -> None:
    in_file = url.startswith("sqlite")
    engine = users.engine(postgres_server if in_file else f"sqlite:///{tmp_path / 'theirs.db'}")
    with Session(engine) as session, pytest.raises(ConfigError) as refused:
        world.backend.jobs.enqueue([world.new()], connection=session)
    engine.dispose()

    said = str(refused.value)
    assert f"sqlalchemy.Session over {'psycopg' if in_file else 'sqlite3'}.Connection" in said
    assert "psycopg 3, psycopg2 or asyncpg" in said


@pytest.mark.parametrize("give", ["engine", "sessionmaker", "object"])
def test_what_is_no_connection_is_refused(world: World, url: str, give: str) -> None:
    engine = users.engine(url)
    thing = {"engine": engine, "sessionmaker": sessionmaker(engine), "object": object()}[give]

    with pytest.raises(ConfigError, match="connection= takes"):
        world.backend.jobs.enqueue([world.new()], connection=thing)
    with pytest.raises(ConfigError, match="connection= takes"):
        asyncio.run(world.backend.jobs.enqueue_async([world.new()], connection=thing))
    engine.dispose()


def test_another_database_is_refused(world: World, url: str, opens: Opens, tmp_path: Path) -> None:
    elsewhere = users.elsewhere(url, tmp_path)

    async def program() -> None:
        async with opens(elsewhere) as user:
            with pytest.raises(ConfigError, match="to the same"):
                await world.backend.jobs.enqueue_async([world.new()], connection=user.connection)
            await user.rollback()

    asyncio.run(program())


def test_tables_that_are_too_new_are_left_alone(world: World, url: str, opens: Opens, clock: ManualClock) -> None:
    beside.rows(url, "UPDATE dray_meta SET value = '99' WHERE name = 'oldest_code'")

    async def program() -> None:
        async with opens(url) as user:
            with pytest.raises(DrayError, match="upgrade Dray"):
                await other.jobs.enqueue_async([world.new()], connection=user.connection)
            await user.rollback()

    with closing(open_backend(url, clock=clock)) as other:
        asyncio.run(program())
    beside.rows(url, "UPDATE dray_meta SET value = '1' WHERE name = 'oldest_code'")

    assert jobs(world) == []
