"""Jobs that become due, and jobs that expire; also when the clock is set back."""

from __future__ import annotations

import pytest

from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.model import settlement as model
from dray.model.bounds import PROMOTE_CHUNK
from dray.model.job import Demand
from dray.model.worker import NewWorker
from tests import verbs
from tests.backends.world import World


def state(world: World, *ids: str) -> list[str]:
    jobs = [world.job(job_id) for job_id in ids]
    return [job.state if job.reason is None else f"{job.state}({job.reason})" for job in jobs]


# Expiry


def test_jobs_not_started_in_time_are_cancelled_as_expired(world: World) -> None:
    queued = world.enqueue(expires_us=MINUTE)
    scheduled = world.enqueue(expires_us=MINUTE, delay_us=HOUR)
    waiting = world.enqueue(expires_us=MINUTE, parents=(world.enqueue("parent"),))
    later, never = world.enqueue(expires_us=HOUR), world.enqueue()
    world.clock.advance(MINUTE)

    assert sorted(world.backend.jobs.expire()) == [queued, scheduled, waiting]

    assert state(world, queued, scheduled, waiting) == ["cancelled(expired)"] * 3
    assert state(world, later, never) == ["queued", "queued"]
    assert world.job(queued).finished_at == world.clock.now()
    assert world.backend.jobs.expire() == []


def test_a_job_expires_at_its_instant_and_not_before(world: World) -> None:
    job_id = world.enqueue(expires_at=world.clock.now() + MINUTE)

    world.clock.advance(MINUTE - 1)
    assert world.backend.jobs.expire() == []
    world.clock.advance(1)

    assert world.backend.jobs.expire() == [job_id]


def test_a_running_job_does_not_expire_but_its_next_attempt_does(world: World) -> None:
    job_id, worker = world.enqueue(expires_us=MINUTE), world.worker()
    claim = world.claim_one(worker)
    world.clock.advance(HOUR)
    assert world.backend.jobs.expire() == []
    assert state(world, job_id) == ["running"]

    world.fail(worker, claim)
    assert world.backend.jobs.expire() == [job_id]

    assert state(world, job_id) == ["cancelled(expired)"]
    assert [attempt.outcome for attempt in world.backend.history.attempts(job_id)] == ["error"]


def test_a_running_job_past_its_time_may_complete(world: World) -> None:
    job_id, worker = world.enqueue(expires_us=MINUTE), world.worker()
    claim = world.claim_one(worker)
    world.clock.advance(HOUR)

    world.complete(worker, claim)

    assert state(world, job_id) == ["completed"]


def test_an_expired_job_is_never_claimed_even_if_nobody_expired_it_before(world: World) -> None:
    expired, fresh = world.enqueue(expires_us=MINUTE, priority=9), world.enqueue()
    world.clock.advance(MINUTE)

    claims = world.claim(world.worker(), 9)

    assert [claim.id for claim in claims] == [fresh]
    assert state(world, expired) == ["cancelled(expired)"]


def test_an_expired_job_is_not_claimed_however_many_there_are(world: World) -> None:
    world.backend.jobs.enqueue([world.new(expires_us=MINUTE) for _ in range(PROMOTE_CHUNK + 10)])
    world.clock.advance(MINUTE)

    assert world.claim(world.worker(), 20) == []


def test_an_exchange_does_not_promote_what_has_expired_meanwhile(world: World) -> None:
    late = world.enqueue(delay_us=SECOND, expires_us=MINUTE)
    world.clock.advance(MINUTE)

    exchange = world.backend.work.exchange(world.worker(), (), Demand(("default",), ("task",), 9))

    assert (exchange.promoted, exchange.claims) == ([], [])
    assert state(world, late) == ["cancelled(expired)"]


def test_an_exchange_that_only_claims_leaves_what_is_due_or_expired_to_the_next(world: World) -> None:
    """A worker that a commit woke claims at once. What the clock brought, its next look finds."""
    expired, due = world.enqueue(expires_us=MINUTE, priority=9), world.enqueue(delay_us=MINUTE)
    world.clock.advance(MINUTE)
    fresh, worker = world.enqueue(), world.worker()
    demand = Demand(("default",), ("task",), 9)

    at_once = world.backend.work.exchange(worker, (), demand._replace(tends=False))

    assert (at_once.promoted, [claim.id for claim in at_once.claims]) == ([], [fresh])
    assert [state(world, job) for job in (expired, due)] == [["queued"], ["scheduled"]]
    assert [claim.id for claim in world.backend.work.exchange(worker, (), demand).claims] == [due]
    assert state(world, expired) == ["cancelled(expired)"]


def test_expiry_takes_at_most_what_it_is_asked_to_the_most_overdue_first(world: World) -> None:
    now = world.clock.now()
    third, first, second = (world.enqueue(expires_at=now + n) for n in (3, 1, 2))
    world.clock.advance(SECOND)

    assert sorted(world.backend.jobs.expire(2)) == sorted([first, second])
    assert world.backend.jobs.expire(2) == [third]


def test_a_job_started_over_after_it_expired_does_not_expire_again(world: World) -> None:
    job_id = world.enqueue(expires_us=MINUTE)
    world.clock.advance(MINUTE)
    world.backend.jobs.expire()

    world.backend.jobs.retry([job_id])

    assert world.job(job_id).expires_at is None
    assert world.backend.jobs.expire() == []
    assert world.claim_one(world.worker()).id == job_id


def test_a_job_started_over_before_its_time_keeps_it(world: World) -> None:
    expires_at = world.clock.now() + HOUR
    job_id = world.enqueue(expires_at=expires_at)
    world.backend.jobs.cancel([job_id])

    world.backend.jobs.retry([job_id])

    assert world.job(job_id).expires_at == expires_at


# Promotion


def test_a_scheduled_job_is_queued_at_its_instant_and_not_before(world: World) -> None:
    run_at = world.clock.now() + MINUTE
    job_id = world.enqueue(run_at=run_at)

    world.clock.advance(MINUTE - 1)
    assert world.backend.jobs.promote() == []
    assert world.claim(world.worker(), 9) == []
    world.clock.advance(1)

    assert world.backend.jobs.promote() == ["default"]
    job = world.job(job_id)
    assert (job.state, job.run_at) == ("queued", run_at)


def test_promotion_takes_the_earliest_first(world: World) -> None:
    now = world.clock.now()
    third, first, second = (world.enqueue(run_at=now + n, queue=f"q{n}") for n in (3, 1, 2))
    world.clock.advance(SECOND)

    assert world.backend.jobs.promote(1) == ["q1"]
    assert state(world, first, second, third) == ["queued", "scheduled", "scheduled"]
    assert sorted(world.backend.jobs.promote()) == ["q2", "q3"]


def test_promotion_names_a_queue_for_every_job(world: World) -> None:
    for queue in ("mail", "mail", "default"):
        world.enqueue(queue=queue, delay_us=SECOND)
    world.clock.advance(SECOND)

    assert sorted(world.backend.jobs.promote()) == ["default", "mail", "mail"]


def test_an_exchange_promotes_and_claims_what_became_due(world: World) -> None:
    job_id = world.enqueue(delay_us=MINUTE)
    world.clock.advance(MINUTE)

    exchange = world.backend.work.exchange(world.worker(), (), Demand(("default",), ("task",), 1))

    assert (exchange.promoted, [claim.id for claim in exchange.claims]) == (["default"], [job_id])


def test_the_next_time_is_that_of_the_earliest_scheduled_job(world: World) -> None:
    now = world.clock.now()
    assert verbs.next_due(world.backend) is None
    world.enqueue()
    world.enqueue(run_at=now + HOUR)
    early = world.enqueue(run_at=now + MINUTE)
    waiting = world.enqueue(run_at=now + SECOND, parents=(world.enqueue("parent"),))
    assert world.job(waiting).state == "waiting"

    assert verbs.next_due(world.backend) == now + MINUTE
    world.backend.jobs.cancel([early])
    assert verbs.next_due(world.backend) == now + HOUR
    world.clock.advance(HOUR)
    world.backend.jobs.promote()
    assert verbs.next_due(world.backend) is None


def test_a_retry_with_a_delay_is_promoted_when_it_is_over(world: World) -> None:
    job_id, worker = world.enqueue(), world.worker()
    world.fail(worker, world.claim_one(worker), delay_us=MINUTE)
    assert (state(world, job_id), verbs.next_due(world.backend)) == (
        ["scheduled"],
        world.clock.now() + MINUTE,
    )

    world.clock.advance(MINUTE)
    world.backend.jobs.promote()

    assert world.claim_one(worker).attempt == 2


# When the clock is set


@pytest.mark.parametrize("step", [-DAY, -HOUR, HOUR, DAY])
def test_a_clock_set_and_set_back_forgets_nothing(world: World, step: int) -> None:
    worker = world.worker()
    due = world.enqueue(delay_us=MINUTE)
    ready = world.enqueue()
    retried = world.enqueue("retried")
    snoozed = world.enqueue("snoozed")
    child = world.enqueue("child", parents=(ready,), delay_us=SECOND)
    held = world.claim_one(worker, tasks=("retried",))
    asleep = world.claim_one(worker, tasks=("snoozed",))

    world.clock.step(step)
    now = world.clock.steady()
    world.fail(worker, held, delay_us=MINUTE)
    verbs.settle(world.backend, worker, [model.snoozed(asleep, now, now, MINUTE)])
    for claim in world.claim(worker, 9):
        world.complete(worker, claim)
    world.clock.step(-step)
    world.clock.advance(abs(step) + 10 * MINUTE)
    for _ in range(2):
        for claim in world.claim(worker, 9, tasks=("task", "retried", "snoozed", "child")):
            world.complete(worker, claim)

    assert state(world, due, ready, retried, snoozed, child) == ["completed"] * 5


def test_a_job_ready_before_the_clock_was_set_back_is_still_ready(world: World) -> None:
    job_id = world.enqueue()
    world.clock.step(-DAY)

    assert verbs.probe(world.backend, Demand(("default",), ("task",), 1)) is True
    assert world.claim_one(world.worker()).id == job_id


def test_a_clock_set_forward_kills_no_worker_and_takes_no_job_back(world: World) -> None:
    worker = NewWorker(id=world.ids.new(), name="w", host="here", pid=1, boot=world.clock.boot)
    world.backend.workers.register(worker, MINUTE)
    job_id = world.enqueue()
    world.claim_one(worker.id)

    world.clock.step(DAY)

    assert verbs.overdue(world.backend) == []
    assert world.backend.workers.rescue([], rng=world.rng) == []
    assert state(world, job_id) == ["running"]


# Upcoming times


def test_where_nothing_waits_nothing_is_to_come(world: World) -> None:
    world.enqueue()

    assert world.backend.jobs.upcoming() == (None, None, False, None)


def test_the_earliest_job_that_is_due_and_the_earliest_that_expires_are_told_from_now(world: World) -> None:
    now = world.clock.now()
    for seconds in (9, 5, 7):
        world.enqueue(delay_us=seconds * SECOND, expires_at=now + (seconds + 1) * SECOND)
    world.clock.advance(2 * SECOND)
    ahead = world.backend.jobs.upcoming()

    world.clock.advance(5 * SECOND)

    assert ahead == (3 * SECOND, 4 * SECOND, False, None)
    assert world.backend.jobs.upcoming() == (-2 * SECOND, -SECOND, False, None)


def test_the_expiry_of_a_job_that_was_started_is_not_to_come(world: World) -> None:
    world.enqueue(expires_at=world.clock.now() + SECOND)
    world.claim_one(world.worker())

    assert world.backend.jobs.upcoming() == (None, None, False, None)
