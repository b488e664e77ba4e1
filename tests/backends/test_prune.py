"""Pruning: old jobs are deleted with all their rows; jobs that are still needed stay."""

from __future__ import annotations

from typing import Any

import pytest

from dray.backends.postgres import PostgresDatabase
from dray.backends.store import history
from dray.backends.store.graph import FanOut, GraphStore
from dray.errors import UnknownJob
from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.model import settlement as model
from dray.model.job import LogLine, Reason
from dray.model.retention import Retention
from dray.model.settlement import Settlement
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends import beside
from tests.backends.world import World

AT_ONCE = Retention(0, 0, 0)
KEEP = Retention(None, None, None)
LARGE = '"' + "x" * 3_000 + '"'


def ended(world: World, as_state: str, **options: Any) -> str:
    """Returns a job that has just ended."""
    job_id, worker = world.enqueue("ending", max_attempts=1, **options), world.worker()
    if as_state == "cancelled":
        world.backend.jobs.cancel([job_id])
        return job_id
    claim = world.claim_one(worker, tasks=("ending",))
    now = world.clock.steady()
    settlement: Settlement = model.completed(claim, now, now)
    if as_state == "failed":
        settlement = model.failed(claim, now, now, Reason.ERROR, "ValueError", "no", None)
    verbs.settle(world.backend, worker, [settlement])
    return job_id


def nothing(_: object) -> FanOut:
    """Replaces a fan-out that a crash prevents."""
    return FanOut(0, left=False)


def left(world: World) -> set[str]:
    return {job.id for job in world.backend.jobs.newest(limit=10_000)}


# Retention


@pytest.mark.parametrize("as_state", ["completed", "failed", "cancelled"])
def test_a_job_with_a_time_of_its_own_goes_by_that_sooner_and_later_than_others(world: World, as_state: str) -> None:
    short, usual = ended(world, as_state, keep_us=HOUR), ended(world, as_state)
    long, at_once = ended(world, as_state, keep_us=400 * DAY), ended(world, as_state, keep_us=0)

    assert world.backend.history.prunable(Retention())[as_state] == 1
    assert verbs.prune(world.backend, Retention()) == 1
    assert left(world) == {short, usual, long}
    del at_once

    world.clock.advance(HOUR)
    assert verbs.prune(world.backend, Retention()) == 1
    assert left(world) == {usual, long}

    world.clock.advance(40 * DAY)
    assert verbs.prune(world.backend, Retention()) == 1
    assert verbs.prune(world.backend, AT_ONCE) == 0  # whatever is asked for: the job says how long
    assert left(world) == {long}

    world.clock.advance(400 * DAY)
    others = Retention(*(None if state == as_state else 0 for state in ("completed", "cancelled", "failed")))
    assert verbs.prune(world.backend, others) == 0  # of the states that are pruned it is none
    assert world.backend.history.prunable(Retention())[as_state] == 1
    assert verbs.prune(world.backend, Retention()) == 1


def test_many_that_are_kept_long_do_not_hide_those_that_may_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_FOUND", 2)
    monkeypatch.setattr(history, "_PASSED", 3)
    kept = [ended(world, "completed", keep_us=400 * DAY) for _ in range(5)]
    gone = [ended(world, "completed") for _ in range(5)]
    kept.append(ended(world, "completed", keep_us=400 * DAY))
    gone += [ended(world, "completed", keep_us=DAY) for _ in range(5)]
    world.clock.advance(8 * DAY)

    assert verbs.prune(world.backend, Retention()) == len(gone)
    assert left(world) == set(kept)


def test_a_workflow_goes_once_the_own_time_of_each_of_its_jobs_is_over(world: World) -> None:
    workflow = Workflow(world.ids.new(), "flow", 0)
    worker = world.worker()
    steps = [world.new(workflow_id=workflow.id, step=name, keep_us=us) for name, us in (("a", HOUR), ("b", DAY))]
    world.backend.jobs.enqueue(steps, workflow=workflow)
    for _ in steps:
        claim, now = world.claim_one(worker), world.clock.steady()
        verbs.settle(world.backend, worker, [model.completed(claim, now, now)])

    world.clock.advance(2 * HOUR)
    assert verbs.prune(world.backend, Retention()) == 0

    world.clock.advance(DAY)
    assert world.backend.history.prunable(Retention())["completed"] == 2
    assert verbs.prune(world.backend, Retention()) == 2
    assert world.backend.workflows.get(workflow.id) is None


def test_a_retry_forgets_nothing_of_how_long_the_job_is_kept(world: World) -> None:
    job_id = ended(world, "failed", keep_us=HOUR)
    world.clock.advance(HOUR - MINUTE)
    assert world.backend.jobs.retry([job_id]) == [job_id]
    world.clock.advance(HOUR)
    assert verbs.prune(world.backend, Retention()) == 0

    world.backend.jobs.cancel([job_id])
    world.clock.advance(HOUR - MINUTE)
    assert verbs.prune(world.backend, Retention()) == 0
    world.clock.advance(MINUTE)
    assert verbs.prune(world.backend, Retention()) == 1


@pytest.mark.parametrize(
    ("retention", "days", "gone"),
    [
        (Retention(), 6, ""),
        (Retention(), 8, "completed cancelled"),
        (Retention(), 31, "completed cancelled failed"),
        (KEEP, 5_000, ""),
        (Retention(completed_us=None), 31, "cancelled failed"),
        (Retention(cancelled_us=None), 31, "completed failed"),
        (Retention(failed_us=None), 31, "completed cancelled"),
        (Retention(DAY, 3 * DAY, 2 * DAY), 2.5, "completed failed"),
        (AT_ONCE, 1 / DAY, "completed cancelled failed"),
    ],
)
def test_each_final_state_is_kept_for_its_own_time(
    world: World, retention: Retention, days: float, gone: str
) -> None:
    ids = {state: ended(world, state) for state in ("completed", "cancelled", "failed")}
    world.clock.advance(round(days * DAY))

    assert verbs.prune(world.backend, retention) == len(gone.split())

    assert left(world) == {job_id for state, job_id in ids.items() if state not in gone.split()}


def test_retention_counts_from_the_end_to_the_microsecond(world: World) -> None:
    ended(world, "completed")
    world.clock.advance(7 * DAY)
    assert verbs.prune(world.backend, Retention()) == 0
    world.clock.advance(1)

    assert verbs.prune(world.backend, Retention()) == 1


def test_live_jobs_are_never_pruned(world: World) -> None:
    world.enqueue("running")
    world.claim_one(world.worker(), tasks=("running",))
    parent = world.enqueue()
    world.enqueue(parents=(parent,))
    world.enqueue(delay_us=HOUR)
    before = left(world)
    world.clock.advance(5_000 * DAY)

    assert verbs.prune(world.backend, AT_ONCE) == 0
    assert left(world) == before


def test_no_more_than_one_look_shows_goes_at_a_time_and_the_oldest_first(world: World) -> None:
    ids: list[str] = []
    for n in range(7):
        ids.append(ended(world, ("completed", "failed")[n % 2]))
        world.clock.advance(SECOND)
    completed, failed = ids[0::2], ids[1::2]

    assert verbs.prune_some(world.backend, AT_ONCE, 3) == 3
    assert left(world) == {completed[3], *failed}
    assert verbs.prune_some(world.backend, AT_ONCE, 3) == 1
    assert left(world) == {*failed}
    assert verbs.prune_some(world.backend, AT_ONCE, 2) == 2
    assert left(world) == {failed[2]}
    assert [verbs.prune_some(world.backend, AT_ONCE, 2) for _ in range(2)] == [1, 0]


# What is deleted with a job


def test_all_that_belongs_to_a_job_goes_with_it(world: World, url: str) -> None:
    worker = world.worker()
    job_id = world.enqueue(args=LARGE)
    child = world.enqueue("child", parents=(job_id,), args=LARGE, keep_us=DAY)
    world.fail(worker, world.claim_one(worker))
    claim = world.claim_one(worker)
    line = LogLine(job_id, claim.claim, world.clock.steady(), "INFO", "app", "hello")
    assert verbs.write_logs(world.backend, worker, [line, line]) == [True, True]
    world.complete(worker, claim, LARGE)
    world.complete(worker, world.claim_one(worker, tasks=("child",)))
    tables = ("dray_attempts", "dray_logs", "dray_edges")
    assert [beside.count(url, table) for table in tables] == [1, 2, 1]
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, Retention(0, None, None)) == 1

    assert [beside.count(url, table) for table in tables] == [0, 0, 0]
    assert left(world) == {child}
    assert world.job(child).args == LARGE
    if not isinstance(world.backend.db, PostgresDatabase):  # on PostgreSQL they are in the row
        assert beside.count(url, "dray_payloads") == 1


def test_a_pruned_parent_is_unknown_to_new_children(world: World) -> None:
    parent = ended(world, "completed")
    world.clock.advance(SECOND)
    verbs.prune(world.backend, AT_ONCE)

    with pytest.raises(UnknownJob, match=parent):
        world.enqueue(parents=(parent,))


# Old jobs that are kept


def test_a_job_is_kept_as_long_as_its_unique_window(world: World) -> None:
    job_id = ended(world, "completed", unique_key="k", unique_us=DAY)
    world.clock.advance(HOUR)
    assert verbs.prune(world.backend, AT_ONCE) == 0
    assert world.enqueue(unique_key="k") == job_id
    world.clock.advance(DAY)

    assert verbs.prune(world.backend, AT_ONCE) == 1


def test_a_job_whose_end_is_still_to_be_passed_on_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, worker = world.enqueue("parent"), world.worker()
    child = world.enqueue("child", parents=(parent,))
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        world.backend.jobs.cancel([child])
        world.complete(worker, world.claim_one(worker, tasks=("parent",)))
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, AT_ONCE) == 1
    assert left(world) == {parent}
    world.backend.graph.fan_out()
    assert verbs.prune(world.backend, AT_ONCE) == 1
    del child


CHILDREN: dict[str, dict[str, Any]] = {
    "waiting": {"on_parent_failure": "hold"},
    "scheduled": {"on_parent_failure": "run", "delay_us": HOUR},
    "queued": {"on_parent_failure": "run"},
    "running": {"on_parent_failure": "run"},
}


@pytest.mark.parametrize("state", CHILDREN)
@pytest.mark.parametrize("parents_state", ["completed", "failed"])
def test_the_parent_of_a_live_child_is_kept(world: World, parents_state: str, state: str) -> None:
    worker, held = world.worker(), world.enqueue()
    parent = ended(world, parents_state)
    also = (held,) if state == "waiting" else ()
    child = world.enqueue("child", parents=(parent, *also), **CHILDREN[state])
    if state == "running":
        world.claim_one(worker, tasks=("child",))
    world.clock.advance(SECOND)
    assert world.job(child).state == state

    assert verbs.prune(world.backend, AT_ONCE) == 0
    assert world.backend.history.prunable(AT_ONCE) == {"completed": 0, "failed": 0, "cancelled": 0}
    assert world.backend.jobs.delete([parent]) == []
    world.bury(worker)
    world.backend.jobs.cancel([child])
    world.clock.advance(SECOND)
    assert verbs.prune(world.backend, AT_ONCE) == 2
    assert left(world) == {held}


@pytest.mark.parametrize("childs_state", ["failed", "cancelled"])
def test_the_parent_of_a_child_that_may_be_retried_is_kept_as_long_as_the_child(
    world: World, childs_state: str
) -> None:
    """Retried, it would run without what the parent returned."""
    parent, worker = ended(world, "completed"), world.worker()
    child = ended(world, childs_state, parents=(parent,), keep_us=30 * DAY)
    world.clock.advance(8 * DAY)

    assert verbs.prune(world.backend, Retention()) == 0
    assert world.backend.history.prunable(Retention())["completed"] == 0

    assert world.backend.jobs.retry([child]) == [child]
    assert world.backend.graph.edges(child) == [(parent, child, 1)]
    world.fail(worker, world.claim_one(worker, tasks=("ending",)))
    world.clock.advance(31 * DAY)
    assert verbs.prune(world.backend, Retention()) == 2  # in one pass: the child, then its parent


def test_a_chain_of_cancelled_jobs_goes_in_one_prune(world: World) -> None:
    ids = [world.enqueue()]
    for _ in range(4):
        ids.append(world.enqueue(parents=(ids[-1],)))
    world.backend.jobs.cancel(ids[:1])
    world.clock.advance(8 * DAY)
    assert world.job(ids[-1]).reason == "parent"

    assert verbs.prune(world.backend, Retention()) == 5


# Workflows are deleted together


def flow(world: World, *states: str) -> tuple[str, list[str]]:
    """Enqueues a workflow with a job in each of these states."""
    workflow = Workflow(world.ids.new(), "etl", 0)
    world.backend.jobs.enqueue([], workflow=workflow)
    ids: list[str] = []
    for state in states:
        options = {"workflow_id": workflow.id, "step": f"{state}{len(ids)}"}
        ids.append(world.enqueue(**options) if state == "queued" else ended(world, state, **options))
    return workflow.id, ids


def test_a_workflow_goes_once_all_its_jobs_have_ended(world: World, url: str) -> None:
    workflow_id, ids = flow(world, "completed", "cancelled", "queued")
    world.clock.advance(SECOND)
    assert verbs.prune(world.backend, AT_ONCE) == 0
    assert len(left(world)) == 3
    world.backend.jobs.cancel(ids[-1:])
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, AT_ONCE) == 3

    assert left(world) == set()
    assert world.backend.workflows.get(workflow_id) is None
    assert beside.count(url, "dray_workflows") == 0


def test_a_workflow_is_kept_until_the_last_of_its_jobs_may_go(world: World) -> None:
    _, ids = flow(world, "completed", "failed")
    world.clock.advance(8 * DAY)
    assert verbs.prune(world.backend, Retention()) == 0
    world.clock.advance(23 * DAY)

    assert verbs.prune(world.backend, Retention()) == len(ids)


@pytest.mark.parametrize("kept", ["completed", "cancelled", "failed"])
def test_a_workflow_with_a_job_that_is_kept_for_ever_is_kept_for_ever(world: World, kept: str) -> None:
    _, ids = flow(world, "completed", "cancelled", "failed")
    world.clock.advance(5_000 * DAY)
    by_state = {"completed_us": DAY, "cancelled_us": DAY, "failed_us": DAY, f"{kept}_us": None}

    assert verbs.prune(world.backend, Retention(**by_state)) == 0

    assert left(world) == set(ids)


def test_a_workflow_waits_for_the_longest_of_its_jobs_retentions(world: World) -> None:
    _, ids = flow(world, "completed", "cancelled")
    retention = Retention(completed_us=DAY, cancelled_us=9 * DAY)
    world.clock.advance(2 * DAY)
    assert verbs.prune(world.backend, retention) == 0
    world.clock.advance(8 * DAY)

    assert verbs.prune(world.backend, retention) == len(ids)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_workflow_without_completed_jobs_goes_by_the_retention_of_those_it_has(world: World, state: str) -> None:
    flow(world, state, state)
    by_state = {"completed_us": None, "cancelled_us": DAY, "failed_us": DAY}
    world.clock.advance(2 * DAY)

    assert verbs.prune(world.backend, Retention(**by_state)) == 2


def test_a_workflow_larger_than_one_look_shows_goes_in_parts(world: World) -> None:
    workflow_id, _ = flow(world, *["completed"] * 5)
    world.clock.advance(SECOND)

    assert verbs.prune_some(world.backend, AT_ONCE, 2) == 2
    assert world.backend.workflows.get(workflow_id) is not None
    assert [verbs.prune_some(world.backend, AT_ONCE, 2) for _ in range(3)] == [2, 1, 0]
    assert world.backend.workflows.get(workflow_id) is None


@pytest.mark.parametrize("state", ["waiting", "scheduled", "queued"])
def test_a_workflow_is_kept_for_a_live_child_outside_it(world: World, state: str) -> None:
    _, ids = flow(world, "failed")
    child = world.enqueue(parents=(ids[0],), **CHILDREN[state])
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, AT_ONCE) == 0
    assert world.backend.history.prunable(AT_ONCE)["failed"] == 0
    assert world.job(child).state == state
    world.backend.jobs.cancel([child])
    world.clock.advance(SECOND)
    assert verbs.prune(world.backend, AT_ONCE) == 2


def test_a_workflow_is_kept_for_a_failed_child_outside_it(world: World) -> None:
    _, ids = flow(world, "completed")
    child = ended(world, "failed", parents=(ids[0],))
    world.clock.advance(8 * DAY)

    assert verbs.prune(world.backend, Retention()) == 0
    assert world.backend.jobs.retry([child]) == [child]
    world.backend.jobs.cancel([child])
    world.clock.advance(8 * DAY)
    assert verbs.prune(world.backend, Retention()) == 2


def test_the_steps_of_a_workflow_do_not_keep_each_other(world: World) -> None:
    workflow, worker = Workflow(world.ids.new(), "etl", 0), world.worker()
    first = world.new(workflow_id=workflow.id, step="a")
    second = world.new(workflow_id=workflow.id, step="b", parents=(first.id,), max_attempts=1)
    world.backend.jobs.enqueue([first, second], workflow=workflow)
    world.complete(worker, world.claim_one(worker))
    world.fail(worker, world.claim_one(worker))
    world.clock.advance(31 * DAY)
    assert world.backend.jobs.delete([first.id]) == []  # the failed step may be retried

    assert world.backend.history.prunable(Retention()) == {"completed": 1, "failed": 1, "cancelled": 0}
    assert verbs.prune(world.backend, Retention()) == 2


def test_a_workflow_is_kept_as_long_as_a_unique_window_in_it(world: World) -> None:
    workflow = Workflow(world.ids.new(), "etl", 0)
    world.backend.jobs.enqueue([], workflow=workflow)
    ended(world, "completed", workflow_id=workflow.id, unique_key="k", unique_us=DAY)
    world.clock.advance(HOUR)

    assert verbs.prune(world.backend, AT_ONCE) == 0
    world.clock.advance(DAY)
    assert verbs.prune(world.backend, AT_ONCE) == 1


# Workers


def test_workers_that_ended_before_an_instant_are_forgotten(world: World) -> None:
    stopped, dead, late, live = (world.worker() for _ in range(4))
    world.enqueue()
    world.claim_one(dead)
    world.backend.workers.deregister(stopped)
    world.clock.advance(SECOND)
    world.backend.workers.deregister(late)
    for alive in (late, live):
        world.backend.workers.beat(alive, HOUR)
    world.bury(dead)
    world.clock.advance(MINUTE)
    ended_at = {worker.id: worker.stopped_at for worker in world.backend.workers.all()}

    assert world.backend.workers.prune(ended_at[late] or 0) == 1
    assert {worker.id for worker in world.backend.workers.all()} == {dead, late, live}
    assert world.backend.workers.prune(world.clock.now()) == 2
    assert [worker.id for worker in world.backend.workers.all()] == [live]


def test_a_worker_that_left_something_running_is_not_forgotten(world: World) -> None:
    worker = world.worker()
    job_id = world.enqueue()
    world.claim_one(worker)
    world.backend.workers.deregister(worker)
    world.clock.advance(DAY)

    assert world.backend.workers.prune(world.clock.now()) == 0
    assert [rescued.id for rescued in world.backend.workers.rescue([], rng=world.rng)] == [job_id]
    assert world.backend.workers.prune(world.clock.now()) == 1
