"""Keys of jobs, however they are enqueued, and limits as an App declares them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

import dray
from dray import App
from dray.app_interface import core_of
from dray.errors import ConfigError, PayloadError
from dray.task.task import Task
from tests.backends import beside
from tests.processes.harness import until


def sync(account: int, note: str = "") -> str:
    return f"{account} {note}"


@pytest.fixture
def task(app: App) -> Task[..., str]:
    return app.task(name="sync", key="account", key_limit=1)(sync)


def keys(app: App) -> list[str | None]:
    """Of all jobs, oldest first."""
    found = core_of(app).backend.jobs.get([job.id for job in app.jobs()])
    return [job.key for job in found]


def test_one_job_has_the_key_that_its_arguments_say_or_its_own(app: App, task: Task[..., str]) -> None:
    task.enqueue(7)
    task.using(key="acct:8").enqueue(7)

    assert keys(app) == ["7", "acct:8"]


def test_many_jobs_have_their_own_keys_or_one_for_all(app: App, task: Task[..., str]) -> None:
    task.enqueue_many([(7,), {"account": 8, "note": "x"}])
    task.using(key="all").enqueue_many([(7,), (8,)])

    assert keys(app) == ["7", "8", "all", "all"]


def test_a_workflow_carries_the_keys_of_its_steps(app: App, task: Task[..., str]) -> None:
    flow = app.workflow("nightly")
    first = flow.add(task, 1)
    flow.add(task.using(key="own"), 2, after=[first])
    flow.enqueue()

    assert sorted(map(str, keys(app))) == ["1", "own"]


def test_a_job_in_a_users_transaction_has_its_key(app: App, url: str, task: Task[..., str]) -> None:
    app.init()
    with beside.connect(url) as connection:
        task.using(connection=connection).enqueue(7)
        assert keys(app) == []
        connection.commit()

    assert keys(app) == ["7"]


@pytest.mark.parametrize("account", ["x" * 10_000, "", 1.5, [1], "a\nb", "\x1b[31m"])
def test_a_bad_key_is_refused_before_anything_is_written(app: App, account: Any) -> None:
    def anything(account: Any) -> None: ...

    task = app.task(name="anything", key="account")(anything)

    with pytest.raises(PayloadError, match="key"):
        task.enqueue(account)
    with pytest.raises(PayloadError, match="key"):
        task.enqueue_many([("fine",), (account,)])

    assert keys(app) == []


@pytest.mark.parametrize("given", [{"limit": -1}, {"rate": "10/fortnight"}, {"key_limit": 1.5}, {"key_rate": []}])
def test_limits_that_cannot_be_are_refused_before_anything_is_written(app: App, given: dict[str, Any]) -> None:
    app.init()

    with pytest.raises((ConfigError, TypeError), match=f"^queue api: {next(iter(given))}"):
        app.queue("api", priority=5, **given)
    with pytest.raises((ConfigError, TypeError), match=f"^task sync: {next(iter(given))}"):
        app.task(name="sync", **given)(sync)

    assert (app.limits(), app.queues(), [*core_of(app).registry]) == ([], [], [])


@pytest.fixture
def live(url: str) -> Generator[App]:
    with App(url) as opened:
        yield opened


def test_a_job_that_was_enqueued_by_name_is_handed_back_with_its_key_and_loses_no_attempt(
    live: App, url: str
) -> None:
    ran: list[tuple[int, int]] = []

    @live.task(name="sync", key="account", key_limit=1, max_attempts=1)
    def sync(account: int, ctx: dray.Context) -> None:
        ran.append((account, ctx.attempt))

    with App(url) as producer:
        jobs = [producer.enqueue("sync", {"account": account}, max_attempts=1) for account in (1, 1, 2)]
        assert keys(producer) == [None, None, None]

    live.worker().run_until_idle()

    assert sorted(ran) == [(1, 1), (1, 1), (2, 1)]
    assert keys(live) == ["1", "1", "2"]
    assert [job.refresh().row.claim for job in jobs] == [2, 2, 2]  # claimed once more than it ran


def test_workers_that_run_one_job_each_give_every_key_its_turn(live: App) -> None:
    ran: list[str] = []

    @live.task(name="sync", key="account")
    def sync(account: str) -> None:
        ran.append(account)

    sync.enqueue_many([(account,) for account in "aaaaaaaabbbc"])
    for _ in range(7):
        live.worker(max_jobs=1, concurrency=1).run()

    assert ran == ["a", "b", "c", "a", "b", "a", "b"]


def test_jobs_that_were_enqueued_by_name_spend_one_start_each(live: App, url: str) -> None:
    @live.task(name="sync", key="account", rate="4/day")
    def sync(account: int) -> None: ...

    with App(url) as producer:
        jobs = [producer.enqueue("sync", {"account": account}) for account in range(6)]

    live.worker(concurrency=2).run_until_idle()

    assert Counter(job.refresh().state for job in jobs) == {"completed": 4, "queued": 2}


def test_a_worker_that_may_run_one_job_runs_it_although_it_had_no_key_at_first(live: App, url: str) -> None:
    task = live.task(name="sync", key="account")(sync)
    with App(url) as producer:
        job = producer.enqueue("sync", {"account": 1})

    live.worker(max_jobs=1).run()

    assert job.refresh().state == "completed"
    assert task.name == "sync"


def test_a_job_whose_key_cannot_be_stored_runs_without_one(
    live: App, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def anything(account: str) -> None: ...

    live.task(name="anything", key="account")(anything)
    with App(url) as producer:
        job = producer.enqueue("anything", {"account": "x" * 10_000})

    live.worker().run_until_idle()

    assert (job.refresh().state, job.row.key) == ("completed", None)
    assert any("runs without a key" in message for message in caplog.messages)


def test_the_jobs_of_a_schedule_have_the_keys_of_its_arguments(live: App) -> None:
    task = live.task(name="sync", key="account")(sync)
    live.schedule("beat", task, every=0.01, args={"account": 4})
    time.sleep(0.02)

    live.worker().run_until_idle()

    assert {*keys(live)} == {"4"}


def test_a_rate_opens_on_time(live: App) -> None:
    """And not when the worker next looks by itself."""
    started: list[float] = []

    @live.task(name="paced", rate="1/s")
    def paced() -> None:
        started.append(time.monotonic())

    paced.enqueue_many([()] * 2)
    with live.worker():
        until(lambda: len(started) == 2)

    assert 0.9 <= started[1] - started[0] < 3


def test_steps_that_a_body_adds_have_their_keys_too(live: App) -> None:
    task = live.task(name="sync", key="account")(sync)

    @live.task(name="first")
    def first(ctx: dray.Context) -> None:
        ctx.add(task, 5)

    flow = live.workflow("growing")
    flow.add(first)
    flow.enqueue()
    live.worker().run_until_idle()

    assert sorted(map(str, keys(live))) == ["5", "None"]
