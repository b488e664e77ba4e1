"""`drain`: what is enqueued runs to its end, in the calling thread, in no time."""

from __future__ import annotations

import asyncio
import datetime
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import DrayError, JobFailed, StorageLocked
from dray.testing import clock, database, drain, draining
from tests.testing import shop
from tests.testing.shop import (
    Address,
    broken,
    double,
    fetch,
    flaky,
    forever,
    grow,
    hang,
    heavy,
    move,
    must_not_run,
    parent,
    ran,
    sell,
    send,
    snore,
    total,
)


def test_sixty_seconds_of_backoff_take_no_time(app: App) -> None:
    job, began = flaky.enqueue(7), time.monotonic()

    assert drain(app) == 3

    assert time.monotonic() - began < 10
    assert ran == [(7, 1), (7, 2), (7, 3)]
    assert job.result(5) == 7
    assert [attempt.outcome for attempt in job.attempts()] == ["error", "error", "completed"]
    assert [line.message for line in job.logs()] == ["attempt 1", "attempt 2", "attempt 3"]
    assert job.progress == (30, "on the way")
    first, second, _ = job.attempts()
    assert second.started_at - first.started_at > datetime.timedelta(seconds=59)  # type: ignore[operator]


def test_it_runs_in_the_calling_thread_and_returns_zero_when_nothing_is_left(app: App) -> None:
    @app.task(name="where")
    def where() -> str:
        return threading.current_thread().name

    try:
        job = where.enqueue()
        assert drain(app) == 1
        assert job.result(5) == threading.current_thread().name
        assert drain(app) == 0
    finally:
        core_of(app).registry._tasks.pop("where")


def test_what_bodies_enqueue_runs_too_with_its_delays(app: App) -> None:
    parent.enqueue(2)
    assert drain(app) == 3
    assert ran == ["parent", "child 0", "child 1"]


def test_without_delays_it_runs_what_is_due_now(app: App) -> None:
    parent.enqueue(2)
    assert drain(app, delays=False) == 1
    assert [job.state for job in app.jobs(task=send)] == ["scheduled", "scheduled"]
    assert drain(app) == 2


def test_without_retries_a_job_that_failed_stays_scheduled(app: App) -> None:
    job, other = flaky.enqueue(1), send.using(delay=7200).enqueue("later")

    assert drain(app, retries=False) == 2

    assert job.refresh().attempt == 1
    assert job.state in ("scheduled", "queued")  # its time has come while the clock jumped for the other
    assert other.refresh().state == "completed"
    assert drain(app) == 2
    assert job.result(5) == 1


def test_without_retries_a_retry_that_needs_no_delay_is_not_run_either(app: App) -> None:
    job = broken.enqueue()
    with clock(app) as now:
        before = now.now
        assert drain(app, retries=False) == 1
        assert now.now == before
    assert (job.refresh().state, job.attempt, job.error) == ("queued", 1, "ValueError: never works")


def test_errors_are_stored_and_raised_by_result(app: App) -> None:
    job = broken.enqueue(3)
    assert drain(app) == 2
    with pytest.raises(JobFailed, match="ValueError: never works") as caught:
        job.result(5)
    assert "where the body failed" in str(caught.value.__notes__)
    assert "here.py" not in str(caught.value.__notes__)  # the traceback begins with the user's own code


def test_arguments_and_results_make_the_round_trip_through_json(app: App) -> None:
    job = move.enqueue(Address("High Street", datetime.date(2020, 1, 2)), {"a"})
    drain(app)
    assert job.result(5) == "High Street"


def test_coroutines_run_on_a_loop(app: App) -> None:
    job = fetch.enqueue("example.com")
    assert drain(app) == 2
    assert job.result(5) == "EXAMPLE.COM"
    assert ran == ["about example.com"]


def test_inside_a_running_loop_too(app: App) -> None:
    async def main() -> int:
        await fetch.aenqueue("example.com")
        return drain(app)

    assert asyncio.run(main()) == 2


def test_a_coroutine_that_is_out_of_time_is_stopped(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_STOP_GRACE", 0.05)
    job = hang.enqueue()
    assert drain(app) == 1
    assert (job.refresh().state, job.reason) == ("failed", "timeout")


def test_tasks_of_child_processes_run_here(app: App) -> None:
    job = heavy.enqueue(4)
    assert drain(app) == 1
    assert job.result(5) == 8
    assert ran == [4]


def test_workflows_run_to_their_end(app: App) -> None:
    flow = app.workflow("sum")
    steps = [flow.add(double, 2, step="a"), flow.add(double, 3, step="b")]
    flow.add(total, after=steps, step="total")
    run = flow.enqueue()

    assert drain(app) == 3

    assert run.refresh().state == "completed"
    assert {job.task.rpartition(".")[2]: job.result(5) for job in run.jobs()}["total"] == 10


def test_steps_that_a_body_adds_run_too(app: App) -> None:
    flow = app.workflow("growing")
    flow.add(grow, 3)
    run = flow.enqueue()
    assert drain(app) == 4
    assert run.refresh().state == "completed"


def test_the_children_of_a_job_that_fails_are_cancelled(app: App) -> None:
    flow = app.workflow("lost")
    flow.add(send, "ann@example.com", after=[flow.add(broken)])
    run = flow.enqueue()
    assert drain(app) == 2
    assert {job.state for job in run.jobs()} == {"failed", "cancelled"}


def test_ctx_transaction_completes_the_job_with_its_writes(app: App) -> None:
    _make_sales(app)
    job = sell.enqueue("lamp")
    assert drain(app) == 1
    assert job.result(5) == "lamp"
    assert _sales(app) == 1


@pytest.mark.usefixtures("place")
def test_slots_of_schedules_that_are_due_fire_and_jumps_for_jobs_fire_no_more() -> None:
    ran.clear()
    with database(shop.scheduled) as app, clock(app) as now:
        now.advance(3600)
        assert drain(app) == 2  # the slot's job, and what it enqueued for two hours later
        assert ran == ["poll", "follow-up"]
        assert drain(app) == 2  # the slots of those hours; only the last counts


def test_jobs_that_never_end_are_an_error_that_names_them(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MOST_ATTEMPTS", 20)
    for enqueue in (snore.enqueue, lambda: forever.enqueue(1)):
        job = enqueue()
        with pytest.raises(
            DrayError, match=r"20 attempts have run and jobs are still coming, 20 times of tests\.test"
        ):
            drain(app)
        job.cancel()
        for each in app.jobs(state="pending"):
            each.cancel()


def test_a_paused_queue_and_unknown_tasks_are_left_alone(app: App) -> None:
    app.pause("mail")
    send.enqueue("ann@example.com")
    app.enqueue("elsewhere.task", {"n": 1})
    assert drain(app) == 0
    app.resume("mail")
    assert drain(app) == 1


def test_an_expired_job_is_cancelled_when_time_has_jumped_past_it(app: App) -> None:
    app.pause("mail")
    job, _ = send.using(expires_in=30).enqueue("ann@example.com"), double.using(delay=60).enqueue(1)
    assert drain(app) == 1
    assert (job.refresh().state, job.reason) == ("cancelled", "expired")


def test_ctrl_c_in_a_body_ends_the_drain_and_the_job_goes_back_unburned(app: App) -> None:
    job = shop.interrupted.enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(app)
    assert (job.refresh().state, job.attempt) == ("queued", 0)


def test_pytest_fail_in_a_body_fails_the_test(app: App) -> None:
    must_not_run.enqueue()
    with pytest.raises(pytest.fail.Exception, match="this must not run"):
        drain(app)


def test_it_leaves_no_worker_and_no_thread_behind(app: App) -> None:
    before = set(threading.enumerate())  # of which those of earlier tests may end
    fetch.enqueue("example.com")
    drain(app)
    assert {worker.state for worker in app.workers()} == {"stopped"}
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("dray-aside"):  # of asyncio.to_thread: it has been told to end, and is about to
            thread.join(30)
    assert set(threading.enumerate()) <= before


def test_it_runs_on_an_app_that_is_not_on_a_scratch_database(url: str) -> None:
    own = App(url)
    add = own.task(name="add", retry=dray.fixed(60))(_add)
    with own:
        job = add.using(delay=60).enqueue(1)
        assert drain(own) == 1
        assert job.result(5) == 2
        assert type(core_of(own).clock).__name__ == "SystemClock"


def test_a_row_that_another_transaction_has_locked_is_an_error(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "_LOCK_TRIES", 2)
    with App(shared_url) as own, core_of(own).backend.transaction() as locker:

        @own.task(name="locked")
        def locked() -> None:
            locker.execute(f"SELECT 1 FROM {_schema(own)}dray_jobs FOR UPDATE")

        locked.enqueue()
        with pytest.raises(StorageLocked, match=r"end that transaction, or pass its connection"):
            drain(own)


def test_a_transaction_that_keeps_the_write_lock_is_an_error_that_says_how_to_run_inside_it(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db", busy_timeout=0.1) as own:
        own.task(name="double")(double.function).enqueue(1)
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as mine:
            mine.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageLocked) as locked:
                drain(own)
            assert "end it first, or run the jobs inside it: drain(app, connection=…)" in str(locked.value)
            assert drain(own, connection=mine) == 1


def _make_sales(app: App) -> None:
    with core_of(app).backend.transaction() as tx:
        tx.execute(f"CREATE TABLE {_schema(app)}sales (item text)")
    shop.SALES[0] = f"{_schema(app)}sales"


def _schema(app: App) -> str:
    return "" if core_of(app).settings.is_sqlite else f"{app.url.rpartition('=')[2]}."


def _sales(app: App) -> int:
    with core_of(app).backend.transaction() as tx:
        return tx.execute(f"SELECT count(*) FROM {_schema(app)}sales").fetchone()[0]


def _add(n: int) -> int:
    return n + 1


def test_a_database_in_a_database_is_drained_by_itself(app: App) -> None:
    send.enqueue("outer")
    with database(app):
        send.enqueue("inner")
        assert drain(app) == 1
    assert ran == ["inner"]
