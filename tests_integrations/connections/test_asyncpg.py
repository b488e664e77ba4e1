"""A coroutine gets its asyncpg connection back in a usable state, whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import dray
from dray.backends.awaiting import in_a_thread
from dray.backends.postgres import foreign
from dray.backends.postgres.foreign import AsyncpgConnection, _numbered, asyncpg_lock
from dray.backends.statements import Catalogue, blocks
from dray.errors import ConfigError, StorageError, UnknownJob
from dray.testing import drain
from tests.server import in_database
from tests_integrations.connections import kinds
from tests_integrations.connections.conftest import query

Orders = Callable[[], list[object]]


@asynccontextmanager
async def locked(url: str, job_id: str) -> AsyncGenerator[None]:
    """Another transaction has locked the row of a job."""
    async with kinds.asyncpg_raw(url) as other, other.transaction():
        await other.run(f"UPDATE dray_jobs SET name = 'mine' WHERE id = '{job_id}'")
        yield


async def until_blocked(url: str) -> None:
    """Waits until a session of this test waits for a lock."""
    async with asyncio.timeout(20):
        while not query(url, "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", kinds.ASYNCPG)
def test_a_cancelled_enqueue_does_not_wait_for_a_lock_and_leaves_nothing(
    app: dray.App, kind: str, orders: Orders
) -> None:
    parent = app.enqueue("first")

    async def program() -> None:
        async with kinds.ASYNCPG[kind](app.url) as user, locked(app.url, parent.id), user.transaction():
            await user.order(1)
            under_way = asyncio.create_task(app.aenqueue("second", after=parent, connection=user.connection))
            await until_blocked(app.url)
            for _ in range(3):  # an impatient caller
                under_way.cancel()
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                with pytest.raises(asyncio.CancelledError):
                    await under_way
            await user.order(2)
            await app.aenqueue("third", connection=user.connection)

    asyncio.run(program())

    assert sorted(job.task for job in app.jobs()) == ["first", "third"]
    assert orders() == [1, 2]


@pytest.mark.parametrize("kind", kinds.ASYNCPG)
def test_a_job_is_read_in_the_open_transaction_and_without_one_as_everybody_sees_it(app: dray.App, kind: str) -> None:
    async def program() -> None:
        async with kinds.ASYNCPG[kind](app.url) as user:
            async with user.transaction():
                await user.order(1)
                job = await app.aenqueue("mail.send", connection=user.connection)
                assert (await app.ajob(job.id, connection=user.connection)).state == "queued"
                with pytest.raises(UnknownJob):
                    app.job(job.id)
            if kind == "asyncpg":
                assert (await app.ajob(job.id, connection=user.connection)).state == "queued"

    asyncio.run(program())


def test_one_cancelled_at_any_moment_is_done_whole_or_not_at_all(app: dray.App, orders: Orders) -> None:
    async def program() -> None:
        async with kinds.asyncpg_raw(app.url) as user:
            for steps in range(40):
                async with user.transaction():
                    under_way = asyncio.create_task(
                        app.aenqueue("first", name=str(steps), connection=user.connection)
                    )
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    under_way.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await under_way
                    await user.order(steps)

    asyncio.run(program())

    assert orders() == [*range(40)]
    assert len(app.jobs()) == len({job.name for job in app.jobs()})


def test_a_timeout_of_the_programs_own_is_told_and_the_transaction_goes_on(app: dray.App, orders: Orders) -> None:
    parent = app.enqueue("first")

    async def program() -> None:
        user = kinds.User(await kinds.connect_asyncpg(app.url, command_timeout=2))
        async with locked(app.url, parent.id), user.transaction():
            with pytest.raises(StorageError, match="command_timeout"):
                await app.aenqueue("second", after=parent, connection=user.connection)
            await user.order(1)
        await user.connection.close()

    asyncio.run(program())

    assert ([job.task for job in app.jobs()], orders()) == (["first"], [1])


def test_many_at_once_on_one_connection_do_not_get_in_each_others_way(app: dray.App) -> None:
    nobody = "01890000-0000-7000-8000-000000000000"

    async def program() -> list[Any]:
        async with kinds.asyncpg_pool(app.url) as user, user.transaction():
            calls = [
                app.aenqueue("mail", {"n": n}, connection=user.connection, after=[nobody] if n % 2 else [])
                for n in range(12)
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(program())

    assert [isinstance(answer, UnknownJob) for answer in answers] == [False, True] * 6
    assert sorted((job.args or {})["n"] for job in app.jobs()) == [0, 2, 4, 6, 8, 10]


def test_another_task_on_the_same_connection_does_not_leave_half_a_job(app: dray.App, orders: Orders) -> None:
    """The program's own statement comes between Dray's: neither undoes the other."""
    slow = "WITH slow AS (SELECT pg_sleep(0.02)) INSERT INTO orders SELECT {} FROM slow"
    enqueued: list[int] = []

    async def program() -> None:
        async with kinds.asyncpg_raw(app.url) as user:
            for n in range(12):
                async with user.transaction():
                    under_way = asyncio.create_task(app.aenqueue("mail", {"n": n}, connection=user.connection))
                    await _until(asyncpg_lock(user.connection).locked)
                    await asyncio.sleep(n / 1000)
                    while True:  # asyncpg refuses it while one of Dray's runs
                        with suppress(asyncpg.InterfaceError):
                            await user.run(slow.format(n))
                            break
                        await asyncio.sleep(0)
                    with suppress(StorageError):  # refused before it began
                        await under_way
                        enqueued.append(n)

    asyncio.run(program())

    assert orders() == [*range(12)]
    assert sorted((job.args or {})["n"] for job in app.jobs()) == enqueued


def test_an_interruption_does_not_hit_what_undoes(app: dray.App, orders: Orders) -> None:
    async def program() -> None:
        async with kinds.asyncpg_raw(app.url) as user, user.transaction():
            lent = AsyncpgConnection(user.connection)

            def work() -> None:
                lent.execute("SAVEPOINT dray_join")
                lent.run("INSERT INTO orders (n) VALUES (1)", {})
                lent.execute("ROLLBACK TO SAVEPOINT dray_join")

            under_way = in_a_thread(work)
            while not lent._has_begun or lent._may_be_interrupted:
                await asyncio.sleep(0)
            await lent.interrupt()
            await under_way

    asyncio.run(program())

    assert orders() == []


def test_the_end_of_a_program_does_not_wait_for_a_loop_that_it_has_stopped(
    app: dray.App, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_LOOK_S", 0.05)
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(kinds.connect_asyncpg(app.url))
    loop.run_until_complete(connection.transaction().start())
    loop.run_until_complete(app.aenqueue("mail", connection=connection))
    under_way = loop.create_task(app.aenqueue("mail", connection=connection))
    loop.run_until_complete(_until(asyncpg_lock(connection).locked))

    for thread in [each for each in threading.enumerate() if each.name.startswith("dray-join")]:
        thread.join(20)
        assert not thread.is_alive()

    with pytest.raises(StorageError, match="event loop"):
        loop.run_until_complete(under_way)
    assert connection.is_closed()  # the program cannot commit half of it
    loop.close()
    assert app.jobs() == []


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_what_the_program_set_does_not_matter_and_is_not_changed(app: dray.App) -> None:
    class Reversed(asyncpg.Record):
        def __iter__(self) -> Any:
            return iter([*super().values()][::-1])

    held = app.enqueue("first", unique="held", delay=3600)

    async def program() -> None:
        connection = await kinds.connect_asyncpg(app.url, record_class=Reversed, statement_cache_size=0)
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
        settings = "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name"
        async with connection.transaction(isolation="repeatable_read", readonly=False):
            before = await connection.fetch(settings)
            again = await app.aenqueue("first", unique="held", connection=connection)
            child = await app.aenqueue("second", after=again, tags=["a"], connection=connection)
            assert (again.id, again.duplicate, child.duplicate) == (held.id, True, False)
            assert await connection.fetch(settings) == before
            assert await connection.fetchval("SELECT '{\"a\": 1}'::json") == {"a": 1}
            assert isinstance(await connection.fetchrow("SELECT 1 AS a"), Reversed)
        await connection.close()

    asyncio.run(program())

    assert sorted(job.task for job in app.jobs()) == ["first", "second"]


def test_a_connection_that_was_given_back_to_its_pool_is_refused(app: dray.App) -> None:
    async def program() -> None:
        async with kinds.asyncpg_pool(app.url) as user:
            given_back = user.connection
        with pytest.raises(ConfigError, match=r"given back to its pool.*pool\.acquire\(\)"):
            await app.aenqueue("mail", connection=given_back)
        async with kinds.asyncpg_raw(app.url) as user:
            closed = user.connection
        with pytest.raises(StorageError, match="closed"):
            await app.aenqueue("mail", connection=closed)

    asyncio.run(program())


def test_values_that_postgresql_cannot_store_are_refused_and_the_transaction_goes_on(
    app: dray.App, orders: Orders
) -> None:
    async def program() -> None:
        async with kinds.asyncpg_raw(app.url) as user, user.transaction():
            for name in ("a\0b", "a\udc80b"):
                with pytest.raises(dray.DrayError):
                    await app.aenqueue("mail", unique=name, connection=user.connection)
            await user.order(1)

    asyncio.run(program())

    assert (app.jobs(), orders()) == ([], [1])


def test_a_test_is_told_that_jobs_cannot_run_on_it(app: dray.App) -> None:
    async def program() -> None:
        async with kinds.asyncpg_raw(app.url) as user:
            with pytest.raises(ConfigError, match=r"asynchronous; dray\.testing takes"):
                drain(app, connection=user.connection)

    asyncio.run(program())


def test_the_page_runs_as_shown(postgres_server: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue-in-your-transaction.md"
    (code,) = re.findall(r"```py\n(.+?)```", page.read_text(), re.S)
    name = f"page_{os.getpid()}"
    query(f"{postgres_server}&schema=public", f"CREATE DATABASE {name}", autocommit=True)
    url = in_database(postgres_server, name)

    exec(compile(code.replace("postgresql://localhost/shop", url), "page.py", "exec"), {"__name__": "page"})

    assert query(f"{url}&schema=public", "SELECT customer FROM orders") == [("ann",)]


READ = {"text", "name", "int2", "int4", "int8", "bool", "float8", "timestamptz", "uuid", "oid", "void", "varchar"}


def test_every_statement_can_be_prepared_and_returns_what_is_read_alike(app: dray.App) -> None:
    plain = [name for name, body in blocks("postgres").items() if "{table}" not in body and "COPY" not in body]

    async def program() -> set[tuple[str, str]]:
        strange = set[tuple[str, str]]()
        async with kinds.asyncpg_raw(app.url) as user:
            for name in plain:
                text, _ = _numbered(Catalogue("postgres")[name].text)
                prepared = await user.connection.prepare(text)
                strange |= {
                    (name, each.type.name) for each in prepared.get_attributes() if each.type.name not in READ
                }
        return strange

    assert asyncio.run(program()) == set()
