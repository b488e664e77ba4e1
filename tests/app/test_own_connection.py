"""Reading and acting on the user's own connection: what is not committed is seen there, and nowhere else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.backends.watch import Watch
from dray.errors import ConfigError, UnknownJob
from dray.instants import SECOND
from dray.model.job import Demand
from dray.model.worker import NewWorker
from tests import verbs
from tests.backends import beside, users
from tests.backends.users import Opens


@pytest.fixture
def app(url: str) -> Generator[App]:
    with App(url) as opened:
        opened.init()
        beside.rows(url, "CREATE TABLE orders (n integer)")
        yield opened


@pytest.fixture
def connection(url: str) -> Generator[Any]:
    """A driver's own connection, on which nothing has happened yet."""
    with beside.connect(url) as opened:
        yield opened


@pytest.mark.parametrize("kind", users.ALL)
def test_a_coroutine_sees_its_own_job_before_the_commit_on_every_kind_of_connection(
    app: App, url: str, kind: str
) -> None:
    opens: Opens = users.ALL[kind]

    async def program() -> None:
        async with opens(url) as user:
            made = await app.aenqueue("t", {"n": 1}, connection=user.connection)
            seen = await app.ajob(made.id, connection=user.connection)
            assert (seen.state, seen.args) == ("queued", {"n": 1})
            with pytest.raises(UnknownJob):
                await app.ajob(made.id)
            with pytest.raises(ConfigError, match="has not ended, and this handle reads on your own connection"):
                await seen.await_(timeout=60)
            with pytest.raises(ConfigError, match="has not ended"):
                await seen.aresult(timeout=60)
            await user.rollback()
            with pytest.raises(UnknownJob):
                await seen.arefresh()
            assert await _order(user) == [7]  # the connection is as it was

    asyncio.run(program())


async def _order(user: users.User) -> list[int]:
    await user.order(7)
    found = (await user.run("SELECT n FROM orders")).fetchall()
    rows: Any = await found if asyncio.iscoroutine(found) else found
    return [row[0] for row in rows]


def test_a_handle_keeps_the_connection(app: App, connection: Any) -> None:
    made = app.enqueue("t", connection=connection)
    job = app.job(made.id, connection=connection)

    assert (job.refresh().state, job.attempts(), job.logs()) == ("queued", [], [])
    assert app.jobs(connection=connection) == [job]
    assert app.jobs(connection=connection)[0].refresh().state == "queued"
    assert app.jobs() == []
    connection.commit()
    assert app.jobs() == [job]


def test_a_job_that_is_not_there_is_unknown_and_the_transaction_goes_on(app: App, connection: Any) -> None:
    connection.execute("INSERT INTO orders (n) VALUES (1)")
    with pytest.raises(UnknownJob):
        app.job("01900000-0000-7000-8000-000000000000", connection=connection)
    connection.commit()

    assert connection.execute("SELECT n FROM orders").fetchall() == [(1,)]


def test_it_does_not_wait(app: App, connection: Any) -> None:
    job = app.job(app.enqueue("t", connection=connection).id, connection=connection)

    with pytest.raises(ConfigError, match="commit, then wait with the handle of"):
        job.wait()
    with pytest.raises(ConfigError, match="has not ended"):
        job.result(timeout=60)
    with pytest.raises(ConfigError, match="has not ended"):
        app.wait([job])


def test_the_result_of_a_job_that_has_ended_is_there_without_waiting(app: App, connection: Any) -> None:
    @app.task(name="t")
    def task(n: int) -> int:
        return 6 // n

    good, bad = task.enqueue(2), task.using(max_attempts=1).enqueue(0)
    app.worker().run_until_idle()
    connection.execute("INSERT INTO orders (n) VALUES (1)")

    assert app.job(good.id, connection=connection).result() == 3
    assert app.job(good.id, connection=connection).wait() == "completed"
    with pytest.raises(Exception, match="ZeroDivisionError"):
        app.job(bad.id, connection=connection).result()
    (attempt,) = app.job(bad.id, connection=connection).attempts()
    assert attempt.error is not None
    assert attempt.error.type == "ZeroDivisionError"


def test_acting_is_a_part_of_the_transaction(app: App, connection: Any) -> None:
    ended, queued = app.enqueue("t"), app.enqueue("t")
    app.cancel(ended)
    connection.execute("INSERT INTO orders (n) VALUES (1)")

    assert app.retry(ended, connection=connection)
    assert app.cancel(queued, connection=connection)
    assert app.delete(queued, connection=connection)
    made = app.enqueue("t", connection=connection)
    assert app.job(made, connection=connection).cancel()
    connection.rollback()

    assert [job.state for job in (ended.refresh(), queued.refresh())] == ["cancelled", "queued"]
    connection.execute("INSERT INTO orders (n) VALUES (2)")
    assert app.retry(ended, connection=connection)
    connection.commit()
    assert ended.refresh().state == "queued"


def test_without_an_open_transaction_nothing_is_opened(app: App, connection: Any) -> None:
    job = app.enqueue("t")

    assert app.job(job.id, connection=connection).state == "queued"
    assert app.jobs(connection=connection) == [job]
    if isinstance(connection, sqlite3.Connection):
        assert not connection.in_transaction
    else:
        assert connection.info.transaction_status == 0
    core_of(app).backend.queues.upsert("mail", 1)  # no lock is held


@pytest.mark.parametrize("thing", [7, "x", object()])
def test_something_that_is_no_connection_is_refused(app: App, thing: object) -> None:
    with pytest.raises(ConfigError, match=r"cannot be used here\. connection= takes"):
        app.jobs(connection=thing)
    with pytest.raises(ConfigError, match=r"cannot be used here\. connection= takes"):
        asyncio.run(app.ajob("01900000-0000-7000-8000-000000000000", connection=thing))


def test_the_commit_wakes_workers_of_what_was_cancelled_and_retried(app: App, connection: Any) -> None:
    backend = core_of(app).backend
    ended, running = app.enqueue("t", queue="mail"), app.enqueue("t", queue="slow")
    app.cancel(ended)
    worker = NewWorker(id=core_of(app).new_id(), name="w", host="here", pid=1, boot="")
    backend.workers.register(worker, 60 * SECOND)
    assert len(verbs.claim(backend, worker.id, Demand(("slow",), ("t",), 1))) == 1

    with (
        closing(backend.watch(hears_done=False, queues=["mail"])) as mail,
        closing(backend.watch(hears_done=False, queues=["slow"])) as slow,
    ):
        quieten(mail, slow)
        assert app.retry(ended, connection=connection)
        assert app.cancel(running, connection=connection)
        assert not mail.wait(0)
        assert not slow.wait(0)
        connection.commit()

        assert mail.wait(30)
        assert slow.wait(30)
    assert running.refresh().row.cancel_requested_at is not None


def test_the_commit_tells_those_who_wait_of_a_job_that_was_cancelled(app: App, connection: Any) -> None:
    job = app.enqueue("t")
    with closing(core_of(app).backend.watch(hears_work=False)) as done:
        quieten(done)
        assert app.cancel(job, connection=connection)
        assert not done.wait(0)
        connection.commit()

        assert done.wait(30)


def test_a_rollback_wakes_nobody(app: App, connection: Any) -> None:
    job = app.enqueue("t")
    app.cancel(job)
    with closing(core_of(app).backend.watch()) as watch:
        quieten(watch)
        assert app.retry(job, connection=connection)
        connection.rollback()

        assert not watch.wait(0)
    assert job.refresh().state == "cancelled"


def quieten(*watches: Watch) -> None:
    """Hears what was committed before."""
    for watch in watches:
        while watch.wait(0.2):
            pass
