"""Firing: each slot once, at its time, by whoever is there; late ones as the schedule says."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from dray.backends import Backend
from dray.errors import StorageUnavailable
from dray.instants import DAY, MINUTE, SECOND
from dray.maintenance import Declarer, Scheduler
from dray.maintenance.duty_runner import Agenda
from dray.model.job import Claim
from dray.model.schedule import Rule, Schedule, placed
from dray.schedules import store
from dray.task.options import TaskOptions
from tests.backends import beside
from tests.backends.world import World
from tests.maintenance.conftest import Counts

OPTIONS = TaskOptions(name="task", queue="mail", priority=7, max_attempts=5, timeout=30.0, description="a task")


def make(world: World, name: str = "beat", rule: Rule | None = None, **options: Any) -> Schedule:
    """A schedule of every minute, stored."""
    rule = rule or Rule.from_every(60)
    wanted = Schedule(
        name=name,
        task="task",
        queue=None,
        args='{"n":1}',
        cron=rule.cron,
        every_us=rule.every_us,
        tz=rule.tz,
        misfire="last",
        misfire_limit=10,
        overlap="allow",
        priority=None,
        next_at=None,
        last_at=None,
        created_at=0,
        updated_at=0,
        paused_at=None,
    )
    assert store(world.backend, replace(wanted, **options))
    return stored(world, name)


def stored(world: World, name: str = "beat") -> Schedule:
    found = world.backend.schedules.get(name)
    assert found is not None
    return found


def scheduler(world: World, *, is_deputy: bool = False, knows: bool = True) -> Scheduler:
    tasks = {"task": OPTIONS} if knows else {}
    return Scheduler(
        world.backend, world.clock, world.ids, tasks, 9.0, Agenda(world.backend), is_exclusive=not is_deputy
    )


def slots(world: World, name: str = "beat") -> list[int]:
    """The slots of the schedule's jobs, in the order they were made."""
    found = world.backend.jobs.newest(limit=10_000)
    return [job.slot for job in reversed(found) if job.schedule == name and job.slot is not None]


# A slot


def test_a_slot_is_fired_at_its_time_and_not_before(world: World, told: list[str]) -> None:
    schedule = make(world)
    duty = scheduler(world)

    assert duty.tick() == 1.0  # the wall clock may be set meanwhile
    world.clock.advance(MINUTE - 300_000)
    assert duty.tick() == pytest.approx(0.3)
    assert slots(world) == []
    world.clock.advance(300_000)
    duty.tick()

    assert slots(world) == [schedule.created_at + MINUTE]
    assert stored(world).next_at == schedule.created_at + 2 * MINUTE
    assert stored(world).last_at == schedule.created_at + MINUTE
    assert told == ["mail"]


def test_its_job_is_as_its_task_says_and_carries_schedule_and_slot(world: World) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE + 5 * SECOND)

    scheduler(world).tick()

    (job,) = world.backend.jobs.newest()
    assert (job.task, job.queue, job.priority, job.max_attempts, job.timeout) == ("task", "mail", 7, 5, 30.0)
    assert (job.args, job.description, job.state) == ('{"n":1}', "a task", "queued")
    assert (job.schedule, job.slot, job.run_at) == ("beat", schedule.next_at, world.clock.now())


def test_a_queue_of_the_schedules_own_counts_more(world: World, told: list[str]) -> None:
    make(world, queue="slow")
    world.clock.advance(MINUTE)

    scheduler(world).tick()

    assert [job.queue for job in world.backend.jobs.newest()] == told == ["slow"]


def test_nothing_due_costs_one_read(world: World, counts: Counts) -> None:
    make(world)
    duty = scheduler(world)
    counts.clear()

    duty.tick()

    assert (counts.reads, counts.writes) == (1, 0)


def test_a_paused_schedule_waits_and_a_removed_one_is_gone(world: World) -> None:
    for name in ("paused", "removed"):
        make(world, name)
    world.backend.schedules.pause("paused")
    world.backend.schedules.delete("removed")
    world.clock.advance(MINUTE)

    assert scheduler(world).tick() == 2.0

    assert world.backend.jobs.newest() == []


def test_many_due_at_once_are_all_fired(world: World) -> None:
    for number in range(130):
        make(world, f"s{number}")
    world.clock.advance(MINUTE)
    duty = scheduler(world)

    while duty.tick() < 0.5:
        pass

    assert len(world.backend.jobs.newest(limit=1000)) == 130


# After a stop


@pytest.mark.parametrize(
    "rule", [Rule.from_every(60), Rule.from_cron("* * * * *", "Europe/Berlin")], ids=["every", "cron"]
)
@pytest.mark.parametrize("more_us", [0, 5 * SECOND, 59 * SECOND])
@pytest.mark.parametrize(("misfire", "expected"), [("skip", 0), ("last", 1), ("all", 10)])
def test_after_seven_days_a_minute_schedule_fires_by_its_policy(
    world: World, rule: Rule, more_us: int, misfire: str, expected: int
) -> None:
    schedule = make(world, rule=rule, misfire=misfire)
    assert schedule.next_at is not None
    world.clock.advance(7 * DAY + more_us)
    duty = scheduler(world)

    while duty.tick() < 0.5:
        pass

    newest = world.clock.now() - (world.clock.now() - schedule.next_at) % MINUTE
    assert slots(world) == [newest - k * MINUTE for k in range(expected - 1, -1, -1)]
    assert stored(world).next_at == newest + MINUTE


@pytest.mark.parametrize("misfire", ["skip", "last", "all"])
def test_a_slot_that_comes_a_little_late_is_no_misfire(world: World, misfire: str) -> None:
    schedule = make(world, misfire=misfire)
    for _ in range(3):
        world.clock.advance(MINUTE + 10 * SECOND)
        scheduler(world).tick()

    assert slots(world) == [schedule.created_at + k * MINUTE for k in (1, 2, 3)]


# Who fires


def test_a_deputy_leaves_a_slot_to_the_holder_for_a_second(world: World) -> None:
    make(world)
    deputy = scheduler(world, is_deputy=True)
    world.clock.advance(MINUTE)

    assert deputy.tick() <= 0.25
    assert slots(world) == []
    world.clock.advance(SECOND)
    deputy.tick()

    assert len(slots(world)) == 1


def test_a_deputy_counts_from_when_it_saw_the_slot_however_wrong_its_clock_is(world: World) -> None:
    make(world)
    deputy = scheduler(world, is_deputy=True)
    world.clock.step(2 * MINUTE)

    deputy.tick()

    assert slots(world) == []


def test_a_slot_that_the_holder_fires_meanwhile_is_not_fired_again(world: World) -> None:
    make(world)
    deputy, holder = scheduler(world, is_deputy=True), scheduler(world)
    for _ in range(5):
        world.clock.advance(MINUTE)
        deputy.tick()
        holder.tick()
        world.clock.advance(5 * SECOND)
        deputy.tick()

    assert len(slots(world)) == len(set(slots(world))) == 5


def test_a_task_that_is_not_known_here_is_left_for_two_seconds_to_who_knows_it(world: World) -> None:
    make(world)
    stranger = scheduler(world, knows=False)
    world.clock.advance(7 * DAY)

    stranger.tick()
    assert slots(world) == []
    world.clock.advance(2 * SECOND)
    stranger.tick()

    (job,) = world.backend.jobs.newest()
    assert (job.queue, job.max_attempts, job.timeout) == ("default", 3, 9.0)


def test_two_whose_clocks_are_five_seconds_apart_fire_each_slot_once(world: World) -> None:
    schedule = make(world, rule=Rule.from_every(1), misfire="all", misfire_limit=100)
    duties = [scheduler(world), scheduler(world)]

    for second in range(60):
        world.clock.advance(SECOND)
        ahead = second % 2 * 5 * SECOND
        world.clock.step(ahead)
        duties[second % 2].tick()
        world.clock.step(-ahead)

    fired = slots(world)
    assert fired == [schedule.created_at + k * SECOND for k in range(1, len(fired) + 1)]
    assert len(fired) == 65


def test_a_lost_answer_fires_no_slot_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    make(world)
    duty = scheduler(world)
    world.clock.advance(MINUTE)
    beside.lose_next_answer(world.backend, monkeypatch)

    beside.insist(duty.tick)
    duty.tick()

    assert len(slots(world)) == 1


# Rows that cannot be used


def test_a_row_that_cannot_be_read_keeps_nobody_waiting_and_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    make(world, "good")
    bad = placed(replace(make(world, "bad"), cron="0 3 * * *", every_us=None), None, world.clock.now())
    assert world.backend.schedules.change(stored(world, "bad"), replace(bad, tz="Mars/Olympus"))
    world.clock.advance(2 * DAY)
    duty = scheduler(world)

    with caplog.at_level(logging.ERROR, "dray"):
        pauses = [duty.tick() for _ in range(3)]

    assert len(slots(world, "good")) == 1
    assert slots(world, "bad") == []
    assert min(pauses) >= 0.25
    (record,) = caplog.records
    assert "schedule bad cannot be fired here: time zone 'Mars/Olympus' is not known here" in record.message


# Overlap


@pytest.mark.parametrize(("overlap", "expected"), [("allow", [1, 2, 3]), ("skip", [1, 1, 1]), ("queue", [1, 2, 2])])
def test_overlap_says_whether_a_slot_fires_beside_a_job_that_runs(
    world: World, overlap: str, expected: list[int]
) -> None:
    make(world, overlap=overlap)
    duty, worker = scheduler(world), world.worker()
    counted: list[int] = []
    claims: list[Claim] = []
    for _ in range(3):
        world.clock.advance(MINUTE)
        duty.tick()
        counted.append(len(slots(world)))
        claims = claims or world.claim(worker, queue="mail")

    assert counted == expected
    for claim in [*claims, *world.claim(worker, 10, queue="mail")]:
        world.complete(worker, claim)
    world.clock.advance(MINUTE)
    duty.tick()
    assert len(slots(world)) == expected[-1] + 1


# Declaring


def test_a_declarer_writes_once_again_when_asked_and_again_after_an_error(world: World) -> None:
    written: list[Backend] = []
    errors = [StorageUnavailable("away")]

    def declare(backend: Backend) -> None:
        if errors:
            raise errors.pop()
        written.append(backend)

    duty = Declarer(world.backend, declare)
    with pytest.raises(StorageUnavailable):
        duty.tick()
    for _ in range(3):
        duty.tick()
    assert written == [world.backend]

    duty.ask()
    duty.tick()

    assert len(written) == 2
