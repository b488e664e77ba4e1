"""Claims under limits that meet on PostgreSQL, at moments that the test chooses.

Each race that a lock or a second count decides is run once more without it: then there are too many, so the test can
fail.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from uuid import UUID

import pytest

from dray.backends import open_backend
from dray.backends.database import ALL_LIMITS, Later
from dray.backends.postgres import session
from dray.backends.postgres.session import LIMIT_SPACE, PAUSE_SPACE, PostgresSession, lock_key
from dray.backends.statements import Statement
from dray.backends.store import limits, turns
from dray.backends.store.gate import Gate
from dray.backends.store.work import Exchange, Notes, Report
from dray.clock import Ids
from dray.errors import StorageLocked
from dray.instants import MINUTE, SECOND
from dray.model.job import Claim, Demand
from dray.model.limit import Source, bounds_of
from dray.model.settlement import completed
from tests.backends import raw
from tests.backends.lives import until
from tests.backends.world import World
from tests.manual_clock import ManualClock
from tests.stale_gate import STALE

PATIENCE = 30  # seconds for what another thread does at once
JOBS = 120


@pytest.fixture
def worlds(shared_url: str, clock: ManualClock, ids: Ids) -> Generator[list[World]]:
    """Two programs on one server."""
    with ExitStack() as stack:
        backends = [stack.enter_context(closing(open_backend(shared_url, clock=clock))) for _ in range(2)]
        backends[0].migrate()
        yield [World(backend, clock, ids) for backend in backends]


def limit(world: World, **bounds: Any) -> None:
    world.backend.limits.say("queue", "default", Source.DECLARED, bounds_of("queue", bounds))


def exchange(world: World, worker: str, most: int = 1, task: str = "task") -> Exchange:
    return world.backend.work.exchange(worker, [], Demand(("default",), (task,), most))


def running(world: World) -> int:
    return raw.run(world.backend, "SELECT count(*) FROM dray_jobs WHERE state = 'running'")[0][0]


class Stop:
    """A moment in a claim at which one backend's sessions wait until the test lets them go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.go.wait(PATIENCE)


@contextmanager
def claim_stopped(
    world: World, worker: str, at: str, *, after: bool, most: int = 1, task: str = "task"
) -> Generator[Future[Exchange]]:
    """A claim that is under way, stopped before or after it calls `at` on its session; goes on after the block."""
    stop, original = Stop(), getattr(PostgresSession, at)
    own = world.backend.db

    def stopped(self: PostgresSession, *given: Any, **named: Any) -> Any:
        is_own = self.catalogue is own._catalogue  # pyright: ignore[reportAttributeAccessIssue]
        if is_own and not after and not stop.reached.is_set():
            stop.wait()
        answer = original(self, *given, **named)
        if is_own and after and not stop.reached.is_set():
            stop.wait()
        return answer

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setattr(PostgresSession, at, stopped)
        under_way = thread.submit(exchange, world, worker, most, task)
        assert stop.reached.wait(PATIENCE)
        try:
            yield under_way
        finally:
            stop.go.set()
            under_way.result(PATIENCE)


def all_locked(_: PostgresSession, names: Sequence[str]) -> Later[set[str]]:
    """Instead of `lock_limits`: takes no lock."""
    return lambda: set(names)


RULES: dict[str, dict[str, Any]] = {
    "limit": {"limit": 1},
    "key_limit": {"key_limit": 1},
    "rate": {"rate": "1/min"},
    "key_rate": {"key_rate": "1/min"},
}


def meet(worlds: list[World], rule: str, *, before: str) -> list[Exchange]:
    """The first has counted and is about to lock, or has counted again and is about to take its job, when the second
    claims. Their jobs are of different tasks, so that only the rule of the queue is between them."""
    limit(worlds[0], **RULES[rule])
    workers = [world.worker() for world in worlds]
    for task in ("one", "two"):
        worlds[0].enqueue(task, key="a")
    with claim_stopped(worlds[0], workers[0], before, after=False, task="one") as first:
        second = exchange(worlds[1], workers[1], task="two")
    return [first.result(), second]


@pytest.mark.parametrize("rule", RULES)
def test_of_two_claims_at_the_same_moment_one_takes_the_last_slot(worlds: list[World], rule: str) -> None:
    first, second = meet(worlds, rule, before="take")

    assert (len(first.claims), len(second.claims)) == (1, 0)
    assert second.goes_on, "the other one was counting the same: it looks again soon"
    again = exchange(worlds[1], worlds[1].worker(), task="two")
    assert (again.claims, again.goes_on) == ([], False)


@pytest.mark.parametrize("rule", RULES)
def test_without_the_lock_both_take_it(worlds: list[World], rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresSession, "lock_limits", all_locked)

    first, second = meet(worlds, rule, before="take")

    assert (len(first.claims), len(second.claims)) == (1, 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_claim_sees_what_was_claimed_before_it_had_the_lock(worlds: list[World], rule: str) -> None:
    first, second = meet(worlds, rule, before="lock_limits")

    assert (len(first.claims), len(second.claims)) == (0, 1)


@pytest.mark.parametrize("rule", RULES)
def test_with_what_was_counted_before_the_lock_both_take_it(
    worlds: list[World], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, method in STALE.items():
        monkeypatch.setattr(Gate, name, method)

    first, second = meet(worlds, rule, before="lock_limits")

    assert (len(first.claims), len(second.claims)) == (1, 1)


@pytest.mark.parametrize("rule", [{"limit": 1}, {"key_limit": 1}, {"limit": 2, "key_limit": 1}], ids=str)
def test_two_workers_are_never_over_and_lose_nothing(worlds: list[World], rule: dict[str, int]) -> None:
    """Each claims and completes as fast as it can. A body lasts from the answer to its claim until it is settled."""
    limit(worlds[0], **rule)
    for n in range(JOBS):
        worlds[0].enqueue(key="abc"[n % 3], priority=n % 2)
    lock, bodies, most = threading.Lock(), Counter[str](), Counter[str]()

    def count(key: str | None, change: int) -> None:
        with lock:
            for name in ("all", f"key {key}"):
                bodies[name] += change
                most[name] = max(most[name], bodies[name])

    def work(world: World) -> int:
        worker, done = world.worker(), 0
        while world.backend.history.stats(SECOND).counts["default"].get("queued"):
            claims = exchange(world, worker, 3).claims
            for claim in claims:
                count(claim.key, 1)
            for claim in claims:
                count(claim.key, -1)
                until(lambda: not world.complete(worker, claim).locked)  # noqa: B023 - over before the next one
            done += len(claims)
        return done

    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(work, worlds))

    assert sum(done) == JOBS
    assert most["all"] <= rule.get("limit", 6)
    assert all(n <= rule.get("key_limit", 6) for name, n in most.items() if name != "all")


@pytest.mark.parametrize("touched_by", ["nothing else", "a report", "the mark of a parent"])
def test_a_job_that_had_ended_before_leaves_its_room_only_once(worlds: list[World], touched_by: str) -> None:
    """One that its body has completed in its own transaction: another worker is about to take its room. That the late
    outcome's transaction writes something else to the row does not mean that it has ended the job."""
    first, second = worlds
    limit(first, limit=1)
    parent = first.enqueue()
    for _ in range(2):
        first.enqueue()
    if touched_by == "the mark of a parent":
        first.enqueue("other", queue="children", parents=(parent,))
    workers = [world.worker() for world in worlds]
    (held,) = exchange(first, workers[0]).claims
    ended = f"UPDATE dray_jobs SET state = 'completed', held = FALSE, finished_at = started_at WHERE id = '{held.id}'"
    raw.run(first.backend, ended)

    with claim_stopped(second, workers[1], "take", after=True) as taking:
        now = first.clock.steady()
        reports = [Report(held.id, held.claim, 50.0, "half")] if touched_by == "a report" else []
        late = first.backend.work.exchange(
            workers[0], [completed(held, now, now, None)], Demand(("default",), ("task",), 1), Notes(reports=reports)
        )

    assert held.id == parent
    assert late.settled.already == [held.id]
    assert (late.claims, len(taking.result().claims)) == ([], 1)


def test_workers_that_swap_what_has_ended_are_never_over_and_lose_nothing(worlds: list[World]) -> None:
    """As above, but each outcome is written together with the next claim."""
    limit(worlds[0], limit=3)
    for _ in range(200):
        worlds[0].enqueue()
    lock, bodies, most, swaps = threading.Lock(), 0, 0, Counter[str]()
    original = PostgresSession._claim_swapped

    def noted(self: PostgresSession, *given: Any) -> Any:
        swaps["tried"] += 1
        return original(self, *given)

    def count(change: int) -> None:
        nonlocal bodies, most
        with lock:
            bodies += change
            most = max(most, bodies)

    def work(world: World) -> int:
        worker, done, claims = world.worker(), 0, list[Claim]()
        while claims or world.backend.history.stats(SECOND).counts["default"].get("queued"):
            now = world.clock.steady()
            ended = [completed(claim, now, now, None) for claim in claims]
            count(-len(ended))
            answer = world.backend.work.exchange(worker, ended, Demand(("default",), ("task",), max(1, len(ended))))
            # A claim of the other may have locked a row that it found ready, and that was taken since then.
            locked = [claim for claim in claims if claim.id in answer.settled.locked]
            done, claims = done + len(ended) - len(locked), [*locked, *answer.claims]
            count(len(claims))
        return done

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(PostgresSession, "_claim_swapped", noted)
        done = list(threads.map(work, worlds))

    assert sum(done) == 200
    assert most <= 3
    assert swaps["tried"] > 50


def test_a_job_whose_key_was_replaced_since_it_was_chosen_is_left_for_the_next_claim(worlds: list[World]) -> None:
    first, second = worlds
    limit(first, key_limit=1)
    worker = first.worker()
    first.enqueue(key="b")
    assert len(exchange(first, worker).claims) == 1
    job_id = first.enqueue(key="a", unique_key="u")

    with claim_stopped(first, worker, "take", after=False) as claim:
        second.enqueue(key="b", unique_key="u", on_conflict="replace")

    assert claim.result().claims == []
    assert (first.job(job_id).key, first.job(job_id).state) == ("b", "queued")


@pytest.mark.parametrize("end", ["cancel", "claim", "expire"])
def test_a_job_that_is_gone_since_it_was_chosen_is_not_claimed_and_spends_nothing(
    worlds: list[World], end: str
) -> None:
    first, second = worlds
    limit(first, key_rate="5/min")
    worker = first.worker()
    job_id = first.enqueue(key="a", expires_us=MINUTE)

    with claim_stopped(first, worker, "take", after=False) as claim:
        if end == "cancel":
            second.backend.jobs.cancel([job_id])
        elif end == "expire":
            first.clock.advance(MINUTE)
            assert second.backend.jobs.expire() == [job_id]
        else:
            raw.run(second.backend, "UPDATE dray_jobs SET state = 'waiting', waiting_on = 1 WHERE id = ?", job_id)

    assert claim.result().claims == []
    assert raw.run(first.backend, "SELECT * FROM dray_starts") == []


# Changes of limits


def waits_for_a_lock(world: World) -> bool:
    found = raw.run(world.backend, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return bool(found)


def waits_for_a_row(world: World) -> bool:
    found = raw.run(world.backend, "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted")
    return bool(found)


@pytest.mark.parametrize("before", [{}, {"limit": 5}], ids=["none before", "another before"])
def test_a_new_limit_waits_for_claims_under_way_and_counts_what_they_took(
    worlds: list[World], before: dict[str, int]
) -> None:
    first, second = worlds
    limit(first, **before)
    worker = first.worker()
    for _ in range(5):
        first.enqueue()
    exchange(first, worker, 1)  # it knows whether there are limits

    with ThreadPoolExecutor(1) as thread:
        with claim_stopped(first, worker, "take" if before else "_claim_plain", after=True, most=2) as claim:
            change = thread.submit(limit, second, limit=1)
            until(lambda: waits_for_a_lock(second))
            assert not change.done()
        assert len(claim.result().claims) == 2
        change.result(PATIENCE)

    assert raw.run(first.backend, "SELECT count(*) FROM dray_jobs WHERE held") == [(3,)]
    assert exchange(first, worker).claims == []


def test_a_claim_waits_for_a_change_under_way_and_minds_it(worlds: list[World]) -> None:
    first, second = worlds
    worker = first.worker()
    for _ in range(3):
        first.enqueue()
    exchange(first, worker, 1)

    with ThreadPoolExecutor(1) as thread:
        with raw.transaction(second.backend) as execute:
            execute("SELECT pg_advisory_xact_lock(?, ?)", PAUSE_SPACE, lock_key(ALL_LIMITS))
            execute(
                "INSERT INTO dray_limits (scope, name, kind, source, period_us, most, in_force, changed_at) "
                "VALUES ('queue', 'default', 'limit', 'declared', 0, 1, TRUE, now())"
            )
            execute("UPDATE dray_jobs SET held = TRUE WHERE state = 'running'")
            claim = thread.submit(exchange, first, worker, 2)
            until(lambda: waits_for_a_lock(second))
        assert claim.result(PATIENCE).claims == []


def test_claims_go_on_while_a_new_limit_waits_for_a_running_job_that_a_transaction_has_locked(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = worlds
    worker = first.worker()
    locked = first.enqueue()
    assert [claim.id for claim in exchange(first, worker, 1).claims] == [locked]
    for _ in range(5):
        first.enqueue("other", queue="other")
    demand = Demand(("other",), ("other",), 1)
    monkeypatch.setattr(session, "_HOLD_PATIENCE", "30000")

    with ThreadPoolExecutor(1) as thread:
        with waited_for(first, [locked]):
            change = thread.submit(limit, second, limit=1)
            until(lambda: waits_for_a_row(second))
            claims = [len(first.backend.work.exchange(worker, [], demand).claims) for _ in range(5)]
            assert (claims, change.done()) == ([1] * 5, False)
        change.result(PATIENCE)

    assert raw.run(first.backend, "SELECT id FROM dray_jobs WHERE held") == [(UUID(locked),)]
    first.enqueue()
    assert exchange(first, worker, 5).claims == []


def test_a_limit_that_is_lifted_waits_for_no_running_job(worlds: list[World]) -> None:
    first, second = worlds
    limit(first, limit=5)
    worker = first.worker()
    locked = first.enqueue()
    assert len(exchange(first, worker, 1).claims) == 1
    raw.run(first.backend, "UPDATE dray_jobs SET held = FALSE")

    with waited_for(first, [locked]):
        limit(second)

    assert second.backend.limits.all() == []


def test_a_change_of_limits_that_cannot_have_the_lock_lets_claims_through_between_its_tries(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of a slow worker is under way: it has the lock that a change needs alone."""
    first, second = worlds
    worker, demand = second.worker(), Demand(("other",), ("other",), 1)
    second.backend.work.exchange(worker, [], demand)
    second.enqueue("other", queue="other")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert not waits_for_a_lock(first)
        if len(pauses) == 1:
            assert len(second.backend.work.exchange(worker, [], demand).claims) == 1

    monkeypatch.setattr(limits.time, "sleep", pause)
    with raw.transaction(first.backend) as execute:
        execute("SELECT pg_advisory_xact_lock_shared(?, ?)", PAUSE_SPACE, lock_key(ALL_LIMITS))
        with pytest.raises(StorageLocked):
            limit(second, limit=1)

    assert pauses == sorted(pauses)
    assert len(pauses) == 3
    assert second.backend.limits.all() == []


# Locks that another worker has


def test_what_another_worker_counts_is_left_to_it_and_the_rest_is_claimed(worlds: list[World]) -> None:
    first, second = worlds
    limit(first, key_limit=2)
    worker = first.worker()
    for key in "ab":
        first.enqueue(key=key)

    with raw.transaction(second.backend) as execute:
        execute("SELECT pg_advisory_xact_lock(?, ?)", LIMIT_SPACE, lock_key("queue:default:a"))
        brought = exchange(first, worker, 5)
        assert ([claim.key for claim in brought.claims], brought.goes_on) == (["b"], True)

    brought = exchange(first, worker, 5)
    assert ([claim.key for claim in brought.claims], brought.goes_on) == (["a"], False)


def test_a_key_that_another_worker_counts_keeps_the_last_slot_from_no_other_key(worlds: list[World]) -> None:
    first, second = worlds
    limit(first, key_limit=2)
    worker = first.worker()
    for key in "aabbcc":
        first.enqueue(key=key)

    with raw.transaction(second.backend) as execute:
        execute("SELECT pg_advisory_xact_lock(?, ?)", LIMIT_SPACE, lock_key("queue:default:a"))
        taken = [claim.key for _ in range(6) for claim in exchange(first, worker, 1).claims]

    assert taken == ["b", "c", "b", "c"]
    assert [claim.key for claim in exchange(first, worker, 5).claims] == ["a", "a"]


LINES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "limit": (None, {"limit": 1}),
    "rate": (None, {"rate": "1000/s"}),
    "keys": ("abc", {}),
    "one key": ("a", {}),
    "key_limit": ("abc", {"key_limit": 1}),
    "limit and key_rate": ("abc", {"limit": 1, "key_rate": "50/s"}),
}


@contextmanager
def waited_for(world: World, ids: Sequence[str]) -> Generator[None]:
    """A user's transaction is open that has enqueued a job after these."""
    users = world.backend.db.transaction()
    try:
        child = world.new("child", parents=tuple(ids))
        world.backend.jobs.enqueue([child], connection=users.begin())
        yield
    finally:
        users.end()


@pytest.mark.parametrize("line", LINES)
def test_jobs_that_another_transaction_has_locked_hold_up_none_behind_them(worlds: list[World], line: str) -> None:
    keys, rules = LINES[line]
    world = worlds[0]
    limit(world, **rules)
    worker = world.worker()
    ids = [world.enqueue(key=None if keys is None else keys[n % len(keys)]) for n in range(15)]
    taken: list[str] = []

    with waited_for(world, ids[:2]):
        for _ in range(20):
            claims = exchange(world, worker, 1).claims
            taken += [claim.id for claim in claims]
            for claim in claims:
                world.complete(worker, claim)

    assert sorted(taken) == sorted(ids[2:])
    if keys is None:
        assert taken == ids[2:]
    assert {claim.id for _ in range(3) for claim in exchange(world, worker, 1).claims} <= set(ids[:2])


def test_more_locked_keys_than_one_claim_looks_at_are_passed_over(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_HOPS", 20)
    world = worlds[0]
    worker = world.worker()
    ids = [world.enqueue(key=f"key {n:03}") for n in range(60)]
    steps: list[Exchange] = []

    with waited_for(world, ids[:59]):
        while not steps or not steps[-1].claims:
            steps.append(exchange(world, worker, 1))
            assert steps[-1].claims or steps[-1].goes_on

    assert [claim.id for claim in steps[-1].claims] == ids[59:]
    assert len(steps) > 1


def test_past_locked_jobs_the_order_of_priority_and_all_limits_hold(worlds: list[World]) -> None:
    world = worlds[0]
    limit(world, limit=3, key_limit=2)
    worker = world.worker()
    low = [world.enqueue(key=key) for key in "aabb"]
    high = [world.enqueue(key="a", priority=5) for _ in range(3)]

    with waited_for(world, high[:2]):
        brought = exchange(world, worker, 8)

    assert {claim.id for claim in brought.claims} == {high[2], low[0], low[2]}
    assert running(world) == 3


def test_the_server_ends_a_worker_that_was_stopped_inside_its_claim_and_others_go_on(worlds: list[World]) -> None:
    first, second = worlds
    limit(first, limit=1)
    for _ in range(2):
        first.enqueue()
    workers = [world.worker() for world in worlds]
    patience = first.backend.db._catalogue["gate_patience"]  # pyright: ignore[reportAttributeAccessIssue]
    assert "'5s'" in patience.text
    soon = Statement(patience.name, patience.text.replace("'5s'", "'100ms'"), patience.parameters, patience.columns)
    first.backend.db._catalogue["gate_patience"] = soon  # pyright: ignore[reportAttributeAccessIssue]

    with claim_stopped(first, workers[0], "take", after=True) as claim:
        until(lambda: bool(exchange(second, workers[1]).claims))

    assert claim.result().claims == [], "it begins again, and finds the slot taken"
    assert running(first) == 1
