"""`drain(connection=…)`: jobs that are not committed run inside the caller's transaction, which stays open."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session

from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, UnknownJob
from dray.testing import all_enqueued, assert_enqueued, crash, drain, inline, refute_enqueued
from tests.testing import shop
from tests.testing.shop import asell, double, flaky, parent, ran, sell, send, total


def _conninfo(app: App) -> tuple[str, str]:
    address, _, schema = app.url.rpartition("schema=")
    return address.rstrip("&?"), schema


@pytest.fixture(params=["driver", "session"])
def connection(request: pytest.FixtureRequest, app: App) -> Generator[Any]:
    """A connection of the driver's or a SQLAlchemy session, with a transaction open that has written something."""
    shop.SALES[0] = "sales"
    if request.param == "session":
        if core_of(app).settings.is_sqlite:
            engine = sqlalchemy.create_engine(app.url)
        else:
            conninfo, schema = _conninfo(app)
            engine = sqlalchemy.create_engine(
                "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo, options=f"-csearch_path={schema}")
            )
        with Session(engine) as session:
            session.execute(sqlalchemy.text("CREATE TABLE sales (item text)"))
            yield session
        engine.dispose()
    elif core_of(app).settings.is_sqlite:
        with closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as opened:
            opened.execute("BEGIN")
            opened.execute("CREATE TABLE sales (item text)")
            yield opened
    else:
        conninfo, schema = _conninfo(app)
        with closing(psycopg.connect(conninfo, options=f"-csearch_path={schema}")) as opened:
            opened.execute("CREATE TABLE sales (item text)")
            yield opened


def _count(connection: Any) -> int:
    is_alchemys = type(connection).__name__ == "Session"
    question: Any = "SELECT count(*) FROM sales"
    return connection.execute(sqlalchemy.text(question) if is_alchemys else question).fetchone()[0]


def test_jobs_that_are_not_committed_run_and_go_with_the_transaction(app: App, connection: Any) -> None:
    job = flaky.using(connection=connection).enqueue(1)

    assert drain(app, connection=connection) == 3

    assert ran == [(1, 1), (1, 2), (1, 3)]
    with pytest.raises(UnknownJob):
        app.job(job.id)  # it was not committed
    connection.rollback()
    assert app.jobs() == []


def test_what_the_user_commits_is_as_after_a_worker(app: App, connection: Any) -> None:
    job = double.using(connection=connection).enqueue(4)
    drain(app, connection=connection)
    connection.commit()
    assert job.result(5) == 8
    assert [attempt.outcome for attempt in job.attempts()] == ["completed"]


def test_bodies_enqueue_into_the_same_transaction(app: App, connection: Any) -> None:
    parent.using(connection=connection).enqueue(2)
    assert drain(app, connection=connection) == 3
    assert ran == ["parent", "child 0", "child 1"]
    connection.rollback()
    assert app.jobs() == []


def test_a_body_s_own_transaction_is_part_of_it(app: App, connection: Any) -> None:
    sell.using(connection=connection).enqueue("lamp")
    assert drain(app, connection=connection) == 1
    assert _count(connection) == 1
    connection.rollback()


def test_a_crash_undoes_what_the_body_wrote_and_no_more(app: App, connection: Any) -> None:
    double.using(connection=connection).enqueue(1)
    sell.using(connection=connection).enqueue("lamp")
    with crash(app, sell):
        assert drain(app, connection=connection) == 3
    assert _count(connection) == 1
    connection.commit()
    assert {job.state for job in app.jobs()} == {"completed"}


def test_workflows(app: App, connection: Any) -> None:
    flow = app.workflow("sum")
    steps = [flow.add(double, 2, step="a"), flow.add(double, 3, step="b")]
    flow.add(total, after=steps, step="total")
    flow.enqueue(connection=connection)
    assert drain(app, connection=connection) == 3


def test_inline_runs_on_the_connection_that_the_job_was_enqueued_on(app: App, connection: Any) -> None:
    with inline(app):
        double.using(connection=connection).enqueue(2)
        double.using(connection=connection).enqueue_many([(3,), (4,)])
        assert ran == [2, 3, 4]
    connection.rollback()
    assert app.jobs() == []


def test_the_asserts_see_what_is_not_committed(app: App, connection: Any) -> None:
    send.using(connection=connection).enqueue("ann@example.com")
    assert_enqueued(app, send, to="ann@example.com", connection=connection)
    assert len(all_enqueued(app, connection=connection)) == 1
    refute_enqueued(app, send)


def test_the_app_is_as_before_afterwards(app: App, connection: Any) -> None:
    before = core_of(app).settings, core_of(app).clock
    drain(app, connection=connection)
    connection.rollback()
    assert (core_of(app).settings, core_of(app).clock) == before
    assert send.enqueue("ann@example.com").state == "queued"


def test_an_asynchronous_connection_is_refused_with_a_sentence(app: App) -> None:
    async def main() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        if core_of(app).settings.is_sqlite:
            opened: Any = AsyncConnection(engine)
        else:
            opened = await psycopg.AsyncConnection.connect(_conninfo(app)[0])
        async with opened as connection:
            for call in (drain, all_enqueued):
                with pytest.raises(ConfigError, match="AsyncConnection is asynchronous; "):
                    call(app, connection=connection)
            with inline(app), pytest.raises(ConfigError, match="asynchronous"):
                await double.using(connection=connection).aenqueue(1)
        await engine.dispose()

    asyncio.run(main())
    assert app.jobs() == []


def test_async_with_ctx_transaction_says_that_it_needs_a_connection_of_its_own(app: App, connection: Any) -> None:
    asell.using(connection=connection, max_attempts=1).enqueue("lamp")
    drain(app, connection=connection)
    connection.commit()
    assert "needs a connection of its own" in (app.jobs()[0].error or "")


def test_another_database_is_refused(app: App) -> None:
    with closing(sqlite3.connect(":memory:")) as other, pytest.raises(ConfigError):
        drain(app, connection=other)
