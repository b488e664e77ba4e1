"""Bodies in child processes use the database through the child's own connections."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

import dray
from dray.app_interface import core_of
from dray.clock import Ids, SystemClock
from dray.instants import SECOND
from dray.model.job import Demand
from dray.model.new_job import NewJob
from dray.model.settlement import completed, released
from dray.model.worker import NewWorker
from dray.runtime.children.worker_side import ChildHandle
from dray.runtime.engine import Engine
from dray.runtime.execution import Execution
from dray.task.task import Task
from tests import verbs
from tests.runtime import child_bodies as bodies
from tests.runtime import kinds
from tests.runtime.stage import Stage
from tests.runtime.watching import ended, outcomes, sql, state_of, until

pytestmark = pytest.mark.usefixtures("shared_forker")

_ids = Ids(SystemClock())
WORKER = _ids.new()


@pytest.fixture
def app(url: str) -> Generator[dray.App]:
    """An App on the worker's database, which differs from the one in the module of the tasks."""
    with dray.App(url) as app:
        core_of(app).backend.migrate()
        new = NewWorker(id=WORKER, name="test", host="host", pid=1, boot=core_of(app).clock.boot)
        core_of(app).backend.workers.register(new, 60 * SECOND)
        yield app


@pytest.fixture
def stage(app: dray.App) -> Generator[Stage]:
    with Stage(url=app.url) as stage:
        yield stage


def claimed(app: dray.App, stage: Stage, task: Task[..., Any], parents: tuple[str, ...] = ()) -> Execution:
    """Returns a job of a task, claimed by the worker."""
    new = NewJob(id=_ids.new(), task=task.name, parents=parents)
    core_of(app).backend.jobs.enqueue([new])
    (claim,) = verbs.claim(core_of(app).backend, WORKER, Demand(("default",), (task.name,), 1))
    return Execution(claim, task, WORKER, stage.link)


def enqueued(app: dray.App) -> list[str]:
    return [job.id for job in app.jobs(task=bodies.add.name)]


@pytest.mark.parametrize(
    "task", [bodies.complete_with_another_job, bodies.complete_with_another_job_in_a_coroutine], ids=["def", "async"]
)
def test_a_body_completes_its_job_in_a_transaction_of_its_own(
    app: dray.App, stage: Stage, task: Task[..., Any]
) -> None:
    execution = claimed(app, stage, task)

    stage.runner.start([execution])

    assert stage.end() == (execution, None)
    assert execution.is_written
    job = app.job(execution.claim.id)
    assert job.state == "completed"
    assert job.result() == stage.result(bodies.who_am_i)["pid"]
    assert len(enqueued(app)) == 1


def test_a_body_completes_its_job_in_a_transaction_of_the_users(app: dray.App, stage: Stage) -> None:
    """The worker does not learn when that commits: it tries to write the outcome, and finds it already written."""
    execution = claimed(app, stage, bodies.complete_on_a_users_connection)

    stage.runner.start([execution])

    settlement = stage.settled()
    job = app.job(execution.claim.id)
    assert (job.state, settlement.result) == ("completed", '"too late"')
    assert verbs.settle(core_of(app).backend, WORKER, [settlement]).already == [job.id]
    assert job.result() == stage.result(bodies.who_am_i)["pid"]
    assert len(enqueued(app)) == 1


@pytest.mark.parametrize("task", [bodies.complete_with_another_job, bodies.complete_on_a_users_connection])
def test_a_lost_claim_rolls_everything_back(app: dray.App, stage: Stage, task: Task[..., Any]) -> None:
    execution = claimed(app, stage, task)
    verbs.settle(core_of(app).backend, WORKER, [released(execution.claim, core_of(app).clock.steady())])

    stage.runner.start([execution])

    assert stage.settled().result == '"stale"'
    assert not execution.is_written
    assert enqueued(app) == []
    assert app.job(execution.claim.id).state == "queued"


def test_a_body_enqueues_where_its_worker_works(app: dray.App, stage: Stage) -> None:
    made = stage.result(bodies.enqueue_another)

    assert enqueued(app) == [made]


def test_a_body_sees_the_results_of_its_parents(app: dray.App, stage: Stage) -> None:
    parent = claimed(app, stage, bodies.add)
    now = core_of(app).clock.steady()
    verbs.settle(core_of(app).backend, WORKER, [completed(parent.claim, now, now, json.dumps(3))])
    execution = claimed(app, stage, bodies.sum_of_parents, parents=(parent.claim.id,))

    stage.runner.start([execution])

    assert stage.settled().result == "3"


# Short jobs of a worker


def test_short_jobs_are_claimed_and_settled_in_large_batches(
    kinds_app: dray.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"messages": 0, "exchanges": 0}
    tell, exchange = ChildHandle.tell, Engine._exchange

    def telling(handle: Any, *args: Any) -> None:
        said["messages"] += 1
        tell(handle, *args)

    def exchanging(engine: Any, demand: Demand) -> float:
        said["exchanges"] += 1
        return exchange(engine, demand)

    monkeypatch.setattr(ChildHandle, "tell", telling)
    monkeypatch.setattr(Engine, "_exchange", exchanging)
    kinds.mostly_short.enqueue_many([()] * 1_000)

    assert kinds_app.worker(concurrency=2).run_until_idle() == 1_000

    assert said["messages"] < 200  # about 40
    assert said["exchanges"] < 100  # about 20


@pytest.mark.parametrize(("what", "outcome"), [("die", "crashed"), ("sleep", "timeout")])
def test_one_that_dies_or_takes_too_long_costs_the_others_nothing(
    kinds_app: dray.App, what: str, outcome: str
) -> None:
    with kinds_app.worker(concurrency=2):
        learn(kinds_app)
        app, task = kinds_app, kinds.mostly_short
        app.pause("default")
        before = task.enqueue_many([()] * 100)
        one = task.using(timeout=0.3).enqueue(what)
        after = task.enqueue_many([()] * 100)
        app.resume("default")
        until(lambda: all(job.refresh().state == "completed" for job in [*before, one, *after]))

    assert outcomes(one) == [outcome, "completed"]
    attempts = sql(kinds_app, "SELECT attempt, crashes, count(*) FROM dray_jobs GROUP BY 1, 2 ORDER BY 1, 2")
    assert attempts == [(1, 0, 400), (2, int(what == "die"), 1)]


def test_one_that_is_cancelled_among_them_takes_no_other_with_it(kinds_app: dray.App) -> None:
    with kinds_app.worker(concurrency=1):
        learn(kinds_app)
        kinds_app.pause("default")
        jobs = kinds.mostly_short.enqueue_many([("sleep" if number == 20 else "",) for number in range(100)])
        kinds_app.resume("default")
        until(lambda: jobs[19].refresh().state == "completed")

        jobs[20].cancel()

        assert [ended(job) for job in jobs].count("completed") == 99
        assert state_of(jobs[20]).startswith("cancelled")
    assert sql(kinds_app, "SELECT DISTINCT attempt FROM dray_jobs") == [(1,)]


def learn(app: dray.App) -> None:
    """Runs jobs until the worker knows that they are short."""
    kinds.mostly_short.enqueue_many([()] * 200)
    until(lambda: app.stats().states["completed"] == 200)
