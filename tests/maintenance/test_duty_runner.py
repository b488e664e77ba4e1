"""The runner: which duties it does, how it gets and loses them, and what stops it (nothing)."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from dray.backends import Backend, open_backend
from dray.clock import Ids
from dray.errors import StorageUnavailable
from dray.instants import MINUTE, SECOND
from dray.maintenance import DutyRunner, Rescuer, duties
from dray.maintenance.duty_runner import Duty
from tests.backends import raw
from tests.backends.world import LEASE_US, World
from tests.maintenance.conftest import Counts
from tests.manual_clock import ManualClock


class Chore:
    """A duty that notes when it was done."""

    is_exclusive = True

    def __init__(self, clock: ManualClock, name: str = "chore", pause: float = 10.0) -> None:
        self.name = name
        self.done_at: list[int] = []
        self.fails_with: Exception | None = None
        self._clock = clock
        self._pause = pause

    def tick(self) -> float:
        if self.fails_with is not None:
            raise self.fails_with
        self.done_at.append(self._clock.steady())
        return self._pause


class EverybodysChore(Chore):
    is_exclusive = False


def _duty_runner(world: World, worker_id: str, *chores: Duty) -> DutyRunner:
    return DutyRunner(world.backend, worker_id, chores, world.clock, random.Random(7))


def _runners(world: World, worker_id: str, *chores: Duty) -> tuple[DutyRunner, DutyRunner]:
    """Both runners of a worker: the one that rescues, and that of all other duties."""

    def take_over() -> None:
        runner.look_for_duties()

    rescuer = Rescuer(world.backend, worker_id, world.clock, world.rng, LEASE_US, take_over)
    rescue = DutyRunner(world.backend, worker_id, (rescuer,), world.clock, random.Random(7))
    runner = DutyRunner(world.backend, worker_id, chores, world.clock, random.Random(7), beside=rescue)
    return rescue, runner


def _held(runner: DutyRunner) -> frozenset[str]:
    """The duties that its worker has at the moment, as far as it knows."""
    return frozenset(runner._terms)


def _duties(world: World) -> tuple[Duty, ...]:
    return duties(world.backend, world.clock, world.rng)


def _live(world: World, seconds: float, *runners: DutyRunner, also: Callable[[], object] = lambda: None) -> None:
    """Lets runners tick as their threads would, each when it said, until the time is over."""
    ends = world.clock.steady() + int(seconds * SECOND)
    wake_at = dict.fromkeys(runners, 0)
    while True:
        runner = min(runners, key=wake_at.__getitem__)
        if wake_at[runner] > ends:
            return
        world.clock.advance(max(0, wake_at[runner] - world.clock.steady()))
        also()
        pause = runner.tick()
        # A thread does not wake before its time; a microsecond more keeps a pause of nothing from standing still.
        wake_at[runner] = world.clock.steady() + int(pause * SECOND) + 1


def _holders(backend: Backend) -> dict[str, str | None]:
    return {lease.duty: lease.holder for lease in backend.leases.all()}


# Who does what


def test_a_keeper_takes_what_is_free_and_does_it_at_once(world: World) -> None:
    worker = world.worker()
    chore = Chore(world.clock)
    runner = _duty_runner(world, worker, chore)

    runner.tick()

    assert _holders(world.backend) == {"chore": worker}
    assert (_held(runner), len(chore.done_at)) == ({"chore"}, 1)


def test_a_second_keeper_does_not_do_what_the_first_does(world: World) -> None:
    first, second = world.worker(), world.worker()
    mine, theirs = Chore(world.clock), Chore(world.clock)
    runners = _duty_runner(world, first, mine), _duty_runner(world, second, theirs)

    _live(world, 12, *runners)

    assert (_held(runners[0]), _held(runners[1])) == ({"chore"}, frozenset())
    assert (len(mine.done_at), theirs.done_at) == (2, [])


def test_what_is_everybodys_is_done_by_all(world: World) -> None:
    chores = [EverybodysChore(world.clock) for _ in range(2)]
    for chore in chores:
        _duty_runner(world, world.worker(), chore).tick()

    assert [len(chore.done_at) for chore in chores] == [1, 1]
    assert _holders(world.backend) == {}


def test_a_duty_that_is_poked_is_done_by_the_next_tick(world: World) -> None:
    mine, everybodys, other = Chore(world.clock), EverybodysChore(world.clock, "all"), Chore(world.clock, "other")
    runner = _duty_runner(world, world.worker(), mine, everybodys, other)
    runner.tick()

    for duty in ("chore", "all", "unknown"):
        runner.poke(duty)
    runner.tick()

    assert [len(chore.done_at) for chore in (mine, everybodys, other)] == [2, 2, 1]


def test_a_poke_while_the_duty_is_at_work_is_not_forgotten(world: World) -> None:
    class Poked(Chore):
        def tick(self) -> float:
            if not self.done_at:
                runner.poke(self.name)
            return super().tick()

    chore = Poked(world.clock)
    runner = _duty_runner(world, world.worker(), chore)

    assert runner.tick() == 0.0
    assert runner.tick() > 0.0

    assert len(chore.done_at) == 2


def test_a_poke_for_what_somebody_else_does_wakes_nobody(world: World) -> None:
    first = _duty_runner(world, world.worker(), Chore(world.clock))
    theirs = Chore(world.clock)
    second = _duty_runner(world, world.worker(), theirs)
    first.tick()
    second.tick()

    second.poke("chore")

    assert second.tick() > 0.0
    assert theirs.done_at == []


def test_each_duty_is_done_when_it_said(world: World) -> None:
    often, rarely = Chore(world.clock, "often", 3.0), Chore(world.clock, "rarely", 10.0)
    runner = _duty_runner(world, world.worker(), often, rarely)

    _live(world, 30, runner)

    for chore, pause in ((often, 3), (rarely, 10)):
        gaps = [later - at for at, later in pairwise(chore.done_at)]
        assert gaps
        assert all((pause - 1.01) * SECOND <= gap <= (pause + 0.01) * SECOND for gap in gaps)


def test_the_duties_of_a_dead_worker_are_taken_in_the_tick_after_its_burial(world: World) -> None:
    dead, living = world.worker(), world.worker()
    world.enqueue()
    world.claim_one(dead)
    _duty_runner(world, dead, Chore(world.clock)).tick()
    chore = Chore(world.clock)
    rescue, runner = _runners(world, living, chore)

    def beat() -> None:
        world.backend.workers.beat(living, LEASE_US)

    _live(world, 14, rescue, runner, also=beat)
    early = list(chore.done_at)
    _live(world, 3, rescue, also=beat)
    (row,) = [row for row in world.backend.workers.all() if row.id == dead]
    before = list(chore.done_at)

    pause = runner.tick()

    assert row.stopped_at is not None
    assert (early, before, len(chore.done_at)) == ([], [], 1)
    assert pause > 0


def test_a_duty_that_went_to_somebody_else_is_done_no_more(world: World) -> None:
    first, second = world.worker(), world.worker()
    chore = Chore(world.clock, pause=1.0)
    runner = _duty_runner(world, first, chore)
    runner.tick()
    raw.run(world.backend, "UPDATE dray_leases SET holder = ?, term = term + 1", second)
    world.clock.advance(2 * SECOND)

    runner.tick()

    assert (_held(runner), len(chore.done_at)) == (frozenset(), 1)


def test_a_worker_that_comes_back_under_a_new_id_takes_its_duties_again(world: World) -> None:
    old = world.worker()
    chore = Chore(world.clock, pause=0.0)
    runner = _duty_runner(world, old, chore)
    runner.tick()
    world.bury(old)
    new = world.worker()

    runner.rename(new)
    runner.tick()

    assert _holders(world.backend) == {"chore": new}
    assert len(chore.done_at) == 2


def test_a_worker_that_resigns_leaves_its_duties_to_the_next_that_looks(world: World) -> None:
    first, second = world.worker(), world.worker()
    leaving, staying = _duty_runner(world, first, Chore(world.clock)), _duty_runner(world, second, Chore(world.clock))
    leaving.tick()
    staying.tick()

    leaving.resign()

    assert (_held(leaving), _holders(world.backend)) == (frozenset(), {"chore": None})
    _live(world, 2, staying)
    assert _holders(world.backend) == {"chore": second}


def test_resigning_leaves_a_successor_alone(world: World) -> None:
    first, second = world.worker(), world.worker()
    runner = _duty_runner(world, first, Chore(world.clock))
    runner.tick()
    raw.run(world.backend, "UPDATE dray_leases SET holder = ?, term = term + 1", second)

    runner.resign()

    assert _holders(world.backend) == {"chore": second}


# What goes wrong


def test_a_database_that_is_away_is_said_once_and_waited_for_longer_and_longer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    chore = Chore(world.clock, pause=1.0)
    runner = _duty_runner(world, world.worker(), chore)
    runner.tick()
    chore.fails_with = StorageUnavailable("nobody answers")
    failed_at: list[int] = []
    tick = chore.tick

    def failing() -> float:
        failed_at.append(world.clock.steady())
        return tick()

    runner._exclusive[0].work = failing
    with caplog.at_level(logging.WARNING):
        _live(world, 60, runner)
    gaps = [later - at for at, later in pairwise(failed_at)]
    chore.fails_with = None
    _live(world, 6, runner)

    assert [record.getMessage() for record in caplog.records] == [
        "the duty chore: nobody answers; trying again",
    ]
    assert max(gaps) <= 5.01 * SECOND
    assert gaps[-1] > 3 * SECOND
    assert 12 <= len(failed_at) - len(chore.done_at) <= 40
    assert len(chore.done_at) > 1


def test_an_outage_is_said_by_one_of_a_workers_two_keepers(world: World, caplog: pytest.LogCaptureFixture) -> None:
    chore = Chore(world.clock, pause=1.0)
    rescue, runner = _runners(world, world.worker(), chore)
    rescuing = EverybodysChore(world.clock, "rescue")
    chore.fails_with = rescuing.fails_with = StorageUnavailable("nobody answers")
    rescue._always[0].work = rescuing.tick

    with caplog.at_level(logging.WARNING):
        _live(world, 20, rescue, runner)

    assert [record.getMessage() for record in caplog.records] == ["the duty rescue: nobody answers; trying again"]


def test_a_duty_with_a_defect_is_said_with_its_traceback_and_the_others_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Chore(world.clock, "broken"), Chore(world.clock, "sound", pause=1.0)
    broken.fails_with = ZeroDivisionError("a defect")
    runner = _duty_runner(world, world.worker(), broken, sound)

    _live(world, 20, runner)

    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert 4 <= len(records) <= 12
    assert all("broken" in record.getMessage() and record.exc_info for record in records)
    assert len(sound.done_at) >= 15


def test_a_lock_that_others_hold_for_a_moment_is_not_worth_a_word(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        closing(open_backend(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock, busy_timeout=0.01)) as backend,
        closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other,
    ):
        backend.migrate()
        world = World(backend, clock, Ids(clock))
        runner = _duty_runner(world, world.worker(), Chore(clock))
        with caplog.at_level(logging.INFO):
            other.execute("BEGIN IMMEDIATE")
            runner.tick()
            other.execute("ROLLBACK")
            _live(world, 6, runner)

    assert _held(runner) == {"chore"}
    assert [record.getMessage() for record in caplog.records] == []


def test_a_file_that_somebody_keeps_locked_is_waited_for(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with (
        closing(open_backend(url, clock=clock, busy_timeout=0.01)) as backend,
        closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other,
    ):
        backend.migrate()
        world = World(backend, clock, Ids(clock))
        runner = _duty_runner(world, world.worker(), Chore(clock))
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING):
            _live(world, 10, runner)
        locked = _held(runner)
        other.execute("ROLLBACK")
        _live(world, 6, runner)

    assert (locked, _held(runner)) == (frozenset(), {"chore"})
    assert len(caplog.records) == 1


# What it costs


def test_an_idle_keeper_with_every_duty_asks_little_and_writes_nothing(world: World, counts: Counts) -> None:
    worker = world.worker()
    rescue, runner = _runners(world, worker, *_duties(world))
    _live(world, 3, rescue, runner)
    world.backend.workers.beat(worker, 2 * MINUTE)
    before = _stamp(world.backend)
    counts.clear()

    _live(world, 60, rescue, runner)

    print(f"{counts.reads} reads, {counts.writes} write transactions a minute")
    assert _held(runner) == {duty.name for duty in _duties(world)}
    assert counts.reads <= (110 if world.backend.upkeep else 140)  # leases, what is to come, and who lives
    assert counts.writes <= 4  # the pruner's, which find nothing to remove
    assert _stamp(world.backend) == before


def test_an_idle_keeper_without_duties_asks_less_and_writes_nothing(world: World, counts: Counts) -> None:
    holder, worker = world.worker(), world.worker()
    _duty_runner(world, holder, *_duties(world)).tick()
    rescue, runner = _runners(world, worker, *_duties(world))
    for each in (holder, worker):
        world.backend.workers.beat(each, 2 * MINUTE)
    _live(world, 3, rescue, runner)
    counts.clear()

    _live(world, 60, rescue, runner)

    print(f"{counts.reads} reads a minute")
    assert _held(runner) == frozenset()
    assert counts.reads <= (70 if world.backend.upkeep else 105)
    assert counts.writes == 0


def test_idle_keepers_wake_about_three_times_a_second_at_most(world: World) -> None:
    ticks: list[int] = []

    _live(world, 60, *_runners(world, world.worker(), *_duties(world)), also=lambda: ticks.append(1))

    print(f"{len(ticks)} wake-ups a minute")
    assert len(ticks) <= (240 if world.backend.upkeep else 190)


def _stamp(backend: Backend) -> object:
    """Changes with everything that is written."""
    if backend.upkeep:
        return backend.upkeep.log()
    return [
        raw.run(backend, f"SELECT coalesce(max(xmin::text::bigint), 0), count(*) FROM {table}")
        for table in ("dray_jobs", "dray_workers", "dray_leases")
    ]
