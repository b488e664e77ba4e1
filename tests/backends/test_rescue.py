"""Rescue: the jobs of dead workers are queued again and counted; those of live workers are left alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dray.backends import open_backend
from dray.instants import DAY, HOUR, MILLISECOND, SECOND
from dray.model.worker import Rescued
from tests import verbs
from tests.backends import beside, raw
from tests.backends.world import LEASE_US, World

if TYPE_CHECKING:
    from dray.clock import Ids
    from tests.manual_clock import ManualClock


def _crash(world: World) -> None:
    """A worker claims the next job and dies while running it; the job's backoff passes."""
    worker = world.worker()
    world.claim_one(worker)
    world.bury(worker)
    world.clock.advance(64 * SECOND)


# What happens to a job


def test_a_crash_with_attempts_left_brings_the_job_back_after_a_moment(world: World) -> None:
    job_id = world.enqueue(queue="mail")
    worker = world.worker()
    world.claim_one(worker, queue="mail")
    world.clock.advance(60 * SECOND)

    rescued = world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng)

    assert rescued == [Rescued(job_id, 1, worker, "scheduled", "mail")]
    job = world.job(job_id)
    assert (job.state, job.attempt, job.crashes, job.claim, job.worker_id) == ("scheduled", 1, 1, 1, None)
    assert world.clock.now() < job.run_at <= world.clock.now() + 250 * MILLISECOND
    assert (job.started_at, job.finished_at) == (None, None)


def test_a_crash_is_recorded_as_an_attempt_that_lasted_until_the_rescue(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    claimed_at = world.clock.now()

    world.bury(worker)

    (attempt,) = world.backend.history.attempts(job_id)
    assert (attempt.claim, attempt.attempt, attempt.worker_id) == (1, 1, worker)
    assert (attempt.outcome, attempt.error_type) == ("crashed", "WorkerDied")
    assert (attempt.started_at, attempt.finished_at) == (claimed_at, world.clock.now())
    assert world.job(job_id).error == f"WorkerDied: worker {worker} died while it ran this job"


def test_a_rescued_job_runs_again_under_a_new_claim(world: World) -> None:
    job_id = world.enqueue()
    _crash(world)

    again = world.claim_one(world.worker())

    assert (again.id, again.claim, again.attempt, again.crashes) == (job_id, 2, 2, 1)


def test_each_crash_spreads_the_jobs_wider(world: World) -> None:
    job_id = world.enqueue(max_attempts=9, max_crashes=9)
    rests: list[int] = []
    for _ in range(3):
        worker = world.worker()
        world.claim_one(worker)
        world.bury(worker)
        rests.append(world.job(job_id).run_at - world.clock.now())
        world.clock.advance(64 * SECOND)

    bounds = [250 * MILLISECOND, SECOND, 4 * SECOND]
    assert all(0 < rest <= bound for rest, bound in zip(rests, bounds, strict=True))


def test_a_crash_on_the_last_attempt_fails_the_job(world: World) -> None:
    job_id = world.enqueue(max_attempts=2)
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))
    claim = world.claim_one(worker)
    world.clock.advance(60 * SECOND)

    (rescued,) = world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng)

    assert rescued == Rescued(job_id, claim.claim, worker, "failed", "default")
    job = world.job(job_id)
    assert (job.state, job.reason, job.attempt, job.crashes) == ("failed", "crashed", 2, 1)
    assert (job.worker_id, job.finished_at) == (worker, world.clock.now())
    assert [attempt.outcome for attempt in world.backend.history.attempts(job_id)] == ["error", "crashed"]


def test_as_many_crashes_as_allowed_fail_the_job_with_attempts_left(world: World) -> None:
    job_id = world.enqueue(max_attempts=9, max_crashes=2)
    _crash(world)
    assert world.job(job_id).state == "scheduled"

    _crash(world)

    job = world.job(job_id)
    assert (job.state, job.reason, job.attempt, job.crashes) == ("failed", "crashed", 2, 2)
    assert [attempt.outcome for attempt in world.backend.history.attempts(job_id)] == ["crashed", "crashed"]
    assert world.claim(world.worker()) == []


def test_crashes_and_errors_use_up_attempts_together(world: World) -> None:
    job_id = world.enqueue(max_attempts=3)
    _crash(world)
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))

    world.fail(worker, world.claim_one(worker))

    assert (world.job(job_id).state, world.job(job_id).reason) == ("failed", "error")
    outcomes = [attempt.outcome for attempt in world.backend.history.attempts(job_id)]
    assert outcomes == ["crashed", "error", "error"]


def test_the_progress_of_the_crashed_attempt_is_not_shown_for_the_next(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim = world.claim_one(worker)
    verbs.progress(world.backend, worker, [(job_id, claim.claim, 80.0, "nearly")])

    world.bury(worker)

    assert (world.job(job_id).progress, world.job(job_id).progress_message) == (None, None)


# Whose jobs


def test_all_running_jobs_of_a_dead_worker_come_back_and_no_others(world: World) -> None:
    dead = world.worker()
    lost = [world.enqueue() for _ in range(3)]
    world.claim(dead, 3)
    world.clock.advance(10 * SECOND)
    live = world.worker()
    kept = world.enqueue()
    world.claim_one(live)
    queued = world.enqueue()
    world.clock.advance(10 * SECOND)

    rescued = world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng)

    assert [(job.id, job.worker_id) for job in rescued] == [(job_id, dead) for job_id in lost]
    assert [job.state for job in world.backend.jobs.get([kept, queued])] == ["running", "queued"]


def test_a_live_workers_job_is_never_rescued_however_long_it_runs(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    for _ in range(30):
        world.clock.advance(DAY)
        world.backend.workers.beat(worker, LEASE_US)
        assert world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng) == []

    assert (world.job(job_id).state, world.job(job_id).crashes) == ("running", 0)


def test_a_worker_that_nobody_judged_is_left_alone_though_its_lease_is_over(world: World) -> None:
    world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.clock.advance(DAY)

    assert world.backend.workers.rescue([], rng=world.rng) == []
    assert world.backend.workers.beat(worker, LEASE_US).alive


def test_a_verdict_is_void_once_the_worker_has_renewed_its_lease(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    assert [verdict.worker_id for verdict in verdicts] == [worker]
    world.backend.workers.beat(worker, LEASE_US)
    before = raw.stored(world.backend, job_id)

    rescued = world.backend.workers.rescue(verdicts, rng=world.rng)

    assert rescued == []
    assert raw.stored(world.backend, job_id) == before
    assert world.backend.workers.beat(worker, LEASE_US).alive


def test_a_void_verdict_stays_void_when_the_renewed_lease_is_over_too(world: World) -> None:
    worker = world.worker()
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    world.backend.workers.beat(worker, LEASE_US)
    world.clock.advance(60 * SECOND)

    world.backend.workers.rescue(verdicts, rng=world.rng)

    assert world.backend.workers.beat(worker, LEASE_US).alive


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_rescues_nobody(world: World, step: int) -> None:
    job_id = world.enqueue()
    world.claim_one(world.worker())

    world.clock.step(step)
    rescued = world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng)

    assert rescued == []
    assert world.job(job_id).state == "running"


def test_running_jobs_whose_worker_is_not_known_come_back(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    raw.forget_worker(world.backend, worker)

    rescued = world.backend.workers.rescue([], rng=world.rng)

    assert rescued == [Rescued(job_id, 1, worker, "scheduled", "default")]
    assert world.job(job_id).crashes == 1


def test_running_jobs_of_a_worker_that_left_come_back(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.backend.workers.deregister(worker)

    assert [job.id for job in world.backend.workers.rescue([], rng=world.rng)] == [job_id]


def test_a_draining_worker_is_alive(world: World) -> None:
    world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.backend.workers.beat(worker, LEASE_US, "draining")

    assert world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng) == []


def test_a_dead_draining_worker_is_rescued_from(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.backend.workers.beat(worker, LEASE_US, "draining")

    world.bury(worker)

    assert world.job(job_id).state == "scheduled"


# Repeated, in parts, by several workers


def test_a_second_rescue_changes_nothing(world: World) -> None:
    job_id = world.enqueue()
    world.claim_one(world.worker())
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    world.backend.workers.rescue(verdicts, rng=world.rng)
    before = raw.stored(world.backend, job_id)
    world.clock.advance(1)

    rescued = world.backend.workers.rescue(verdicts, rng=world.rng)

    assert rescued == []
    assert raw.stored(world.backend, job_id) == before
    assert verbs.overdue(world.backend) == []


def test_a_second_rescue_leaves_the_next_holder_alone(world: World) -> None:
    job_id = world.enqueue()
    world.claim_one(world.worker())
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    world.backend.workers.rescue(verdicts, rng=world.rng)
    world.clock.advance(SECOND)
    worker = world.worker()
    world.claim_one(worker)

    assert world.backend.workers.rescue(verdicts, rng=world.rng) == []
    assert (world.job(job_id).state, world.job(job_id).worker_id) == ("running", worker)


def test_a_large_rescue_goes_on_where_the_last_step_ended(world: World) -> None:
    ids = [world.enqueue() for _ in range(5)]
    world.claim(world.worker(), 5)
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)

    steps = [world.backend.workers.rescue(verdicts, rng=world.rng, limit=2) for _ in range(4)]

    assert [len(step) for step in steps] == [2, 2, 1, 0]
    assert [job.id for step in steps for job in step] == ids


def test_racing_rescuers_count_each_crash_once(world: World) -> None:
    ids = [job.id for job in world.backend.jobs.enqueue([world.new() for _ in range(60)])]
    world.claim(world.worker(), 60)
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    ready = threading.Barrier(4, timeout=30)

    def rescue() -> list[str]:
        ready.wait()
        steps = [world.backend.workers.rescue(verdicts, rng=world.rng, limit=7) for _ in range(12)]
        return [job.id for step in steps for job in step]

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(rescue) for _ in range(4)]
        rescued = [job_id for future in futures for job_id in future.result()]

    assert sorted(rescued) == ids
    assert {(job.state, job.crashes) for job in world.backend.jobs.get(ids)} == {("scheduled", 1)}


def test_on_postgres_a_worker_whose_session_holds_its_lock_is_alive_whatever_its_lease_says(
    postgres_url: str, clock: ManualClock, ids: Ids
) -> None:
    with closing(open_backend(postgres_url, clock=clock)) as backend:
        backend.migrate()
        world = World(backend, clock, ids)
        job_id = world.enqueue()
        worker = world.worker()
        world.claim_one(worker)
        clock.advance(60 * SECOND)
        verdicts = verbs.overdue(backend)

        with raw.postgres_proof_of_life(backend, worker):
            rescued_while_alive = backend.workers.rescue(verdicts, rng=world.rng)
        rescued = backend.workers.rescue(verdicts, rng=world.rng)

        assert rescued_while_alive == []
        assert [job.id for job in rescued] == [job_id]


# Between the look and the lock


@pytest.mark.parametrize("claimed_by", ["a new worker", "a known worker"])
def test_a_job_that_another_rescued_and_a_live_worker_claimed_meanwhile_is_left_alone(
    postgres_url: str, clock: ManualClock, ids: Ids, monkeypatch: pytest.MonkeyPatch, claimed_by: str
) -> None:
    with (
        closing(open_backend(postgres_url, clock=clock)) as late,
        closing(open_backend(postgres_url, clock=clock, create=True)) as prompt,
        ThreadPoolExecutor(1) as pool,
    ):
        world = World(prompt, clock, ids)
        job_id, dead = world.enqueue(), world.worker()
        world.claim_one(dead)
        world.backend.workers.deregister(dead)
        known = [world.worker()] if claimed_by == "a known worker" else []

        def rescue_and_claim() -> str:
            assert len(world.backend.workers.rescue([], rng=world.rng)) == 1
            clock.advance(64 * SECOND)
            (worker,) = known or [world.worker()]
            world.claim_one(worker)
            return worker

        stall = beside.Stall(late, monkeypatch, "rescue_pick")
        rescued, worker = stall.interleave(pool, lambda: late.workers.rescue([], rng=world.rng), rescue_and_claim)

        assert rescued == []
        job = world.job(job_id)
        assert (job.state, job.worker_id, job.claim, job.crashes) == ("running", worker, 2, 1)
