"""A job that takes the place of one that ends in the same transaction: no more run than before, so on PostgreSQL
nothing is locked for it. What is promised holds on both databases, whichever way a claim takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dray.backends.postgres.session import PostgresSession
from dray.instants import MINUTE, SECOND
from dray.model.job import Claim, Demand, Outcome, State
from dray.model.limit import Source, bounds_of
from dray.model.settlement import completed, errored
from tests.backends import raw

if TYPE_CHECKING:
    from dray.backends.statements import Statement
    from dray.backends.store.work import Exchange
    from tests.backends.world import World

TASKS = ("task", "other")


def limit(world: World, most: int, **more: Any) -> None:
    world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {"limit": most, **more}))


def exchange(
    world: World, worker: str, ended: list[Claim], most: int, queues: tuple[str, ...] = ("default",)
) -> Exchange:
    now = world.clock.steady()
    settlements = [completed(each, now, now, "null") for each in ended]
    return world.backend.work.exchange(worker, settlements, Demand(queues, TASKS, most))


def claim(world: World, worker: str, most: int, ended: list[Claim] | None = None) -> list[Claim]:
    """What a worker gets that goes on where it is told to."""
    first = exchange(world, worker, ended or [], most)
    if not first.goes_on:
        return first.claims
    return first.claims + exchange(world, worker, [], most - len(first.claims)).claims


def running(world: World) -> int:
    return raw.run(world.backend, "SELECT count(*) FROM dray_jobs WHERE state = 'running'")[0][0]


def enqueue(world: World, count: int, **given: Any) -> list[str]:
    return [world.enqueue(**given) for _ in range(count)]


def begun(world: World, most: int, jobs: int) -> tuple[str, list[Claim]]:
    """A worker that has taken all that a limit lets it, of more jobs."""
    limit(world, most)
    enqueue(world, jobs)
    worker = world.worker()
    claims = claim(world, worker, 10)
    assert len(claims) == most
    return worker, claims


def test_what_ends_is_followed_by_the_next_in_line(world: World) -> None:
    worker, claims = begun(world, 3, 10)
    order = [row[0] for row in raw.run(world.backend, "SELECT CAST(id AS text) FROM dray_jobs ORDER BY run_at, id")]
    for n in range(3, 9, 2):
        ended, claims = claims[:2], claims[2:]
        claims += claim(world, worker, 2, ended)
        assert [each.id for each in claims[-2:]] == order[n : n + 2]
        assert all(each.held and each.spans_queues for each in claims)
        assert running(world) == 3


def test_on_postgres_it_costs_no_more_statements_than_without_limits(
    server: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, claims = begun(server, 3, 10)
    sent: list[str] = []
    run = PostgresSession._run

    def note(self: PostgresSession, statement: Statement, params: dict[str, Any]) -> Any:
        sent.append(statement.name)
        return run(self, statement, params)

    monkeypatch.setattr(PostgresSession, "_run", note)

    assert len(exchange(server, worker, claims[:2], 2).claims) == 2
    assert sent == ["work_begin", "job_complete", "fanout_mark", "work_tend", "gate_swap"]


def test_a_limit_that_was_raised_and_lowered_again_is_kept(world: World) -> None:
    worker, claims = begun(world, 2, 10)
    limit(world, 4)
    claims += claim(world, worker, 2)
    assert len(claims) == 4
    limit(world, 2)

    assert claim(world, worker, 1, claims[:1]) == []
    assert claim(world, worker, 2, claims[1:2]) == []
    assert len(claim(world, worker, 3, claims[2:3])) == 1
    assert running(world) == 2


def test_a_job_that_had_ended_before_leaves_no_room(world: World) -> None:
    """As one that its body has completed in its own transaction: others may have taken its room."""
    worker, claims = begun(world, 1, 10)
    ended = "UPDATE dray_jobs SET state = 'completed', held = FALSE, finished_at = started_at WHERE id = ?"
    raw.run(world.backend, ended, claims[0].id)
    (other,) = claim(world, world.worker(), 1)

    answer = exchange(world, worker, claims, 1)

    assert answer.settled.already == [claims[0].id]
    assert answer.claims == []
    assert running(world) == 1
    assert other.held


def test_a_job_that_is_to_be_tried_again_leaves_its_room_too(world: World) -> None:
    worker, claims = begun(world, 1, 3)
    now = world.clock.steady()
    failed = errored(claims[0], now, now, Outcome.ERROR, MINUTE, "ValueError", "no", "trace")

    (following,) = world.backend.work.exchange(worker, [failed], Demand(("default",), TASKS, 1)).claims

    assert following.id != claims[0].id
    assert running(world) == 1


def test_a_paused_queue_gets_no_room_back(world: World) -> None:
    worker, claims = begun(world, 2, 10)
    world.backend.queues.pause("default")

    assert claim(world, worker, 2, claims) == []

    world.backend.queues.resume("default")
    assert len(claim(world, worker, 2)) == 2


def test_more_slots_than_have_become_free_by_ends_are_filled_too(world: World) -> None:
    limit(world, 4)
    enqueue(world, 10)
    worker = world.worker()
    claims = claim(world, worker, 2)

    assert len(claim(world, worker, 3, claims[:1])) == 3
    assert running(world) == 4


@pytest.mark.parametrize("other", [{"task": "other"}, {"task": "other", "key": "k"}, {"key": "k"}])
def test_a_more_urgent_job_of_the_queue_comes_first(world: World, other: dict[str, str]) -> None:
    worker, claims = begun(world, 1, 10)
    urgent = world.enqueue(**other, priority=5)

    assert [each.id for each in claim(world, worker, 1, claims)] == [urgent]


def test_a_queue_that_comes_first_is_served_first(world: World) -> None:
    worker, claims = begun(world, 1, 10)
    first = world.enqueue("other", queue="first")

    answer = exchange(world, worker, claims, 1, queues=("first", "default"))

    assert [each.id for each in answer.claims] == [first]


@pytest.mark.parametrize("rule", [{"rate": "1/min"}, {"limit": 0}])
def test_a_rule_that_has_come_counts(world: World, rule: dict[str, Any]) -> None:
    worker, claims = begun(world, 1, 10)
    world.backend.limits.say("queue", "default", Source.OVERRIDE, bounds_of("queue", rule))
    allowed = 1 if "rate" in rule else 0

    following = claim(world, worker, 1, claims)

    assert len(following) == allowed
    assert claim(world, worker, 1, following) == []


def test_without_its_limit_the_line_is_claimed_as_any_other(world: World) -> None:
    worker, claims = begun(world, 1, 10)
    world.backend.limits.say("task", "task", Source.DECLARED, {})

    assert len(claim(world, worker, 1, claims)) == 1
    assert len(claim(world, worker, 9)) == 8


def test_on_postgres_a_job_that_has_expired_is_passed_over(server: World) -> None:
    limit(server, 1)
    enqueue(server, 1)
    expiring = server.enqueue(expires_us=SECOND)
    last = server.enqueue()
    worker = server.worker()
    claims = claim(server, worker, 1)
    server.clock.advance(2 * SECOND)

    answer = server.backend.work.exchange(
        worker,
        [completed(claims[0], server.clock.steady(), server.clock.steady(), "null")],
        Demand(("default",), TASKS, 1, tends=False),
    )

    assert [each.id for each in answer.claims] == [last]
    assert server.job(expiring).state == State.QUEUED
