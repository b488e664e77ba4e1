"""Schedules: rows that enqueue jobs. Each slot fires once, however many workers try, and only if its rule allows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from dray.backends import open_backend
from dray.errors import DrayError
from dray.instants import HOUR, MINUTE, SECOND
from dray.model.job import Enqueued
from dray.model.new_job import NewJob
from dray.model.schedule import Due, Schedule, due
from tests.backends import beside
from tests.backends.world import World


def make(world: World, name: str = "beat", **options: Any) -> Schedule:
    """Stores a schedule that fires every minute."""
    now = world.clock.now()
    schedule = Schedule(
        name=name,
        task="task",
        queue=None,
        args="{}",
        cron=None,
        every_us=MINUTE,
        tz="UTC",
        misfire="all",
        misfire_limit=10,
        overlap="allow",
        priority=None,
        next_at=now + MINUTE,
        last_at=None,
        created_at=now,
        updated_at=now,
        paused_at=None,
    )
    schedule = replace(schedule, **options)
    assert world.backend.schedules.upsert(schedule) is True
    return schedule


def stored(world: World, name: str = "beat") -> Schedule:
    found = world.backend.schedules.get(name)
    assert found is not None
    return found


def owed(world: World, schedule: Schedule) -> Due:
    assert schedule.next_at is not None
    return due(
        schedule.rule,
        schedule.next_at,
        world.clock.now(),
        schedule.created_at,
        misfire=schedule.misfire,
        limit=schedule.misfire_limit,
    )


def fire(world: World, schedule: Schedule) -> list[Enqueued] | None:
    """Does what the duty does with a schedule it read."""
    now = owed(world, schedule)
    jobs = [job(world, schedule, slot) for slot in now.slots]
    last_at = now.slots[-1] if now.slots else None
    return world.backend.schedules.fire(schedule, next_at=now.next_at, last_at=last_at, new=jobs)


def job(world: World, schedule: Schedule, slot: int) -> NewJob:
    return world.new(schedule.task, args=schedule.args, schedule=schedule.name, slot=slot, run_at=slot)


# Rows


def test_a_schedule_reads_back_equal(world: World) -> None:
    daily = make(
        world,
        "nightly:report",
        task="report",
        queue="slow",
        args='{"team":"日本"}',
        cron="0 3 * * *",
        every_us=None,
        tz="Europe/Berlin",
        misfire="last",
        misfire_limit=3,
        overlap="skip",
        next_at=world.clock.now() + HOUR,
    )

    assert world.backend.schedules.get("nightly:report") == daily
    assert world.backend.schedules.get("other") is None


def test_schedules_are_listed_by_name(world: World) -> None:
    b, c, a = make(world, "b"), make(world, "c"), make(world, "a")

    assert world.backend.schedules.all() == [a, b, c]


def test_an_unchanged_rule_writes_nothing(world: World) -> None:
    schedule = make(world)
    world.clock.advance(HOUR)
    again = replace(
        schedule, next_at=world.clock.now() + 5, created_at=world.clock.now(), updated_at=world.clock.now()
    )

    assert world.backend.schedules.upsert(again) is False

    assert stored(world) == schedule


@pytest.mark.parametrize(
    "change",
    [
        {"task": "other"},
        {"queue": "slow"},
        {"args": '{"n":1}'},
        {"every_us": HOUR},
        {"every_us": None, "cron": "0 3 * * *"},
        {"tz": "Europe/Berlin"},
        {"misfire": "last"},
        {"misfire_limit": 2},
        {"overlap": "skip"},
        {"priority": 0},
    ],
    ids="+".join,
)
def test_a_changed_rule_keeps_its_birth_and_its_last_slot(world: World, change: dict[str, Any]) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)
    fire(world, stored(world))
    world.clock.advance(SECOND)
    wanted = replace(schedule, next_at=world.clock.now() + HOUR, created_at=world.clock.now(), **change)

    assert world.backend.schedules.upsert(wanted) is True

    assert stored(world) == replace(
        wanted,
        created_at=schedule.created_at,
        last_at=schedule.created_at + MINUTE,
        updated_at=world.clock.now(),
    )


def test_of_two_that_create_a_schedule_at_once_the_second_finds_it_unchanged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = world.clock.now()
    schedule = replace(make(world), name="other")

    def create_and_fire() -> bool:
        created = world.backend.schedules.upsert(schedule)
        world.clock.advance(MINUTE)
        fire(world, stored(world, "other"))
        return created

    gate = beside.Gate(monkeypatch, "schedule_upsert")
    with ThreadPoolExecutor(2) as pool:
        answers = gate.interleave(pool, lambda: world.backend.schedules.upsert(schedule), create_and_fire)

    assert sorted(answers) == [False, True]
    assert (stored(world, "other").next_at, stored(world, "other").last_at) == (now + 2 * MINUTE, now + MINUTE)


def test_a_changed_rule_does_not_wake_a_paused_schedule(world: World) -> None:
    schedule = make(world)
    world.backend.schedules.pause("beat")

    world.backend.schedules.upsert(replace(schedule, args='{"n":1}', next_at=world.clock.now()))

    assert stored(world).paused_at == world.clock.now()
    assert world.backend.schedules.due() == []


# When


def test_a_schedule_is_due_from_its_slot_on(world: World) -> None:
    schedule = make(world)

    world.clock.advance(MINUTE - 1)
    assert world.backend.schedules.due() == []
    world.clock.advance(1)

    assert world.backend.schedules.due() == [schedule]


def test_those_due_come_in_the_order_of_their_slots(world: World) -> None:
    now = world.clock.now()
    for name, after in [("c", 30), ("a", 20), ("b", 10), ("never", None), ("later", HOUR)]:
        make(world, name, next_at=None if after is None else now + after)
    world.clock.advance(MINUTE)

    assert [schedule.name for schedule in world.backend.schedules.due()] == ["b", "a", "c"]
    assert [schedule.name for schedule in world.backend.schedules.due(2)] == ["b", "a"]


def test_the_next_slot_of_all_is_known(world: World) -> None:
    now = world.clock.now()
    assert world.backend.schedules.upcoming() == (None, now)
    make(world, "never", next_at=None)
    make(world, "late", next_at=now + HOUR)
    make(world, "early", next_at=now + MINUTE)
    assert world.backend.schedules.upcoming() == (now + MINUTE, now)

    assert world.backend.jobs.upcoming().slot_us == MINUTE

    world.backend.schedules.pause("early")

    assert world.backend.schedules.upcoming() == (now + HOUR, now)
    assert world.backend.jobs.upcoming().slot_us == HOUR


# Firing


def test_firing_enqueues_the_slots_job_and_moves_on(world: World) -> None:
    schedule = make(world, args='{"n":1}')
    slot = schedule.created_at + MINUTE
    world.clock.advance(MINUTE + 5)

    fired = fire(world, schedule)

    assert fired is not None
    assert [enqueued.duplicate for enqueued in fired] == [False]
    made = world.job(fired[0].id)
    assert (made.schedule, made.slot, made.run_at, made.args) == ("beat", slot, slot, '{"n":1}')
    assert made.state == "queued"
    assert stored(world) == replace(schedule, next_at=slot + MINUTE, last_at=slot)
    assert world.backend.schedules.due() == []


def test_all_missed_slots_fire_in_one_go(world: World) -> None:
    schedule = make(world)
    world.clock.advance(5 * MINUTE)

    fired = fire(world, schedule)

    assert fired is not None
    assert [world.job(enqueued.id).slot for enqueued in fired] == [
        schedule.created_at + n * MINUTE for n in range(1, 6)
    ]
    assert stored(world).last_at == world.clock.now()


def test_skipped_slots_move_the_schedule_without_a_job(world: World) -> None:
    schedule = make(world, misfire="skip", every_us=HOUR, next_at=world.clock.now() + HOUR)
    world.clock.advance(HOUR + 2 * MINUTE)

    assert fire(world, schedule) == []

    assert stored(world) == replace(schedule, next_at=schedule.created_at + 2 * HOUR)
    assert world.backend.jobs.newest() == []


def test_a_rule_without_a_further_slot_rests(world: World) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)

    world.backend.schedules.fire(schedule, next_at=None, last_at=world.clock.now(), new=[])

    assert stored(world).next_at is None
    assert world.backend.schedules.due() == []
    assert world.backend.schedules.upcoming()[0] is None


def test_a_slot_that_was_fired_is_not_fired_again(world: World) -> None:
    read_by_both = make(world)
    world.clock.advance(MINUTE)

    assert fire(world, read_by_both)
    assert fire(world, read_by_both) is None

    assert len(world.backend.jobs.newest()) == 1


def test_of_eight_that_fire_one_slot_exactly_one_wins(world: World, url: str) -> None:
    rounds = 5
    make(world)
    with ExitStack() as opened, ThreadPoolExecutor(8) as pool:
        backends = [opened.enter_context(closing(open_backend(url, clock=world.clock))) for _ in range(8)]
        others = [World(backend, world.clock, world.ids) for backend in backends]
        for _ in range(rounds):
            world.clock.advance(MINUTE)
            schedule = stored(world)
            answers = list(pool.map(fire, others, [schedule] * 8))
            assert sorted(0 if answer is None else len(answer) for answer in answers) == [0] * 7 + [1]

    slots = [made.slot for made in world.backend.jobs.newest()]
    assert slots == [stored(world).created_at + n * MINUTE for n in range(rounds, 0, -1)]


def test_a_lost_answer_to_a_firing_leaves_one_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)
    beside.lose_next_answer(world.backend, monkeypatch)

    fired = beside.insist(lambda: fire(world, schedule))

    # If the backend repeats the call itself, it returns what it did; a caller that repeats it comes too late.
    assert fired is None or len(fired) == 1
    assert [made.slot for made in world.backend.jobs.newest()] == [world.clock.now()]
    assert stored(world).next_at == world.clock.now() + MINUTE


def test_a_schedule_that_was_paused_or_changed_since_it_was_read_does_not_fire(world: World) -> None:
    paused, changed, gone = make(world, "paused"), make(world, "changed"), make(world, "gone")
    world.clock.advance(MINUTE)
    world.backend.schedules.pause("paused")
    world.backend.schedules.upsert(replace(changed, every_us=HOUR, next_at=world.clock.now() + HOUR))
    world.backend.schedules.delete("gone")

    assert [fire(world, schedule) for schedule in (paused, changed, gone)] == [None] * 3

    assert world.backend.jobs.newest() == []


def test_a_schedule_that_was_edited_since_it_was_read_fires_as_it_is_now(world: World) -> None:
    """The edit has returned and keeps the slot: a job with the old arguments would be wrong."""
    read = make(world)
    world.clock.advance(MINUTE)
    assert world.backend.schedules.change(read, replace(read, args='{"n":2}'))
    edited = stored(world)
    assert edited.next_at == read.next_at

    assert fire(world, read) is None
    assert world.backend.jobs.newest() == []
    assert world.backend.schedules.change(read, replace(read, args='{"n":3}')) is False
    assert fire(world, edited) is not None


def test_a_slots_job_may_be_unique_and_then_counts_as_fired(world: World) -> None:
    holder = world.enqueue(unique_key="k")
    schedule = make(world)
    world.clock.advance(MINUTE)
    new = world.new(schedule="beat", slot=world.clock.now(), unique_key="k")

    fired = world.backend.schedules.fire(
        schedule, next_at=world.clock.now() + MINUTE, last_at=world.clock.now(), new=[new]
    )

    assert fired == [Enqueued(holder, duplicate=True)]


def test_a_job_that_cannot_be_stored_leaves_the_slot_to_be_fired_again(world: World) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)

    with pytest.raises(DrayError):
        world.backend.schedules.fire(
            schedule, next_at=None, last_at=None, new=[replace(world.new(schedule="beat"), id="no id")]
        )

    assert stored(world) == schedule
    assert world.backend.schedules.due() == [schedule]


def test_a_fired_job_makes_its_queue_known(world: World) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)

    world.backend.schedules.fire(schedule, next_at=None, last_at=None, new=[world.new(queue="slow")])

    assert [queue.name for queue in world.backend.queues.all()] == ["slow"]


# Overlap


def fire_next(world: World) -> int:
    """Advances to the next slot; returns how many jobs it enqueued."""
    world.clock.advance(MINUTE)
    fired = fire(world, stored(world))
    assert fired is not None
    return len(fired)


def test_allowed_overlap_makes_a_job_a_slot(world: World) -> None:
    make(world)

    assert [fire_next(world) for _ in range(3)] == [1, 1, 1]


def test_overlap_skip_makes_none_while_one_is_live(world: World) -> None:
    make(world, overlap="skip")
    worker = world.worker()

    assert fire_next(world) == 1
    assert fire_next(world) == 0  # it is queued
    claim = world.claim_one(worker)
    assert fire_next(world) == 0  # it runs
    world.fail(worker, claim, delay_us=10 * MINUTE)
    assert fire_next(world) == 0  # it waits for its next attempt
    world.backend.jobs.cancel([claim.id])
    assert fire_next(world) == 1

    assert stored(world).last_at == world.clock.now()


def test_overlap_queue_keeps_one_behind_the_one_that_runs(world: World) -> None:
    make(world, overlap="queue")
    worker = world.worker()

    assert fire_next(world) == 1
    assert fire_next(world) == 0
    world.claim_one(worker)
    assert fire_next(world) == 1
    assert fire_next(world) == 0
    world.claim_one(worker)
    assert fire_next(world) == 1


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_a_queued_job_with_a_key_is_live_too(world: World, overlap: str) -> None:
    schedule = make(world, overlap=overlap)
    world.enqueue(schedule=schedule.name, key="acct")

    assert fire_next(world) == 0


@pytest.mark.parametrize(("overlap", "made"), [("allow", 4), ("skip", 1), ("queue", 1)])
def test_overlap_counts_among_slots_that_fire_together(world: World, overlap: str, made: int) -> None:
    make(world, overlap=overlap)
    world.clock.advance(4 * MINUTE)

    fired = fire(world, stored(world))

    assert fired is not None
    assert len(fired) == made


def test_an_overlap_that_only_a_newer_release_knows_does_not_stop_the_schedule(world: World) -> None:
    make(world, overlap="replace")

    assert fire_next(world) == 1


def test_jobs_of_other_schedules_and_of_none_do_not_count(world: World) -> None:
    make(world, overlap="skip")
    make(world, "other")
    world.enqueue()
    world.clock.advance(MINUTE)
    fire(world, stored(world, "other"))

    assert len(fire(world, stored(world)) or []) == 1


# Pause, resume, delete


def test_a_paused_schedule_does_not_fire_until_it_goes_on_from_a_given_slot(world: World) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)

    assert world.backend.schedules.pause("beat") is True
    assert world.backend.schedules.pause("beat") is False
    assert stored(world).paused_at == world.clock.now()
    assert world.backend.schedules.due() == []
    assert fire(world, stored(world)) is None
    world.clock.advance(HOUR)
    assert world.backend.schedules.resume("beat", world.clock.now() + 7) is True
    assert world.backend.schedules.resume("beat", world.clock.now() + 9) is False

    assert stored(world) == replace(schedule, next_at=world.clock.now() + 7)
    world.clock.advance(7)
    assert [found.name for found in world.backend.schedules.due()] == ["beat"]


def test_a_schedule_that_is_not_there_cannot_be_paused_resumed_or_deleted(world: World) -> None:
    assert world.backend.schedules.pause("beat") is False
    assert world.backend.schedules.resume("beat", None) is False
    assert world.backend.schedules.delete("beat") is False


def test_a_deleted_schedule_leaves_its_jobs(world: World) -> None:
    schedule = make(world)
    world.clock.advance(MINUTE)
    fired = fire(world, schedule)
    assert fired

    assert world.backend.schedules.delete("beat") is True

    assert world.backend.schedules.all() == []
    assert world.job(fired[0].id).schedule == "beat"


def test_a_clock_that_is_set_back_fires_no_slot_twice_and_loses_none(world: World) -> None:
    schedule = make(world)
    world.clock.advance(2 * MINUTE)
    fire(world, stored(world))

    world.clock.step(-10 * MINUTE)
    assert world.backend.schedules.due() == []
    world.clock.step(11 * MINUTE)
    fire(world, stored(world))

    slots = sorted(made.slot or 0 for made in world.backend.jobs.newest())
    assert slots == [schedule.created_at + n * MINUTE for n in (1, 2, 3)]


# Changes while it fires


def test_a_schedule_is_changed_only_while_it_waits_for_the_slot_that_was_read(world: World) -> None:
    read = make(world)
    world.clock.advance(MINUTE)
    wanted = replace(read, args='{"n":2}', updated_at=world.clock.now())
    fire(world, read)

    assert world.backend.schedules.change(read, wanted) is False
    assert stored(world).args == "{}"

    now = stored(world)
    assert world.backend.schedules.change(now, replace(now, args='{"n":2}')) is True
    assert (stored(world).args, stored(world).next_at) == ('{"n":2}', now.next_at)
    assert stored(world).last_at == now.last_at


def test_a_schedule_that_rests_can_be_changed_and_one_that_is_gone_cannot(world: World) -> None:
    resting = make(world, next_at=None)
    wanted = replace(resting, every_us=HOUR, next_at=world.clock.now() + HOUR)

    assert world.backend.schedules.change(resting, wanted) is True
    assert world.backend.schedules.change(replace(wanted, name="gone"), wanted) is False

    assert stored(world) == wanted
