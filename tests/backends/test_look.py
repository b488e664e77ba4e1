"""The look: what a worker reads before it takes the write lock."""

from __future__ import annotations

from typing import Any

import pytest

from dray.backends.store.work import Look
from dray.instants import SECOND
from dray.model.job import Demand
from tests.backends.world import World


def look(world: World, worker: str | None = None, *, serves_all: bool = False, **demand: Any) -> Look:
    given: dict[str, Any] = {"queues": ("default",), "tasks": ("task",), "limit": 1} | demand
    return world.backend.work.look(worker or world.worker(), Demand(**given), serves_all=serves_all)


def test_nothing_is_there(world: World) -> None:
    seen = look(world)

    assert seen == Look(is_ready=False, due_at=None, now=world.clock.now(), queues=[], cancels=[])


def test_a_job_that_could_be_claimed_is_ready(world: World) -> None:
    world.enqueue()

    assert look(world).is_ready


@pytest.mark.parametrize(
    "demand",
    [{"queues": ("other",)}, {"tasks": ("another",)}, {"tasks": ()}, {"queues": ()}, {"limit": 0, "ahead": 10}],
    ids=["another queue", "another task", "no task", "no queue", "no free slot"],
)
def test_a_job_that_could_not_be_claimed_is_not(world: World, demand: dict[str, Any]) -> None:
    world.enqueue()

    assert not look(world, **demand).is_ready


def test_one_of_many_tasks_in_one_of_many_queues_is_enough(world: World) -> None:
    for number in range(5):
        world.enqueue(f"task{number}", queue="first")
        world.enqueue(f"task{number}", queue="second")

    assert look(world, queues=("none", "second"), tasks=("unknown", "task4")).is_ready
    assert not look(world, queues=("none", "second"), tasks=("unknown", "task5")).is_ready


def test_a_paused_queue_has_nothing(world: World) -> None:
    world.enqueue()
    world.enqueue(queue="other")
    world.backend.queues.pause("default")

    assert not look(world).is_ready
    assert look(world, queues=("default", "other")).is_ready

    world.backend.queues.resume("default")
    assert look(world).is_ready


def test_running_waiting_and_ended_jobs_are_not_ready(world: World) -> None:
    worker = world.worker()
    parent = world.enqueue()
    world.enqueue(parents=(parent,))
    claim = world.claim_one(worker)
    assert not look(world).is_ready

    world.fail(worker, claim, delay_us=SECOND)
    assert not look(world).is_ready


def test_the_earliest_of_what_is_to_come_is_told(world: World) -> None:
    soon = world.enqueue(delay_us=5 * SECOND)
    world.enqueue(delay_us=50 * SECOND)

    seen = look(world)

    assert (seen.is_ready, seen.due_at, seen.now) == (False, world.job(soon).run_at, world.clock.now())


def test_who_serves_all_is_told_the_queues_that_have_anything(world: World) -> None:
    for queue in ("b", "a", "b"):
        world.enqueue(queue=queue)
    world.enqueue(queue="later", delay_us=SECOND)

    assert look(world, serves_all=True, queues=()).queues == ["a", "b"]
    assert look(world, queues=("a",)).queues == []


def test_a_queue_that_is_new_may_have_something_for_who_serves_all(world: World) -> None:
    """The look does not know its tasks yet: the claim finds out, and the next look knows."""
    world.enqueue("another", queue="new")

    assert look(world, serves_all=True, queues=()).is_ready
    assert not look(world, serves_all=True, queues=("new",)).is_ready


def test_a_worker_is_told_which_of_its_own_jobs_are_to_stop(world: World) -> None:
    worker, other = world.worker(), world.worker()
    ids = [world.enqueue() for _ in range(3)]
    mine = world.claim(worker, 2)
    world.claim(other, 1)
    world.backend.jobs.cancel([mine[0].id, ids[2]])

    assert [tuple(held) for held in look(world, worker).cancels] == [(mine[0].id, mine[0].claim, True)]
    assert [held.id for held in look(world, other).cancels] == [ids[2]]
    assert look(world, "no worker").cancels == []
