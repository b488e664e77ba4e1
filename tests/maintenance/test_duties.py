"""Promotion, expiry, fan-out, pruning and reconciling: steps that are safe to repeat and say when to come back."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from dray.backends.store import history as prune_module
from dray.errors import StorageUnavailable
from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.maintenance import Rescuer, cleaning, duties, waiting_jobs
from dray.maintenance.cleaning import Pruner
from dray.maintenance.duty_runner import Agenda
from dray.maintenance.waiting_jobs import Fanner, Promoter, Reconciler
from dray.model.action import NewAction
from dray.model.bounds import FANOUT_CHUNK
from dray.model.job import State
from dray.model.retention import Budget
from tests.backends import raw
from tests.backends.world import LEASE_US, World
from tests.maintenance.conftest import Counts

# Promotion and expiry


def test_jobs_that_are_due_are_queued_and_told(world: World, told: list[str]) -> None:
    due = world.enqueue(queue="mail", delay_us=SECOND)
    later = world.enqueue(delay_us=HOUR)
    world.clock.advance(SECOND)

    Promoter(world.backend, Agenda(world.backend)).tick()

    assert [world.job(job_id).state for job_id in (due, later)] == ["queued", "scheduled"]
    assert told == ["mail"]


def test_the_next_look_is_when_the_next_job_is_due(world: World) -> None:
    world.enqueue(delay_us=HOUR)
    world.enqueue(delay_us=SECOND * 3 // 2)

    assert Promoter(world.backend, Agenda(world.backend)).tick() == 1.5


def test_a_job_that_is_far_away_or_none_at_all_is_looked_for_each_2_seconds(world: World) -> None:
    promoter = Promoter(world.backend, Agenda(world.backend))
    without = promoter.tick()
    world.enqueue(delay_us=HOUR)

    assert (without, promoter.tick()) == (2.0, 2.0)


def test_the_wall_clock_may_be_set_forward_meanwhile(world: World) -> None:
    job_id = world.enqueue(delay_us=HOUR)
    promoter = Promoter(world.backend, Agenda(world.backend))
    promoter.tick()

    world.clock.step(HOUR)
    promoter.tick()

    assert world.job(job_id).state == "queued"


def test_after_a_chunk_the_next_comes_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_jobs, "PROMOTE_CHUNK", 2)
    for _ in range(3):
        world.enqueue(delay_us=SECOND)
    world.clock.advance(SECOND)
    promoter = Promoter(world.backend, Agenda(world.backend))

    pauses = [promoter.tick() for _ in range(3)]

    assert pauses == [0.001, 0.001, 2.0]
    assert len(world.claim(world.worker(), 5)) == 3


def test_jobs_that_were_not_started_in_time_are_cancelled_and_told(world: World, told: list[str]) -> None:
    job_id = world.enqueue(expires_at=world.clock.now() + SECOND)
    promoter = Promoter(world.backend, Agenda(world.backend))
    before = promoter.tick()
    world.clock.advance(SECOND)

    promoter.tick()

    assert before == 1.0
    assert (world.job(job_id).state, world.job(job_id).reason) == ("cancelled", "expired")
    assert told == ["done"]


def test_where_nothing_is_due_nothing_is_written(world: World, counts: Counts) -> None:
    world.enqueue(delay_us=HOUR)
    world.enqueue(expires_at=world.clock.now() + HOUR)
    counts.clear()

    Promoter(world.backend, Agenda(world.backend)).tick()

    assert (counts.reads, counts.writes) == (1, 0)


# Fan-out


def _end_without_telling(world: World, job_id: str) -> None:
    """As a settle does whose worker is killed before it tells the children."""
    raw.run(
        world.backend,
        "UPDATE dray_jobs SET state = 'completed', finished_at = run_at, started_at = run_at, fanout_pending = TRUE"
        " WHERE id = ?",
        job_id,
    )


def test_children_are_told_whom_a_killed_worker_left_waiting(world: World, told: list[str]) -> None:
    parent = world.enqueue()
    child = world.enqueue(parents=(parent,), queue="mail")
    world.claim_one(world.worker())
    _end_without_telling(world, parent)

    pause = Fanner(world.backend, world.rng, Agenda(world.backend)).tick()

    assert world.job(child).state == "queued"
    assert told == ["mail"]
    assert 1.6 <= pause <= 2.0


def test_where_nobody_is_to_be_told_nothing_is_written(world: World, counts: Counts) -> None:
    world.enqueue(parents=(world.enqueue(),))
    counts.clear()

    Fanner(world.backend, world.rng, Agenda(world.backend)).tick()

    assert (counts.reads, counts.writes) == (1, 0)


def test_children_that_are_cancelled_with_their_parent_are_told_as_done(world: World, told: list[str]) -> None:
    parent = world.enqueue(max_attempts=1)
    child = world.enqueue(parents=(parent,))
    worker = world.worker()

    world.fail(worker, world.claim_one(worker))

    assert world.job(child).state == "cancelled"
    assert "done" in told


def test_children_that_are_freed_by_a_settle_are_told(world: World, told: list[str]) -> None:
    parent = world.enqueue()
    child = world.enqueue(parents=(parent,), queue="mail")
    worker = world.worker()

    world.complete(worker, world.claim_one(worker))

    assert world.job(child).state == "queued"
    assert told == ["mail"]


# Pruning


def _completed(world: World, count: int = 1) -> list[str]:
    ids = [world.enqueue() for _ in range(count)]
    worker = world.worker()
    for claim in world.claim(worker, count):
        world.complete(worker, claim)
    return ids


def test_by_default_completed_jobs_go_after_a_week(world: World) -> None:
    old = _completed(world)
    world.clock.advance(6 * DAY)
    recent = _completed(world)
    world.clock.advance(DAY + 1)

    Pruner(world.backend, world.rng).tick()

    assert [job.id for job in world.backend.jobs.get(old + recent)] == recent


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of the pruner that remove two rows at most."""
    monkeypatch.setattr(prune_module, "Budget", partial(Budget, rows=2))


@pytest.mark.usefixtures("short")
def test_steps_follow_each_other_with_room_for_others_between(world: World, counts: Counts) -> None:
    ids = _completed(world, 5)
    world.clock.advance(8 * DAY)
    pruner = Pruner(world.backend, world.rng)
    counts.clear()
    ticks: list[tuple[float, int, int]] = []
    while not ticks or ticks[-1][0] < 1:
        ticks.append((pruner.tick(), counts.writes, len(world.backend.jobs.get(ids))))

    assert ticks[:3] == [(0.05, 1, 3), (0.05, 2, 1), (0.05, 3, 0)]
    assert 48 <= ticks[3][0] <= 60


@pytest.mark.usefixtures("short")
def test_a_step_that_fails_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = _completed(world, 5)
    world.clock.advance(8 * DAY)
    pruner = Pruner(world.backend, world.rng)
    pruner.tick()

    def failing(*_: object, **__: object) -> object:
        raise StorageUnavailable("nobody answers")

    with monkeypatch.context() as away:
        away.setattr(world.backend.db, "write", failing)
        with pytest.raises(StorageUnavailable):
            pruner.tick()
    left = len(world.backend.jobs.get(ids))
    while pruner.tick() < 1:
        pass

    assert (left, world.backend.jobs.get(ids)) == (3, [])


def test_many_workers_are_forgotten_in_chunks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "PRUNE_CHUNK", 2)
    for _ in range(5):
        world.backend.workers.deregister(world.worker())
    world.clock.advance(2 * DAY)
    pruner = Pruner(world.backend, world.rng)

    left = [(pruner.tick() < 1, len(world.backend.workers.all())) for _ in range(3)]

    assert left == [(True, 3), (True, 1), (False, 0)]


def test_the_less_there_is_to_forget_the_rarer_it_is_looked_for(world: World) -> None:
    pruner = Pruner(world.backend, world.rng)

    pauses = [pruner.tick() for _ in range(6)]

    assert all(0.8 * at <= pause <= at for pause, at in zip(pauses, (120, 240, 480, 600, 600, 600), strict=True))
    _completed(world)
    world.clock.advance(8 * DAY)
    assert pruner.tick() <= 60


def test_what_people_did_is_kept_for_90_days(world: World) -> None:
    for target in ("old", "recent"):
        world.backend.actions.note(NewAction(world.ids.new(), "ann", "cli", "pause", "queue", target), done=1)
        world.clock.advance(45 * DAY)
    world.clock.advance(MINUTE)

    Pruner(world.backend, world.rng).tick()

    assert [action.target for action in world.backend.actions.newest()] == ["recent"]


def test_workers_are_forgotten_a_day_after_their_end(world: World) -> None:
    old = world.worker()
    world.backend.workers.deregister(old)
    world.clock.advance(DAY)
    recent, live = world.worker(), world.worker()
    world.backend.workers.deregister(recent)
    world.clock.advance(MINUTE)

    Pruner(world.backend, world.rng).tick()

    assert {row.id for row in world.backend.workers.all()} == {recent, live}


# Reconciling


def test_a_child_that_nobody_would_free_is_freed_and_the_defect_is_said_loudly(
    world: World, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    parent = world.enqueue()
    child = world.enqueue(parents=(parent,))
    world.claim_one(world.worker())
    _end_without_telling(world, parent)
    raw.run(world.backend, "UPDATE dray_jobs SET fanout_pending = FALSE WHERE id = ?", parent)

    Reconciler(world.backend, world.rng).tick()

    assert world.job(child).state == "queued"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith(f"please report it. {parent[-8:]}")
    assert told == ["default"]


def test_a_count_that_is_wrong_is_set_right_and_said_loudly(world: World, caplog: pytest.LogCaptureFixture) -> None:
    child = world.enqueue(parents=(world.enqueue(),))
    raw.run(world.backend, "UPDATE dray_jobs SET waiting_on = 2 WHERE id = ?", child)

    Reconciler(world.backend, world.rng).tick()

    assert world.job(child).waiting_on == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_what_adds_up_is_left_alone_without_a_word_or_a_write(
    world: World, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    world.enqueue(parents=(world.enqueue(), world.enqueue()))
    parent = world.enqueue()
    world.claim(world.worker(), 9)
    _end_without_telling(world, parent)
    counts.clear()

    pause = Reconciler(world.backend, world.rng).tick()

    assert 48 <= pause <= 60
    assert (counts.writes, caplog.records) == (0, [])


def test_what_does_not_add_up_is_repaired_some_at_a_time(world: World) -> None:
    parent = world.enqueue()
    made = world.backend.jobs.enqueue([world.new(parents=(parent,)) for _ in range(FANOUT_CHUNK + 10)])
    ids = [each.id for each in made]
    raw.run(world.backend, "UPDATE dray_jobs SET waiting_on = 2 WHERE state = 'waiting'")
    reconciler = Reconciler(world.backend, world.rng)

    seen = [(reconciler.tick(), [job.waiting_on for job in world.backend.jobs.get(ids)].count(1)) for _ in range(2)]

    assert seen[0][0] <= 0.05
    assert seen[1][0] >= 48
    assert [right for _, right in seen] == [FANOUT_CHUNK, FANOUT_CHUNK + 10]


def test_jobs_with_keys_that_an_earlier_release_has_queued_are_parked_without_a_word(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.enqueue(key="a")
    raw.run(world.backend, "UPDATE dray_jobs SET state = 'queued'")
    reconciler = Reconciler(world.backend, world.rng)

    pause = reconciler.tick()

    assert raw.run(world.backend, "SELECT state FROM dray_jobs") == [("parked",)]
    assert pause <= 2, "that release may go on to do so"
    assert reconciler.tick() >= 48
    assert caplog.records == []


# Rescue waits for none of them


def test_a_rescue_tells_some_of_the_children_and_leaves_the_rest_to_that_duty(world: World) -> None:
    worker, parent = world.worker(), world.enqueue(max_attempts=1)
    made = world.backend.jobs.enqueue([world.new(parents=(parent,)) for _ in range(3 * FANOUT_CHUNK)])
    world.claim_one(worker)

    world.bury(worker)

    told = sum(job.state == State.CANCELLED for job in world.backend.jobs.get([each.id for each in made]))
    assert told == FANOUT_CHUNK
    fanner = Fanner(world.backend, world.rng, Agenda(world.backend))
    while fanner.tick() == 0.0:
        pass
    assert all(job.state == State.CANCELLED for job in world.backend.jobs.get([each.id for each in made]))


def test_an_expiry_tells_some_of_the_children_and_leaves_the_rest_to_that_duty(world: World) -> None:
    parent = world.enqueue(expires_us=SECOND)
    made = world.backend.jobs.enqueue([world.new(parents=(parent,)) for _ in range(3 * FANOUT_CHUNK)])
    world.clock.advance(SECOND)

    Promoter(world.backend, Agenda(world.backend)).tick()

    told = sum(job.state == State.CANCELLED for job in world.backend.jobs.get([each.id for each in made]))
    assert told == FANOUT_CHUNK
    assert world.backend.jobs.upcoming().has_fanout


# All of them


def test_every_duty_beside_rescue_has_a_name_of_its_own_and_is_one_workers(world: World) -> None:
    found = duties(world.backend, world.clock, world.rng)

    names = [duty.name for duty in found]
    expected = {"promote", "fan-out", "prune", "reconcile", "rollups"}
    assert set(names) == (expected | {"checkpoint"} if world.backend.upkeep else expected)
    assert len(set(names)) == len(names)
    assert all(duty.is_exclusive for duty in found)


def test_all_duties_can_be_done_by_two_keepers_at_once(world: World) -> None:
    parent = world.enqueue(delay_us=SECOND)
    child = world.enqueue(parents=(parent,))
    workers = [world.worker() for _ in range(2)]
    for worker in workers:
        world.clock.advance(SECOND)
        rescuer = Rescuer(world.backend, worker, world.clock, world.rng, LEASE_US, lambda: None)
        for duty in (rescuer, *duties(world.backend, world.clock, world.rng)):
            duty.tick()
            duty.tick()

    assert [world.job(job_id).state for job_id in (parent, child)] == ["queued", "waiting"]


# What several of them look at


def test_duties_that_are_ticked_together_ask_the_database_once(world: World, counts: Counts) -> None:
    agenda = Agenda(world.backend, world.clock.steady)
    ticked = (Promoter(world.backend, agenda), Fanner(world.backend, world.rng, agenda))

    for _ in range(3):
        for duty in ticked:
            duty.tick()

    assert counts.reads == 3, "the same duty never sees a reading twice"
    world.clock.advance(SECOND)
    ticked[1].tick()
    ticked[0].tick()
    assert counts.reads == 4, "a reading of a second ago is too old"


def test_children_of_jobs_that_expire_are_told_in_the_same_tick(world: World) -> None:
    parent = world.enqueue(expires_us=SECOND)
    world.backend.jobs.enqueue([world.new(parents=(parent,)) for _ in range(2 * FANOUT_CHUNK)])
    agenda = Agenda(world.backend, world.clock.steady)
    world.clock.advance(SECOND)

    Promoter(world.backend, agenda).tick()
    Fanner(world.backend, world.rng, agenda).tick()

    assert not world.backend.jobs.upcoming().has_fanout
