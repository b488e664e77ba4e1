"""Duties: one holder at a time, free as soon as the holder is gone, a new term for each new holder."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dray.instants import DAY, SECOND
from dray.model.worker import Lease
from tests import verbs
from tests.backends import raw

if TYPE_CHECKING:
    from dray.instants import SECOND
from tests.backends.world import World


def test_a_duty_that_nobody_ever_held_is_taken_under_term_1(world: World) -> None:
    worker = world.worker()

    assert world.backend.leases.take("prune", worker) == 1
    assert verbs.is_held(world.backend, "prune", worker, 1)
    assert world.backend.leases.all() == [Lease("prune", worker, 1, world.clock.now())]


def test_a_second_taker_gets_nothing(world: World) -> None:
    first, second = world.worker(), world.worker()
    world.backend.leases.take("prune", first)
    before = world.backend.leases.all()
    world.clock.advance(DAY)

    assert world.backend.leases.take("prune", second) is None
    assert world.backend.leases.all() == before


def test_a_duty_has_no_clock(world: World) -> None:
    worker = world.worker()
    world.backend.leases.take("prune", worker)
    world.clock.advance(30 * DAY)
    world.clock.step(-DAY)

    assert world.backend.leases.take("prune", world.worker()) is None
    assert verbs.is_held(world.backend, "prune", worker, 1)


def test_duties_are_apart_from_each_other(world: World) -> None:
    first, second = world.worker(), world.worker()

    assert world.backend.leases.take("prune", first) == 1
    assert world.backend.leases.take("rescue", second) == 1
    held = [(lease.duty, lease.holder) for lease in world.backend.leases.all()]
    assert held == [("prune", first), ("rescue", second)]


def test_a_resigned_duty_is_free_and_its_next_term_higher(world: World) -> None:
    first, second = world.worker(), world.worker()
    world.backend.leases.take("prune", first)

    assert world.backend.leases.resign("prune", first, 1)

    assert not verbs.is_held(world.backend, "prune", first, 1)
    assert [lease.holder for lease in world.backend.leases.all()] == [None]
    assert world.backend.leases.take("prune", second) == 2


def test_the_term_goes_up_even_when_the_same_worker_takes_a_duty_again(world: World) -> None:
    worker = world.worker()
    world.backend.leases.take("prune", worker)
    world.backend.leases.resign("prune", worker, 1)

    assert world.backend.leases.take("prune", worker) == 2
    assert not verbs.is_held(world.backend, "prune", worker, 1)


def test_the_duty_of_a_dead_worker_is_free_and_its_next_term_higher(world: World) -> None:
    first = world.worker()
    world.backend.leases.take("prune", first)
    world.bury(first)
    second = world.worker()

    assert world.backend.leases.take("prune", second) == 2

    assert not verbs.is_held(world.backend, "prune", first, 1)
    assert verbs.is_held(world.backend, "prune", second, 2)


def test_the_duty_of_a_worker_that_is_not_known_is_free(world: World) -> None:
    first = world.worker()
    world.backend.leases.take("prune", first)
    raw.forget_worker(world.backend, first)

    assert world.backend.leases.take("prune", world.worker()) == 2


def test_a_worker_that_leaves_frees_all_its_duties_and_no_others(world: World) -> None:
    first, second = world.worker(), world.worker()
    world.backend.leases.take("prune", first)
    world.backend.leases.take("rescue", first)
    world.backend.leases.take("promote", second)

    world.backend.workers.deregister(first)

    assert not verbs.is_held(world.backend, "prune", first, 1)
    assert world.backend.leases.take("prune", second) == 2
    assert world.backend.leases.take("rescue", second) == 2
    assert verbs.is_held(world.backend, "promote", second, 1)


def test_held_are_the_duties_of_live_workers_and_no_others(world: World) -> None:
    live, left, dead = (world.worker() for _ in range(3))
    for duty, worker in (("prune", live), ("rescue", left), ("promote", dead), ("expire", live)):
        world.backend.leases.take(duty, worker)
    world.backend.leases.resign("expire", live, 1)
    world.backend.workers.deregister(left)
    world.bury(dead)

    assert [(lease.duty, lease.holder, lease.term) for lease in world.backend.leases.held()] == [("prune", live, 1)]


def test_only_the_holder_under_its_own_term_renews(world: World) -> None:
    holder, other = world.worker(), world.worker()
    world.backend.leases.take("prune", holder)

    assert not verbs.is_held(world.backend, "prune", other, 1)
    assert not verbs.is_held(world.backend, "prune", holder, 2)
    assert not verbs.is_held(world.backend, "rescue", holder, 1)


def test_only_the_holder_under_its_own_term_resigns(world: World) -> None:
    holder, other = world.worker(), world.worker()
    world.backend.leases.take("prune", holder)
    world.backend.leases.resign("prune", holder, 1)
    world.backend.leases.take("prune", holder)
    before = world.backend.leases.all()

    assert not world.backend.leases.resign("prune", holder, 1)
    assert not world.backend.leases.resign("prune", other, 2)
    assert not world.backend.leases.resign("rescue", holder, 2)
    assert world.backend.leases.all() == before


def test_a_late_holder_cannot_resign_its_successors_duty(world: World) -> None:
    first = world.worker()
    world.backend.leases.take("prune", first)
    world.bury(first)
    second = world.worker()
    world.backend.leases.take("prune", second)

    assert not world.backend.leases.resign("prune", first, 1)
    assert verbs.is_held(world.backend, "prune", second, 2)


def test_of_racing_takers_one_gets_the_duty(world: World) -> None:
    workers = [world.worker() for _ in range(4)]
    ready = threading.Barrier(4, timeout=30)

    def take(worker: str) -> int | None:
        ready.wait()
        return world.backend.leases.take("prune", worker)

    with ThreadPoolExecutor(4) as pool:
        terms = list(pool.map(take, workers))

    assert sorted(terms, key=str) == [1, None, None, None]
    (lease,) = world.backend.leases.all()
    assert lease.holder == workers[terms.index(1)]


def test_a_take_whose_answer_was_lost_can_be_repeated(world: World) -> None:
    worker = world.worker()
    term = world.backend.leases.take("prune", worker)
    before = world.backend.leases.all()
    world.clock.advance(SECOND)

    assert world.backend.leases.take("prune", worker) == term
    assert world.backend.leases.all() == before
