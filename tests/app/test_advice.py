"""What an error or `why` advises about a job that ended works: each test does what the message says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import GraphError, JobCancelled, JobEnded, JobFailed
from dray.handle.job import Job
from dray.handle.run import Run
from dray.instants import DAY, HOUR
from dray.model.action import By
from dray.model.search import parse
from dray.ops.audit import audit
from dray.ops.bulk import Bulk, freeze
from dray.ops.why import why
from tests.app.hands import Hands
from tests.backends import beside
from tests.manual_clock import ManualClock


def message(job: Job[Any], kind: type[JobEnded] = JobCancelled) -> str:
    with pytest.raises(kind) as raised:
        job.result(timeout=0)
    return str(raised.value)


def refusal(job: Job[Any]) -> str:
    with pytest.raises(GraphError) as raised:
        job.retry()
    return str(raised.value)


def advised_of(text: str) -> list[str]:
    """Returns the ids of the jobs that a message says to retry on the command line."""
    (command,) = re.findall(r"`dray job retry ([^`]+)`", text)
    return command.split()


def follow(app: App, text: str) -> None:
    """Does what a message says in Python."""
    (job_id,) = re.findall(r'app\.retry\("(.+?)"\)', text)
    assert app.retry(job_id)


def states(*jobs: Job[Any]) -> list[str]:
    return [job.refresh().state for job in jobs]


def chain(app: App, *tasks: str) -> list[Job[Any]]:
    jobs: list[Job[Any]] = []
    for task in tasks:
        jobs.append(app.enqueue(task, after=jobs[-1:]))
    return jobs


def assert_sound(app: App) -> None:
    assert audit(core_of(app).backend).broken == ()


def test_a_job_cancelled_with_its_parent_says_which_to_retry_and_does_not_run_without_it(
    app: App, hands: Hands
) -> None:
    parent, child, grandchild = chain(app, "download", "clean", "load")
    hands.fail(parent)

    for job in (child, grandchild):
        told = message(job)
        assert "was cancelled, because a job that it depends on did not complete" in told
        assert f"it runs after job {parent.id} (download), which failed; retry that one" in told
        assert "job.retry()" not in told
        assert f"({job.task}) was not retried: it runs after job {parent.id}" in refusal(job)
        assert advised_of(refusal(job)) == advised_of(told) == [parent.id]
    assert states(parent, child, grandchild) == ["failed", "cancelled", "cancelled"]

    follow(app, refusal(grandchild))

    assert states(parent, child, grandchild) == ["queued", "waiting", "waiting"]
    assert (child.row.waiting_on, grandchild.row.waiting_on) == (1, 1)
    assert child.retry() is False  # it waits already
    assert_sound(app)
    for job in (parent, child, grandchild):
        hands.complete(job)
    assert_sound(app)


def test_of_several_parents_all_are_named_and_together_bring_the_job_back(app: App, hands: Hands) -> None:
    parents = [app.enqueue("download") for _ in range(7)]
    child = app.enqueue("load", after=parents)
    for parent in parents:
        hands.fail(parent)

    told = refusal(child)

    assert told.count("which failed") == 5
    assert "and 2 more; retry those" in told
    assert sorted(advised_of(told)) == sorted(parent.id for parent in parents)
    for job_id in advised_of(told):
        app.retry(job_id)
    assert (states(child), child.row.waiting_on) == (["waiting"], 7)
    assert_sound(app)


def search_in(text: str) -> str:
    (search,) = re.findall(r"`dray job retry --all '([^'`]+)'`", text)
    return search


@pytest.mark.parametrize("policy", ["cancel", "hold"])
def test_of_more_parents_than_a_command_can_name_all_are_brought_back(app: App, hands: Hands, policy: Any) -> None:
    parents = [app.enqueue("download") for _ in range(25)]
    child = app.enqueue("load", after=parents, on_parent_failure=policy)
    for parent in parents:
        hands.fail(parent)

    told = why(core_of(app).backend, child.id).causes[0].text
    if policy == "cancel":
        assert "and 20 more; retry those 25, and this one waits" in refusal(child)
        assert search_in(told) == search_in(refusal(child)) == search_in(message(child))
    action = Bulk(core_of(app), freeze(core_of(app), parse(search_in(told))), "retry", By("ann", "cli"))
    while not action.step().is_over:
        pass

    assert (states(child), child.row.waiting_on) == (["waiting"], 25)
    assert_sound(app)


def test_of_many_failed_steps_the_retry_of_the_workflow_is_named(app: App, hands: Hands) -> None:
    @app.task(name="download")
    def download(n: int) -> int:
        return n

    wf = app.workflow("etl")
    wf.add(download, 0, step="load", after=[wf.add(download, n, step=f"download {n}") for n in range(25)])
    run = wf.enqueue()
    for n in range(25):
        hands.fail(run.job(f"download {n}"))
    load = run.job("load")

    for told in (message(load), refusal(load), why(core_of(app).backend, load.id).causes[0].text):
        assert f"run.retry_failed(), or `dray workflows retry {run.id}`" in told
        assert "dray job retry" not in told

    assert run.retry_failed() == 25
    assert (states(load), load.row.waiting_on) == (["waiting"], 25)


def build(app: App) -> Run:
    @app.task(name="step")
    def step() -> None: ...

    wf = app.workflow("etl")
    wf.add(step, step="load", after=[wf.add(step, step="extract")])
    return wf.enqueue()


def test_a_step_of_a_workflow_names_the_retry_of_its_failed_steps(app: App, hands: Hands) -> None:
    run = build(app)
    hands.fail(run.job("extract"))

    told = message(run.job("load"))

    assert f"all failed steps: run.retry_failed(), or `dray workflows retry {run.id}`" in told
    assert run.retry_failed() == 1
    assert states(run.job("extract"), run.job("load")) == ["queued", "waiting"]
    assert_sound(app)


def test_a_step_of_a_cancelled_workflow_names_the_retry_of_those_too(app: App) -> None:
    run = build(app)
    run.job("extract").cancel()

    told = message(run.job("load"))

    assert "(extract), which was cancelled; retry that one" in told
    assert f"run.retry_failed(cancelled=True), or `dray workflows retry {run.id} --cancelled`" in told
    assert run.retry_failed() == 0
    assert run.retry_failed(cancelled=True) == 1
    assert states(run.job("extract"), run.job("load")) == ["queued", "waiting"]


def test_a_step_cancelled_by_a_user_does_not_run_before_what_it_runs_after(app: App) -> None:
    run = build(app)
    run.cancel()
    extract, load = run.job("extract"), run.job("load")
    assert load.reason == "user"

    follow(app, message(load))
    assert states(extract, load) == ["queued", "cancelled"]
    assert "\njob.retry() starts it over" in message(load)
    assert load.retry()

    assert states(extract, load) == ["queued", "waiting"]
    assert_sound(app)


def test_a_failed_job_is_retried_with_the_result_of_its_parent(app: App, hands: Hands, clock: ManualClock) -> None:
    parent, child = chain(app, "download", "load")
    hands.complete(parent, 7)
    hands.fail(child)

    assert not parent.delete()  # it is kept for the retry
    clock.advance(8 * DAY)
    assert app.prune() == 0

    assert child.retry()
    assert parent.refresh().result() == 7
    hands.complete(child)
    assert parent.delete()


def test_a_job_whose_parent_was_removed_says_so(app: App, hands: Hands, url: str) -> None:
    parent, child = chain(app, "download", "load")
    hands.fail(parent)
    beside.remove_job(url, parent.id)

    for told in (message(child), refusal(child)):
        assert "did not complete, and has since been deleted or pruned; enqueue those jobs again" in told
        assert "dray job retry" not in told
    assert "is not there any more" in why(core_of(app).backend, child.id).causes[0].text


@pytest.mark.parametrize("reason", ["user", "expired", "failed"])
def test_a_job_that_no_parent_keeps_back_is_retried_as_its_error_says(
    app: App, hands: Hands, clock: ManualClock, reason: str
) -> None:
    job = app.enqueue("x", expires_in=3600)
    endings: dict[str, Callable[[], Any]] = {
        "user": job.cancel,
        "expired": lambda: (clock.advance(2 * HOUR), core_of(app).backend.jobs.expire()),
        "failed": lambda: hands.fail(job),
    }
    endings[reason]()

    told = message(job, JobFailed if reason == "failed" else JobCancelled)

    assert told.endswith("job.retry() starts it over")
    assert job.retry()
    hands.complete(job, 7)
    assert job.result() == 7


def test_why_names_the_job_whose_retry_brings_it_back(app: App, hands: Hands) -> None:
    parent, child, grandchild = chain(app, "download", "clean", "load")
    held = app.enqueue("report", after=[child], on_parent_failure="hold")
    hands.fail(parent)

    for job in (child, grandchild, held):
        assert advised_of(why(core_of(app).backend, job.id).causes[0].text) == [parent.id]

    app.retry(parent)
    assert states(child, grandchild, held) == ["waiting"] * 3
    for job in (parent, child, grandchild, held):
        hands.complete(job)
