"""Claiming: which jobs are claimed, in which order, and what is counted."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.backends import open_backend
from dray.backends.sqlite import session
from dray.clock import Ids
from dray.instants import HOUR, SECOND
from dray.model.job import Claim, Demand, Job
from dray.model.new_job import NewJob
from tests import verbs
from tests.backends import raw
from tests.backends.world import World
from tests.manual_clock import ManualClock


def test_a_claim_counts_the_attempt_and_starts_the_job(world: World) -> None:
    job_id = world.enqueue()
    claim = world.claim_one(world.worker())

    assert (claim.id, claim.attempt, claim.claim) == (job_id, 1, 1)
    job = world.job(job_id)
    assert (job.state, job.attempt, job.started_at) == ("running", 1, world.clock.now())


def test_a_claim_brings_all_that_running_the_job_needs(world: World) -> None:
    job_id = world.enqueue(
        "mail.send", queue="mail", args='{"to": "x"}', priority=4, max_attempts=7, max_crashes=2, timeout=1.5
    )
    worker = world.worker()

    (claim,) = world.claim(worker, queue="mail", tasks=("mail.send",))

    assert (claim.id, claim.task, claim.queue, claim.args) == (job_id, "mail.send", "mail", '{"to": "x"}')
    assert (claim.max_attempts, claim.crashes, claim.max_crashes) == (7, 0, 2)
    assert (claim.timeout, claim.priority, claim.run_at) == (1.5, 4, world.clock.now())
    assert (claim.workflow_id, world.job(job_id).worker_id) == (None, worker)


def test_a_claimed_job_is_not_claimed_again(world: World) -> None:
    world.enqueue()
    world.claim_one(world.worker())

    assert world.claim(world.worker()) == []


def test_a_claim_takes_no_more_than_it_asks_for(world: World) -> None:
    ids = [world.enqueue() for _ in range(5)]
    worker = world.worker()

    taken = [len(world.claim(worker, 2)) for _ in range(4)]

    assert taken == [2, 2, 1, 0]
    assert {job.attempt for job in world.backend.jobs.get(ids)} == {1}


def test_a_demand_of_nothing_takes_nothing(world: World) -> None:
    job_id = world.enqueue()

    assert world.claim(world.worker(), 0) == []
    assert world.job(job_id).state == "queued"


# Order


def test_higher_priority_runs_first_then_earlier_time_then_id(world: World) -> None:
    late = world.enqueue(run_at=world.clock.now() - 1 * SECOND)
    early = world.enqueue(run_at=world.clock.now() - 9 * SECOND)
    urgent = world.enqueue(priority=5)
    same = [world.enqueue(run_at=world.clock.now() - 5 * SECOND) for _ in range(3)]

    claimed = [claim.id for claim in world.claim(world.worker(), 10)]

    assert claimed == [urgent, early, *same, late]


def test_a_negative_priority_runs_last(world: World) -> None:
    order = [world.enqueue(priority=p) for p in (2_147_483_647, 1, 0, -1, -2_147_483_647)]

    assert [claim.id for claim in world.claim(world.worker(), 10)] == order


def test_order_holds_across_tasks_of_one_queue(world: World) -> None:
    places = [("a", 9), ("b", 8), ("c", 7), ("a", 6), ("b", 5)]
    order = [world.enqueue(task, priority=priority) for task, priority in places]

    claimed = [claim.id for claim in world.claim(world.worker(), 4, tasks=("a", "b", "c", "d"))]

    assert claimed == order[:4]


def test_a_queue_named_first_is_emptied_first(world: World) -> None:
    low = world.enqueue(queue="mail", priority=-5)
    high = world.enqueue(queue="default", priority=5)

    claims = verbs.claim(world.backend, world.worker(), Demand(("mail", "default"), ("task",), 2))

    assert [claim.id for claim in claims] == [low, high]


def test_a_queue_not_named_is_left_alone(world: World) -> None:
    other = world.enqueue(queue="other")
    mine = world.enqueue(queue="mail")

    claims = verbs.claim(world.backend, world.worker(), Demand(("default", "mail"), ("task",), 5))

    assert [claim.id for claim in claims] == [mine]
    assert world.job(other).state == "queued"


# Tasks this worker knows


def test_a_job_of_an_unknown_task_is_neither_claimed_nor_burned(world: World) -> None:
    unknown = world.enqueue("new.task", priority=9)
    known = world.enqueue("old.task")
    worker = world.worker()

    claims = world.claim(worker, 5, tasks=("old.task", "older.task", "oldest.task"))

    assert [claim.id for claim in claims] == [known]
    job = world.job(unknown)
    assert (job.state, job.attempt, job.claim) == ("queued", 0, 0)
    assert not verbs.probe(world.backend, Demand(("default",), ("old.task",), 5))
    assert verbs.probe(world.backend, Demand(("default",), ("old.task", "new.task"), 5))


def test_a_worker_that_knows_no_task_claims_nothing(world: World) -> None:
    job_id = world.enqueue()
    demand = Demand(("default",), (), 5, 5)

    assert verbs.claim(world.backend, world.worker(), demand) == []
    assert not verbs.probe(world.backend, demand)
    assert world.job(job_id).state == "queued"


def test_a_worker_of_no_queue_claims_nothing(world: World) -> None:
    world.enqueue()
    demand = Demand((), ("task",), 5, 5)

    assert verbs.claim(world.backend, world.worker(), demand) == []
    assert not verbs.probe(world.backend, demand)


# Look-ahead


def test_a_look_ahead_leaves_jobs_on_their_last_attempt(world: World) -> None:
    first = world.enqueue(max_attempts=1)
    safe = world.enqueue(max_attempts=2)
    only = world.enqueue(max_attempts=1)
    worker = world.worker()

    claims = world.claim(worker, 1, ahead=5)

    assert [claim.id for claim in claims] == [first, safe]
    assert (world.job(only).state, world.job(only).attempt) == ("queued", 0)


def test_a_look_ahead_leaves_jobs_that_used_all_but_one_attempt(world: World) -> None:
    used = world.enqueue(max_attempts=2)
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))

    assert world.claim(worker, 0, ahead=5) == []
    assert world.claim_one(worker).id == used


def test_a_look_ahead_leaves_jobs_with_a_crash_behind_them(world: World) -> None:
    crashed = world.enqueue(max_attempts=9, max_crashes=9)
    dead = world.worker()
    world.claim_one(dead)
    world.bury(dead)
    world.clock.advance(SECOND)
    safe = world.enqueue()
    worker = world.worker()

    assert [claim.id for claim in world.claim(worker, 0, ahead=5)] == [safe]
    claim = world.claim_one(worker)
    assert (claim.id, claim.crashes) == (crashed, 1)


def test_jobs_to_start_now_are_taken_whatever_they_can_lose(world: World) -> None:
    ids = [world.enqueue(max_attempts=1) for _ in range(3)]

    claims = world.claim(world.worker(), 2, ahead=1)

    assert [claim.id for claim in claims] == ids[:2]


def test_a_look_ahead_considers_the_next_jobs_in_order_and_does_not_reach_past_them(world: World) -> None:
    now, safe, unsafe, last = (world.enqueue(max_attempts=n) for n in (1, 3, 1, 3))
    beyond = world.enqueue()

    claims = world.claim(world.worker(), 1, ahead=3)

    assert [claim.id for claim in claims] == [now, safe, last]
    assert [job.state for job in world.backend.jobs.get([unsafe, beyond])] == ["queued", "queued"]


def test_a_look_ahead_goes_on_into_the_next_queue_with_its_own_rule(world: World) -> None:
    mail = world.enqueue(queue="mail", max_attempts=1)
    unsafe = world.enqueue(queue="default", max_attempts=1, priority=2)
    safe = world.enqueue(queue="default", priority=1)
    beyond = world.enqueue(queue="default")

    claims = verbs.claim(world.backend, world.worker(), Demand(("mail", "default"), ("task",), 1, 2))

    assert [claim.id for claim in claims] == [mail, safe]
    assert [job.state for job in world.backend.jobs.get([unsafe, beyond])] == ["queued", "queued"]


def test_a_look_ahead_spans_tasks_in_the_order_of_the_queue(world: World) -> None:
    places = [("a", 1, 9), ("b", 1, 8), ("a", 3, 7), ("b", 1, 6), ("c", 3, 5), ("a", 3, 4)]
    ids = [world.enqueue(task, max_attempts=n, priority=priority) for task, n, priority in places]

    claims = world.claim(world.worker(), 2, ahead=3, tasks=("a", "b", "c"))

    assert [claim.id for claim in claims] == [ids[0], ids[1], ids[2], ids[4]]


# Time


def test_a_job_whose_time_has_not_come_is_not_claimed(world: World) -> None:
    job_id = world.enqueue(delay_us=HOUR)
    worker = world.worker()
    world.clock.advance(HOUR - 1)
    assert world.claim(worker) == []

    world.clock.advance(1)

    assert world.claim_one(worker).id == job_id


def test_a_job_that_was_not_started_in_time_is_not_claimed(world: World) -> None:
    job_id = world.enqueue(expires_us=SECOND)
    worker = world.worker()
    world.clock.advance(SECOND)

    assert world.claim(worker) == []
    assert (world.job(job_id).state, world.job(job_id).reason) == ("cancelled", "expired")


# Which workers may claim


def test_a_worker_declared_dead_claims_nothing_and_burns_nothing(world: World) -> None:
    dead = world.worker()
    world.bury(dead)
    job_id = world.enqueue()

    assert world.claim(dead, 5, ahead=5) == []
    job = world.job(job_id)
    assert (job.state, job.attempt, job.claim) == ("queued", 0, 0)


def test_a_worker_that_left_claims_nothing(world: World) -> None:
    worker = world.worker()
    world.backend.workers.deregister(worker)
    world.enqueue()

    assert world.claim(worker) == []


def test_a_worker_that_is_not_known_claims_nothing(world: World) -> None:
    worker = world.worker()
    raw.forget_worker(world.backend, worker)
    world.enqueue()

    assert world.claim(worker) == []


# Many at once


def test_on_sqlite_few_jobs_are_claimed_by_one_statement_as_by_several(
    clock: ManualClock, ids: Ids, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    for n in range(60):
        new, tasks = [_any_job(ids, rng, n % 3) for _ in range(12)], tuple("abc"[: rng.randint(1, 3)])
        demand = Demand(("default", "mail"), tasks, rng.randint(1, 9), rng.choice([0, 0, 4]), tends=False)
        found: list[tuple[list[Claim], list[Job]]] = []
        worker = ids.new()
        for name, most in (("several", 0), ("one", 32)):
            monkeypatch.setattr(session, "_FEW_CLAIMS", most)
            with closing(open_backend(f"sqlite:///{tmp_path / f'{name}-{n}.db'}", clock=clock)) as backend:
                backend.migrate()
                world = World(backend, clock, ids)
                worker = world.worker(worker)
                backend.jobs.enqueue(new)
                if n % 10 == 0:
                    backend.queues.pause("default")
                claims = [claim for _ in range(3) for claim in verbs.claim(backend, worker, demand)]
                found.append((claims, backend.jobs.get([job.id for job in new])))

        several, one = found
        assert one == several


def _any_job(ids: Ids, rng: random.Random, tasks: int) -> NewJob:
    options: dict[str, Any] = {
        "task": "abc"[rng.randint(0, tasks)],
        "queue": rng.choice(["default", "default", "mail"]),
        "priority": rng.choice([None, 0, 5]),
        "args": rng.choice(["{}", f'{{"long": "{"x" * 3_000}"}}']),
        "max_attempts": rng.choice([1, 2, 3]),
        "timeout": rng.choice([None, 0.1, 30]),
        "headers": rng.choice([None, '{"a":"b"}']),
    }
    if rng.random() < 0.2:
        options |= {"unique_key": f"key {rng.random()}", "unique_scope": "queued"}
    return NewJob(id=ids.new(), **options)


def test_racing_workers_share_the_jobs_and_nobody_gets_one_twice(world: World) -> None:
    ids = [job.id for job in world.backend.jobs.enqueue([world.new() for _ in range(200)])]
    workers = [world.worker() for _ in range(4)]
    ready = threading.Barrier(4, timeout=30)

    def claim_all(worker: str) -> list[str]:
        ready.wait()
        mine: list[str] = []
        for _ in range(200):
            mine += [claim.id for claim in world.claim(worker, 3, ahead=4)]
            if not verbs.probe(world.backend, Demand(("default",), ("task",), 1)):
                break
        return mine

    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(claim_all, workers))

    assert sorted(job_id for share in shares for job_id in share) == ids
    jobs = world.backend.jobs.get(ids)
    assert {(job.state, job.attempt, job.claim) for job in jobs} == {("running", 1, 1)}
    holders = {job_id: worker for worker, share in zip(workers, shares, strict=True) for job_id in share}
    assert {job.id: job.worker_id for job in jobs} == holders
