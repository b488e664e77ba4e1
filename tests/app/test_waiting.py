"""Waiting: a caller is told of a job that cannot run, and many jobs are one wait."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from dray import waiter
from dray.app import App
from dray.app_interface import core_of
from dray.backends.store.graph import FanOut, GraphStore
from dray.errors import ConfigError, StorageUnavailable, UnknownJob
from dray.instants import MINUTE
from tests.app.hands import Hands
from tests.manual_clock import ManualClock
from tests.runtime.watching import until

LONG = 30.0
ALONE = "No worker is alive: start one with `dray worker`."


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 seconds of waiting, in no time."""
    monkeypatch.setattr(waiter, "PATIENCE", 0.05)


@pytest.fixture
def looks(app: App, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were looked at to see why they do not run."""
    found: list[str] = []
    circumstances = core_of(app).backend.why.circumstances

    def counting(job_id: str) -> Any:
        found.append(job_id)
        return circumstances(job_id)

    monkeypatch.setattr(core_of(app).backend.why, "circumstances", counting)
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def nothing(_: object) -> FanOut:
    """Replaces a fan-out that a crash prevents."""
    return FanOut(0, left=False)


@contextmanager
def waiting(work: Any) -> Generator[Any]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


# No silence


@pytest.mark.usefixtures("impatient")
def test_a_script_that_waits_without_a_worker_is_told_once_why(
    app: App, hands: Hands, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    job = app.enqueue("m.add", {"a": 1})
    with waiting(lambda: job.result(LONG)) as result:
        until(lambda: warnings(caplog))
        hands.complete(job, 3)
        assert result.result(LONG) == 3

    assert warnings(caplog) == [f"still waiting for job {job.id[-8:]}, which does not run. {ALONE}"]
    assert looks == [job.id]


@pytest.mark.usefixtures("impatient")
def test_a_coroutine_and_a_workflow_are_told_too(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="add")
    def add(a: int) -> int:
        return a

    async def told(waits: Any) -> None:
        before = len(warnings(caplog))
        task = asyncio.create_task(waits)
        while len(warnings(caplog)) == before:
            await asyncio.sleep(0.01)
        task.cancel()

    wf = app.workflow("etl")
    wf.add(add, 1)
    for waits in (add.enqueue(1).aresult(), add.enqueue(2).await_(), wf.enqueue().await_()):
        asyncio.run(told(waits))

    assert all(ALONE in said for said in warnings(caplog))


@pytest.mark.usefixtures("impatient")
def test_a_paused_queue_is_a_reason_and_a_worker_that_has_the_job_is_none(
    app: App, hands: Hands, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    running, paused = app.enqueue("m.add"), app.enqueue("m.add", queue="mail")
    claim = hands.claim(running)
    app.pause("mail")
    with waiting(lambda: app.wait([running, paused], LONG)) as both, waiting(lambda: paused.wait(LONG)):
        until(lambda: warnings(caplog))
        paused.cancel()
        hands.complete(running, claim=claim)
        assert both.result(LONG).pending == []

    (said,) = warnings(caplog)
    assert f"job {paused.id[-8:]}, which does not run. Queue mail is paused, since" in said
    assert looks == [paused.id]


@pytest.mark.usefixtures("impatient")
def test_a_live_worker_that_does_not_know_the_task_is_said_to_be_no_help(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    job = app.enqueue("m.add", {"a": 1})
    with App(app.url) as other:

        @other.task(name="m.other")
        def unrelated() -> None: ...

        with other.worker(concurrency=1), waiting(lambda: job.wait(LONG)) as state:
            until(lambda: warnings(caplog))
            assert job.cancel()
            assert state.result(LONG) == "cancelled"

    (said,) = warnings(caplog)
    assert f"job {job.id[-8:]}, which does not run. The live worker of queue default does not know" in said
    assert unrelated.name == "m.other"


@pytest.mark.usefixtures("impatient")
def test_a_job_of_an_unknown_task_is_told_of_though_another_runs(
    app: App, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    slow, unknown = app.enqueue("m.slow"), app.enqueue("m.addd")
    claim = hands.claim(slow)
    with waiting(lambda: app.wait([slow, unknown], LONG)) as both:
        until(lambda: warnings(caplog))
        unknown.cancel()
        hands.complete(slow, claim=claim)
        assert both.result(LONG).pending == []

    (said,) = warnings(caplog)
    assert f"job {unknown.id[-8:]}, which does not run. " in said


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_dies_later_is_told_of(
    app: App, hands: Hands, looks: list[str], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    job = app.enqueue("m.add")
    claim = hands.claim(job)
    with waiting(lambda: job.result(LONG)) as result:
        until(lambda: len(looks) >= 2)
        assert warnings(caplog) == []
        clock.advance(MINUTE)  # its lease is over, and no other worker is alive
        until(lambda: warnings(caplog))
        hands.complete(job, 3, claim=claim)
        assert result.result(LONG) == 3

    (said,) = warnings(caplog)
    assert f"still waiting for job {job.id[-8:]}, which does not run. " in said


def test_looks_for_a_warning_are_few(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiter, "PATIENCE", 0.02)
    tasks = [f"m.task{n}" for n in range(5)]
    jobs = [app.enqueue(task, delay=3600) for task in tasks for _ in range(3)]
    looks: list[str] = []
    monkeypatch.setattr(core_of(app).waiter, "standstill", looks.append)

    app.wait(jobs, timeout=1.0)

    # After 20 ms, 40 more, 80, 160, 320: two tasks at most, and each before one comes again.
    assert 5 <= len(looks) <= 9
    assert [app.job(job_id).task for job_id in looks] == (tasks * 2)[: len(looks)]


@pytest.mark.usefixtures("impatient")
def test_a_workflow_whose_last_worker_died_before_it_told_the_next_step_is_told_of(
    app: App, hands: Hands, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="add")
    def add(a: int) -> int:
        return a

    wf = app.workflow("etl")
    wf.add(add, 1, step="last", after=[wf.add(add, 1, step="first")])
    run = wf.enqueue()
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        hands.complete(run.job("first"))
    core_of(app).backend.workers.deregister(hands.worker)
    with waiting(lambda: run.wait(LONG)) as state:
        until(lambda: warnings(caplog))
        run.cancel()
        assert state.result(LONG) == "cancelled"

    assert ALONE in warnings(caplog)[0]


def test_a_timeout_says_why_the_job_does_not_run(app: App, hands: Hands) -> None:
    job = app.enqueue("m.add")

    with pytest.raises(TimeoutError, match=f"job {job.id} has not ended within 0 seconds and does not run. {ALONE}"):
        job.result(0)
    hands.claim(job)
    with pytest.raises(TimeoutError, match="and goes on; wait longer, or cancel"):
        asyncio.run(job.aresult(0))


def test_a_timeout_is_a_timeout_though_nobody_can_say_why(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    job = app.enqueue("m.add")

    def unavailable(_: str) -> None:
        raise StorageUnavailable("the server is gone")

    monkeypatch.setattr(core_of(app).backend.why, "circumstances", unavailable)
    with pytest.raises(TimeoutError, match="within 0 seconds, and why cannot be read now: the server is gone"):
        job.result(0)


@pytest.mark.usefixtures("impatient")
def test_ten_thousand_jobs_are_one_look_and_many_waits_a_few(
    app: App, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="add")
    def add(a: int) -> int:
        return a

    jobs = add.enqueue_many([(n,) for n in range(2_500)])
    ended, pending = app.wait(jobs, timeout=0.3)
    assert (ended, pending) == ([], jobs)
    assert looks == [jobs[0].id]

    async def wait_for_a_hundred() -> None:
        waits = asyncio.gather(*(job.await_(LONG) for job in jobs[:100]))
        async with asyncio.timeout(LONG):
            while len(warnings(caplog)) < 10:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # none follow
        waits.cancel()

    asyncio.run(wait_for_a_hundred())
    assert len(looks) == len(warnings(caplog)) == 10


# One job


def test_wait_returns_the_state_that_a_job_ended_in_or_has_when_the_time_is_over(app: App, hands: Hands) -> None:
    good, bad, late = app.enqueue("x"), app.enqueue("x"), app.enqueue("x")
    hands.complete(good, 7)
    hands.fail(bad)

    assert (good.wait(), bad.wait(), late.wait(0), late.wait(0.05)) == ("completed", "failed", "queued", "queued")
    assert good.state == "completed"
    assert asyncio.run(good.await_()) == "completed"
    assert asyncio.run(late.await_(0)) == "queued"
    late.delete()
    with pytest.raises(UnknownJob):
        late.wait()


# Many jobs


def test_many_jobs_are_waited_for_until_all_of_them_have_ended(app: App, hands: Hands) -> None:
    jobs = [app.enqueue("x") for _ in range(3)]
    hands.complete(jobs[0], 0)
    ended, pending = app.wait(jobs, timeout=0)
    assert (ended, pending) == (jobs[:1], jobs[1:])

    with waiting(lambda: app.wait(jobs, LONG)) as wait:
        hands.fail(jobs[1])
        hands.complete(jobs[2], 2)
        found = wait.result(LONG)

    assert found == (jobs, [])
    assert [job.state for job in found.ended] == ["completed", "failed", "completed"]
    assert all(mine is theirs for mine, theirs in zip(jobs, found.ended, strict=True))


def test_or_until_the_first_has(app: App, hands: Hands) -> None:
    jobs = [app.enqueue("x") for _ in range(3)]
    with waiting(lambda: app.wait(jobs, LONG, return_when="first")) as wait:
        hands.complete(jobs[0])
        assert wait.result(LONG) == (jobs[:1], jobs[1:])

    hands.complete(jobs[1])
    assert asyncio.run(app.await_(jobs, LONG, return_when="first")) == (jobs[:2], jobs[2:])
    assert asyncio.run(app.await_(jobs[:2])) == (jobs[:2], [])
    assert app.wait([]) == ([], [])


def test_a_thousand_jobs_at_most_are_read_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(name="add")
    def add(a: int) -> int:
        return a

    jobs = add.enqueue_many([(n,) for n in range(2_500)])
    read: list[int] = []
    ended = core_of(app).backend.jobs.ended

    def counting(ids: list[str]) -> Any:
        read.append(len(ids))
        return ended(ids)

    monkeypatch.setattr(core_of(app).backend.jobs, "ended", counting)
    assert app.wait(jobs, timeout=0).pending == jobs
    assert max(read) == 1_000
    core_of(app).backend.jobs.cancel([job.id for job in jobs[:2_000]])
    assert len(app.wait(jobs, timeout=0).ended) == 2_000


def test_what_is_no_list_of_jobs_is_refused(app: App) -> None:
    job: Any = app.enqueue("x")

    with pytest.raises(TypeError, match=r"takes several jobs, not Job; for one of them use job\.wait"):
        app.wait(job)
    with pytest.raises(TypeError, match=r"takes jobs, not str; for an id use app.job\(id\)"):
        app.wait([job.id])
    with pytest.raises(ConfigError, match='return_when must be "all" or "first", not \'any\''):
        app.wait([job], return_when="any")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="timeout must be"):
        app.wait([job], "5")  # pyright: ignore[reportArgumentType]
    job.delete()
    with pytest.raises(UnknownJob):
        app.wait([job])


def test_a_first_look_that_the_timeout_interrupts_forgets_nothing_that_it_has_found(
    app: App, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "_BATCH", 1)
    jobs = [app.enqueue("task") for _ in range(3)]
    for job in jobs:
        hands.complete(job)
    store, looked, goes_on = core_of(app).backend.jobs, threading.Event(), threading.Event()
    ended = store.ended

    def slow(ids: Any) -> Any:
        if looked.is_set() and threading.current_thread() is not threading.main_thread():
            goes_on.wait(LONG)  # the first look is at its second batch, and the time is over
        looked.set()
        return ended(ids)

    monkeypatch.setattr(store, "ended", slow)
    try:
        waited = app.wait(jobs, timeout=0.2)
    finally:
        goes_on.set()

    assert (len(waited.ended), len(waited.pending)) == (3, 0)
