"""Enqueueing in the transactions of asyncpg and psycopg2, and of SQLAlchemy over both: the job stands or falls with
the program's own data."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dray
from dray.app_interface import core_of
from dray.backends.postgres.database import PostgresDatabase
from dray.errors import ConfigError, SchemaMissing, StorageError, StorageUnavailable, UnknownJob
from tests.backends import together
from tests.backends.together import OutOfStock, rolled_back
from tests.server import in_database
from tests_integrations.connections import kinds
from tests_integrations.connections.conftest import query
from tests_integrations.connections.kinds import Opens

Orders = Callable[[], list[object]]


def test_the_job_is_there_with_the_commit_and_not_before(app: dray.App, opens: Opens, orders: Orders) -> None:
    async def program() -> None:
        async with opens(app.url) as user:
            async with user.transaction():
                await user.order(1)
                job = await app.aenqueue("mail.confirm", {"order": 1}, connection=user.connection)
                await user.order(2)
                assert app.jobs() == []
            assert job.state == "queued"

    asyncio.run(program())

    assert [job.args for job in app.jobs()] == [{"order": 1}]
    assert orders() == [1, 2]


def stands_or_falls(app: dray.App, kind: str, scenario: together.Scenario, orders: Orders) -> None:
    query(app.url, "DROP TABLE orders")
    for table in together.TABLES:
        query(app.url, table)
    parent = app.enqueue("first")

    async def enqueue(n: int, connection: Any, *, held: bool = False) -> object:
        return await app.aenqueue("mail", {"n": n}, after=parent if held else None, connection=connection)

    expected = asyncio.run(together.play(scenario, lambda: kinds.ALL[kind](app.url), enqueue, is_sqlite=False))

    assert (orders(), sorted((job.args or {})["n"] for job in app.jobs(task="mail"))) == (expected, expected)


@pytest.mark.parametrize("kind", kinds.ALL)
@pytest.mark.parametrize("scenario", together.EACH)
def test_a_job_stands_or_falls_with_its_order(app: dray.App, kind: str, scenario: str, orders: Orders) -> None:
    """The other kinds are in tests/backends/test_join_together.py."""
    stands_or_falls(app, kind, together.EACH[scenario], orders)


@pytest.mark.parametrize("kind", kinds.ASYNCPG)
@pytest.mark.parametrize("scenario", together.ASYNC)
def test_so_it_does_when_the_program_is_cancelled(app: dray.App, kind: str, scenario: str, orders: Orders) -> None:
    stands_or_falls(app, kind, together.ASYNC[scenario], orders)


def test_every_way_to_enqueue_works(app: dray.App, opens: Opens) -> None:
    @app.task(name="shop.count")
    def count(n: int) -> int:
        return n

    flow = app.workflow("etl")
    first = flow.add(count, n=1, step="first")
    flow.add(count, n=2, step="second", after=first)

    async def program() -> None:
        async with opens(app.url) as user, user.transaction():
            held = await count.using(connection=user.connection, unique="k", tags=["a"], delay=60).aenqueue(1)
            again = await count.using(connection=user.connection, unique="k").aenqueue(2)
            assert (again.id, again.duplicate) == (held.id, True)
            await count.using(connection=user.connection, unique="k", on_conflict="replace").aenqueue(3)
            await count.using(connection=user.connection, after=held, timeout=2.5, headers={"a": "ü"}).aenqueue(4)
            many = await count.using(connection=user.connection).aenqueue_many([{"n": n} for n in range(20)])
            assert len({job.id for job in many}) == 20
            await flow.aenqueue(connection=user.connection)

    asyncio.run(program())

    assert sorted((job.state, (job.args or {})["n"]) for job in app.jobs(state=["scheduled", "waiting"])) == [
        ("scheduled", 3),
        ("waiting", 2),
        ("waiting", 4),
    ]
    assert len(app.jobs(state="queued")) == 21


def test_an_enqueue_that_fails_leaves_the_transaction_fit_to_be_committed(
    app: dray.App, opens: Opens, orders: Orders
) -> None:
    nobody = "01890000-0000-7000-8000-000000000000"

    async def program() -> None:
        async with opens(app.url) as user, user.transaction():
            await user.order(1)
            with pytest.raises(UnknownJob):
                await app.aenqueue("mail.confirm", after=nobody, connection=user.connection)
            await user.order(2)
            await app.aenqueue("mail.confirm", connection=user.connection)

    asyncio.run(program())

    assert (orders(), len(app.jobs())) == ([1, 2], 1)


def test_a_transaction_that_is_broken_already_is_told(app: dray.App, opens: Opens, orders: Orders) -> None:
    async def program() -> None:
        async with opens(app.url) as user:
            async with rolled_back(user.transaction()):
                await user.order(1)
                with pytest.raises(Exception, match="division by zero"):
                    await user.run("SELECT 1 / 0")
                with pytest.raises(StorageError, match="current transaction is aborted"):
                    await app.aenqueue("mail.confirm", connection=user.connection)
            async with user.transaction():
                await app.aenqueue("mail.later", connection=user.connection)

    asyncio.run(program())

    assert ([job.task for job in app.jobs()], orders()) == (["mail.later"], [])


def test_a_body_completes_its_job_together_with_its_own_writes(app: dray.App, opens: Opens, orders: Orders) -> None:
    @app.task(name="shop.order", max_attempts=2, retry=0)
    async def order(ctx: dray.Context, n: int) -> None:
        async with opens(app.url) as user, user.transaction():
            await user.order(n)
            await ctx.acomplete(connection=user.connection, result=n)
            if ctx.attempt == 1:
                raise OutOfStock

    job = order.enqueue(7)
    app.worker().run_until_idle()

    assert (job.refresh().state, job.result(), job.attempt) == ("completed", 7, 2)
    assert orders() == [7]


# What cannot be joined


@pytest.mark.parametrize("kind", ["asyncpg", "asyncpg pool"])
def test_asyncpg_outside_a_transaction_is_told_what_to_write(app: dray.App, kind: str) -> None:
    async def program() -> None:
        async with kinds.ALL[kind](app.url) as user:
            with pytest.raises(ConfigError, match=r"inside `async with connection\.transaction\(\):`"):
                await app.aenqueue("mail.confirm", connection=user.connection)

    asyncio.run(program())

    assert app.jobs() == []


@pytest.mark.parametrize(
    "kind", ["AsyncSession over asyncpg", "AsyncConnection over asyncpg", "Session over psycopg2"]
)
def test_autocommit_under_sqlalchemy_is_refused(app: dray.App, kind: str) -> None:
    async def program() -> None:
        async with kinds.ALL[kind](app.url, isolation_level="AUTOCOMMIT") as user:
            with pytest.raises(ConfigError, match="another isolation level than AUTOCOMMIT"):
                await app.aenqueue("mail.confirm", connection=user.connection)

    asyncio.run(program())

    assert app.jobs() == []


def test_autocommit_of_psycopg2_is_refused_unless_a_transaction_is_open(app: dray.App) -> None:
    connection = kinds.connect_psycopg2(app.url)
    connection.autocommit = True
    with pytest.raises(ConfigError, match="autocommit mode: open a transaction first"):
        app.enqueue("mail.confirm", connection=connection)
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    app.enqueue("mail.confirm", connection=connection)
    cursor.execute("ROLLBACK")
    connection.close()

    assert app.jobs() == []


@pytest.mark.parametrize("kind", kinds.ASYNCPG)
def test_a_synchronous_call_on_asyncpg_is_told_to_await(app: dray.App, kind: str) -> None:
    async def program() -> None:
        async with kinds.ASYNCPG[kind](app.url) as user, user.transaction():
            with pytest.raises(ConfigError, match="aenqueue"):
                app.enqueue("mail.confirm", connection=user.connection)

    asyncio.run(program())


def test_another_database_and_another_schemas_tables_are_refused(
    app: dray.App, opens: Opens, postgres_server: str
) -> None:
    server, schema = app.url.partition("&schema=")[::2]
    elsewhere = in_database(server, "template1")

    async def program() -> None:
        async with opens(elsewhere) as user, user.transaction():
            with pytest.raises(ConfigError, match=r"another database \('template1'\)"):
                await app.aenqueue("mail.confirm", connection=user.connection)
        async with opens(server) as user, user.transaction():
            with pytest.raises(ConfigError, match="search_path"):
                await by_path.aenqueue("mail.confirm", connection=user.connection)

    with dray.App(f"{server}&options=-csearch_path%3D{schema}") as by_path:
        query(app.url, "CREATE TABLE public.dray_jobs (n integer)")
        try:
            asyncio.run(program())
        finally:
            query(app.url, "DROP TABLE public.dray_jobs")


def test_a_connection_that_the_server_has_ended_is_drays_own_error(app: dray.App, opens: Opens) -> None:
    told: list[bool] = []

    async def program() -> None:
        async with opens(app.url) as user:
            with suppress(Exception):  # of the driver's, from the end of the block
                async with rolled_back(user.transaction()):
                    await user.order(1)
                    query(
                        app.url,
                        "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE relation = 'orders'::regclass",
                    )
                    with pytest.raises(StorageUnavailable):
                        await app.aenqueue("mail.confirm", connection=user.connection)
                    told.append(True)

    asyncio.run(program())

    assert (told, app.jobs()) == ([True], [])


# Tables


def test_the_tables_are_made_in_the_programs_own_transaction(postgres_url: str, opens: Opens) -> None:
    async def program() -> None:
        async with opens(postgres_url) as user:
            async with user.transaction():
                await app.ainit(connection=user.connection)
                await app.aenqueue("mail.confirm", connection=user.connection)
                with pytest.raises(SchemaMissing):
                    app.jobs()
            assert len(app.jobs()) == 1

    with dray.App(postgres_url) as app:
        asyncio.run(program())


# Wake-ups and crashes


def test_the_commit_wakes_the_workers_of_the_queue(app: dray.App, opens: Opens) -> None:
    db = core_of(app).backend.db
    assert isinstance(db, PostgresDatabase)
    with psycopg.connect(app.url.partition("&schema=")[0], autocommit=True) as listener:
        listener.execute(f'LISTEN "{db._channels.work}"'.encode())

        async def program() -> None:
            async with opens(app.url) as user:
                async with rolled_back(user.transaction()):
                    await app.aenqueue("mail.confirm", queue="dropped", connection=user.connection)
                async with user.transaction():
                    await app.aenqueue("mail.confirm", queue="mail", connection=user.connection)
                    assert list(listener.notifies(timeout=0)) == []

        asyncio.run(program())

        assert [note.payload for note in listener.notifies(timeout=20, stop_after=1)] == ["mail"]


KILLED = """
import asyncio, os, signal, sys
import dray
from tests_integrations.connections import kinds

app = dray.App(sys.argv[1])

async def program():
    async with kinds.ALL[sys.argv[2]](app.url) as user:
        async with user.transaction():
            await user.order(1)
            await app.aenqueue("mail.confirm", {"order": 1}, connection=user.connection)
            if sys.argv[3] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(program())
"""


@pytest.mark.parametrize("kind", kinds.ALL)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_is_killed_beside_its_commit_leaves_the_order_with_its_job_or_neither(
    app: dray.App, kind: str, moment: str, orders: Orders
) -> None:
    """The other kinds are in tests/app/test_killed_at_commit.py."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, app.url, kind, moment], cwd=root, check=False, capture_output=True, timeout=60
    )
    assert done.returncode == -9, done.stderr.decode()
    confirmed: list[int] = []

    @app.task(name="mail.confirm")
    def confirm(order: int) -> None:
        confirmed.append(order)

    committed = [1] if moment == "after" else []
    assert app.worker().run_until_idle() == len(committed)
    assert (confirmed, orders()) == (committed, committed)
