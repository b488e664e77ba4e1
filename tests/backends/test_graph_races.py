"""Adding a child while its parent ends, is retried or is deleted: in any order, no child waits forever.

Real threads on real databases. In rounds, chance decides the order; gates block a transaction at one statement
and let another overtake it. A user's own connection keeps its transaction open for as long as the test needs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import pytest

from dray.backends import Backend
from dray.backends.postgres.session import PostgresSession
from dray.backends.sqlite import SqliteDatabase
from dray.backends.sqlite.session import SqliteSession
from dray.backends.store.graph import FanOut, GraphStore
from dray.errors import UnknownJob
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import CancelResult, Claim
from dray.model.retention import Retention
from dray.model.settlement import Settled, Settlement
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends import beside
from tests.backends.world import World

T = TypeVar("T")

ROUNDS = int(os.environ.get("DRAY_SOAK_ROUNDS", "60"))
PROMPT = 3.0  # seconds; a blocked call waits for a commit that comes only afterwards


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def settle(world: World, worker: str, settlement: Settlement) -> Settled:
    """Settles as a worker does: retries while another transaction has locked the row."""
    while True:
        settled = verbs.settle(world.backend, worker, [settlement])
        if not settled.locked:
            return settled
        time.sleep(0.001)


def completed(world: World, claim: Claim) -> Settlement:
    return model.completed(claim, world.clock.steady(), world.clock.steady())


def state(world: World, *ids: str) -> list[str]:
    jobs = [world.job(job_id) for job_id in ids]
    return [job.state if job.reason is None else f"{job.state}({job.reason})" for job in jobs]


def nothing(_: object) -> FanOut:
    """Replaces a fan-out that a crash prevents."""
    return FanOut(0, left=False)


def assert_sound(backend: Backend) -> None:
    backend.graph.fan_out()
    assert backend.graph.reconcile() == ([], [])


# Rounds: chance decides the order


@pytest.mark.parametrize("head_start", ["enqueue", "settle"])
def test_children_enqueued_while_their_parent_settles_are_freed(
    world: World, pool: ThreadPoolExecutor, head_start: str
) -> None:
    worker = world.worker()
    world.backend.jobs.enqueue([world.new() for _ in range(ROUNDS)])
    children: list[str] = []
    for claim in world.claim(worker, ROUNDS):
        pair = [world.new("child", parents=(claim.id,)) for _ in range(2)]
        children += [child.id for child in pair]
        enqueues = [partial(world.backend.jobs.enqueue, [child]) for child in pair]
        end = partial(settle, world, worker, completed(world, claim))
        acts = [*enqueues, end] if head_start == "enqueue" else [end, *enqueues]
        for future in [pool.submit(act) for act in acts]:
            future.result(30)
    world.backend.graph.fan_out()

    assert Counter(job.state for job in world.backend.jobs.get(children)) == {"queued": 2 * ROUNDS}
    assert_sound(world.backend)


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_child_enqueued_while_its_parent_is_cancelled_or_expires_is_cancelled_too(
    world: World, pool: ThreadPoolExecutor, how: str
) -> None:
    children: list[str] = []

    def expire() -> None:
        while not world.backend.jobs.expire():
            pass  # a parent that is getting a child is left for the next time

    for n in range(ROUNDS):
        parent = world.enqueue(expires_at=world.clock.now() if how == "expire" else None)
        child = world.new("child", parents=(parent,))
        children.append(child.id)
        enqueue = partial(world.backend.jobs.enqueue, [child])
        end = expire if how == "expire" else partial(world.backend.jobs.cancel, [parent])
        for future in [pool.submit(act) for act in ((enqueue, end) if n % 2 else (end, enqueue))]:
            future.result(30)
    world.backend.graph.fan_out()

    found = world.backend.jobs.get(children)
    assert Counter((job.state, job.reason) for job in found) == {("cancelled", "parent"): ROUNDS}
    assert_sound(world.backend)


def test_the_parents_of_one_child_settle_at_once_and_free_it_once(world: World, pool: ThreadPoolExecutor) -> None:
    rounds, workers = ROUNDS // 4, [world.worker() for _ in range(4)]
    children: list[str] = []
    for _ in range(rounds):
        parents = tuple(world.enqueue() for _ in workers)
        children.append(world.enqueue("child", parents=parents))
        claims = [world.claim_one(worker) for worker in workers]
        ends = [
            pool.submit(settle, world, worker, completed(world, claim))
            for worker, claim in zip(workers, claims, strict=True)
        ]
        for end in ends:
            end.result(30)
    world.backend.graph.fan_out()

    assert {(job.state, job.waiting_on) for job in world.backend.jobs.get(children)} == {("queued", 0)}
    assert_sound(world.backend)


# Gates: always the bad order


def test_a_child_started_over_while_its_parent_settles_does_not_wait_for_ever(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker()
    parent = world.enqueue("parent")
    child = world.enqueue("child", parents=(parent,))
    for task in ("parent", "child"):
        world.complete(worker, world.claim_one(worker, tasks=(task,)))
    world.backend.jobs.retry([parent])
    ended = completed(world, world.claim_one(worker, tasks=("parent",)))

    _, settled = beside.Gate(monkeypatch, "retry_child_edges").interleave(
        pool, lambda: world.backend.jobs.retry([child]), lambda: verbs.settle(world.backend, worker, [ended])
    )
    if settled.locked:  # as a worker does; outcomes already written are not written again
        settle(world, worker, ended)
    world.backend.graph.fan_out()

    assert state(world, parent, child) == ["completed", "queued"]
    assert_sound(world.backend)


def test_one_parent_started_over_while_the_end_of_another_is_passed_on_is_counted_right(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker()
    one, two = world.enqueue("one", max_attempts=1), world.enqueue("two")
    child = world.enqueue("child", parents=(one, two))
    world.fail(worker, world.claim_one(worker, tasks=("one",)))
    ended = completed(world, world.claim_one(worker, tasks=("two",)))
    assert state(world, child) == ["cancelled(parent)"]

    beside.Gate(monkeypatch, "fanout_finish").interleave(
        pool, lambda: settle(world, worker, ended), lambda: world.backend.jobs.retry([one])
    )
    world.backend.graph.fan_out()

    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    world.complete(worker, world.claim_one(worker, tasks=("one",)))
    assert state(world, child) == ["queued"]
    assert_sound(world.backend)


def test_the_end_of_one_parent_passed_on_while_another_is_started_over_is_counted_right(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker()
    one, two = world.enqueue("one", max_attempts=1), world.enqueue("two")
    child = world.enqueue("child", parents=(one, two))
    world.fail(worker, world.claim_one(worker, tasks=("one",)))
    ended = completed(world, world.claim_one(worker, tasks=("two",)))

    beside.Gate(monkeypatch, "retry_children").interleave(
        pool, lambda: world.backend.jobs.retry([one]), lambda: settle(world, worker, ended)
    )
    world.backend.graph.fan_out()

    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    world.complete(worker, world.claim_one(worker, tasks=("one",)))
    assert state(world, child) == ["queued"]
    assert_sound(world.backend)


@pytest.mark.parametrize("level", ["child", "grandchild"])
def test_a_parent_started_over_while_its_failure_is_passed_on_takes_its_children_with_it(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    worker = world.worker()
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("child", parents=(parent,))
    grandchild = world.enqueue("grandchild", parents=(child,))
    claim = world.claim_one(worker, tasks=("parent",))
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        world.fail(worker, claim)
    if level == "grandchild":
        world.backend.graph.fan_out(1)

    beside.Gate(monkeypatch, "fanout_finish").interleave(
        pool, world.backend.graph.fan_out, lambda: world.backend.jobs.retry([parent])
    )
    world.backend.graph.fan_out()

    assert state(world, parent, child, grandchild) == ["queued", "waiting", "waiting"]
    for task in ("parent", "child", "grandchild"):
        world.complete(worker, world.claim_one(worker, tasks=(task,)))
    assert_sound(world.backend)


def test_a_parent_started_over_while_its_failure_is_looked_up_keeps_its_children_waiting(
    server: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, worker = server, server.worker()
    parent = world.enqueue("parent", max_attempts=1)
    child = world.enqueue("child", parents=(parent,))
    claim = world.claim_one(worker, tasks=("parent",))
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        world.fail(worker, claim)

    step, retried = beside.Stall(world.backend, monkeypatch, "fanout_pick").interleave(
        pool, world.backend.graph.fan_out, lambda: world.backend.jobs.retry([parent])
    )

    assert (step, retried) == ((0, False), [parent])
    assert state(world, parent, child) == ["queued", "waiting"]
    assert_sound(world.backend)


def test_an_edge_that_somebody_decided_after_it_was_picked_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a pick may return an edge as it was before the statement waited for the child's row."""
    worker = world.worker()
    one, two = world.enqueue("one"), world.enqueue("two")
    child = world.enqueue("child", parents=(one, two))
    picks: list[Any] = []
    picked = type_of_session(world).rows

    def stale(self: Any, name: str, /, **params: Any) -> Any:
        if name != "fanout_pick":
            return picked(self, name, **params)
        picks.append(picked(self, name, **params))
        return picks[0]

    monkeypatch.setattr(type_of_session(world), "rows", stale)
    world.complete(worker, world.claim_one(worker, tasks=("one",)))
    assert len(picks[0]) == 1

    assert world.backend.graph.fan_out() == (0, False)
    assert (state(world, child), world.job(child).waiting_on) == (["waiting"], 1)
    monkeypatch.undo()
    world.complete(worker, world.claim_one(worker, tasks=("two",)))
    assert state(world, child) == ["queued"]
    assert_sound(world.backend)


def type_of_session(world: World) -> type[Any]:
    return SqliteSession if isinstance(world.backend.db, SqliteDatabase) else PostgresSession


def test_a_parent_deleted_while_a_child_is_wired_to_it_goes_before_or_stays(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = world.enqueue()
    child = world.new("child", parents=(parent,))

    def enqueue() -> None:
        with pytest.raises(UnknownJob):
            world.backend.jobs.enqueue([child])

    deleted, _ = beside.Gate(monkeypatch, "job_delete").interleave(
        pool, lambda: world.backend.jobs.delete([parent]), enqueue
    )

    assert deleted == [parent]
    assert world.backend.jobs.newest() == []


@pytest.mark.parametrize("of_a_workflow", [False, True])
def test_a_parent_is_not_pruned_that_gets_a_child_while_it_is_looked_up(
    server: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, of_a_workflow: bool
) -> None:
    world, worker = server, server.worker()
    workflow = Workflow(world.ids.new(), "etl", 0) if of_a_workflow else None
    parent = world.new(max_attempts=1, workflow_id=workflow.id if workflow else None)
    world.backend.jobs.enqueue([parent], workflow=workflow)
    world.fail(worker, world.claim_one(worker))
    world.clock.advance(SECOND)

    # The enqueue locks the parent's row without changing it, so a statement that locks it next does not re-check it.
    statement = "workflow_prune_pick" if of_a_workflow else "prune_pick"
    pruned, child = beside.Stall(world.backend, monkeypatch, statement).interleave(
        pool,
        lambda: verbs.prune(world.backend, Retention(None, None, 0)),
        lambda: world.enqueue(parents=(parent.id,), on_parent_failure="hold"),
    )

    assert pruned == 0
    assert state(world, parent.id, child) == ["failed(error)", "waiting"]
    assert_sound(world.backend)


def ended_flow(world: World) -> list[str]:
    """A workflow that ended a second ago: the first step failed and cancelled the second; the third completed."""
    workflow, worker = Workflow(world.ids.new(), "etl", 0), world.worker()
    first, third = (world.new(workflow_id=workflow.id, step=step, max_attempts=1) for step in ("1", "3"))
    second = world.new("child", workflow_id=workflow.id, step="2", parents=(first.id,))
    world.backend.jobs.enqueue([first, second, third], workflow=workflow)
    world.fail(worker, world.claim_one(worker))
    world.complete(worker, world.claim_one(worker))
    assert state(world, first.id, second.id, third.id) == ["failed(error)", "cancelled(parent)", "completed"]
    world.clock.advance(SECOND)
    return [first.id, second.id, third.id]


def test_a_workflow_started_over_while_it_is_being_pruned_goes_before_or_stays_whole(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ended_flow(world)

    pruned, retried = beside.Gate(monkeypatch, "workflow_prune_pick").interleave(
        pool, lambda: verbs.prune(world.backend, Retention(0, 0, 0)), lambda: world.backend.jobs.retry(ids[:1])
    )

    assert (pruned, retried) in [(0, ids[:1]), (3, [])]  # SQLite has one writer: there the prune comes first
    assert len(world.backend.jobs.get(ids)) == 3 - pruned
    assert_sound(world.backend)


@pytest.mark.parametrize("limit", [2, 1000])
def test_a_workflow_pruned_while_it_is_being_started_over_stays_whole(
    world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    ids = ended_flow(world)

    retried, pruned = beside.Gate(monkeypatch, "retry_child_edges").interleave(
        pool,
        lambda: world.backend.jobs.retry(ids[:1]),
        lambda: verbs.prune_some(world.backend, Retention(0, 0, 0), limit),
    )

    assert (retried, pruned) == (ids[:1], 0)
    assert state(world, *ids) == ["queued", "waiting", "completed"]
    assert_sound(world.backend)


# A user's transaction stays open


def open_child(world: World, user: beside.Connection, parent: str, task: str = "child", **options: Any) -> str:
    """Enqueues a child on a user's connection, without committing."""
    return world.backend.jobs.enqueue([world.new(task, parents=(parent,), **options)], connection=user)[0].id


def alongside(pool: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
    """Starts a call next to an open transaction; it may return or wait for its end."""
    future = pool.submit(call)
    wait([future], beside.BLOCKED)
    return future


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_parent_settled_beside_an_open_enqueue_frees_the_child_that_was_committed(
    world: World, url: str, pool: ThreadPoolExecutor, ends: str
) -> None:
    worker = world.worker()
    parent = world.enqueue()
    claim = world.claim_one(worker)
    with beside.connect(url) as user:
        child = open_child(world, user, parent)
        end = alongside(pool, lambda: settle(world, worker, completed(world, claim)))
        user.commit() if ends == "commit" else user.rollback()
        end.result(10)
    world.backend.graph.fan_out()

    assert state(world, parent) == ["completed"]
    assert [job.state for job in world.backend.jobs.get([child])] == ["queued"] * (ends == "commit")
    assert_sound(world.backend)


def test_a_parent_cancelled_beside_an_open_enqueue_takes_the_child_with_it(
    world: World, url: str, pool: ThreadPoolExecutor
) -> None:
    parent = world.enqueue()
    with beside.connect(url) as user:
        child = open_child(world, user, parent)
        cancel = alongside(pool, lambda: world.backend.jobs.cancel([parent]))
        user.commit()
        assert cancel.result(10) == {parent: CancelResult.CANCELLED}
    world.backend.graph.fan_out()

    assert state(world, parent, child) == ["cancelled(user)", "cancelled(parent)"]
    assert_sound(world.backend)


def test_a_parent_that_expires_beside_an_open_enqueue_takes_the_child_with_it(
    world: World, url: str, pool: ThreadPoolExecutor
) -> None:
    parent = world.enqueue(expires_us=HOUR)
    with beside.connect(url) as user:
        child = open_child(world, user, parent)
        world.clock.advance(HOUR)
        expiry = alongside(pool, world.backend.jobs.expire)
        user.commit()
        expired = expiry.result(10)

    assert [*expired, *world.backend.jobs.expire()] == [parent]
    assert state(world, parent, child) == ["cancelled(expired)", "cancelled(parent)"]
    assert_sound(world.backend)


def test_a_parent_whose_worker_died_beside_an_open_enqueue_takes_the_child_with_it(
    world: World, url: str, pool: ThreadPoolExecutor
) -> None:
    parent, worker = world.enqueue(max_attempts=1), world.worker()
    world.claim_one(worker)
    with beside.connect(url) as user:
        child = open_child(world, user, parent)
        burial = alongside(pool, lambda: world.bury(worker))
        user.commit()
        burial.result(10)
    world.backend.workers.rescue([], rng=world.rng)

    assert state(world, parent, child) == ["failed(crashed)", "cancelled(parent)"]
    assert_sound(world.backend)


def test_a_parent_is_not_deleted_beside_an_open_enqueue(world: World, url: str, pool: ThreadPoolExecutor) -> None:
    parent = world.enqueue()
    with beside.connect(url) as user:
        child = open_child(world, user, parent)
        deletion = alongside(pool, lambda: world.backend.jobs.delete([parent]))
        user.commit()
        assert deletion.result(10) == []

    assert state(world, parent, child) == ["queued", "waiting"]
    assert_sound(world.backend)


@pytest.mark.parametrize("of_a_workflow", [False, True])
def test_a_parent_is_not_pruned_beside_an_open_enqueue_of_a_child_it_holds(
    world: World, url: str, pool: ThreadPoolExecutor, of_a_workflow: bool
) -> None:
    workflow = Workflow(world.ids.new(), "etl", 0) if of_a_workflow else None
    new = world.new(max_attempts=1, workflow_id=workflow.id if workflow else None)
    world.backend.jobs.enqueue([new], workflow=workflow)
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))
    world.clock.advance(SECOND)
    with beside.connect(url) as user:
        child = open_child(world, user, new.id, on_parent_failure="hold")
        pruning = alongside(pool, lambda: verbs.prune(world.backend, Retention(0, 0, 0)))
        user.commit()
        assert pruning.result(10) == 0

    assert state(world, new.id, child) == ["failed(error)", "waiting"]
    assert_sound(world.backend)


def test_a_parent_started_over_beside_an_open_enqueue_is_waited_for(
    world: World, url: str, pool: ThreadPoolExecutor
) -> None:
    parent, worker = world.enqueue(max_attempts=1), world.worker()
    world.fail(worker, world.claim_one(worker))
    with beside.connect(url) as user:
        child = open_child(world, user, parent, on_parent_failure="hold")
        retry = alongside(pool, lambda: world.backend.jobs.retry([parent]))
        user.commit()
        assert retry.result(10) == [parent]

    world.complete(worker, world.claim_one(worker))
    assert state(world, parent, child) == ["completed", "queued"]
    assert_sound(world.backend)


# … and on PostgreSQL it blocks nothing else. (SQLite has one writer: there, others wait for the commit.)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_open_enqueue_keeps_back_the_settle_of_its_parent_only(
    server: World, postgres_url: str, pool: ThreadPoolExecutor, ends: str
) -> None:
    world, worker = server, server.worker()
    parent, *others = (enqueued.id for enqueued in world.backend.jobs.enqueue([world.new() for _ in range(9)]))
    settlements = [completed(world, claim) for claim in world.claim(worker, 9)]
    with beside.connect(postgres_url) as user:
        child = open_child(world, user, parent)

        settled = pool.submit(verbs.settle, world.backend, worker, settlements).result(PROMPT)

        assert settled == Settled(stale=[], already=[], locked=[parent], refused=[], cancelled=[])
        assert state(world, parent, *others) == ["running"] + ["completed"] * 8
        user.commit() if ends == "commit" else user.rollback()

    (own,) = (settlement for settlement in settlements if settlement.id == parent)
    assert verbs.settle(world.backend, worker, [own]) == Settled([], [], [], [], [])
    assert state(world, parent) == ["completed"]
    assert [job.state for job in world.backend.jobs.get([child])] == ["queued"] * (ends == "commit")


@pytest.mark.parametrize(
    ("statement", "over"), [("retry_own_edges", ("failed", "child")), ("retry_children", ("failed",))]
)
def test_a_parent_does_not_end_while_it_is_counted_who_its_children_wait_for(
    server: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, statement: str, over: tuple[str, ...]
) -> None:
    world, worker = server, server.worker()
    jobs = {"failed": world.enqueue("failed", max_attempts=1), "live": world.enqueue("live")}
    jobs["child"] = world.enqueue("child", parents=tuple(jobs.values()))
    world.fail(worker, world.claim_one(worker, tasks=("failed",)))
    ended = completed(world, world.claim_one(worker, tasks=("live",)))

    settled = beside.Gate(monkeypatch, statement).overtake(
        pool,
        lambda: world.backend.jobs.retry([jobs[each] for each in over]),
        lambda: verbs.settle(world.backend, worker, [ended]),
    )

    assert settled.locked == [jobs["live"]]
    assert state(world, jobs["live"], jobs["child"]) == ["running", "waiting"]
    assert_sound(world.backend)


def test_a_child_in_somebodys_open_transaction_does_not_hold_up_its_parents_settle(
    server: World, postgres_url: str, pool: ThreadPoolExecutor
) -> None:
    world, worker = server, server.worker()
    parent = world.enqueue("parent")
    child = world.enqueue("child", parents=(parent,))
    sibling = world.enqueue("sibling", parents=(parent,))
    claim = world.claim_one(worker, tasks=("parent",))
    with beside.connect(postgres_url) as user:
        grandchild = open_child(world, user, child, "grandchild")

        settled = pool.submit(world.complete, worker, claim).result(PROMPT)

        assert settled == Settled([], [], [], [], [])
        assert state(world, parent, child, sibling) == ["completed", "waiting", "queued"]
        assert world.job(parent).fanout_pending is True
        user.commit()

    assert world.backend.graph.fan_out() == (1, False)
    assert state(world, child, grandchild) == ["queued", "waiting"]
    assert_sound(world.backend)


def test_an_open_enqueue_behind_a_parent_that_has_ended_does_not_hold_up_its_other_children(
    server: World, postgres_url: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, worker = server, server.worker()
    parent = world.enqueue("parent")
    child = world.enqueue("child", parents=(parent,))
    with monkeypatch.context() as crashing:
        crashing.setattr(GraphStore, "_fan_out_turn", nothing)
        world.complete(worker, world.claim_one(worker, tasks=("parent",)))
    with beside.connect(postgres_url) as user:
        late = open_child(world, user, parent, "late")

        assert pool.submit(world.backend.graph.fan_out).result(PROMPT).decided == 1
        assert state(world, child) == ["queued"]
        user.commit()

    assert world.backend.graph.fan_out() == (0, False)
    assert state(world, parent, child, late) == ["completed", "queued", "queued"]
    assert_sound(world.backend)


def test_an_open_enqueue_holds_up_neither_claims_nor_expiry_nor_pruning(
    server: World, postgres_url: str, pool: ThreadPoolExecutor
) -> None:
    world, worker = server, server.worker()
    parent = world.enqueue("parent", expires_us=HOUR)
    other = world.enqueue()
    world.clock.advance(HOUR)
    with beside.connect(postgres_url) as user:
        open_child(world, user, parent)

        assert pool.submit(world.claim_one, worker).result(PROMPT).id == other
        assert pool.submit(world.backend.jobs.expire).result(PROMPT) == []
        assert pool.submit(verbs.prune, world.backend, Retention(0, 0, 0)).result(PROMPT) == 0
        assert pool.submit(world.backend.graph.fan_out).result(PROMPT) == (0, False)
