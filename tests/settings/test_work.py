"""An App and its workers, end to end, on servers with users' settings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.backends import open_backend
from dray.backends.postgres.session import PostgresSession
from dray.errors import DrayError, JobFailed
from tests.backends.world import World
from tests.cli.examined import examined
from tests.runtime.watching import LONG, ended, outcomes, until
from tests.settings import places
from tests.settings.places import Place

LIMITS = (places.SHORT_TIMEOUTS, places.POOLER_AND_LIMITS)
HELD = 0.5  # seconds; longer than each limit


@pytest.fixture
def add(app: App) -> Any:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.fixture
def other(app: App, place: Place) -> Generator[App]:
    """An App that stands for another process: its commits wake the worker as those of a stranger."""
    with App(place.url) as opened:
        yield opened


def test_jobs_run_are_retried_fail_and_are_waited_for(app: App, other: App, add: Any) -> None:
    @app.task(name="shaky", retry=0)
    def shaky(ctx: dray.Context, good: int) -> int:
        if ctx.attempt < good:
            raise ValueError(f"attempt {ctx.attempt}")
        ctx.log.info("well")
        ctx.progress(1.0)
        return ctx.attempt

    app.schedule("each-second", add, every=1, args={"a": 1, "b": 1})
    with app.worker(concurrency=4):
        assert add.enqueue(1, 2).result(LONG) == 3
        many = add.enqueue_many([(n, 1) for n in range(60)])
        assert [job.result(LONG) for job in many] == list(range(1, 61))
        assert other.enqueue("add", {"a": 2, "b": 2}).result(LONG) == 4
        assert other.enqueue("add", {"a": 1, "b": 1}, delay=0.05).result(LONG) == 2
        job = shaky.enqueue(3)
        assert job.result(LONG) == 3
        assert [line.message for line in job.logs()] == ["well"]
        failing = shaky.using(max_attempts=2).enqueue(9)
        with pytest.raises(JobFailed, match="attempt 2"):
            failing.result(LONG)
        assert outcomes(failing) == ["error", "error"]
        assert failing.retry()
        assert ended(failing) == "failed(error)"
        until(lambda: [job for job in app.jobs(task="add") if job.schedule and job.state == "completed"])
        app.remove_schedule("each-second")
    assert [worker.state for worker in app.workers()] == ["stopped"]


def test_of_many_that_enqueue_under_one_key_one_does(app: App, add: Any) -> None:
    start = threading.Barrier(6)

    def produce(_: int) -> list[bool]:
        start.wait(LONG)
        return [add.using(unique=f"key {n}").enqueue(n, 0).duplicate for n in range(8)]

    with ThreadPoolExecutor(6) as threads:
        answers = [each for answer in threads.map(produce, range(6)) for each in answer]

    assert Counter(answers) == {False: 8, True: 40}
    replaced = add.using(unique="key 1", on_conflict="replace").enqueue(70, 7)
    assert (replaced.duplicate, replaced.replaced) == (True, True)
    assert app.worker().run_until_idle() == 8
    assert replaced.result(LONG) == 77


def test_children_that_are_enqueued_while_their_parents_end_run_too(
    app: App, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only after the reconciler has found them: it logs that as a bug in Dray."""
    with app.worker(concurrency=4):
        children = [add.using(after=[add.enqueue(n, 0)]).enqueue(n, n) for n in range(20)]
        assert [child.result(LONG) for child in children] == [2 * n for n in range(20)]
    assert [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()] == []


def test_a_workflow_grows_and_completes(app: App, add: Any) -> None:
    @app.task(name="spread")
    def spread(ctx: dray.Context) -> None:
        for n in range(3):
            ctx.add(add, n, n, step=f"more-{n}")

    @app.task(name="total")
    def total(parent_results: dict[str, int]) -> int:
        return parent_results["first"] + parent_results["second"]

    flow = app.workflow("sums")
    first = flow.add(add, 1, 1, step="first")
    second = flow.add(add, 2, 2, step="second", after=[first])
    flow.add(spread, step="spread", after=[second])
    flow.add(total, step="total", after=[first, second])
    with app.worker(concurrency=2):
        run = flow.enqueue()
        assert run.wait(LONG) == "completed"
    assert run.job("total").result(0) == 6
    assert run.counts == {"completed": 7}


def test_what_operators_do(app: App, add: Any) -> None:
    @app.task(name="sleep")
    async def sleep() -> None:
        await asyncio.sleep(LONG)

    assert app.pause("default")
    queued, dropped = add.enqueue(1, 1), add.enqueue(2, 2)
    assert dropped.cancel()
    app.schedule("hourly", add, every=3600, args={"a": 5, "b": 5})
    assert app.pause_schedule("hourly")
    assert app.resume_schedule("hourly")
    with app.worker(concurrency=2):
        slow = sleep.using(queue="other").enqueue()
        until(lambda: slow.refresh().state == "running")
        assert slow.cancel()
        assert ended(slow) == "cancelled(user)"
        assert queued.refresh().state == "queued"
        assert app.resume("default")
        assert app.run_schedule("hourly").result(LONG) == 10
        assert queued.result(LONG) == 2
    assert ended(dropped) == "cancelled(user)"
    assert {job.state for job in app.jobs(state="completed")} == {"completed"}
    assert app.stats().finished == {"completed": 2, "cancelled": 2, "failed": 0}
    assert [queue.name for queue in app.queues()] == ["default", "other"]
    assert [schedule.name for schedule in app.schedules()] == ["hourly"]
    assert queued.retry()
    assert queued.cancel()
    assert queued.delete()
    assert app.prune(0) == 3
    assert app.jobs() == []


def test_a_bodys_transaction_commits_with_its_completion_or_not_at_all(app: App, add: Any, place: Place) -> None:
    @app.task(name="order", max_attempts=1)
    def order(ctx: dray.Context, n: int) -> None:
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO {place.orders} VALUES (%s)", (n,))
            add.using(connection=tx).enqueue(n, n)
            if n == 2:
                raise ValueError("no")

    @app.task(name="aorder", max_attempts=1)
    async def aorder(ctx: dray.Context, n: int) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(f"INSERT INTO {place.orders} VALUES (%s)", (n,))

    with app.worker(concurrency=2):
        jobs = [order.enqueue(1), order.enqueue(2), aorder.enqueue(3)]
        assert [ended(job) for job in jobs] == ["completed", "failed(error)", "completed"]
        until(lambda: [job.state for job in app.jobs(task="add")] == ["completed"])
    assert place.ask(f"SELECT n FROM {places.ORDERS} ORDER BY n") == [(1,), (3,)]


def test_an_enqueue_on_the_users_connection_stands_or_falls_with_it_and_wakes_a_worker(
    app: App, other: App, add: Any, place: Place
) -> None:
    with app.worker(concurrency=2), place.connect() as user:
        add.enqueue(0, 0).result(LONG)
        user.execute(f"INSERT INTO {place.orders} VALUES (1)".encode())
        undone = other.enqueue("add", {"a": 1, "b": 1}, connection=user)
        user.rollback()
        user.execute(f"INSERT INTO {place.orders} VALUES (2)".encode())
        parent = other.enqueue("add", {"a": 2, "b": 2}, connection=user)
        child = other.enqueue("add", {"a": 3, "b": 3}, connection=user, after=[parent], unique="child")
        user.commit()
        assert child.result(LONG) == 6
    assert core_of(app).backend.jobs.get([undone.id]) == []
    assert place.ask(f"SELECT n FROM {places.ORDERS}") == [(2,)]


def test_two_workers_share_a_crowd_and_run_each_job_once(app: App, other: App) -> None:
    ran: list[int] = []
    count = 200

    def note(n: int) -> None:
        ran.append(n)

    tasks = [each.task(name="note")(note) for each in (app, other)]
    with app.worker(concurrency=4), other.worker(concurrency=4):
        jobs = tasks[0].enqueue_many([(n,) for n in range(count)])
        for job in jobs:
            job.result(LONG)
    assert sorted(ran) == list(range(count))


def test_a_watch_is_woken(place: Place, url: str) -> None:
    with (
        closing(open_backend(url)) as backend,
        closing(open_backend(url)) as sender,
        closing(backend.watch()) as watch,
    ):
        began = time.monotonic()
        while not watch.is_pushed and time.monotonic() - began < 3 and place.name not in places.POOLED:
            watch.wait(0.1)
        while watch.wait(0.05):
            pass
        assert watch.is_pushed is (place.name not in places.POOLED)
        sender.announce(["default"])
        assert watch.wait(4.0) is watch.is_pushed


def test_the_tables_that_are_there_are_left_as_they_are(place: Place, url: str) -> None:
    """Also if the role may not create any: `dray db init` in a deployment script must not fail."""
    with closing(open_backend(url)) as backend:
        version = backend.schema_version()
        assert version is not None
        assert backend.migrate() == version
    with App(url, migrate=True) as app:
        assert sum(app.stats().states.values()) == 0


def test_the_doctor_finds_nothing_that_fails(place: Place, url: str) -> None:
    found = examined(url)

    assert {name: each.text for name, each in found.items() if each.verdict == "failed"} == {}


# Tests for some settings only


@contextmanager
def held(place: Place, sql: str) -> Generator[None]:
    """Another transaction locks a row for longer than the limits."""
    released = threading.Event()

    def hold() -> None:
        with place.connect_as_owner() as connection, connection.transaction():
            connection.execute(sql.encode())
            holds.set()
            released.wait(HELD)

    holds = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold)
        assert holds.wait(LONG)
        try:
            yield
        finally:
            released.set()
            holding.result(LONG)


@pytest.mark.parametrize("place", LIMITS, indirect=True)
def test_a_call_waits_for_another_transaction_as_long_as_the_app_says(app: App, add: Any, place: Place) -> None:
    """Its `busy_timeout` counts, not a limit that is meant for a user's own statements."""
    job = add.using(unique="key").enqueue(1, 1)
    row = f"SELECT * FROM dray_jobs WHERE id = '{job.id}' FOR UPDATE"
    key = f"UPDATE dray_jobs SET unique_lock = 'taken', unique_key = 'taken' WHERE id = '{job.id}'"
    table = "LOCK TABLE dray_jobs IN ACCESS EXCLUSIVE MODE"
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "cancel": (row, job.cancel),
        "retry": (row, job.retry),
        "enqueue a child": (row, lambda: add.using(after=[job]).enqueue(2, 2)),
        "enqueue a unique job": (key, lambda: add.using(unique="taken").enqueue(3, 3)),
        "enqueue": (table, lambda: add.enqueue(4, 4)),
        "enqueue many": (table, lambda: add.enqueue_many([(n, n) for n in range(60)])),
        "list": (table, app.jobs),
        "wait": (table, lambda: add.enqueue(4, 4).refresh()),
    }
    problems: list[str] = []
    for name, (sql, call) in calls.items():
        try:
            with held(place, sql):
                call()
        except DrayError as error:
            problems.append(f"{name}: {error}")

    assert problems == []


@pytest.mark.parametrize("place", LIMITS, indirect=True)
def test_a_worker_goes_on_after_a_wait_that_is_longer_than_the_limits(app: App, add: Any, place: Place) -> None:
    with app.worker(concurrency=2):
        assert add.enqueue(1, 1).result(LONG) == 2
        with held(place, "LOCK TABLE dray_jobs, dray_workers IN ACCESS EXCLUSIVE MODE"):
            time.sleep(HELD)
        jobs = add.enqueue_many([(n, n) for n in range(20)])
        assert [job.result(LONG) for job in jobs] == [2 * n for n in range(20)]


@pytest.mark.parametrize("place", LIMITS, indirect=True)
def test_the_tables_can_be_made_while_another_makes_them(place: Place) -> None:
    schema = f"{place.schema}_more"
    url = place.url.replace(f"schema={place.schema}", f"schema={schema}")
    backends = [open_backend(url) for _ in range(4)]
    try:
        with ThreadPoolExecutor(4) as threads:
            versions = [threads.submit(backend.migrate) for backend in backends]
        assert len({version.result() for version in versions}) == 1
    finally:
        for backend in backends:
            backend.close()
        place.ask(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.mark.parametrize("place", [places.SHORT_TIMEOUTS], indirect=True)
def test_a_call_may_take_longer_than_the_limit_by_itself(app: App, add: Any, place: Place) -> None:
    count, total, took = 5_000, 0, 0.0
    while took < 0.3:  # lest this proves nothing
        count *= 2
        began = time.monotonic()
        add.enqueue_many([(n, n) for n in range(count)])
        total, took = total + count, time.monotonic() - began
    place.ask("UPDATE dray_jobs SET state = 'cancelled', reason = 'user', finished_at = now() - interval '1 hour'")

    assert app.prune(0) == total


@pytest.mark.parametrize("place", [places.OTHER_DEFAULTS], indirect=True)
def test_a_body_that_thinks_in_its_transaction_for_longer_than_the_limit_ends_in_one_way(
    app: App, place: Place
) -> None:
    @app.task(name="order", max_attempts=1)
    def order(ctx: dray.Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO {place.orders} VALUES (1)")
            time.sleep(1.5)

    job = order.enqueue()
    with app.worker(concurrency=1):
        state = ended(job)
    orders = place.ask(f"SELECT n FROM {places.ORDERS}")
    assert (state, len(orders)) in {("completed", 1), ("failed(error)", 0)}
    if state != "completed":
        assert "idle" in (job.error or ""), job.error


@pytest.mark.parametrize("place", [places.REPEATABLE_READ, places.SERIALIZABLE], indirect=True)
def test_a_users_transaction_that_cannot_see_how_a_parent_ended_is_told_so(app: App, add: Any, place: Place) -> None:
    """The isolation level is the user's, and their snapshot cannot change, so they have to begin again. A child that
    waits forever would be worse."""
    parent = add.enqueue(1, 1)
    with place.connect() as user:
        user.execute("SELECT 1")
        user.execute(f"SELECT count(*) FROM {place.orders}".encode())
        assert app.worker().run_until_idle() == 1
        with pytest.raises(DrayError, match="another transaction stood in the way") as caught:
            add.using(after=[parent], connection=user).enqueue(2, 2)
        assert "\n" not in str(caught.value)
        user.rollback()
        child = add.using(after=[parent], connection=user).enqueue(2, 2)
        user.commit()
    assert app.worker().run_until_idle() == 1
    assert child.result(0) == 4


@pytest.mark.parametrize("place", [places.LIMITED], indirect=True)
def test_who_may_not_create_is_told_what_to_do_where_there_are_no_tables(place: Place) -> None:
    url = place.url.replace(f"schema={place.schema}", f"schema={place.schema}_more")
    with closing(open_backend(url)) as backend, pytest.raises(DrayError, match="permission denied") as caught:
        backend.migrate()
    assert "\n" not in str(caught.value)
    assert "dray db sql" in str(caught.value)
    with App(url, migrate=True) as app, pytest.raises(DrayError, match="dray db sql"):
        app.enqueue("add")


@pytest.mark.parametrize("place", [places.LIMITED], indirect=True)
def test_a_right_that_is_missing_is_named_in_a_sentence(app: App, add: Any, place: Place) -> None:
    job = add.enqueue(1, 1)
    assert job.cancel()
    ((role,),) = place.ask(
        "SELECT grantee FROM information_schema.role_table_grants WHERE privilege_type = 'DELETE' "
        f"AND table_schema = '{place.schema}' AND table_name = 'dray_jobs' AND grantee <> 'postgres'"
    )
    place.ask(f"REVOKE DELETE ON dray_jobs FROM {role}")
    try:
        with pytest.raises(DrayError, match="permission denied for table dray_jobs") as caught:
            job.delete()
        assert "\n" not in str(caught.value)
    finally:
        place.ask(f"GRANT DELETE ON dray_jobs TO {role}")
    assert job.delete()


@pytest.mark.parametrize("place", [places.REPEATABLE_READ, places.SERIALIZABLE], indirect=True)
def test_a_child_that_comes_while_its_parent_is_being_settled_is_freed(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child commits after the settle's transaction has begun and before it ends the parent; it must be seen."""
    has_begun, goes_on = threading.Event(), threading.Event()
    settle = PostgresSession.settle

    def late(session: PostgresSession, rows: Sequence[Any]) -> Any:
        assert session._pipeline is not None
        session._pipeline.sync()  # earlier statements are executed now, not only sent later
        has_begun.set()
        assert goes_on.wait(LONG)
        return settle(session, rows)

    worker = world.worker()
    parent = world.enqueue()
    claim = world.claim_one(worker)
    monkeypatch.setattr(PostgresSession, "settle", late)
    ending = pool.submit(world.complete, worker, claim)
    assert has_begun.wait(LONG)
    child = world.enqueue("child", parents=(parent,))
    goes_on.set()
    ending.result(LONG)

    assert [world.job(each).state for each in (parent, child)] == ["completed", "queued"]
