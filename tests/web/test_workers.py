"""The pages of workers: slots, duties, what they run; those that ended, and what became of their jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray import App
from dray.app_interface import core_of
from tests.web.browsing import Visitor
from tests.web.executed import page_statements
from tests.web.hands import Hand


@pytest.fixture
def hand(app: App) -> Hand:
    for _ in range(5):
        app.enqueue("send", {}, queue="mail")
    return Hand(app, "app-1", slots=4, queues=["mail"])


def test_without_workers_the_page_says_how_to_start_one(visitor: Visitor) -> None:
    words = visitor.words("/workers")

    assert "No worker is alive. Start one: dray worker" in words
    assert "No worker has ended lately." in words


def test_live_workers_with_their_slots_and_duties(app: App, hand: Hand, visitor: Visitor) -> None:
    hand.claim("mail", most=3)
    core_of(app).backend.leases.take("prune", hand.id)

    words = visitor.words("/workers")
    assert "3 of 4 slots are in use" in words
    assert "app-1 3 / 4 mail prune here, pid 42" in words
    (worker,) = visitor.json("/workers.json")["live"]
    assert (worker["name"], worker["running"], worker["duties"]) == ("app-1", 3, ["prune"])


def test_a_worker_shows_what_it_runs(app: App, hand: Hand, visitor: Visitor) -> None:
    first, second = hand.claim("mail", most=2)
    hand.progress(first, 40, "half of it")
    core_of(app).backend.leases.take("prune", hand.id)

    words = visitor.words(f"/workers/{hand.id}")
    assert "app-1 alive" in words
    assert "Running 2 of 4 slots" in words
    assert "half of it" in words
    assert "Duties prune" in words
    assert "Tasks it knows send" in words
    shape = visitor.json(f"/workers/{hand.id}.json")
    assert {job["id"] for job in shape["running"]} == {first.id, second.id}
    assert shape["state"] == "active"


def test_a_worker_in_trouble_says_what_keeps_it(app: App, hand: Hand, visitor: Visitor) -> None:
    core_of(app).backend.workers.beat(hand.id, 60_000_000, trouble="cannot write: the disk is full")

    assert "It cannot work at the moment. cannot write: the disk is full" in visitor.words(f"/workers/{hand.id}")


def test_what_became_of_the_jobs_of_a_dead_worker(app: App, hand: Hand, visitor: Visitor) -> None:
    lost = hand.claim("mail", most=2)
    hand.die()

    words = visitor.words("/workers")
    assert "app-1 died Its 2 jobs were taken back: 2 scheduled to run again." in words
    assert "This worker died" in visitor.words(f"/workers/{hand.id}")
    shape = visitor.json(f"/workers/{hand.id}.json")
    assert {job["id"] for job in shape["taken_back"]} == {claim.id for claim in lost}
    assert shape["taken_back_by_state"] == {"scheduled": 2}

    app.cancel(lost[0].id)
    assert "1 scheduled to run again, 1 cancelled" in visitor.words(f"/workers/{hand.id}")


def test_a_worker_that_stopped_left_nothing_behind(hand: Hand, visitor: Visitor) -> None:
    hand.stop()

    assert "app-1 stopped" in visitor.words("/workers")
    words = visitor.words(f"/workers/{hand.id}")
    assert "app-1 stopped" in words
    assert "It left no job behind." in words


@pytest.mark.parametrize("name", ["00000000-0000-7000-8000-000000000000", "nonsense", "%27"])
def test_an_unknown_worker_is_not_found(visitor: Visitor, name: str) -> None:
    assert "There is no worker" in visitor.words(f"/workers/{name}", 404)


def test_workers_are_not_for_those_who_see_some_queues(hand: Hand, visitor_as: Callable[..., Visitor]) -> None:
    someone = visitor_as("admin", queues=["mail"])

    someone.page("/workers", 403)
    someone.page(f"/workers/{hand.id}", 403)
    assert "app-1" not in someone.page("/queues")


def test_the_pages_take_few_reads(app: App, hand: Hand, visitor: Visitor) -> None:
    hand.claim("mail", most=4)
    hand.die()
    few = page_statements(visitor, "/workers")
    one = page_statements(visitor, f"/workers/{hand.id}")
    for number in range(10):
        Hand(app, f"more-{number}").stop()

    assert few <= 30
    assert one <= 10
    assert page_statements(visitor, "/workers") <= few


def test_many_dead_workers_are_bounded(app: App, visitor: Visitor) -> None:
    for number in range(55):
        Hand(app, f"w{number}").stop()

    shape = visitor.json("/workers.json")
    assert len(shape["ended"]) == 50
    assert "the newest 50" in visitor.words("/workers")
