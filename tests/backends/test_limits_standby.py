"""Jobs that are claimed ahead under a limit: they do not count until each runs in the place of one that has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from dray.backends.postgres.session import PostgresSession
from dray.model.job import Claim, Demand
from dray.model.limit import STANDBYS_GONE_US, Source, bounds_of
from dray.model.settlement import completed
from dray.ops.audit import audit
from tests.backends import raw

if TYPE_CHECKING:
    from dray.backends.store.work import Exchange
    from tests.backends.world import World

TASKS = ("task",)


def limit(world: World, most: int) -> None:
    world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {"limit": most}))


def exchange(
    world: World,
    worker: str,
    ended: list[Claim],
    most: int,
    ahead: int = 0,
    followers: dict[str, tuple[str, int]] | None = None,
) -> Exchange:
    now = world.clock.steady()
    demand = Demand(("default",), TASKS, most, ahead, standby_tasks=TASKS)
    settlements = [completed(each, now, now, "null") for each in ended]
    return world.backend.work.exchange(worker, settlements, demand, followers=followers or {})


def counted(world: World) -> int:
    return raw.run(world.backend, "SELECT count(*) FROM dray_jobs WHERE state = 'running' AND held")[0][0]


def begun(world: World, most: int, ahead: int, jobs: int = 12) -> tuple[str, list[Claim], list[Claim]]:
    """A worker that has all that a limit lets it have, and some that stand by."""
    limit(world, most)
    for _ in range(jobs):
        world.enqueue()
    worker = world.worker()
    claims = exchange(world, worker, [], most).claims
    brought = exchange(world, worker, claims[:1], 1, ahead).claims
    standbys = [each for each in brought if each.is_standby]
    return worker, [*claims[1:], *(each for each in brought if not each.is_standby)], standbys


def follow(ended: Claim, standby: Claim) -> dict[str, tuple[str, int]]:
    return {ended.id: (standby.id, standby.claim)}


def test_those_that_stand_by_do_not_count(world: World) -> None:
    _, running, standbys = begun(world, 3, 4)

    assert len(running) == 3
    assert [each.held for each in standbys] == [False] * 4
    assert counted(world) == 3
    assert world.backend.limits.use().running["task", "task"] == 3
    assert audit(world.backend).broken == ()


def test_one_that_has_started_counts_in_the_transaction_that_ends_the_other(world: World) -> None:
    worker, running, standbys = begun(world, 1, 2)

    answer = exchange(world, worker, running, 0, 1, follow(running[0], standbys[0]))

    assert [each.is_standby for each in answer.claims] == [True]
    assert counted(world) == 1
    assert world.job(standbys[0].id).state == "running"
    assert exchange(world, world.worker(), [], 1).claims == []  # the place is taken


def test_on_postgres_a_job_does_not_end_while_the_one_in_its_place_cannot_be_counted(
    server: World, shared_url: str
) -> None:
    worker, running, standbys = begun(server, 1, 2)
    with psycopg.connect(shared_url.partition("&schema=")[0]) as other:
        schema = shared_url.partition("&schema=")[2]
        other.execute(f"SELECT 1 FROM {schema}.dray_jobs WHERE id = %s FOR UPDATE".encode(), (standbys[0].id,))

        answer = exchange(server, worker, running, 0, 0, follow(running[0], standbys[0]))

        assert answer.settled.locked == [running[0].id]
        assert exchange(server, server.worker(), [], 1).claims == []
    answer = exchange(server, worker, running, 0, 0, follow(running[0], standbys[0]))
    assert answer.settled.locked == []
    assert counted(server) == 1


def test_none_stand_by_while_more_run_than_a_limit_allows(world: World) -> None:
    worker, running, standbys = begun(world, 3, 1)
    released = exchange(world, worker, [*running[:1], *standbys], 0)
    assert released.settled.stale == []
    limit(world, 1)

    assert exchange(world, worker, [], 0, 4).claims == []


def test_none_stand_by_that_could_lose_its_last_attempt(world: World) -> None:
    limit(world, 1)
    for _ in range(4):
        world.enqueue(max_attempts=1)
    worker = world.worker()
    claims = exchange(world, worker, [], 1).claims

    assert len(exchange(world, worker, claims, 1, 3).claims) == 1


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_change_of_limits_returns_when_none_can_start_any_more(world: World, ahead: int) -> None:
    begun(world, 2, ahead)
    began = time.monotonic()

    limit(world, 1)

    assert (time.monotonic() - began >= STANDBYS_GONE_US / 1e6) == (ahead > 0)


def test_on_postgres_a_standby_that_ended_before_it_counted_leaves_no_place(server: World) -> None:
    """It had the place of another, which ends in the same transaction: that is one place, not two. With two, this
    worker would take the free one without a lock, beside another that counts."""
    worker, running, standbys = begun(server, 2, 2)
    limit(server, 3)
    ended = [running[0], standbys[0]]
    sent: list[str] = []
    later = PostgresSession.later

    def note(self: PostgresSession, name: str, /, **given: Any) -> Any:
        sent.append(name)
        return later(self, name, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresSession, "later", note)
        answer = exchange(server, worker, ended, 2)

    assert "gate_swap" not in sent
    assert "gate_lock" in sent
    assert len(answer.claims) == 1  # the other standby counts since the limit was changed
    assert counted(server) == 3
