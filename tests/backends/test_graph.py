"""Jobs that wait for others: the last parent releases them, once, however the parents ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray.backends.store.graph import FanOut, GraphStore
from dray.errors import GraphError, UnknownJob
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.bounds import FANOUT_CHUNK
from dray.model.job import CancelResult, Demand
from dray.model.new_job import NewJob
from dray.model.retention import Retention
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends import beside
from tests.backends.world import World


def run(world: World, task: str, end: Callable[..., Any] | None = None) -> None:
    """Claims the only job of a task and ends it, by default as completed."""
    worker = world.worker()
    claim = world.claim_one(worker, tasks=(task,))
    (end or world.complete)(worker, claim)


def state(world: World, *ids: str) -> list[str]:
    """Returns each job's state, with its reason if it has one."""
    jobs = [world.job(job_id) for job_id in ids]
    return [job.state if job.reason is None else f"{job.state}({job.reason})" for job in jobs]


def edges(world: World, child: str) -> dict[str, int]:
    return {parent: satisfied for parent, c, satisfied in world.backend.graph.edges(child) if c == child}


def nothing(_: object) -> FanOut:
    """Replaces a fan-out that a crash prevents."""
    return FanOut(0, left=False)


def chain(world: World, *names: str, **options: Any) -> list[str]:
    """Enqueues jobs of these tasks, each after the previous one."""
    ids: list[str] = []
    for name in names:
        ids.append(world.enqueue(name, parents=tuple(ids[-1:]), max_attempts=1, **options))
    return ids


# Waiting and release


def test_a_child_waits_until_its_parent_completes(world: World) -> None:
    parent = world.enqueue("parent")
    child = world.enqueue("child", parents=(parent,))
    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    assert world.claim(world.worker(), 9, tasks=("child",)) == []

    run(world, "parent")

    assert (state(world, child), world.job(child).waiting_on) == (["queued"], 0)
    assert world.job(parent).fanout_pending is False
    assert world.backend.graph.edges(child) == world.backend.graph.edges(parent) == [(parent, child, 1)]


def test_a_failed_attempt_that_is_retried_frees_nobody(world: World) -> None:
    parent = world.enqueue("parent")
    child = world.enqueue(parents=(parent,))

    run(world, "parent", world.fail)

    assert state(world, parent, child) == ["queued", "waiting"]
    assert edges(world, child) == {parent: 0}


def test_a_child_of_five_waits_for_the_last(world: World) -> None:
    parents = tuple(world.enqueue(f"p{n}") for n in range(5))
    child = world.enqueue(parents=parents)

    for n in (3, 0, 4, 1):
        run(world, f"p{n}")
    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    run(world, "p2")

    assert (state(world, child), world.job(child).waiting_on) == (["queued"], 0)


def test_five_parents_settled_in_one_batch_free_their_child_once(world: World) -> None:
    parents = tuple(world.enqueue() for _ in range(5))
    child, worker = world.enqueue("child", parents=parents), world.worker()
    now = world.clock.steady()
    claims = world.claim(worker, 5)

    verbs.settle(world.backend, worker, [model.completed(claim, now, now) for claim in claims])

    assert (state(world, child), world.job(child).waiting_on) == (["queued"], 0)


def test_of_very_many_children_the_settle_frees_some_and_says_that_there_are_more(world: World) -> None:
    fan = 4 * FANOUT_CHUNK + 50
    parent = world.enqueue("parent")
    world.backend.jobs.enqueue([world.new("child", parents=(parent,)) for _ in range(fan)])
    worker, now = world.worker(), world.clock.steady()
    claim = world.claim_one(worker, tasks=("parent",))

    answer = world.backend.work.exchange(worker, [model.completed(claim, now, now)], Demand((), (), 0))
    assert answer.fan_out.left
    assert world.backend.history.stats(HOUR).counts["default"]["queued"] == FANOUT_CHUNK
    while world.backend.graph.fan_out().left:
        continue

    assert world.backend.history.stats(HOUR).counts == {"default": {"queued": fan, "completed": 1}}
    assert world.job(parent).fanout_pending is False
    assert world.backend.graph.reconcile() == ([], [])


def test_a_child_whose_time_has_not_come_is_scheduled_when_it_is_freed(world: World) -> None:
    parent = world.enqueue("parent")
    child = world.enqueue("child", parents=(parent,), delay_us=HOUR)

    run(world, "parent")

    assert state(world, child) == ["scheduled"]
    world.clock.advance(HOUR)
    world.backend.jobs.promote()
    assert state(world, child) == ["queued"]


def test_a_parent_named_twice_counts_once(world: World) -> None:
    parent = world.enqueue("parent")
    child = world.enqueue(parents=(parent, parent))
    assert world.job(child).waiting_on == 1

    run(world, "parent")

    assert state(world, child) == ["queued"]


def test_a_graph_is_written_in_one_call_in_any_order(world: World) -> None:
    a = world.new("a")
    b, c = world.new("b", parents=(a.id,)), world.new("c", parents=(a.id,))
    d = world.new("d", parents=(b.id, c.id))

    world.backend.jobs.enqueue([d, c, b, a])

    assert state(world, a.id, b.id, c.id, d.id) == ["queued", "waiting", "waiting", "waiting"]
    for task in ("a", "b", "c", "d"):
        run(world, task)
    assert state(world, a.id, b.id, c.id, d.id) == ["completed"] * 4


# What happens to a child


def complete(world: World) -> None:
    run(world, "parent")


def fail(world: World) -> None:
    run(world, "parent", world.fail)


def crash(world: World) -> None:
    worker = world.worker()
    world.claim_one(worker, tasks=("parent",))
    world.bury(worker)


def cancel(world: World) -> None:
    (parent,) = (job.id for job in world.backend.jobs.newest() if job.task == "parent")
    assert world.backend.jobs.cancel([parent]) == {parent: CancelResult.CANCELLED}


def cancel_running(world: World) -> None:
    def stopped(worker: str, claim: model.Claim) -> None:
        world.backend.jobs.cancel([claim.id])
        now = world.clock.steady()
        verbs.settle(world.backend, worker, [model.cancelled(claim, now, now)])

    run(world, "parent", stopped)


def expire(world: World) -> None:
    world.clock.advance(HOUR)
    assert len(world.backend.jobs.expire()) == 1


def expire_beside_a_claim(world: World) -> None:
    world.clock.advance(HOUR)
    assert world.claim(world.worker(), 9, tasks=("parent",)) == []


ENDS: list[tuple[Callable[[World], None], str]] = [
    (complete, "completed"),
    (fail, "failed(error)"),
    (crash, "failed(crashed)"),
    (cancel, "cancelled(user)"),
    (cancel_running, "cancelled(user)"),
    (expire, "cancelled(expired)"),
    (expire_beside_a_claim, "cancelled(expired)"),
]
AFTER_FAILURE = {"cancel": "cancelled(parent)", "run": "queued", "hold": "waiting"}


def children_of(world: World, parent: str) -> dict[str, str]:
    """Enqueues a child with each policy."""
    return {policy: world.enqueue("child", parents=(parent,), on_parent_failure=policy) for policy in AFTER_FAILURE}


@pytest.mark.parametrize(("end", "parents_end"), ENDS, ids=lambda end: getattr(end, "__name__", ""))
def test_the_end_of_a_parent_decides_by_policy_what_becomes_of_each_child(
    world: World, end: Callable[[World], None], parents_end: str
) -> None:
    parent = world.enqueue("parent", max_attempts=1, expires_us=HOUR)
    children = children_of(world, parent)
    assert state(world, *children.values()) == ["waiting"] * 3

    end(world)

    assert state(world, parent) == [parents_end]
    for policy, child in children.items():
        wanted = "queued" if parents_end == "completed" else AFTER_FAILURE[policy]
        assert (policy, state(world, child)) == (policy, [wanted])
        assert (policy, world.job(child).waiting_on) == (policy, 0 if wanted == "queued" else 1)
    assert world.backend.graph.reconcile() == ([], [])


@pytest.mark.parametrize(("end", "parents_end"), ENDS, ids=lambda end: getattr(end, "__name__", ""))
def test_a_parent_that_has_ended_already_decides_at_once(
    world: World, end: Callable[[World], None], parents_end: str
) -> None:
    parent = world.enqueue("parent", max_attempts=1, expires_us=HOUR)
    end(world)
    assert state(world, parent) == [parents_end]

    children = children_of(world, parent)

    for policy, child in children.items():
        wanted = "queued" if parents_end == "completed" else AFTER_FAILURE[policy]
        assert (policy, state(world, child)) == (policy, [wanted])
        assert (policy, world.job(child).waiting_on) == (policy, 1 if wanted == "waiting" else 0)
    assert world.backend.graph.reconcile() == ([], [])


def test_ended_and_live_parents_count_together(world: World) -> None:
    done, live = world.enqueue("parent"), world.enqueue("other")
    complete(world)

    child = world.enqueue("child", parents=(done, live))

    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    assert edges(world, child) == {done: 1, live: 0}
    run(world, "other")
    assert state(world, child) == ["queued"]


def test_one_failed_parent_of_two_cancels_at_once_and_the_other_changes_nothing(world: World) -> None:
    bad, good = world.enqueue("parent", max_attempts=1), world.enqueue("good")
    child = world.enqueue("child", parents=(bad, good))

    fail(world)
    assert state(world, child) == ["cancelled(parent)"]
    run(world, "good")

    assert state(world, child) == ["cancelled(parent)"]
    assert world.job(good).fanout_pending is False


def test_a_failure_cascades_through_every_level(world: World) -> None:
    ids = chain(world, "parent", "b", "c", "d")

    fail(world)

    assert state(world, *ids) == ["failed(error)", *["cancelled(parent)"] * 3]
    assert world.backend.graph.reconcile() == ([], [])


def test_a_cascade_stops_at_the_child_that_runs_anyway(world: World) -> None:
    a, b = chain(world, "parent", "b")
    c = world.enqueue("c", parents=(b,), on_parent_failure="run")
    d = world.enqueue("d", parents=(c,))

    fail(world)

    assert state(world, a, b, c, d) == ["failed(error)", "cancelled(parent)", "queued", "waiting"]
    run(world, "c")
    assert state(world, d) == ["queued"]


def test_a_failed_parent_decides_all_levels_of_a_batch_at_once(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    fail(world)
    b = world.new("b", parents=(parent,))
    c = world.new("c", parents=(b.id,))
    d = world.new("d", parents=(b.id,), on_parent_failure="run")
    e = world.new("e", parents=(c.id, d.id), on_parent_failure="hold")

    world.backend.jobs.enqueue([b, c, d, e])

    assert state(world, b.id, c.id, d.id, e.id) == [
        "cancelled(parent)",
        "cancelled(parent)",
        "queued",
        "waiting",
    ]
    assert world.job(e.id).waiting_on == 2
    assert world.backend.graph.reconcile() == ([], [])


def test_cancelling_a_waiting_child_leaves_its_parent_alone_and_stops_its_own(world: World) -> None:
    a, b, c = chain(world, "parent", "b", "c")

    world.backend.jobs.cancel([b])
    assert state(world, a, b, c) == ["queued", "cancelled(user)", "cancelled(parent)"]
    complete(world)

    assert state(world, a, b, c) == ["completed", "cancelled(user)", "cancelled(parent)"]
    assert world.backend.graph.reconcile() == ([], [])


def test_a_policy_that_only_a_newer_release_knows_holds(world: World, url: str) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue(parents=(parent,))
    beside.rows(url, "UPDATE dray_jobs SET on_parent_failure = 'ask-the-operator' WHERE id = ?", child)

    fail(world)

    assert state(world, child) == ["waiting"]


# Refused


def refuse(world: World, url: str, error: type[Exception], *jobs: NewJob) -> str:
    """Returns the message with which a graph is refused; no part of it may have been written."""
    before = beside.count(url, "dray_jobs")
    workflow = Workflow(world.ids.new(), "etl", 0)
    with pytest.raises(error) as caught:
        world.backend.jobs.enqueue([world.new(queue="new"), *jobs], workflow=workflow)
    assert beside.count(url, "dray_jobs") == before
    assert beside.count(url, "dray_edges") == 0
    assert world.backend.workflows.get(workflow.id) is None
    assert "new" not in [queue.name for queue in world.backend.queues.all()]
    return str(caught.value)


def test_jobs_that_wait_for_each_other_are_refused(world: World, url: str) -> None:
    a, b, c = (world.ids.new() for _ in range(3))
    jobs = [
        NewJob(id=a, task="a", parents=(c,)),
        NewJob(id=b, task="b", parents=(a,)),
        NewJob(id=c, task="c", parents=(b,)),
    ]

    message = refuse(world, url, GraphError, *jobs)

    assert a in message
    assert b in message


def test_a_job_that_waits_for_itself_is_refused(world: World, url: str) -> None:
    own = world.ids.new()

    assert "itself" in refuse(world, url, GraphError, NewJob(id=own, task="a", parents=(own,)))


def test_a_parent_that_does_not_exist_is_refused(world: World, url: str) -> None:
    missing = world.ids.new()

    assert missing in refuse(world, url, UnknownJob, world.new(parents=(world.enqueue(), missing)))


def test_a_parent_that_is_no_id_at_all_is_refused_alike(world: World, url: str) -> None:
    world.enqueue()

    refuse(world, url, UnknownJob, world.new(parents=("nonsense",)))


def test_a_step_named_twice_in_a_workflow_is_refused(world: World, url: str) -> None:
    flow = world.ids.new()
    steps = [world.new(workflow_id=flow, step=step) for step in ("extract", "load", "extract")]

    assert "'extract'" in refuse(world, url, GraphError, *steps)


def test_a_step_that_the_workflow_has_already_is_refused(world: World, url: str) -> None:
    flow = Workflow(world.ids.new(), "etl", 0)
    world.backend.jobs.enqueue([world.new(workflow_id=flow.id, step="extract")], workflow=flow)

    refuse(world, url, GraphError, world.new(workflow_id=flow.id, step="extract"))

    world.backend.jobs.enqueue([world.new(workflow_id=flow.id, step="load")], workflow=flow)
    assert world.backend.workflows.get(flow.id) == (
        Workflow(flow.id, "etl", world.clock.now()),
        ({"queued": 2}, {}),
    )


def test_the_same_step_may_stand_in_two_workflows_and_be_left_out_in_one(world: World) -> None:
    one, two = world.ids.new(), world.ids.new()

    answer = world.backend.jobs.enqueue(
        [
            world.new(workflow_id=one, step="extract"),
            world.new(workflow_id=two, step="extract"),
            world.new(workflow_id=two),
            world.new(workflow_id=two),
        ]
    )

    assert not any(enqueued.duplicate for enqueued in answer)
    assert world.backend.workflows.jobs(two, frozenset({"queued"})) == [e.id for e in answer[1:]]


# Retry


def test_a_parent_started_over_brings_its_cancelled_descendants_back(world: World) -> None:
    ids = chain(world, "parent", "b", "c")
    fail(world)

    assert world.backend.jobs.retry(ids[:1]) == ids[:1]

    assert state(world, *ids) == ["queued", "waiting", "waiting"]
    assert [world.job(i).waiting_on for i in ids] == [0, 1, 1]
    assert [world.job(i).finished_at for i in ids] == [None] * 3
    for task in ("parent", "b", "c"):
        run(world, task)
    assert state(world, *ids) == ["completed"] * 3
    assert world.backend.graph.reconcile() == ([], [])


def test_a_held_child_is_freed_once_its_parent_was_started_over_and_completed(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("child", parents=(parent,), on_parent_failure="hold")
    fail(world)
    assert edges(world, child) == {parent: -1}

    world.backend.jobs.retry([parent])
    assert (state(world, child), edges(world, child)) == (["waiting"], {parent: 0})
    complete(world)

    assert (state(world, child), world.job(child).waiting_on) == (["queued"], 0)


def test_a_child_comes_back_only_when_no_other_parent_keeps_it_down(world: World) -> None:
    one, two = world.enqueue("parent", max_attempts=1), world.enqueue("two", max_attempts=1)
    child = world.enqueue("child", parents=(one, two))
    fail(world)
    run(world, "two", world.fail)

    world.backend.jobs.retry([one])
    assert state(world, child) == ["cancelled(parent)"]
    complete(world)
    assert state(world, child) == ["cancelled(parent)"]
    world.backend.jobs.retry([two])
    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    run(world, "two")

    assert (state(world, child), world.job(child).waiting_on) == (["queued"], 0)


def test_a_child_that_ran_anyway_is_not_called_back(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("child", parents=(parent,), on_parent_failure="run")
    fail(world)

    world.backend.jobs.retry([parent])

    assert (state(world, child), edges(world, child)) == (["queued"], {parent: 1})


def test_a_child_that_a_user_cancelled_stays_cancelled(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("child", parents=(parent,))
    world.backend.jobs.cancel([child])
    fail(world)

    world.backend.jobs.retry([parent])
    complete(world)

    assert state(world, parent, child) == ["completed", "cancelled(user)"]


def test_a_child_brought_back_after_its_time_was_over_does_not_expire_at_once(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("child", parents=(parent,), expires_us=HOUR)
    fail(world)
    world.clock.advance(2 * HOUR)

    world.backend.jobs.retry([parent])
    complete(world)
    run(world, "child")

    assert state(world, parent, child) == ["completed", "completed"]


def test_a_child_cancelled_with_its_parent_is_not_started_over_without_it(world: World) -> None:
    ids = chain(world, "parent", "b", "c")
    fail(world)
    before = world.backend.jobs.get(ids)

    for child in ids[1:]:
        assert world.backend.jobs.retry([child]) == []
        lost = world.backend.graph.lost(child)
        assert ([each.id for each in lost.culprits], lost.orphans) == (ids[:1], ())  # the one whose retry helps

    assert world.backend.jobs.get(ids) == before
    assert world.backend.graph.lost(ids[0]) == ((), ())


@pytest.mark.parametrize("ended", ["cancelled(user)", "completed"])
def test_a_child_that_ended_otherwise_is_not_started_over_without_its_parent_either(world: World, ended: str) -> None:
    """It would run without the results that its code relies on."""
    parent, child = chain(world, "parent", "b")
    if ended == "completed":
        run(world, "parent")
        run(world, "b")
        world.backend.jobs.retry([parent])
    else:
        world.backend.jobs.cancel([child])
    world.backend.jobs.cancel([parent])
    assert state(world, parent, child) == ["cancelled(user)", ended]

    assert world.backend.jobs.retry([child]) == []
    assert [each.id for each in world.backend.graph.lost(child).culprits] == [parent]
    assert set(world.backend.jobs.retry([child, parent])) == {parent, child}

    assert (state(world, parent, child), world.job(child).waiting_on) == (["queued", "waiting"], 1)


def test_a_child_that_runs_after_failed_parents_is_started_over_without_them(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("b", parents=(parent,), on_parent_failure="run")
    fail(world)
    run(world, "b")

    assert world.backend.jobs.retry([child]) == [child]

    assert (state(world, parent, child), edges(world, child)) == (["failed(error)", "queued"], {parent: 1})


def test_a_child_whose_failed_parent_was_removed_is_not_started_over(world: World, url: str) -> None:
    parent, child, grandchild = chain(world, "parent", "b", "c")
    fail(world)
    beside.remove_job(url, parent)

    assert world.backend.jobs.retry([child, grandchild]) == []

    assert world.backend.graph.lost(child) == ((), (child,))
    assert world.backend.graph.lost(grandchild) == ((), (child,))


def test_a_step_that_a_user_cancelled_between_is_named_and_comes_back_with_the_parent(world: World) -> None:
    parent, between, child = chain(world, "parent", "b", "c")
    world.backend.jobs.cancel([between])
    fail(world)
    assert state(world, parent, between, child) == ["failed(error)", "cancelled(user)", "cancelled(parent)"]

    culprits = [each.id for each in world.backend.graph.lost(child).culprits]
    assert sorted(culprits) == [parent, between]
    assert set(world.backend.jobs.retry(culprits)) == {parent, between}

    assert state(world, parent, between, child) == ["queued", "waiting", "waiting"]
    for task in ("parent", "b", "c"):
        run(world, task)
    assert state(world, parent, between, child) == ["completed"] * 3


def test_a_grandchild_started_over_together_with_the_parent_is_brought_back_by_what_lies_between(
    world: World,
) -> None:
    ids = chain(world, "parent", "b", "c")
    fail(world)

    assert set(world.backend.jobs.retry([ids[2], ids[0]])) == {ids[0], ids[2]}

    assert state(world, *ids) == ["queued", "waiting", "waiting"]
    assert [world.job(i).waiting_on for i in ids] == [0, 1, 1]
    assert world.backend.graph.reconcile() == ([], [])


def test_a_child_started_over_waits_for_a_parent_that_is_live_again(world: World) -> None:
    parent, child = chain(world, "parent", "b")
    run(world, "parent")
    run(world, "b")
    world.backend.jobs.retry([parent])

    world.backend.jobs.retry([child])

    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    complete(world)
    assert state(world, child) == ["queued"]


@pytest.mark.parametrize("older", ["parent", "child"])
def test_a_child_started_over_together_with_its_parent_waits_for_it(world: World, older: str) -> None:
    first, second = world.ids.new(), world.ids.new()
    parent, child = (first, second) if older == "parent" else (second, first)
    jobs = [
        NewJob(id=parent, task="parent", max_attempts=1),
        NewJob(id=child, task="b", parents=(parent,)),
    ]
    world.backend.jobs.enqueue(sorted(jobs, key=lambda job: job.id))
    fail(world)
    assert state(world, parent, child) == ["failed(error)", "cancelled(parent)"]

    retried = world.backend.jobs.retry([first, second])

    assert set(retried) == {parent, child}
    assert (state(world, parent, child), world.job(child).waiting_on) == (["queued", "waiting"], 1)
    complete(world)
    assert state(world, child) == ["queued"]


# Crashes


def test_a_crash_between_the_end_and_the_fan_out_is_made_good_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = world.enqueue("parent")
    children = [world.new("child", parents=(parent,)) for _ in range(30)]
    world.backend.jobs.enqueue(children)
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        complete(world)
    assert world.job(parent).fanout_pending is True
    assert world.backend.history.stats(HOUR).counts == {"default": {"completed": 1, "waiting": 30}}
    assert world.backend.graph.reconcile() == ([], [])  # a fan-out is pending: nothing to repair

    assert world.backend.graph.fan_out(20) == (20, True)
    assert world.backend.graph.fan_out(20) == (10, False)
    assert world.backend.graph.fan_out(20) == (0, False)

    assert world.job(parent).fanout_pending is False
    assert world.backend.history.stats(HOUR).counts == {"default": {"completed": 1, "queued": 30}}


def test_a_cascade_that_was_cut_off_goes_on_level_by_level(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = chain(world, "parent", "b", "c", "d")
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        cancel(world)

    steps = [world.backend.graph.fan_out() for _ in range(4)]

    assert steps == [(1, True), (1, True), (1, False), (0, False)]
    assert state(world, *ids) == ["cancelled(user)", *["cancelled(parent)"] * 3]


def test_the_next_settle_goes_on_with_what_another_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left, child = chain(world, "parent", "b")
    _, other = chain(world, "x", "y")
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        complete(world)
    assert world.job(left).fanout_pending is True

    run(world, "x")

    assert state(world, child, other) == ["queued", "queued"]


def test_a_parent_started_over_before_its_fan_out_keeps_its_children_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = chain(world, "parent", "b")
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        fail(world)

    world.backend.jobs.retry([parent])
    world.backend.graph.fan_out()
    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    complete(world)

    assert state(world, child) == ["queued"]


# Repair


def test_a_healthy_database_needs_no_repair(world: World) -> None:
    chain(world, "a", "b", "c")
    parent = world.enqueue("parent", max_attempts=1)
    world.enqueue(parents=(parent,), on_parent_failure="hold")
    world.enqueue(parents=(parent,))
    fail(world)

    before = world.backend.jobs.newest()
    world.clock.advance(SECOND)

    assert world.backend.graph.reconcile() == ([], [])
    assert world.backend.jobs.newest() == before


def test_a_child_whose_edges_vanished_is_found_and_freed(world: World, url: str) -> None:
    child = world.enqueue(parents=(world.enqueue("parent"),))
    later = world.enqueue(parents=(world.enqueue("other"),), delay_us=HOUR)
    beside.rows(url, "DELETE FROM dray_edges")

    repaired = world.backend.graph.reconcile()

    assert (repaired.parents, sorted(repaired.children)) == ([], [child, later])
    assert state(world, child, later) == ["queued", "scheduled"]
    assert world.backend.graph.reconcile() == ([], [])


@pytest.mark.parametrize("falsified", [0, 1, 7])
def test_a_child_that_was_counted_wrong_is_counted_anew(world: World, url: str, falsified: int) -> None:
    child = world.enqueue("child", parents=(world.enqueue("parent"), world.enqueue("other")))
    beside.rows(url, "UPDATE dray_jobs SET waiting_on = ? WHERE id = ?", falsified, child)

    assert world.backend.graph.reconcile() == ([], [child])

    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 2)
    run(world, "other")
    complete(world)
    assert state(world, child) == ["queued"]


@pytest.mark.parametrize("end", [complete, fail])
def test_an_end_that_nobody_passed_on_is_passed_on(
    world: World, url: str, end: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = chain(world, "parent", "b")
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        end(world)
    beside.rows(url, "UPDATE dray_jobs SET fanout_pending = FALSE")

    assert world.backend.graph.reconcile() == ([parent], [])

    assert state(world, child) == ["queued" if end is complete else "cancelled(parent)"]
    assert world.backend.graph.reconcile() == ([], [])


def test_a_parent_deleted_by_hand_strands_nobody_for_ever(world: World, url: str) -> None:
    parent, child = chain(world, "parent", "b")
    beside.rows(url, "DELETE FROM dray_edges")
    beside.rows(url, "DELETE FROM dray_jobs WHERE id = ?", parent)

    assert world.backend.graph.reconcile() == ([], [child])
    assert state(world, child) == ["queued"]


# Deleting never strands a child


@pytest.mark.parametrize("parents_state", ["queued", "failed"])
def test_a_parent_of_a_waiting_child_is_not_deleted(world: World, parents_state: str) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue(parents=(parent,), on_parent_failure="hold")
    if parents_state == "failed":
        fail(world)

    assert world.backend.jobs.delete([parent]) == []
    assert world.job(child).state == "waiting"
    assert world.backend.jobs.delete([child]) == [child]
    assert world.backend.jobs.delete([parent]) == [parent]


def test_a_parent_whose_end_is_still_to_be_passed_on_is_not_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = chain(world, "parent", "b")
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        world.backend.jobs.cancel([child])
        complete(world)

    assert world.backend.jobs.delete([child, parent]) == [child]
    world.backend.graph.fan_out()
    assert world.backend.jobs.delete([parent]) == [parent]


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
def test_a_parent_of_a_child_that_may_be_retried_is_not_deleted_before_it(world: World, ended: str) -> None:
    parent, child = chain(world, "parent", "b")
    complete(world)
    if ended == "failed":
        run(world, "b", world.fail)
    else:
        world.backend.jobs.cancel([child])

    assert world.backend.jobs.delete([parent]) == []

    assert world.backend.jobs.retry([child]) == [child]
    assert edges(world, child) == {parent: 1}
    run(world, "b")
    assert world.backend.jobs.delete([parent]) == [parent]


def test_a_child_of_two_failed_parents_keeps_both(world: World) -> None:
    parents = tuple(world.enqueue("parent", max_attempts=1) for _ in range(2))
    child = world.enqueue("b", parents=parents)
    fail(world)
    fail(world)

    assert world.backend.jobs.delete(parents) == []

    world.backend.jobs.retry(parents)
    assert world.job(child).waiting_on == 2


def test_jobs_that_are_deleted_together_do_not_keep_each_other(world: World) -> None:
    ids = chain(world, "parent", "b", "c")
    complete(world)
    run(world, "b", world.fail)

    assert world.backend.jobs.delete(ids) == ids


def test_a_waiting_child_deleted_in_the_middle_leaves_its_own_children_protected(world: World) -> None:
    a, b, c = chain(world, "parent", "b", "c")

    assert world.backend.jobs.delete([b]) == []
    assert world.backend.jobs.delete([a]) == []
    assert world.backend.jobs.delete([c]) == [c]
    complete(world)

    assert state(world, a, b) == ["completed", "queued"]


def test_pruning_leaves_the_parent_of_a_held_child(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue(parents=(parent,), on_parent_failure="hold")
    fail(world)
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, Retention(0, 0, 0)) == 0
    assert state(world, parent, child) == ["failed(error)", "waiting"]


def test_pruning_leaves_a_completed_parent_until_its_freed_child_has_ended_too(world: World) -> None:
    parent = world.enqueue("parent")
    child = world.enqueue("child", parents=(parent,))
    complete(world)
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, Retention(0, 0, 0)) == 0
    assert (state(world, child), world.backend.graph.edges(child)) == (["queued"], [(parent, child, 1)])
    run(world, "child")
    world.clock.advance(SECOND)
    assert verbs.prune(world.backend, Retention(0, 0, 0)) == 2
