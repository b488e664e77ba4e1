"""A body's own writes and its job's completion commit together, or not at all."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import dray
from dray.address import SqliteAddress, parse_address
from dray.app import App
from dray.app_interface import core_of
from dray.backends.postgres import PostgresDatabase
from dray.errors import ConfigError, StaleClaim
from dray.handle.job import Job
from dray.maintenance.waiting_jobs import Fanner
from tests.backends import beside, users
from tests.runtime.watching import LONG, Gate, ended, outcomes, sql, state_of

Inside = Callable[[Any, dray.Context], Any]
Then = Callable[[], Any]


@pytest.fixture(params=["thread", "async"])
def runner(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def order(url: str, app: App) -> str:
    """Returns the statement with which a body places an order, in the user's own table."""
    app.stats()  # creates the file
    beside.rows(url, "CREATE TABLE orders (n integer)")
    address = parse_address(url)
    table = "orders" if isinstance(address, SqliteAddress) else f'"{address.schema}".orders'
    return f"INSERT INTO {table} (n) VALUES (1)"


@pytest.fixture
def orders(url: str, order: str) -> Callable[[], int]:
    return lambda: beside.count(url, "orders")


def nothing(tx: Any, ctx: dray.Context) -> None:
    pass


def define(
    app: App,
    runner: str,
    order: str,
    inside: Inside = nothing,
    then: Then = lambda: None,
    before: Callable[[dray.Context], None] = lambda ctx: None,
    **options: Any,
) -> Any:
    """Defines a task that places an order in its transaction, runs `inside` there, and `then` afterwards."""

    def function(ctx: dray.Context) -> Any:
        before(ctx)
        with ctx.transaction() as tx:
            tx.execute(order)
            inside(tx, ctx)
        return then()

    async def coroutine(ctx: dray.Context) -> Any:
        before(ctx)
        async with ctx.transaction() as tx:
            await done(tx.execute(order))
            await done(inside(tx, ctx))
        return then()

    given: dict[str, Any] = {"name": "body", "max_attempts": 2, "retry": 0, **options}
    return app.task(**given)(function if runner == "thread" else coroutine)


async def done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def run(app: App, *jobs: Job[Any]) -> tuple[str, ...]:
    app.worker(concurrency=2).run_until_idle()
    return tuple(state_of(job) for job in jobs)


def steal(app: App, ctx: dray.Context) -> None:
    """Pretends that another worker has claimed the job meanwhile."""
    sql(app, "UPDATE dray_jobs SET claim = claim + 1 WHERE id = ?", ctx.job_id)


# On a connection of Dray


def test_what_the_body_writes_and_the_end_of_its_job_commit_together(
    app: App, runner: str, order: str, orders: Callable[[], int]
) -> None:
    seen: list[tuple[str, int]] = []

    def inside(tx: Any, ctx: dray.Context) -> None:
        seen.append((app.job(ctx.job_id).state, orders()))
        tx.result = {"n": 1}

    job = define(app, runner, order, inside, lambda: seen.append((state_of(job), orders()))).enqueue()

    assert run(app, job) == ("completed",)
    assert seen == [("running", 0), ("completed", 1)]
    assert job.result(timeout=0) == {"n": 1}
    assert outcomes(job) == ["completed"]


def test_the_result_can_be_given_beforehand(app: App, order: str) -> None:
    @app.task(name="body")
    def body(ctx: dray.Context) -> str:
        with ctx.transaction(result="given"):
            pass
        return "too late"

    job = body.enqueue()

    assert run(app, job) == ("completed",)
    assert job.result(timeout=0) == "given"


def test_an_error_inside_undoes_both_and_the_job_is_tried_again(
    app: App, runner: str, order: str, orders: Callable[[], int]
) -> None:
    def inside(tx: Any, ctx: dray.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    job = define(app, runner, order, inside).enqueue()

    assert run(app, job) == ("completed",)
    assert outcomes(job) == ["error", "completed"]
    assert orders() == 1


@pytest.mark.parametrize("end", ["completed", "failed(error)"])
def test_a_job_of_the_same_limit_starts_once_it_has_committed_or_rolled_back(
    app: App, runner: str, order: str, end: str
) -> None:
    seen: list[tuple[str, str]] = []

    def inside(tx: Any, ctx: dray.Context) -> None:
        if ctx.job_id == first.id and end != "completed":
            raise ValueError("rolled back")

    def before(_: dray.Context) -> None:
        seen.append((state_of(first), state_of(second)))

    body = define(app, runner, order, inside, before=before, limit=1)
    first, second = body.using(max_attempts=1).enqueue(), body.enqueue()

    assert run(app, first, second) == (end, "completed")
    assert seen == [("running", "queued"), (end, "running")]


def test_the_slot_of_a_limit_is_free_while_the_body_goes_on_after_its_commit(app: App, order: str) -> None:
    gate, threads = Gate(), list[int]()

    def then() -> None:
        if threading.get_ident() == threads[0]:
            gate.pass_through()

    body = define(app, "thread", order, then=then, before=lambda _: threads.append(threading.get_ident()), limit=1)
    first, second = body.enqueue(), body.enqueue()

    with app.worker(concurrency=2):
        gate.await_arrival()
        assert (ended(first), ended(second)) == ("completed", "completed")
        assert len(set(threads)) == 2
        gate.open()


def test_a_result_that_cannot_be_stored_undoes_both(
    app: App, runner: str, order: str, orders: Callable[[], int]
) -> None:
    def inside(tx: Any, ctx: dray.Context) -> None:
        tx.result = object()

    job = define(app, runner, order, inside, max_attempts=1).enqueue()

    assert run(app, job) == ("failed(error)",)
    assert "result" in (job.error or "")
    assert orders() == 0


def test_a_lost_claim_undoes_both(app: App, runner: str, order: str, orders: Callable[[], int]) -> None:
    raised: list[BaseException] = []

    def before(ctx: dray.Context) -> None:
        if not raised:
            steal(app, ctx)

    def watched(ctx: dray.Context) -> Any:
        before(ctx)
        try:
            with ctx.transaction() as tx:
                tx.execute(order)
        except StaleClaim as error:
            raised.append(error)
            raise

    async def awatched(ctx: dray.Context) -> Any:
        before(ctx)
        try:
            async with ctx.transaction() as tx:
                await done(tx.execute(order))
        except StaleClaim as error:
            raised.append(error)
            raise

    job = app.task(name="body")(watched if runner == "thread" else awatched).enqueue()
    with app.worker(lease=1):  # its beat finds an unknown claim and gives the job back
        assert ended(job) == "completed"

    assert len(raised) == 1
    assert job.id in str(raised[0])
    assert orders() == 1


def test_what_comes_after_it_is_only_logged(
    app: App, runner: str, order: str, orders: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("too late")

    job = define(app, runner, order, then=fail).enqueue()

    assert run(app, job) == ("completed",)
    assert (outcomes(job), orders()) == (["completed"], 1)
    (record,) = [record for record in caplog.records if record.name == "dray" and job.id[-8:] in record.getMessage()]
    assert "ValueError: too late" in record.getMessage()
    assert "Traceback" in record.getMessage()


def test_what_it_returns_after_it_is_dropped_and_that_is_said(
    app: App, runner: str, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = define(app, runner, order, then=lambda: 3).enqueue()

    assert run(app, job) == ("completed",)
    assert job.result() is None
    (record,) = [record for record in caplog.records if record.name == "dray" and job.id[-8:] in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "set tx.result" in record.getMessage()


def test_a_job_has_one_completion(app: App, order: str, orders: Callable[[], int]) -> None:
    @app.task(name="body", max_attempts=1)
    def body(ctx: dray.Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(order)
        with pytest.raises(ConfigError, match="completed already"), ctx.transaction():
            pass
        seen.append("refused")

    seen: list[str] = []
    job = body.enqueue()

    assert run(app, job) == ("completed",)
    assert (seen, orders()) == (["refused"], 1)


def test_it_can_be_tried_again_in_the_same_body(app: App, order: str, orders: Callable[[], int]) -> None:
    @app.task(name="body", max_attempts=1)
    def body(ctx: dray.Context) -> None:
        with suppress(ValueError), ctx.transaction() as tx:
            tx.execute(order)
            raise ValueError("not this time")
        with ctx.transaction() as tx:
            tx.execute(order)

    assert run(app, body.enqueue()) == ("completed",)
    assert orders() == 1


def test_outside_its_block_it_is_no_connection(app: App) -> None:
    @app.task(name="body", max_attempts=1)
    def body(ctx: dray.Context) -> None:
        tx = ctx.transaction()
        with pytest.raises(ConfigError, match="not open"):
            tx.execute("SELECT 1")

    assert run(app, body.enqueue()) == ("completed",)


def test_a_timeout_inside_undoes_both(app: App, runner: str, order: str, orders: Callable[[], int]) -> None:
    def inside(tx: Any, ctx: dray.Context) -> Any:
        if runner == "async":
            return asyncio.sleep(LONG)
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            time.sleep(0.001)
        return None

    job = define(app, runner, order, inside, max_attempts=1, timeout=0.2).enqueue()

    assert run(app, job) == ("failed(timeout)",)
    assert orders() == 0


def test_a_cancel_reaches_a_body_inside_and_undoes_both(postgres_url: str, runner: str) -> None:
    """Only on PostgreSQL: on SQLite nothing else can write while the block is open."""
    is_inside = threading.Event()

    def inside(tx: Any, ctx: dray.Context) -> Any:
        is_inside.set()
        if runner == "async":
            return asyncio.sleep(LONG)
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            time.sleep(0.001)
        return None

    with App(postgres_url, migrate=True) as app:
        app.stats()  # creates the schema
        beside.rows(postgres_url, "CREATE TABLE orders (n integer)")
        order = f'INSERT INTO "{postgres_url.partition("schema=")[2]}".orders (n) VALUES (1)'
        job = define(app, runner, order, inside).enqueue()
        with app.worker(concurrency=1):
            assert is_inside.wait(LONG)
            began = time.monotonic()
            assert job.cancel()
            assert ended(job) == "cancelled(user)"
            assert time.monotonic() - began < LONG / 2

    assert beside.count(postgres_url, "orders") == 0


def test_jobs_can_be_enqueued_with_it(app: App, runner: str, order: str) -> None:
    @app.task(name="child")
    def child(n: int) -> int:
        return n

    def inside(tx: Any, ctx: dray.Context) -> Any:
        if runner == "async":
            return child.using(connection=tx).aenqueue(ctx.attempt)
        child.using(connection=tx).enqueue(ctx.attempt)
        return None

    job = define(app, runner, order, inside).enqueue()

    assert run(app, job) == ("completed",)
    assert [found.result(timeout=0) for found in app.jobs(task="child")] == [1]


def test_it_is_set_up_like_a_connection(app: App) -> None:
    @app.task(name="body", max_attempts=1)
    def body(ctx: dray.Context) -> None:
        with ctx.transaction() as tx:
            if isinstance(tx.connection, sqlite3.Connection):
                tx.row_factory = sqlite3.Row
                assert tx.execute("SELECT 7 AS seven").fetchone()["seven"] == 7
            else:
                from psycopg.rows import dict_row

                tx.row_factory = dict_row
                assert tx.execute("SELECT 7 AS seven").fetchone()["seven"] == 7

    job = body.enqueue()
    assert run(app, job) == ("completed",), job.error


def test_what_a_body_said_is_kept(app: App, runner: str, order: str) -> None:
    def inside(tx: Any, ctx: dray.Context) -> None:
        ctx.log.info("inside")
        ctx.progress(80, "nearly")

    def before(ctx: dray.Context) -> None:
        ctx.log.info("before")

    job = define(app, runner, order, inside, before=before).enqueue()

    assert run(app, job) == ("completed",)
    assert [line.message for line in job.logs()] == ["before", "inside"]
    assert job.refresh().progress == (80.0, "nearly")


def test_its_children_run_at_once_and_who_waits_is_told(
    app: App, runner: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker itself releases them: the duty that would do so a little later is disabled here."""

    def rest(_: Fanner) -> float:
        return LONG

    monkeypatch.setattr(Fanner, "tick", rest)

    @app.task(name="child")
    def child(ctx: dray.Context) -> Any:
        return dict(ctx.parent_results)

    task = define(app, runner, order, lambda tx, ctx: setattr(tx, "result", 7))
    with app.worker(concurrency=1):
        parent = task.enqueue()
        began = time.monotonic()
        young = child.using(after=[parent]).enqueue()
        assert young.result(timeout=LONG) == {parent.id: 7}
        assert time.monotonic() - began < 5


# On the user's own connection


OWN = ("driver", "Session", "async driver", "AsyncSession")


@pytest.fixture(params=OWN)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def on_own_connection(app: App, url: str, kind: str, ending: str, then: Then = lambda: None, **options: Any) -> Any:
    """A task that orders and completes on its own connection, and then commits or rolls back."""

    async def work(ctx: dray.Context) -> None:
        async with users.ALL[kind](url) as user:
            await user.order(1)
            if kind in users.SYNC:
                ctx.complete(connection=user.connection, result="in the transaction")
            else:
                await ctx.acomplete(connection=user.connection, result="in the transaction")
            await (user.commit() if ending == "commit" else user.rollback())

    def function(ctx: dray.Context) -> Any:
        asyncio.run(work(ctx))
        return then()

    async def coroutine(ctx: dray.Context) -> Any:
        await work(ctx)
        return then()

    given: dict[str, Any] = {"name": "body", "max_attempts": 2, "retry": 0, **options}
    return app.task(**given)(function if kind in users.SYNC else coroutine)


def test_it_ends_with_the_users_own_commit(
    app: App, url: str, kind: str, orders: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("too late")

    @app.task(name="child")
    def child(parent_results: dict[str, Any] | None = None) -> Any:
        return parent_results

    job = on_own_connection(app, url, kind, "commit", fail).enqueue()
    young = child.using(after=[job]).enqueue()

    assert run(app, job, young) == ("completed", "completed")
    assert (outcomes(job), orders()) == (["completed"], 1)
    assert young.result(timeout=0) == {job.id: "in the transaction"}
    said = [record.getMessage() for record in caplog.records if job.id[-8:] in record.getMessage()]
    assert any("too late" in message for message in said)


def test_rolled_back_it_ends_as_its_body_does(app: App, url: str, kind: str, orders: Callable[[], int]) -> None:
    calls: list[int] = []

    def fail_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("again")
        return "returned"

    job = on_own_connection(app, url, kind, "rollback", fail_once).enqueue()

    assert run(app, job) == ("completed",)
    assert (outcomes(job), orders()) == (["error", "completed"], 0)
    assert job.result(timeout=0) == "returned"


@pytest.mark.parametrize("way", ["thread", "async", "driver", "async driver"])
@pytest.mark.parametrize(("of_task", "heard_of"), [({"limit": 1}, ""), ({}, "default")], ids=["task's", "queue's"])
def test_its_commit_tells_workers_that_may_wait_for_its_slot(
    postgres_url: str, way: str, of_task: dict[str, Any], heard_of: str
) -> None:
    """A task's limit is for all queues. On SQLite every commit is heard."""
    heard: list[str] = []

    def then() -> None:  # the body goes on
        for note in listener.notifies(timeout=LONG):
            heard.append(note.payload)
            if note.payload == heard_of:
                return

    with App(postgres_url) as app, psycopg.connect(postgres_url.partition("&schema")[0], autocommit=True) as listener:
        app.init()
        app.queue("default", limit=1)
        if way in users.ALL:
            beside.rows(postgres_url, "CREATE TABLE orders (n integer)")
            body = on_own_connection(app, postgres_url, way, "commit", then, **of_task)
        else:
            body = define(app, way, "SELECT 1", then=then, **of_task)
        job = body.enqueue()
        db = core_of(app).backend.db
        assert isinstance(db, PostgresDatabase)
        listener.execute(f'LISTEN "{db._channels.work}"'.encode())

        assert run(app, job) == ("completed",)

    assert heard[-1] == heard_of  # before it, maybe, that the task has a limit now


def test_a_lost_claim_is_refused_on_it_too(app: App, url: str, orders: Callable[[], int]) -> None:
    refused = threading.Event()

    @app.task(name="body")
    def body(ctx: dray.Context) -> None:
        if refused.is_set():
            return
        steal(app, ctx)
        with beside.connect(url) as connection:
            beside.execute(connection, "INSERT INTO orders (n) VALUES (1)")
            with pytest.raises(StaleClaim, match=ctx.job_id):
                ctx.complete(connection=connection)
            connection.rollback()
        refused.set()

    job = body.enqueue()
    with app.worker(lease=1):
        assert ended(job) == "completed"

    assert refused.is_set()
    assert orders() == 0


@pytest.mark.parametrize("keep_args", [True, False])
@pytest.mark.parametrize("how", ["transaction", "complete"])
def test_arguments_are_kept_or_dropped_as_the_task_says(app: App, url: str, how: str, keep_args: bool) -> None:
    @app.task(name="body", keep_args=keep_args)
    def body(secret: str, ctx: dray.Context) -> None:
        if how == "transaction":
            with ctx.transaction():
                return
        with beside.connect(url) as connection:
            ctx.complete(connection=connection)
            connection.commit()

    job = body.enqueue("kanarie")

    assert run(app, job) == ("completed",)
    kept = '{"secret":"kanarie"}' if keep_args else None
    assert sql(app, "SELECT args FROM dray_jobs WHERE id = ?", job.id) == [(kept,)]
