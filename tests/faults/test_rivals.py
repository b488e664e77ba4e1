"""A write that was lost before its commit, and that another process then did: it was the other's.

Dray repeats a transaction whose connection was lost, or that met a conflict. That the second try finds nothing left
to do does not mean that the first one was committed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from dray.backends import Backend
from dray.instants import MINUTE
from dray.model.schedule import Schedule
from tests.faults.databases import FaultyDatabase, FaultyPostgres
from tests.faults.postgres_proxy import CUT_AFTER, CUT_BEFORE, DEADLOCK, PostgresFault

LOST = [CUT_BEFORE, DEADLOCK]


@pytest.fixture
def database(postgres_server: str, schemas: Any) -> Generator[FaultyDatabase]:
    schema = schemas.take()
    made = FaultyPostgres(postgres_server, schema)
    made.open()
    yield made
    made.close()
    schemas.give_back(schema)


@pytest.fixture
def direct(database: FaultyDatabase) -> Backend:
    return database.world.backend


@pytest.fixture
def schedule(database: FaultyDatabase, direct: Backend) -> Schedule:
    """One that is due."""
    now = database.clock.now()
    rule = ("{}", None, MINUTE, "UTC", "last", 10, "allow", None, now + MINUTE, None, now, now, None)
    direct.schedules.upsert(Schedule("beat", "task", None, *rule))
    database.clock.advance(2 * MINUTE)
    (stored,) = direct.schedules.all()
    return stored


def commits(sql: str) -> bool:
    return sql == "COMMIT"


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_a_change_of_a_schedule_that_another_made_first_is_not_claimed(
    database: FaultyDatabase, direct: Backend, schedule: Schedule, fault: PostgresFault
) -> None:
    theirs = replace(schedule, args='{"whose": "theirs"}')
    database.count.arm(fault, 1, only=commits, then=lambda: changed.append(direct.schedules.change(schedule, theirs)))
    changed: list[bool] = []

    is_ours = database.faulty.schedules.change(schedule, replace(schedule, args='{"whose": "ours"}'))

    assert (database.count.disarm(), changed) == (1, [True])
    assert [row.args for row in direct.schedules.all()] == ['{"whose": "theirs"}']
    assert not is_ours


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_a_slot_that_another_fired_first_is_not_claimed(
    database: FaultyDatabase, direct: Backend, schedule: Schedule, fault: PostgresFault
) -> None:
    slot, next_at = schedule.next_at, database.clock.now() + MINUTE
    ours, theirs = (database.world.new(schedule="beat", slot=slot) for _ in range(2))
    database.count.arm(
        fault,
        1,
        only=commits,
        then=lambda: fired.append(direct.schedules.fire(schedule, next_at=next_at, last_at=slot, new=[theirs])),
    )
    fired: list[object] = []

    made = database.faulty.schedules.fire(schedule, next_at=next_at, last_at=slot, new=[ours])

    assert (database.count.disarm(), len(fired)) == (1, 1)
    assert [job.id for job in direct.jobs.newest()] == [theirs.id]
    assert made is None


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_a_pause_that_another_made_first_is_not_claimed(
    database: FaultyDatabase, direct: Backend, fault: PostgresFault
) -> None:
    database.world.enqueue()
    paused: list[bool] = []
    database.count.arm(fault, 1, only=commits, then=lambda: paused.append(direct.queues.pause("default")))

    assert not database.faulty.queues.pause("default")
    assert (database.count.disarm(), paused) == (1, [True])


def test_a_slot_whose_answer_was_lost_is_told(database: FaultyDatabase, direct: Backend, schedule: Schedule) -> None:
    ours = database.world.new(schedule="beat", slot=schedule.next_at)
    next_at = database.clock.now() + MINUTE
    database.count.arm(CUT_AFTER, 1, only=commits)

    made = database.faulty.schedules.fire(schedule, next_at=next_at, last_at=schedule.next_at, new=[ours])

    assert database.count.disarm() == 1
    assert [job.id for job in direct.jobs.newest()] == [ours.id]
    assert [each.id for each in made or ()] == [ours.id]
