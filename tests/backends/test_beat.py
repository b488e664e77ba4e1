"""Workers: their lease, what a beat returns, and how they leave."""

from __future__ import annotations

import pytest

from dray.instants import DAY, HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import Held
from dray.model.worker import DeathVerdict, NewWorker, Worker
from tests import verbs
from tests.backends import raw
from tests.backends.world import LEASE_US, World


def _row(world: World, worker: str) -> Worker:
    (found,) = [row for row in world.backend.workers.all() if row.id == worker]
    return found


def _overdue(world: World) -> list[str]:
    return [verdict.worker_id for verdict in verbs.overdue(world.backend)]


def test_a_registered_worker_reads_back_with_its_first_lease(world: World) -> None:
    worker = NewWorker(
        id=world.ids.new(),
        name="web-1",
        host="here",
        pid=42,
        boot=world.clock.boot,
        lock="8:15",
        queues=("mail", "default"),
        tasks=("a", "b"),
        concurrency=8,
    )

    world.backend.workers.register(worker, LEASE_US)

    row = _row(world, worker.id)
    assert (row.name, row.host, row.pid, row.boot, row.lock) == ("web-1", "here", 42, "manual", "8:15")
    assert (row.queues, row.tasks, row.concurrency) == (("mail", "default"), ("a", "b"), 8)
    assert (row.state, row.stopped_at) == ("active", None)
    assert (row.started_at, row.last_seen_at) == (world.clock.now(), world.clock.now())
    assert row.lease_until == world.clock.steady() + LEASE_US


def test_a_registration_whose_answer_was_lost_can_be_repeated(world: World) -> None:
    worker = NewWorker(id=world.ids.new(), name="w", host="here", pid=1, boot=world.clock.boot)
    world.backend.workers.register(worker, LEASE_US)

    world.backend.workers.register(worker, LEASE_US)

    assert [row.id for row in world.backend.workers.all()] == [worker.id]


def test_a_worker_is_overdue_once_its_lease_is_over_and_not_before(world: World) -> None:
    worker = world.worker()
    world.clock.advance(LEASE_US)
    at_the_end = _overdue(world)

    world.clock.advance(1)

    assert at_the_end == []
    assert verbs.overdue(world.backend) == [DeathVerdict(worker, _row(world, worker).lease_until)]


def test_a_beat_renews_the_lease(world: World) -> None:
    worker = world.worker()
    world.clock.advance(LEASE_US - SECOND)

    beat = world.backend.workers.beat(worker, LEASE_US)

    assert beat == (True, [])
    row = _row(world, worker)
    assert (row.lease_until, row.last_seen_at) == (world.clock.steady() + LEASE_US, world.clock.now())
    world.clock.advance(LEASE_US - SECOND)
    assert _overdue(world) == []


def test_a_late_beat_is_a_beat_while_nobody_has_declared_the_worker_dead(world: World) -> None:
    worker = world.worker()
    world.clock.advance(10 * LEASE_US)

    assert world.backend.workers.beat(worker, LEASE_US).alive
    assert _overdue(world) == []


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_makes_nobody_overdue_or_younger(world: World, step: int) -> None:
    worker = world.worker()

    world.clock.step(step)

    assert _overdue(world) == []
    world.clock.advance(LEASE_US + 1)
    assert _overdue(world) == [worker]


def test_a_beat_tells_what_the_worker_has_running(world: World) -> None:
    done, asked, plain = (world.enqueue(priority=n) for n in (3, 2, 1))
    worker, other = world.worker(), world.worker()
    claims = world.claim(worker, 3)
    world.enqueue()
    world.claim_one(other)
    world.complete(worker, claims[0])
    world.backend.jobs.cancel([asked])

    beat = world.backend.workers.beat(worker, LEASE_US)

    assert beat == (True, [Held(asked, 1, True), Held(plain, 1, False)])
    assert world.job(done).state == "completed"


def test_a_beat_can_be_made_durable_and_tell_that_the_worker_drains(world: World) -> None:
    worker = world.worker()

    assert world.backend.workers.beat(worker, LEASE_US, "draining", durable=True).alive
    assert _row(world, worker).state == "draining"


def test_a_claim_whose_answer_was_dropped_is_found_by_the_beat_and_released_unburned(world: World) -> None:
    job_id = world.enqueue(max_attempts=1)
    worker = world.worker()
    world.claim_one(worker)

    (held,) = world.backend.workers.beat(worker, LEASE_US).held
    settled = verbs.settle(world.backend, worker, [model.released(held, world.clock.steady())])

    assert settled == ([], [], [], [], [])
    job = world.job(job_id)
    assert (job.state, job.attempt, job.crashes) == ("queued", 0, 0)
    assert world.backend.history.attempts(job_id) == []
    assert world.claim_one(worker).attempt == 1


def test_a_worker_declared_dead_learns_it_from_its_beat_and_stays_dead(world: World) -> None:
    world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.bury(worker)
    before = _row(world, worker)
    assert (before.state, before.stopped_at) == ("dead", world.clock.now())
    world.clock.advance(SECOND)

    beat = world.backend.workers.beat(worker, LEASE_US)

    assert beat == (False, [])
    assert _row(world, worker) == before


def test_the_beat_of_a_worker_that_is_not_known_says_so(world: World) -> None:
    worker = world.worker()
    raw.forget_worker(world.backend, worker)

    assert world.backend.workers.beat(worker, LEASE_US) == (False, [])
    assert world.backend.workers.all() == []


def test_a_worker_that_leaves_is_stopped_once(world: World) -> None:
    worker = world.worker()
    world.clock.advance(SECOND)

    left = [world.backend.workers.deregister(worker), world.backend.workers.deregister(worker)]

    assert left == [True, False]
    row = _row(world, worker)
    assert (row.state, row.stopped_at, row.last_seen_at) == ("stopped", world.clock.now(), world.clock.now())
    assert not world.backend.workers.beat(worker, LEASE_US).alive
    world.clock.advance(10 * LEASE_US)
    assert _overdue(world) == []


def test_a_worker_declared_dead_cannot_leave(world: World) -> None:
    worker = world.worker()
    world.bury(worker)

    assert not world.backend.workers.deregister(worker)
    assert _row(world, worker).state == "dead"


def test_live_workers_are_listed_before_those_that_ended(world: World) -> None:
    stopped, live, draining = world.worker(), world.worker(), world.worker()
    world.backend.workers.deregister(stopped)
    world.backend.workers.beat(draining, LEASE_US, "draining")

    assert [row.id for row in world.backend.workers.all()] == [draining, live, stopped]
    assert [row.id for row in world.backend.workers.all(limit=1)] == [draining]


def test_workers_that_ended_long_ago_are_forgotten(world: World) -> None:
    live, stopped, dead = world.worker(), world.worker(), world.worker()
    world.backend.workers.deregister(stopped)
    world.bury(dead)
    world.clock.advance(DAY)
    recent = world.worker()
    world.backend.workers.deregister(recent)

    forgotten = world.backend.workers.prune(world.clock.now() - HOUR)

    assert forgotten == 2
    assert [row.id for row in world.backend.workers.all()] == [live, recent]


def test_a_worker_that_left_jobs_running_is_not_forgotten_before_they_are_rescued(world: World) -> None:
    world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    world.backend.workers.deregister(worker)
    world.clock.advance(DAY)

    kept = world.backend.workers.prune(world.clock.now())
    world.backend.workers.rescue([], rng=world.rng)

    assert (kept, world.backend.workers.prune(world.clock.now())) == (0, 1)
