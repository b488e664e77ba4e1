"""A running step that adds steps to its own workflow: they are written once, with its completion, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, GraphError
from dray.handle.run import Run
from dray.model.job import ALL_QUEUES
from dray.runtime.context import grown_id
from dray.runtime.ownership import Ownership
from dray.settings import Settings
from dray.task.task import Task
from tests.backends import users
from tests.runtime import growing_bodies
from tests.runtime.watching import until

PATIENCE = 30
Body = Callable[[dray.Context], Any]


@pytest.fixture
def leaf(app: App) -> Task[..., Any]:
    @app.task(name="leaf")
    def leaf(n: int, parent_results: dict[str, Any]) -> dict[str, Any]:
        return {"n": n, **parent_results}

    return leaf


def enqueue(app: App, body: Body, **options: Any) -> Run:
    @app.task(name="grower", **options)
    def grower(ctx: dray.Context) -> Any:
        return body(ctx)

    wf = app.workflow("growing")
    wf.add(grower, step="grower")
    return wf.enqueue()


def work_off(app: App) -> None:
    app.worker().run_until_idle()


def steps(run: Run) -> list[str | None]:
    return [job.row.step for job in run.jobs()]


def test_added_steps_run_in_the_order_of_the_graph_and_belong_to_the_workflow(app: App, leaf: Task[..., Any]) -> None:
    def body(ctx: dray.Context) -> str:
        first = ctx.add(leaf, 1, step="first", after=[ctx.job_id])
        ctx.add(leaf, 2, step="second", after=[first, "grower"])
        return "grown"

    run = enqueue(app, body)
    with app.worker():
        assert run.wait(PATIENCE) == "completed"
    assert run.progress == (3, 3)
    assert run.job("first").result(PATIENCE)["grower"] == "grown"
    assert run.job("second").result(PATIENCE)["first"]["n"] == 1


def test_steps_without_parents_start_in_the_order_they_were_added_in(app: App) -> None:
    ran: list[int] = []

    @app.task(name="note")
    def note(n: int) -> None:
        ran.append(n)

    run = enqueue(app, lambda ctx: [ctx.add(note, n) for n in range(20)] and None)
    app.worker(concurrency=1).run_until_idle()
    assert run.state == "completed"
    assert ran == list(range(20))


def test_a_body_that_fails_adds_nothing_and_its_next_attempt_adds_once(app: App, leaf: Task[..., Any]) -> None:
    def body(ctx: dray.Context) -> None:
        ctx.add(leaf, ctx.attempt, step="child")
        if ctx.attempt == 1:
            raise ValueError("not yet")

    run = enqueue(app, body, retry=0)
    work_off(app)
    assert steps(run) == ["grower", "child"]
    assert run.job("child").result(PATIENCE) == {"n": 2}


def test_a_body_that_fails_for_good_adds_nothing(app: App, leaf: Task[..., Any]) -> None:
    def body(ctx: dray.Context) -> None:
        ctx.add(leaf, 1)
        raise dray.Fail("no")

    run = enqueue(app, body)
    work_off(app)
    assert (run.state, steps(run)) == ("failed", ["grower"])


def test_a_completed_step_that_is_started_over_does_not_double_what_it_added(app: App, leaf: Task[..., Any]) -> None:
    def body(ctx: dray.Context) -> None:
        for n in (1, 1, 2):
            ctx.add(leaf, n)
        ctx.add(leaf, 3, step="named")

    run = enqueue(app, body)
    work_off(app)
    before = [job.id for job in run.jobs()]
    run.job("grower").retry()
    work_off(app)
    assert run.state == "completed"
    assert [job.id for job in run.jobs()] == before
    assert run.job("grower").row.claim == 2  # it ran again


def test_a_growing_workflow_is_never_seen_as_ended(app: App, leaf: Task[..., Any]) -> None:
    @app.task(name="chain")
    def chain(left: int, ctx: dray.Context) -> None:
        if left:
            ctx.add(chain, left - 1)

    wf = app.workflow("chain")
    wf.add(chain, 40)
    run = wf.enqueue()
    totals: list[int] = []
    with app.worker():
        while run.state == "running":
            totals.append(run.progress.total)
    assert run.progress == (41, 41)
    assert totals == sorted(totals)


def test_steps_that_cannot_be_written_fail_the_job_and_say_why(app: App, leaf: Task[..., Any]) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    run = enqueue(app, lambda ctx: ctx.add(leaf, 1, after=[nobody]) and None)
    work_off(app)
    job = run.job("grower")
    assert (job.state, job.reason, steps(run)) == ("failed", "result", ["grower"])
    assert nobody in (job.error or "")


def test_a_step_that_the_workflow_has_is_refused(app: App, leaf: Task[..., Any]) -> None:
    run = enqueue(app, lambda ctx: ctx.add(leaf, 1, step="grower") and None)
    work_off(app)
    assert run.job("grower").reason == "result"


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_a_transaction_commits_what_it_writes_the_completion_and_the_steps(
    app: App, leaf: Task[..., Any], runner: str
) -> None:
    def grow(ctx: dray.Context) -> None:
        ctx.add(leaf, 1, step="child", after=[ctx.job_id])

    @app.task(name="threaded")
    def threaded(ctx: dray.Context) -> None:
        with ctx.transaction() as tx:
            grow(ctx)
            tx.result = "mine"
        with pytest.raises(ConfigError, match="completed already"):
            grow(ctx)

    @app.task(name="looped")
    async def looped(ctx: dray.Context) -> None:
        async with ctx.transaction() as tx:
            grow(ctx)
            tx.result = "mine"
        with pytest.raises(ConfigError, match="completed already"):
            grow(ctx)

    wf = app.workflow("growing")
    wf.add(threaded if runner == "thread" else looped, step="grower")
    run = wf.enqueue()
    with app.worker():
        assert run.wait(PATIENCE) == "completed"
    assert run.job("child").result(PATIENCE)["grower"] == "mine"
    assert run.progress == (2, 2)


def test_a_transaction_that_is_rolled_back_takes_the_completion_and_the_steps_with_it(
    app: App, leaf: Task[..., Any]
) -> None:
    def body(ctx: dray.Context) -> None:
        with ctx.transaction():
            ctx.add(leaf, 1)
            raise dray.Fail("no")

    run = enqueue(app, body)
    work_off(app)
    assert (run.state, steps(run)) == ("failed", ["grower"])


@pytest.mark.parametrize("kind", ["driver", "async driver"])
def test_a_job_completed_in_the_users_transaction_takes_its_steps_along(
    app: App, url: str, leaf: Task[..., Any], kind: str
) -> None:
    async def work(ctx: dray.Context) -> None:
        ctx.add(leaf, 1, step="child")
        async with users.ALL[kind](url) as user:
            if kind in users.SYNC:
                ctx.complete(connection=user.connection, result="mine")
            else:
                await ctx.acomplete(connection=user.connection, result="mine")
            with pytest.raises(ConfigError, match="completed already"):  # though nothing is committed yet
                ctx.add(leaf, 2)
            await user.commit()

    run = enqueue(app, lambda ctx: asyncio.run(work(ctx)))
    with app.worker():
        assert run.wait(PATIENCE) == "completed"
    assert steps(run) == ["grower", "child"]


@pytest.fixture
def bodies(url: str) -> Generator[App]:
    """The App whose tasks child processes can import, on this test's database."""
    before = core_of(growing_bodies.app).settings
    core_of(growing_bodies.app).settings = replace(before, url=Settings.of(url).url)
    with growing_bodies.app as app:
        yield app
    core_of(growing_bodies.app).settings, core_of(growing_bodies.app)._opened = before, None


@pytest.mark.usefixtures("shared_forker")
@pytest.mark.parametrize("name", ["in-a-thread", "on-the-loop", "in-a-child", "in-a-childs-transaction", "dies"])
def test_bodies_on_every_runner_can_add_steps(bodies: App, name: str) -> None:
    wf = bodies.workflow("growing")
    wf.add(core_of(bodies).registry.get(name), 100, step="grower")
    run = wf.enqueue()
    with bodies.worker():
        assert run.wait(PATIENCE) == "completed"
    assert run.progress == (101, 101)
    last = run.job("grown-99")
    assert (last.result(PATIENCE), last.tags) == (198, ("grown",))
    assert run.job("grower").attempt == (2 if name == "dies" else 1)


@pytest.mark.parametrize(
    ("limits", "told"),
    [({}, {"default", "keyed"}), ({"key_limit": 1}, {ALL_QUEUES, "keyed"})],
    ids=["no limit", "a limit of its task"],
)
def test_workers_are_told_of_steps_with_keys_and_of_the_slot_that_their_maker_leaves(
    app: App, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], told: set[str]
) -> None:
    heard: list[set[str]] = []

    def hear(_: object, queues: Iterable[str]) -> None:
        heard.append(set(queues))

    @app.task(name="keyed", queue="keyed", key="tenant")
    def keyed(tenant: str) -> None:
        pass

    run = enqueue(app, lambda ctx: ctx.add(keyed, "ann") and None, key=lambda: "ann", **limits)
    monkeypatch.setattr(type(core_of(app).backend.db), "announce", hear)
    app.worker(queues=["default"]).run_until_idle()

    assert run.counts == {"completed": 1, "queued": 1}
    assert told in heard


def test_what_cannot_be_added_is_refused_in_the_body(app: App, leaf: Task[..., Any]) -> None:
    def body(ctx: dray.Context) -> None:
        with pytest.raises(GraphError, match="no step 'nobody'"):
            ctx.add(leaf, 1, after=["nobody"])
        ctx.add(leaf, 1, step="twice")
        with pytest.raises(GraphError, match="'twice'"):
            ctx.add(leaf, 1, step="twice")

    run = enqueue(app, body)
    work_off(app)
    assert (run.state, steps(run)) == ("completed", ["grower", "twice"])


def test_a_job_outside_workflows_has_nothing_to_add_to(app: App, leaf: Task[..., Any]) -> None:
    @app.task(name="alone")
    def alone(ctx: dray.Context) -> None:
        with pytest.raises(ConfigError, match="no step of a workflow"):
            ctx.add(leaf, 1)

    job = alone.enqueue()
    work_off(app)
    assert job.refresh().state == "completed"


def test_a_plain_call_has_nothing_to_add_to(app: App, leaf: Task[..., Any]) -> None:
    @app.task(name="grower")
    def grower(ctx: dray.Context) -> None:
        ctx.add(leaf, 1)

    with pytest.raises(ConfigError, match="called as a function"):
        grower()


def test_a_workflow_that_is_cancelled_does_not_go_on_growing(app: App, leaf: Task[..., Any]) -> None:
    runs: list[Run] = []

    def body(ctx: dray.Context) -> None:
        ctx.add(leaf, 1, step="child")
        runs[0].cancel()
        until(lambda: ctx.cancelled)
        ctx.raise_if_cancelled()

    run = enqueue(app, body)
    runs.append(run)
    work_off(app)
    assert (run.counts, steps(run)) == ({"cancelled": 1}, ["grower"])


def test_what_a_body_adds_that_hears_too_late_of_the_cancel_does_not_run(
    app: App, leaf: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*_: object) -> None:
        pass

    monkeypatch.setattr(Ownership, "_cancel", too_late)
    runs: list[Run] = []

    def body(ctx: dray.Context) -> None:
        ctx.add(leaf, 1, step="child")
        runs[0].cancel()

    run = enqueue(app, body)
    runs.append(run)
    work_off(app)
    assert (run.job("grower").state, run.job("child").state) == ("completed", "cancelled")


def test_ids_of_added_steps_follow_from_what_is_added(app: App, leaf: Task[..., Any]) -> None:
    parent = core_of(app).new_id()
    new = leaf.prepare([1], {}, leaf.job_options, core_of(app).new_id())
    other = leaf.prepare([2], {}, leaf.job_options, core_of(app).new_id())
    assert grown_id(parent, new, 0) == grown_id(parent, new, 0)
    assert (
        len({grown_id(p, j, n) for p in (parent, core_of(app).new_id()) for j in (new, other) for n in range(3)})
        == 12
    )
    ordered = [grown_id(parent, new if n % 2 else other, n) for n in range(5000)]
    assert ordered == sorted(ordered)
    assert {(each[:13], each[14]) for each in ordered} == {(ordered[0][:13], "7")}
    assert ordered[0] > parent


def test_steps_that_cannot_be_written_fail_the_job_and_the_log_says_so(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, as what was written: not that the body had completed."""

    @app.task(name="note")
    def note() -> None: ...

    parent = note.enqueue()

    @app.task(name="grows")
    def grows(ctx: dray.Context) -> None:
        ctx.add(note, after=[parent.id])
        assert parent.delete()

    app.worker().run_until_idle()
    wf = app.workflow("growing")
    wf.add(grows)
    run = wf.enqueue()
    app.worker().run_until_idle()

    (job,) = run.jobs()
    assert (job.state, job.reason) == ("failed", "result")
    (record,) = [each for each in caplog.records if f"job {job.id[-8:]} (grows)" in each.getMessage()]
    assert "the steps it added cannot be written" in record.getMessage()
