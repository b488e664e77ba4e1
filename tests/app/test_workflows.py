"""Workflows through an App: build, enqueue in one transaction, wait, cancel, retry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, GraphError, InvalidName, JobFailed, UnknownJob, UnknownWorkflow
from dray.handle.run import Run
from dray.runtime.context import Context
from dray.task.task import Task
from dray.workflow import Workflow
from tests.backends import beside, raw

PATIENCE = 30


@pytest.fixture
def app(url: str) -> Any:
    with App(url) as opened:
        yield opened


@pytest.fixture
def add(app: App) -> Task[..., Any]:
    @app.task(name="add", max_attempts=1)
    def add(*numbers: int) -> int:
        return sum(numbers)

    return add


@pytest.fixture
def sums(app: App) -> Task[..., Any]:
    @app.task(name="sums")
    def sums(parent_results: dict[str, int]) -> dict[str, int]:
        return parent_results

    return sums


class Switch:
    """A task that fails until the test switches it to succeed."""

    def __init__(self, app: App) -> None:
        self.is_on = False

        @app.task(name="switched", max_attempts=1)
        def switched() -> str:
            if not self.is_on:
                raise ValueError("off")
            return "on"

        self.task = switched


@pytest.fixture
def switch(app: App) -> Switch:
    return Switch(app)


def work_off(app: App) -> None:
    app.worker().run_until_idle()


def states(run: Run) -> dict[str | None, str]:
    return {job.row.step: job.state for job in run.jobs()}


def is_empty(app: App) -> bool:
    return app.workflows() == [] and app.jobs() == []


# Running


def test_steps_run_in_order_and_see_the_results_of_their_parents(
    app: App, add: Task[..., Any], sums: Task[..., Any]
) -> None:
    wf = app.workflow("etl")
    first = wf.add(add, 1, 2, step="first")
    second = wf.add(add, 3, after=[first])
    wf.add(sums, after=[first, second], step="last")
    run = wf.enqueue()
    assert (run.name, run.state, run.progress) == ("etl", "running", (0, 3))
    work_off(app)
    assert (run.state, run.progress) == ("completed", (3, 3))
    assert run.job("last").result(PATIENCE) == {"first": 3, first.id: 3, second.id: 3}
    assert [job.id for job in run.jobs()][:2] == [first.id, second.id]


def test_a_step_waits_for_jobs_that_were_enqueued_long_ago(
    app: App, add: Task[..., Any], sums: Task[..., Any]
) -> None:
    done = add.enqueue(1)
    work_off(app)
    other = add.enqueue(2)
    wf = app.workflow("etl")
    wf.add(sums.using(queue="slow", priority=7), after=[done, other.id], step="sums")
    run = wf.enqueue()
    assert (run.job("sums").queue, run.job("sums").priority, run.state) == ("slow", 7, "waiting")
    work_off(app)
    assert run.job("sums").result(PATIENCE) == {done.id: 1, other.id: 2}


def test_steps_can_wait_for_steps_by_their_names_also_for_later_ones(
    app: App, add: Task[..., Any], sums: Task[..., Any]
) -> None:
    wf = app.workflow("etl")
    wf.add(sums, after="b", step="a")
    wf.add(add, 5, step="b")
    run = wf.enqueue()
    work_off(app)
    assert run.job("a").result(PATIENCE)["b"] == 5


def test_parent_results_are_not_passed_where_a_step_says_so(app: App, add: Task[..., Any]) -> None:
    @app.task(name="bare")
    def bare(parent_results: dict[str, int]) -> dict[str, int]:
        return parent_results

    @app.task(name="optional")
    def optional(parent_results: dict[str, int] | None = None) -> str:
        return "none" if parent_results is None else "some"

    wf = app.workflow("etl")
    first = wf.add(add, 1)
    wf.add(bare, after=first, step="bare", pass_parent_results=False)
    wf.add(optional, after=first, step="off", pass_parent_results=False)
    wf.add(optional, after=first, step="on")
    run = wf.enqueue()
    work_off(app)
    assert [run.job(step).result(PATIENCE) for step in ("bare", "off", "on")] == [{}, "none", "some"]


def test_a_ready_step_of_high_priority_runs_before_queued_singles(app: App) -> None:
    ran: list[str] = []

    @app.task(name="note")
    def note(what: str) -> None:
        ran.append(what)

    wf = app.workflow("urgent")
    first = wf.add(note.using(priority=5), "parent")
    for number in range(20):
        note.using(priority=1).enqueue(f"single {number}")
    wf.add(note.using(priority=9), "child", after=first)
    wf.enqueue()
    app.worker(concurrency=1, max_jobs=22).run_until_idle()  # with a bound, it claims nothing ahead
    assert ran[0] == "parent"
    # Mostly next but one. While a duty has the child's row locked, a claim passes over it.
    assert ran.index("child") < 5


# Refused, and nothing is written


def self_dependent(wf: Workflow, add: Task[..., Any]) -> None:
    wf.add(add, 1, step="a", after=["a"])


def in_a_circle(wf: Workflow, add: Task[..., Any]) -> None:
    first = wf.add(add, 1, step="a", after=["c"])
    second = wf.add(add, 1, after=[first])
    wf.add(add, 1, step="c", after=[second])


def after_an_unknown_step(wf: Workflow, add: Task[..., Any]) -> None:
    wf.add(add, 1, step="a", after=["nobody"])


def after_an_unknown_job(wf: Workflow, add: Task[..., Any]) -> None:
    wf.add(add, 1)
    wf.add(add, 1, after=["00000000-0000-7000-8000-000000000000"])


def named_twice(wf: Workflow, add: Task[..., Any]) -> None:
    wf.add(add, 1, step="a")
    wf.add(add, 1, step="a")


def empty(wf: Workflow, add: Task[..., Any]) -> None:
    pass


def with_a_connection(wf: Workflow, add: Task[..., Any]) -> None:
    wf.add(add.using(connection=object()), 1)


def with_wrong_arguments(wf: Workflow, add: Task[..., Any]) -> None:
    wf.add(add, 1)
    wf.add(add, nonsense=1)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (self_dependent, GraphError, "'a' waits for itself"),
        (in_a_circle, GraphError, "in a circle: a -> c -> add .* -> a"),
        (after_an_unknown_step, GraphError, "nobody"),
        (after_an_unknown_job, UnknownJob, "00000000-0000-7000"),
        (named_twice, GraphError, "'a'"),
        (empty, GraphError, "no steps"),
        (with_a_connection, ConfigError, "enqueue"),
        (with_wrong_arguments, TypeError, "nonsense"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_and_nothing_is_written(
    app: App,
    add: Task[..., Any],
    make: Callable[[Workflow, Task[..., Any]], None],
    error: type[Exception],
    words: str,
) -> None:
    wf = app.workflow("wrong")
    with pytest.raises(error, match=words):  # noqa: PT012 - some are detected in add(), some in enqueue()
        make(wf, add)
        wf.enqueue()
    assert is_empty(app)


def test_a_step_of_another_workflow_is_refused(app: App, add: Task[..., Any]) -> None:
    other = app.workflow("other").add(add, 1)
    with pytest.raises(GraphError, match="another workflow"):
        app.workflow("mine").add(add, 1, after=[other])


def test_a_workflow_is_enqueued_once_and_then_takes_no_steps(app: App, add: Task[..., Any]) -> None:
    wf = app.workflow("once")
    wf.add(add, 1)
    wf.enqueue()
    with pytest.raises(ConfigError, match="enqueued already"):
        wf.enqueue()
    with pytest.raises(ConfigError, match="enqueued already"):
        wf.add(add, 1)


def test_what_is_not_a_task_or_a_parent_is_refused(app: App, add: Task[..., Any]) -> None:
    wf = app.workflow("wrong")
    with pytest.raises(TypeError, match="made of a task"):
        wf.add(len, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="after takes"):
        wf.add(add, 1, after=[7])  # type: ignore[list-item]


# Transactions


def test_a_workflow_stands_or_falls_with_the_users_transaction(add: Task[..., Any], app: App, url: str) -> None:
    core_of(app).backend.migrate()
    with beside.connect(url) as connection:
        for end in (connection.rollback, connection.commit):
            wf = app.workflow("mine")
            wf.add(add, 1, after=[wf.add(add, 2)])
            run = wf.enqueue(connection=connection)
            assert app.workflows() == []
            end()
    assert app.workflows() == [run]
    assert run.progress == (0, 2)


# Waiting and actions


def test_wait_answers_how_a_workflow_ended(app: App, add: Task[..., Any], switch: Switch) -> None:
    fine, bad = app.workflow("fine"), app.workflow("bad")
    fine.add(add, 1, after=[fine.add(add, 1)])
    bad.add(add, 1, after=[bad.add(switch.task)])
    runs = [fine.enqueue(), bad.enqueue()]
    with app.worker():
        assert [run.wait(PATIENCE) for run in runs] == ["completed", "failed"]


def test_a_coroutine_can_make_and_await_a_workflow(app: App, add: Task[..., Any]) -> None:
    async def program() -> str:
        wf = app.workflow("fine")
        wf.add(add, 1, after=[wf.add(add, 1)])
        run = await wf.aenqueue()
        return await run.await_(PATIENCE)

    with app.worker():
        assert asyncio.run(program()) == "completed"


def test_a_step_can_be_asked_for_with_its_task(app: App, add: Task[..., Any], switch: Switch) -> None:
    wf = app.workflow("typed")
    wf.add(add, 1, step="sum")
    run = wf.enqueue()

    assert run.job("sum", add) == run.job("sum")
    with pytest.raises(
        ConfigError, match=f"step 'sum' of workflow {run.id} calls {add.name}, not {switch.task.name}"
    ):
        run.job("sum", switch.task)


def test_wait_gives_up_when_its_time_is_over(app: App, add: Task[..., Any]) -> None:
    wf = app.workflow("slow")
    wf.add(add, 1)
    run = wf.enqueue()
    with pytest.raises(TimeoutError, match=f"workflow {run.id} has not ended within 0.05 seconds and does not run"):
        run.wait(0.05)
    with pytest.raises(TimeoutError, match="No worker is alive"):
        asyncio.run(run.await_(0.05))


def test_wait_does_not_hang_on_what_is_held(app: App, add: Task[..., Any], switch: Switch) -> None:
    wf = app.workflow("held")
    wf.add(add, 1, after=[wf.add(switch.task, step="bad")], step="held", on_parent_failure="hold")
    run = wf.enqueue()
    with app.worker():
        assert run.wait(PATIENCE) == "waiting"
        switch.is_on = True
        assert run.retry_failed() == 1
        assert run.wait(PATIENCE) == "completed"


def test_wait_does_not_look_all_the_time_while_the_end_of_a_step_is_passed_on(
    app: App, add: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that ended the step was killed before it released the next step, and no other worker runs yet."""
    wf = app.workflow("left")
    first = wf.add(add, 1, step="first")
    wf.add(add, 1, after=first, step="second")
    run = wf.enqueue()
    raw.run(
        core_of(app).backend,
        "UPDATE dray_jobs SET state = 'completed', finished_at = run_at, started_at = run_at, fanout_pending = TRUE"
        " WHERE id = ?",
        run.job("first").id,
    )
    looks, look = list[str](), core_of(app).backend.workflows.moved_by

    def counted(run_id: str) -> list[str]:
        looks.append(run_id)
        return look(run_id)

    monkeypatch.setattr(core_of(app).backend.workflows, "moved_by", counted)

    with pytest.raises(TimeoutError):
        run.wait(1)
    assert 2 <= len(looks) <= 6
    with app.worker():
        assert run.wait(PATIENCE) == "completed"


def test_wait_waits_for_jobs_outside_that_steps_wait_for(app: App, add: Task[..., Any]) -> None:
    outside = add.using(delay=0.3).enqueue(1)
    wf = app.workflow("late")
    wf.add(add, 1, after=outside)
    run = wf.enqueue()
    with app.worker():
        assert run.wait(PATIENCE) == "completed"


def test_retry_failed_runs_the_failed_part_again_and_frees_what_waited_on_it(
    app: App, add: Task[..., Any], switch: Switch
) -> None:
    wf = app.workflow("etl")
    fine = wf.add(add, 1, step="fine")
    bad = wf.add(switch.task, step="bad", after=fine)
    last = wf.add(add, 1, step="last", after=[fine, bad])
    wf.add(add, 1, step="end", after=last)
    run = wf.enqueue()
    work_off(app)
    assert states(run) == {"fine": "completed", "bad": "failed", "last": "cancelled", "end": "cancelled"}
    assert (run.state, run.progress) == ("failed", (4, 4))
    switch.is_on = True
    assert run.retry_failed() == 1
    assert states(run) == {"fine": "completed", "bad": "queued", "last": "waiting", "end": "waiting"}
    work_off(app)
    assert run.state == "completed"
    assert run.job("fine").attempt == 1
    assert run.retry_failed() == 0


def test_a_step_may_run_though_its_parent_failed(app: App, add: Task[..., Any], switch: Switch) -> None:
    wf = app.workflow("etl")
    wf.add(add, 1, step="clean-up", after=wf.add(switch.task), on_parent_failure="run")
    run = wf.enqueue()
    work_off(app)
    assert run.job("clean-up").state == "completed"


def test_a_workflow_whose_failures_every_child_tolerates_is_completed(
    app: App, add: Task[..., Any], switch: Switch
) -> None:
    wf = app.workflow("etl")
    bad = wf.add(switch.task, step="bad")
    wf.add(add, 1, step="load", after=[bad, wf.add(add, 1, step="good")], on_parent_failure="run")
    wf.add(add, 1, step="report", after=bad, on_parent_failure="run")
    run = wf.enqueue()
    work_off(app)
    assert run.wait(PATIENCE) == run.state == "completed"
    assert run.counts == {"completed": 3, "failed": 1}
    assert app.workflows() == [run]

    switch.is_on = True
    assert run.retry_failed() == 1
    assert run.state == "running"
    work_off(app)
    assert (run.state, run.counts) == ("completed", {"completed": 4})


@pytest.mark.parametrize("is_leaf", [False, True])
def test_a_failure_that_one_child_does_not_tolerate_or_that_has_none_fails_the_workflow(
    app: App, add: Task[..., Any], switch: Switch, is_leaf: bool
) -> None:
    wf = app.workflow("etl")
    bad = wf.add(switch.task, step="bad")
    wf.add(add, 1, step="tolerant", after=bad, on_parent_failure="run")
    if is_leaf:
        wf.add(switch.task, step="leaf")
    else:
        wf.add(add, 1, step="strict", after=bad)
    run = wf.enqueue()
    work_off(app)
    assert run.wait(PATIENCE) == "failed"


def test_a_tolerated_cancel_does_not_fail_the_workflow_either(app: App, add: Task[..., Any]) -> None:
    wf = app.workflow("etl")
    unwanted = wf.add(add.using(delay=3600), 1, step="unwanted")
    wf.add(add, 1, step="load", after=unwanted, on_parent_failure="run")
    run = wf.enqueue()
    assert run.job("unwanted").cancel()
    work_off(app)
    assert (run.state, run.counts) == ("completed", {"cancelled": 1, "completed": 1})


def test_a_job_outside_decides_nothing_about_the_workflow(app: App, add: Task[..., Any], switch: Switch) -> None:
    wf = app.workflow("etl")
    bad = wf.add(switch.task, step="bad")
    wf.add(add, 1, after=bad, on_parent_failure="run")
    leaf = app.workflow("leaf")
    leaf.add(switch.task, step="bad")
    run, other = wf.enqueue(), leaf.enqueue()
    add.using(after=[run.job("bad")]).enqueue(1)
    add.using(after=[other.job("bad")], on_parent_failure="run").enqueue(1)
    work_off(app)
    assert (run.state, other.state) == ("completed", "failed")


def test_jobs_are_listed_by_workflow_and_by_schedule(app: App, add: Task[..., Any]) -> None:
    runs: list[Run] = []
    for name in ("etl", "etl", "other"):
        wf = app.workflow(name)
        wf.add(add, 1, step="a")
        wf.add(add, 1, step="b")
        runs.append(wf.enqueue())
    app.schedule("nightly", add, every=3600)
    fired = app.run_schedule("nightly")
    plain = add.enqueue(1)
    jobs = [run.jobs()[::-1] for run in runs]

    assert app.jobs(workflow=runs[0]) == app.jobs(workflow=runs[0].id) == jobs[0]
    assert app.jobs(workflow="etl") == [*jobs[1], *jobs[0]]
    assert app.jobs(workflow="etl", limit=3) == [*jobs[1], jobs[0][0]]
    assert app.jobs(workflow="etl", limit=3, after=jobs[1][1]) == jobs[0]
    assert app.jobs(workflow="etl", state="completed") == app.jobs(workflow="none") == []
    assert app.jobs(schedule="nightly") == [fired]
    assert app.jobs(schedule="none") == []
    assert app.jobs(limit=1) == [plain]
    assert (jobs[0][0].step, jobs[0][0].workflow_id, plain.step) == ("b", runs[0].id, None)
    with pytest.raises(TypeError, match="workflow takes a run, its id or a name, not int"):
        app.jobs(workflow=7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidName):
        app.jobs(schedule="no\nname")


def test_cancel_ends_what_has_not_started_and_asks_the_rest_to_stop(app: App, add: Task[..., Any]) -> None:
    started, never = threading.Event(), threading.Event()

    @app.task(name="long")
    def long(ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            never.wait(0.01)
        ctx.raise_if_cancelled()

    wf = app.workflow("etl")
    first = wf.add(long, step="long")
    wf.add(add, 1, step="next", after=first)
    wf.add(add.using(delay=3600), 1, step="later")
    run = wf.enqueue()
    with app.worker():
        assert started.wait(PATIENCE)
        assert run.cancel() == 3
        assert run.wait(PATIENCE) == "cancelled"
    assert set(states(run).values()) == {"cancelled"}
    assert run.cancel() == 0
    assert run.retry_failed() == 0
    assert run.retry_failed(cancelled=True) == 3


def test_workflows_are_listed_newest_first_and_found_by_id(app: App, add: Task[..., Any]) -> None:
    runs: list[Run] = []
    for name in ("one", "two", "three"):
        wf = app.workflow(name)
        wf.add(add, 1)
        runs.insert(0, wf.enqueue())
    assert app.workflows() == runs
    assert app.workflows(limit=1, after=runs[0]) == [runs[1]]
    assert app.workflow_run(runs[0].id).name == "three"
    with pytest.raises(UnknownWorkflow):
        app.workflow_run("00000000-0000-7000-8000-000000000000")
    with pytest.raises(UnknownWorkflow):
        app.workflow_run("no id")
    with pytest.raises(UnknownJob, match="no step 'none'"):
        runs[0].job("none")


def test_what_was_cancelled_with_a_parent_waits_again_and_does_not_count_as_started_over(
    app: App, add: Task[..., Any], switch: Switch
) -> None:
    wf = app.workflow("both")
    wf.add(add, 1, step="child", after=[wf.add(switch.task, step="bad")])
    wf.add(add.using(delay=3600), 1, step="unwanted")
    run = wf.enqueue()
    with app.worker():
        with pytest.raises(JobFailed):
            run.job("bad").result(PATIENCE)
        run.job("unwanted").cancel()
        assert run.wait(PATIENCE) == "failed"
        switch.is_on = True

        assert run.retry_failed(cancelled=True) == 2  # the failed and the cancelled step, not the child
        assert run.job("child").result(PATIENCE) == 1


def test_deleting_and_pruning_never_strand_a_waiting_step(app: App, add: Task[..., Any]) -> None:
    go = threading.Event()

    @app.task(name="slow")
    def slow() -> None:
        assert go.wait(PATIENCE)

    wf = app.workflow("etl")
    first = wf.add(add, 1, step="first")
    wf.add(slow, step="slow")
    wf.add(add, 1, step="last", after=[first, "slow"])
    run = wf.enqueue()
    work = app.worker(concurrency=2)
    with work:
        run.job("first").result(PATIENCE)
        assert not run.job("first").delete()
        assert app.prune(older_than=0) == 0
        go.set()
        assert run.wait(PATIENCE) == "completed"
    assert app.prune(older_than=0) == 3
    assert is_empty(app)
    with pytest.raises(UnknownWorkflow):
        run.state  # noqa: B018
