"""`crash`: an attempt ends as if its worker had been killed."""

from __future__ import annotations

from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, UnknownTask
from dray.task.task import Task
from dray.testing import clock, crash, drain, inline
from tests.testing import shop
from tests.testing.shop import asell, double, fetch, flaky, ran, sell, send


@pytest.fixture
def sales(app: App) -> str:
    """The table that `sell` writes to."""
    schema = "" if core_of(app).settings.is_sqlite else f"{app.url.rpartition('=')[2]}."
    shop.SALES[0] = f"{schema}sales"
    with core_of(app).backend.transaction() as tx:
        tx.execute(f"CREATE TABLE {schema}sales (item text)")
    return f"{schema}sales"


def _count(app: App, sales: str) -> int:
    with core_of(app).backend.transaction() as tx:
        return tx.execute(f"SELECT count(*) FROM {sales}").fetchone()[0]


def test_a_worker_that_dies_before_the_commit_runs_the_body_again(app: App) -> None:
    job = send.enqueue("ann@example.com")

    with crash(app, send):
        assert drain(app) == 2

    assert ran == ["ann@example.com"] * 2  # this task is not idempotent
    assert [attempt.outcome for attempt in job.attempts()] == ["crashed", "completed"]
    assert job.refresh().row.crashes == 1


def test_a_worker_that_dies_after_the_commit_does_not(app: App) -> None:
    job, other = send.enqueue("ann@example.com"), send.enqueue("bob@example.com")
    with crash(app, send, when="after_commit"):
        assert drain(app) == 2
    assert ran == ["ann@example.com", "bob@example.com"]
    assert job.result(5) == "sent to ann@example.com"
    assert other.refresh().state == "completed"
    assert sorted(worker.state for worker in app.workers()) == ["dead", "stopped"]


@pytest.mark.parametrize("task", [sell, asell], ids=["thread", "coroutine"])
@pytest.mark.parametrize(("when", "attempts"), [("before_commit", [1, 2]), ("after_commit", [1])])
def test_ctx_transaction_writes_exactly_once(
    app: App, sales: str, task: Task[..., Any], when: Any, attempts: list[int]
) -> None:
    job = task.enqueue("lamp")
    with crash(app, task, when=when):
        drain(app)
    assert ran == attempts
    assert _count(app, sales) == 1
    assert job.result(5) == "lamp"


def test_a_job_that_crashes_too_often_has_failed(app: App) -> None:
    job = flaky.enqueue(1)
    with crash(app, flaky, times=3):
        assert drain(app) == 3
    assert (job.refresh().state, job.reason) == ("failed", "crashed")


def test_only_the_attempts_of_that_task_crash(app: App) -> None:
    double.enqueue(1)
    fetch.enqueue("example.com")
    with crash(app, fetch):
        assert drain(app) == 5  # what the first attempt enqueued runs too
    assert ran == [1, "about example.com", "about example.com"]


def test_the_children_of_a_step_whose_worker_died_are_freed(app: App) -> None:
    flow = app.workflow("two")
    flow.add(send, "ann@example.com", after=[flow.add(double, 1)])
    run = flow.enqueue()
    for when in ("after_commit",):
        with crash(app, double, when=when):
            assert drain(app) == 2
    assert run.refresh().state == "completed"


def test_without_retries_the_job_stays_as_the_rescue_left_it(app: App) -> None:
    job = send.enqueue("ann@example.com")
    with crash(app, send), clock(app):  # it may run again after a moment, which must not pass
        assert drain(app, retries=False) == 1
    assert (job.refresh().state, job.attempt) == ("scheduled", 1)


def test_inline_too(app: App) -> None:
    with crash(app, send), inline(app):
        assert send.enqueue("ann@example.com").attempt == 2


def test_a_crash_that_did_not_happen_fails_the_test(app: App) -> None:
    send.enqueue("ann@example.com")
    said = r"2 attempts of .+send that should have crashed .+ did not run"
    with pytest.raises(AssertionError, match=said), crash(app, send, times=3):
        drain(app, retries=False)
    send.enqueue("bob@example.com")
    assert drain(app) >= 1  # nothing crashes outside the block


def test_what_cannot_crash_is_refused(app: App) -> None:
    said = '"before_commit" or "after_commit", not \'later\''
    with pytest.raises(ConfigError, match=said), crash(app, send, when="later"):  # type: ignore[arg-type]
        pass
    with pytest.raises(UnknownTask), crash(app, "no.such.task"):
        pass
