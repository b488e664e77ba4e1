"""Queues: their default priority, and a pause that takes effect when it returns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Demand, Queue
from tests import verbs
from tests.backends import raw

if TYPE_CHECKING:
    from tests.backends.world import World

DEFAULT = Demand(("default",), ("task",), 1)


# Priority


def test_a_job_that_names_no_priority_gets_its_queues(world: World) -> None:
    world.backend.queues.upsert("mail", 7)

    assert world.job(world.enqueue(queue="mail")).priority == 7
    assert world.job(world.enqueue(queue="default")).priority == 0


@pytest.mark.parametrize("own", [-3, 0, 9])
def test_a_jobs_own_priority_wins(world: World, own: int) -> None:
    world.backend.queues.upsert("mail", 7)

    assert world.job(world.enqueue(queue="mail", priority=own)).priority == own


def test_a_changed_priority_is_for_jobs_to_come(world: World) -> None:
    world.backend.queues.upsert("mail", 7)
    before = world.enqueue(queue="mail")

    world.backend.queues.upsert("mail", -2)

    after = world.enqueue(queue="mail")
    assert [job.priority for job in world.backend.jobs.get([before, after])] == [7, -2]


def test_jobs_of_one_batch_get_the_priority_of_their_own_queue(world: World) -> None:
    world.backend.queues.upsert("mail", 7)
    new = [world.new(queue="mail"), world.new(), world.new(queue="mail", priority=1)]

    ids = [job.id for job in world.backend.jobs.enqueue(new)]

    assert [job.priority for job in world.backend.jobs.get(ids)] == [7, 0, 1]


def test_setting_a_priority_does_not_resume_a_paused_queue(world: World) -> None:
    world.backend.queues.pause("mail")
    world.backend.queues.upsert("mail", 7)

    (queue,) = world.backend.queues.all()
    assert (queue.priority, queue.paused_at) == (7, world.clock.now())


def test_queues_that_were_set_paused_or_used_are_listed_by_name(world: World) -> None:
    world.backend.queues.upsert("set", 7)
    world.backend.queues.pause("paused")
    world.enqueue(queue="used")
    now = world.clock.now()

    assert world.backend.queues.all() == [
        Queue("paused", 0, now, now),
        Queue("set", 7, None, now),
        Queue("used", 0, None, now),
    ]


# Pause


def test_nothing_is_claimed_from_a_paused_queue(world: World) -> None:
    job_id = world.enqueue()

    paused = world.backend.queues.pause("default")

    assert paused
    assert world.claim(world.worker(), 5, ahead=5) == []
    assert not verbs.probe(world.backend, DEFAULT)
    job = world.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)


def test_a_resumed_queue_is_claimed_from_again(world: World) -> None:
    job_id = world.enqueue()
    world.backend.queues.pause("default")

    resumed = world.backend.queues.resume("default")

    assert resumed
    assert verbs.probe(world.backend, DEFAULT)
    assert world.claim_one(world.worker()).id == job_id


def test_a_paused_queue_does_not_use_up_the_demand_of_the_next(world: World) -> None:
    world.enqueue(queue="mail")
    job_id = world.enqueue()
    world.backend.queues.pause("mail")
    demand = Demand(("mail", "default"), ("task",), 1)

    assert verbs.probe(world.backend, demand)
    assert [claim.id for claim in verbs.claim(world.backend, world.worker(), demand)] == [job_id]


def test_a_queue_nobody_has_used_can_be_paused(world: World) -> None:
    assert world.backend.queues.pause("default")

    world.enqueue()

    assert world.claim(world.worker()) == []


def test_pausing_twice_keeps_the_first_time_and_says_so(world: World) -> None:
    world.backend.queues.pause("default")
    before = world.backend.queues.all()
    world.clock.advance(SECOND)

    assert not world.backend.queues.pause("default")
    assert world.backend.queues.all() == before


def test_resuming_what_is_not_paused_says_so(world: World) -> None:
    world.enqueue(queue="used")

    assert not world.backend.queues.resume("used")
    assert not world.backend.queues.resume("unknown")


def test_jobs_that_run_while_their_queue_is_paused_end_as_usual(world: World) -> None:
    done, failed, released = (world.enqueue() for _ in range(3))
    worker = world.worker()
    claims = world.claim(worker, 3)
    world.backend.queues.pause("default")
    world.complete(worker, claims[0])
    world.fail(worker, claims[1])
    verbs.settle(world.backend, worker, [model.released(claims[2], world.clock.steady())])

    states = [job.state for job in world.backend.jobs.get([done, failed, released])]

    assert states == ["completed", "queued", "queued"]
    assert world.claim(worker, 5) == []


def test_a_pause_waits_for_a_claim_under_way(world: World) -> None:
    world.enqueue()
    with ThreadPoolExecutor(1) as pool:
        with raw.claim_under_way(world.backend, "default"):
            pausing = pool.submit(world.backend.queues.pause, "default")
            with pytest.raises(TimeoutError):
                pausing.result(timeout=0.2)

        assert pausing.result(timeout=30)


def test_a_claim_waits_for_a_pause_under_way_and_then_takes_nothing(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    with ThreadPoolExecutor(1) as pool:
        with raw.pause_under_way(world.backend, "default"):
            claiming = pool.submit(world.claim, worker)
            with pytest.raises(TimeoutError):
                claiming.result(timeout=0.2)

        assert claiming.result(timeout=30) == []
    assert world.job(job_id).attempt == 0


def test_once_a_pause_has_returned_no_racing_worker_claims(world: World) -> None:
    world.backend.jobs.enqueue([world.new() for _ in range(3_000)])
    workers = [world.worker() for _ in range(4)]
    racing = threading.Barrier(5, timeout=30)
    paused = threading.Event()

    def claim_on(worker: str) -> None:
        world.claim_one(worker)
        racing.wait()
        while not paused.is_set():
            world.claim(worker)
        for _ in range(5):
            world.claim(worker)

    def started() -> int:
        return world.backend.history.stats(SECOND).counts["default"]["running"]

    with ThreadPoolExecutor(4) as pool:
        claiming = [pool.submit(claim_on, worker) for worker in workers]
        try:
            racing.wait()
            world.backend.queues.pause("default")
            at_pause = started()
        finally:
            paused.set()
        for each in claiming:
            each.result()

    assert started() == at_pause
    assert 4 <= at_pause < 3_000
