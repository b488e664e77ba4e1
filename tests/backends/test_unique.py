"""Unique jobs: one holder per key, freed exactly when its scope says, and by nothing else."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.errors import GraphError
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import CancelResult, Enqueued
from dray.model.retention import Retention
from tests import verbs
from tests.backends import beside
from tests.backends.world import World


def locks(world: World, *ids: str) -> list[str | None]:
    return [world.job(job_id).unique_lock for job_id in ids]


# Which request wins


def test_the_second_gets_the_firsts_id(world: World) -> None:
    first = world.enqueue(unique_key="k", args='{"n":1}')

    (second,) = world.backend.jobs.enqueue([world.new(unique_key="k", args='{"n":2}')])

    assert second == Enqueued(first, duplicate=True)
    assert [job.args for job in world.backend.jobs.newest()] == ['{"n":1}']


def test_within_one_batch_the_first_of_a_key_wins(world: World) -> None:
    held = world.enqueue(unique_key="c")
    jobs = [world.new(unique_key=key) for key in ("b", "a", "b", None, "c", "a")]

    answer = world.backend.jobs.enqueue(jobs)

    assert answer == [
        Enqueued(jobs[0].id, duplicate=False),
        Enqueued(jobs[1].id, duplicate=False),
        Enqueued(jobs[0].id, duplicate=True),
        Enqueued(jobs[3].id, duplicate=False),
        Enqueued(held, duplicate=True),
        Enqueued(jobs[1].id, duplicate=True),
    ]
    assert {job.id for job in world.backend.jobs.newest()} == {held, *(jobs[n].id for n in (0, 1, 3))}


def test_a_loser_leaves_neither_edges_nor_large_arguments_behind(world: World, url: str) -> None:
    parent, holder = world.enqueue(), world.enqueue(unique_key="k")

    (answer,) = world.backend.jobs.enqueue(
        [world.new(unique_key="k", parents=(parent,), args='"' + "x" * 3_000 + '"')]
    )

    assert answer == Enqueued(holder, duplicate=True)
    assert beside.count(url, "dray_edges") == 0
    assert world.job(holder).args == "{}"


def test_jobs_without_a_key_never_collide(world: World) -> None:
    answer = world.backend.jobs.enqueue([world.new(), world.new()])

    assert [enqueued.duplicate for enqueued in answer] == [False, False]


def test_a_job_cannot_run_after_one_that_lost_its_key(world: World, url: str) -> None:
    holder = world.enqueue(unique_key="k")
    loser = world.new(unique_key="k")

    with pytest.raises(GraphError, match=holder):
        world.backend.jobs.enqueue([loser, world.new(parents=(loser.id,))])

    assert beside.count(url, "dray_jobs") == 1


def test_a_repeated_enqueue_of_a_loser_is_a_duplicate_again(world: World) -> None:
    holder, loser = world.enqueue(unique_key="k"), world.new(unique_key="k")
    world.backend.jobs.enqueue([loser])

    assert world.backend.jobs.enqueue([loser]) == [Enqueued(holder, duplicate=True)]


# When the key is free again


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "expired", "crashed"])
def test_a_key_held_while_live_is_free_once_the_job_has_ended(world: World, end: str) -> None:
    holder, worker = world.enqueue(unique_key="k", max_attempts=1, expires_us=HOUR), world.worker()
    if end == "cancelled":
        world.backend.jobs.cancel([holder])
    elif end == "expired":
        world.clock.advance(HOUR)
        world.backend.jobs.expire()
    else:
        claim = world.claim_one(worker)
        assert world.enqueue(unique_key="k") == holder
        if end == "crashed":
            world.bury(worker)
        elif end == "failed":
            world.fail(worker, claim)
        else:
            world.complete(worker, claim)

    (next_one,) = world.backend.jobs.enqueue([world.new(unique_key="k")])

    assert not next_one.duplicate
    assert locks(world, holder, next_one.id) == [None, "k"]
    assert world.job(holder).unique_key == "k"


def test_a_key_held_while_queued_is_free_once_the_job_runs(world: World) -> None:
    first = world.enqueue(unique_key="k", unique_scope="queued")
    assert world.enqueue(unique_key="k", unique_scope="queued") == first
    world.claim_one(world.worker())

    second = world.enqueue(unique_key="k", unique_scope="queued")

    assert second != first
    assert locks(world, first, second) == [None, "k"]


def test_a_window_outlives_the_job_and_ends_on_time(world: World) -> None:
    first, worker = world.enqueue(unique_key="k", unique_us=HOUR), world.worker()
    world.complete(worker, world.claim_one(worker))

    world.clock.advance(HOUR - 1)
    within = world.backend.jobs.enqueue([world.new(unique_key="k", unique_us=HOUR)])
    world.clock.advance(1)
    after = world.backend.jobs.enqueue([world.new(unique_key="k", unique_us=HOUR)])

    assert within == [Enqueued(first, duplicate=True)]
    assert not after[0].duplicate
    assert locks(world, first, after[0].id) == [None, "k"]


def test_a_window_does_not_hold_a_key_longer_than_a_live_job_does(world: World) -> None:
    holder = world.enqueue(unique_key="k", unique_us=SECOND)
    worker = world.worker()
    claim = world.claim_one(worker)
    world.clock.advance(HOUR)
    world.complete(worker, claim)

    assert world.job(holder).unique_lock is None
    assert world.enqueue(unique_key="k") != holder


def test_a_batch_frees_expired_windows_and_meets_those_still_open(world: World) -> None:
    worker = world.worker()
    over = world.enqueue(unique_key="over", unique_us=SECOND)
    still = world.enqueue(unique_key="open", unique_us=HOUR)
    for claim in world.claim(worker, 2):
        world.complete(worker, claim)
    world.clock.advance(SECOND)

    jobs = [world.new(unique_key="over"), world.new(unique_key="open"), world.new(unique_key="over")]
    answer = world.backend.jobs.enqueue(jobs)

    assert answer == [
        Enqueued(jobs[0].id, duplicate=False),
        Enqueued(still, duplicate=True),
        Enqueued(jobs[0].id, duplicate=True),
    ]
    assert locks(world, over, still, jobs[0].id) == [None, "open", "over"]


# What does not affect the key


def test_retries_rescue_promotion_and_snooze_keep_the_key(world: World) -> None:
    holder, worker = world.enqueue(unique_key="k", max_attempts=9, max_crashes=9), world.worker()

    def still_held() -> None:
        assert world.job(holder).unique_lock == "k"
        assert world.enqueue(unique_key="k") == holder

    world.fail(worker, world.claim_one(worker), delay_us=SECOND)
    still_held()
    world.clock.advance(SECOND)
    assert world.backend.jobs.promote() == ["default"]
    still_held()
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.snoozed(world.claim_one(worker), now, now, SECOND)])
    still_held()
    world.clock.advance(SECOND)
    world.backend.jobs.promote()
    verbs.settle(world.backend, worker, [model.released(world.claim_one(worker), now)])
    still_held()
    world.claim_one(worker)
    world.bury(worker)
    still_held()


def test_a_key_freed_at_the_claim_is_not_taken_again_by_a_retry_of_the_attempt(world: World) -> None:
    first, worker = world.enqueue(unique_key="k", unique_scope="queued"), world.worker()
    claim = world.claim_one(worker)
    second = world.enqueue(unique_key="k", unique_scope="queued")

    world.fail(worker, claim)

    assert world.job(first).state == "queued"
    assert locks(world, first, second) == [None, "k"]


def test_a_job_started_over_does_not_take_its_key_back(world: World) -> None:
    first, worker = world.enqueue(unique_key="k"), world.worker()
    world.complete(worker, world.claim_one(worker))
    second = world.enqueue(unique_key="k")

    assert world.backend.jobs.retry([first]) == [first]

    assert [world.job(i).state for i in (first, second)] == ["queued", "queued"]
    assert locks(world, first, second) == [None, "k"]
    for claim in world.claim(worker, 2):
        world.complete(worker, claim)
    assert not world.backend.jobs.enqueue([world.new(unique_key="k")])[0].duplicate


def test_a_cancel_request_on_a_running_job_keeps_its_key(world: World) -> None:
    holder = world.enqueue(unique_key="k")
    world.claim_one(world.worker())

    assert world.backend.jobs.cancel([holder]) == {holder: CancelResult.REQUESTED}

    assert world.enqueue(unique_key="k") == holder


def test_a_child_cancelled_with_its_parent_frees_its_key(world: World) -> None:
    parent = world.enqueue()
    child = world.enqueue(parents=(parent,), unique_key="k")
    world.backend.jobs.cancel([parent])

    assert locks(world, child) == [None]
    assert world.enqueue(unique_key="k") != child


def test_a_job_cancelled_as_it_is_enqueued_holds_no_key(world: World) -> None:
    parent = world.enqueue()
    world.backend.jobs.cancel([parent])

    child = world.enqueue(parents=(parent,), unique_key="k")

    assert (world.job(child).state, world.job(child).unique_lock) == ("cancelled", None)
    assert world.enqueue(unique_key="k") != child


def test_a_revived_child_lives_beside_the_new_holder_of_its_key(world: World) -> None:
    parent = world.enqueue("parent", max_attempts=1)
    child, worker = world.enqueue(parents=(parent,), unique_key="k"), world.worker()
    world.fail(worker, world.claim_one(worker, tasks=("parent",)))
    holder = world.enqueue(unique_key="k")

    world.backend.jobs.retry([parent])

    assert (world.job(child).state, world.job(child).reason) == ("waiting", None)
    assert locks(world, child, holder) == [None, "k"]


def test_pruning_frees_no_key_before_its_window_is_over(world: World) -> None:
    first, worker = world.enqueue(unique_key="k", unique_us=HOUR), world.worker()
    world.complete(worker, world.claim_one(worker))
    at_once = Retention(0, 0, 0)
    world.clock.advance(SECOND)

    assert verbs.prune(world.backend, at_once) == 0
    assert world.enqueue(unique_key="k") == first
    world.clock.advance(HOUR)
    assert verbs.prune(world.backend, at_once) == 1


# Concurrent requests


def test_of_sixteen_that_enqueue_at_once_one_at_most_is_live_at_any_moment(world: World, url: str) -> None:
    threads, rounds = 16, 8
    world.enqueue()  # creates the queue: with an uncommitted new one they would wait for each other
    start = threading.Barrier(threads)

    def produce(seed: int) -> list[str]:
        rng, won = random.Random(seed), list[str]()
        start.wait()
        for _ in range(rounds):
            with beside.connect(url) as connection:
                new = world.new(unique_key="k")
                (answer,) = world.backend.jobs.enqueue([new], connection=connection)
                if rng.random() < 0.3:
                    connection.rollback()
                    continue
                connection.commit()
            if not answer.duplicate:
                won.append(new.id)
                assert live_holders() == [new.id]  # nothing else ends it
                world.backend.jobs.cancel([new.id])
            else:
                assert world.backend.jobs.get([answer.id])  # the winner was committed, never rolled back
        return won

    def live_holders() -> list[str]:
        found = beside.rows(url, "SELECT id FROM dray_jobs WHERE unique_key = 'k' AND finished_at IS NULL")
        return [str(row[0]) for row in found]

    with ThreadPoolExecutor(threads) as pool:
        winners = [job_id for won in pool.map(produce, range(threads)) for job_id in won]

    assert winners
    assert live_holders() == []
    stored = beside.rows(url, "SELECT id FROM dray_jobs WHERE unique_key = 'k'")
    assert {str(row[0]) for row in stored} == set(winners)
