"""`inline`: an enqueue runs its jobs at once."""

from __future__ import annotations

import asyncio
import datetime
import threading

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import DrayError, JobFailed
from dray.model.action import By
from dray.ops import acting
from dray.testing import all_enqueued, database, drain, inline
from tests.testing.shop import (
    Address,
    broken,
    double,
    fetch,
    flaky,
    forever,
    grow,
    move,
    must_not_run,
    nested,
    parent,
    ran,
    send,
    total,
)


def test_an_enqueue_returns_when_its_job_has_run(app: App) -> None:
    with inline(app):
        job = flaky.enqueue(7)
        assert job.state == "completed"
        assert job.result() == 7
    assert ran == [(7, 1), (7, 2), (7, 3)]
    assert send.enqueue("ann@example.com").state == "queued"  # as ever


def test_arguments_make_the_round_trip_through_json(app: App) -> None:
    with inline(app):
        assert move.enqueue(Address("High Street", datetime.date(2020, 1, 2)), {"a"}).result() == "High Street"


def test_errors_are_stored_and_raised_by_result(app: App) -> None:
    with inline(app):
        job = broken.enqueue()
        with pytest.raises(JobFailed, match="never works"):
            job.result()
    assert [attempt.outcome for attempt in job.attempts()] == ["error", "error"]


def test_every_way_to_enqueue(app: App) -> None:
    async def main() -> None:
        await double.aenqueue(3)
        await double.aenqueue_many([(4,), (5,)])
        await app.aenqueue(double.name, {"n": 6})

    with inline(app):
        double.enqueue_many([(1,), (2,)])
        asyncio.run(main())
        app.enqueue(double.name, {"n": 7})
        double.using(delay=3600).enqueue(8)
        double.using(unique="once").enqueue(9)
    assert ran == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert all_enqueued(app) == []


def test_workflows_and_steps_that_are_added(app: App) -> None:
    with inline(app):
        flow = app.workflow("sum")
        steps = [flow.add(double, 2, step="a"), flow.add(double, 3, step="b"), flow.add(grow, 2)]
        flow.add(total, after=steps[:2])
        assert flow.enqueue().state == "completed"
    assert len(ran) == 4


@pytest.mark.usefixtures("place")
def test_what_a_person_enqueues_runs_too_and_leaves_its_action() -> None:
    own = App("sqlite:////nowhere/x.db")
    core, by = core_of(own), By("ann", "web")

    @own.task(name="double", every=3600)
    def double() -> int:
        return 6

    with database(own), inline(own):
        core.declare_schedules(core.backend)
        assert acting.enqueue(core, "double", {}, {}, by).result(0) == 6
        assert acting.run_schedule(core, double.name, by).result(0) == 6
        assert [each.verb for each in core.backend.actions.newest(10)] == ["run", "enqueue"]


def test_what_a_body_enqueues_runs_inside_it(app: App) -> None:
    with inline(app):
        assert nested.enqueue(4).result() == 8
        parent.enqueue(2)
    assert ran == [4, "parent", "child 0", "child 1"]


def test_coroutines(app: App) -> None:
    async def main() -> str:
        return await (await fetch.aenqueue("example.com")).aresult()

    with inline(app):
        assert fetch.enqueue("example.com").result() == "EXAMPLE.COM"
        assert asyncio.run(main()) == "EXAMPLE.COM"
    assert ran == ["about example.com"] * 2


def test_jobs_that_were_there_before_stay(app: App) -> None:
    before = send.enqueue("before"), send.using(delay=10).enqueue("later")
    with inline(app):
        double.using(delay=60).enqueue(1)
    assert ran == [1]
    assert [job.refresh().attempt for job in before] == [0, 0]
    assert drain(app) == 2


def test_a_job_that_enqueues_itself_is_an_error_that_says_what_to_do(app: App) -> None:
    with inline(app), pytest.raises(DrayError, match=r"20 deep.+call drain\(app\)"):
        forever.enqueue(1)
    for job in all_enqueued(app):
        job.cancel()


def test_pytest_fail_in_a_body_fails_the_test(app: App) -> None:
    with inline(app), pytest.raises(pytest.fail.Exception, match="this must not run"):
        must_not_run.enqueue()


def test_threads_run_their_own_jobs(app: App) -> None:
    with inline(app):
        states: list[str] = []
        threads = [threading.Thread(target=lambda: states.append(double.enqueue(1).state)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert states == ["completed"] * 4


def test_blocks_can_be_nested_and_end_as_they_began(app: App) -> None:
    with inline(app):
        with inline(app):
            double.enqueue(1)
        assert double.enqueue(2).state == "completed"
    assert double.enqueue(3).state == "queued"
    assert ran == [1, 2]
