"""The rescuer: takes back the jobs of dead workers, and doubts leases when it was cut off itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.backends import Backend, open_backend
from dray.backends.sqlite import trust
from dray.backends.sqlite.database import SqliteDatabase
from dray.clock import Ids
from dray.instants import DAY, SECOND
from dray.maintenance import rescuer as module
from dray.maintenance.rescuer import Rescuer
from dray.model.job import ALL_QUEUES
from dray.model.limit import Bound, Kind, Source
from dray.model.worker import NewWorker
from tests.backends import raw
from tests.backends.world import LEASE_US, World
from tests.maintenance.conftest import Counts
from tests.manual_clock import ManualClock


def _rescuer(world: World, worker_id: str | None = None, lease_us: int = LEASE_US) -> Rescuer:
    return Rescuer(world.backend, worker_id, world.clock, world.rng, lease_us, lambda: None)


def _pass(world: World, seconds: float, *each_second: Callable[[], object]) -> None:
    """Lets time pass second by second."""
    for _ in range(int(seconds)):
        world.clock.advance(SECOND)
        for act in each_second:
            act()


def _claimed(world: World, **options: Any) -> tuple[str, str]:
    """A job, and the worker that has it."""
    job_id = world.enqueue(**options)
    worker = world.worker()
    world.claim_one(worker)
    return job_id, worker


# What it does


def test_jobs_of_a_dead_worker_come_back_and_others_are_told_of_their_queues(world: World, told: list[str]) -> None:
    job_id = world.enqueue(queue="mail")
    world.claim_one(world.worker(), queue="mail")
    world.clock.advance(LEASE_US + 1)

    _rescuer(world).tick()

    assert (world.job(job_id).state, world.job(job_id).crashes) == ("scheduled", 1)
    assert told == ["mail"]


def test_workers_of_all_queues_are_told_where_there_are_limits(world: World, told: list[str]) -> None:
    world.backend.limits.say("task", "task", Source.DECLARED, {Kind.LIMIT: (Bound(1),)})
    world.enqueue(queue="mail", max_attempts=1)
    world.claim_one(world.worker(), queue="mail")
    world.clock.advance(LEASE_US + 1)

    _rescuer(world).tick()

    assert told == [ALL_QUEUES, "done"]


@pytest.mark.parametrize(("jobs", "said"), [(1, "1 of its jobs was"), (2, "2 of its jobs were")])
def test_how_many_jobs_came_back_is_said(
    world: World, jobs: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = world.worker()
    for _ in range(jobs):
        world.enqueue()
        world.claim_one(worker)
    world.clock.advance(LEASE_US + 1)

    _rescuer(world).tick()

    assert caplog.messages == [f"worker {worker[-8:]} is gone; {said} taken back"]


def test_a_job_that_ends_as_crashed_has_a_line_of_its_own(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job_id, worker = _claimed(world, max_attempts=1)
    world.clock.advance(LEASE_US + 1)

    _rescuer(world).tick()

    task = world.job(job_id).task
    assert caplog.messages == [
        f"worker {worker[-8:]} is gone",
        f"job {job_id[-8:]} ({task}) failed: its worker is gone, attempt 1 of 1",
    ]
    assert caplog.records[-1].levelname == "WARNING"


def test_jobs_that_end_as_crashed_are_told_as_done(world: World, told: list[str]) -> None:
    job_id, _ = _claimed(world, max_attempts=1)
    world.clock.advance(LEASE_US + 1)

    _rescuer(world).tick()

    assert (world.job(job_id).state, world.job(job_id).reason) == ("failed", "crashed")
    assert told == ["done"]


def test_jobs_whose_worker_is_unknown_come_back_without_a_verdict(world: World) -> None:
    job_id, worker = _claimed(world)
    raw.forget_worker(world.backend, worker)

    _rescuer(world).tick()

    assert world.job(job_id).state == "scheduled"


def test_a_second_tick_changes_nothing(world: World, counts: Counts) -> None:
    job_id, _ = _claimed(world)
    world.clock.advance(LEASE_US + 1)
    first, second = _rescuer(world), _rescuer(world)
    first.tick()
    before = raw.stored(world.backend, job_id)
    counts.clear()

    second.tick()
    _pass(world, 3, first.tick)

    assert counts.writes == 0
    assert raw.stored(world.backend, job_id) == before


def test_where_nobody_is_dead_nothing_is_written(world: World, counts: Counts) -> None:
    _, worker = _claimed(world)
    rescuer = _rescuer(world, worker)
    counts.clear()

    for _ in range(4):
        rescuer.tick()

    assert counts.writes == 0


def test_many_jobs_come_back_in_chunks_without_a_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 2)
    ids = [world.enqueue() for _ in range(5)]
    world.claim(world.worker(), 5)
    world.clock.advance(LEASE_US + 1)
    rescuer = _rescuer(world)

    pauses = [rescuer.tick() for _ in range(3)]

    assert [pause == 0 for pause in pauses] == [True, True, False]
    assert {world.job(job_id).state for job_id in ids} == {"scheduled"}


def test_the_worker_itself_is_not_judged(world: World) -> None:
    job_id, worker = _claimed(world)
    world.clock.advance(DAY)
    rescuer = _rescuer(world, worker)

    _pass(world, 60, rescuer.tick)

    assert world.job(job_id).state == "running"


# Doubt


def _beating(world: World, rescuer: Rescuer) -> Callable[[], object]:
    def tick() -> None:
        assert rescuer.worker_id is not None
        world.backend.workers.beat(rescuer.worker_id, LEASE_US)
        rescuer.tick()

    return tick


def test_a_rescuer_whose_own_lease_was_not_renewed_believes_no_lease_for_one_lease(world: World) -> None:
    job_id, _ = _claimed(world)
    rescuer = _rescuer(world, world.worker())
    rescuer.tick()
    # Nobody can renew anything; then everything is as before, but for the other worker, which takes its time.
    _pass(world, 20, rescuer.tick)
    while_cut_off = world.job(job_id).state
    beats = _beating(world, rescuer)

    _pass(world, 14, beats)
    within_a_lease = world.job(job_id).state
    _pass(world, 3, beats)

    assert (while_cut_off, within_a_lease) == ("running", "running")
    assert world.job(job_id).state == "scheduled"


def test_a_worker_that_renews_within_that_time_keeps_its_jobs(world: World) -> None:
    job_id, worker = _claimed(world)
    rescuer = _rescuer(world, world.worker())
    rescuer.tick()
    _pass(world, 20, rescuer.tick)
    beats = _beating(world, rescuer)

    _pass(world, 10, beats)
    world.backend.workers.beat(worker, LEASE_US)
    _pass(world, 12, beats)

    assert world.job(job_id).state == "running"


def test_a_rescuer_that_did_not_get_to_look_believes_no_lease_for_one_lease(world: World) -> None:
    job_id, _ = _claimed(world)
    rescuer = _rescuer(world)
    rescuer.tick()
    world.clock.advance(60 * SECOND)
    rescuer.tick()
    at_first = world.job(job_id).state

    _pass(world, 16, rescuer.tick)

    assert at_first == "running"
    assert world.job(job_id).state == "scheduled"


def test_a_rescuer_that_looks_regularly_rescues_within_two_seconds_of_the_lease(world: World) -> None:
    job_id, _ = _claimed(world)
    rescuer = _rescuer(world, world.worker())
    beats = _beating(world, rescuer)

    _pass(world, 14, beats)
    in_time = world.job(job_id).state
    _pass(world, 3, beats)

    assert in_time == "running"
    assert world.job(job_id).state == "scheduled"


def test_a_rescuer_with_a_short_lease_trusts_leases_again_as_soon(world: World) -> None:
    job_id = world.enqueue()
    dead, own = (NewWorker(id=world.ids.new(), name="w", host="h", pid=1, boot=world.clock.boot) for _ in range(2))
    for worker in (dead, own):
        world.backend.workers.register(worker, 3 * SECOND)
    world.claim_one(dead.id)
    rescuer = _rescuer(world, own.id, 3 * SECOND)

    def tick() -> None:
        world.backend.workers.beat(own.id, 3 * SECOND)
        rescuer.tick()

    tick()
    _pass(world, 6, tick)

    assert world.job(job_id).state == "scheduled"


# Files


@pytest.fixture
def file_world(tmp_path: Path, clock: ManualClock, ids: Ids) -> World:
    backend = open_backend(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock)
    backend.migrate()
    return World(backend, clock, ids)


def _register(world: World, *, boot: str | None = None, lock: str | None = None, worker_id: str | None = None) -> str:
    worker = NewWorker(
        id=worker_id or world.ids.new(), name="w", host="h", pid=1, boot=boot or world.clock.boot, lock=lock
    )
    world.backend.workers.register(worker, LEASE_US)
    return worker.id


def _free_lock(backend: Backend, worker_id: str) -> str:
    assert isinstance(backend.db, SqliteDatabase)
    file = Path(f"{backend.db.path}-workers") / f"{worker_id}.lock"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    return f"{file.stat().st_dev}:{file.stat().st_ino}"


def test_who_is_proven_dead_is_rescued_from_at_once_by_a_rescuer_that_was_cut_off_too(file_world: World) -> None:
    world = file_world
    with closing(world.backend):
        job_id = world.enqueue()
        rescuer = _rescuer(world, world.worker())
        rescuer.tick()
        _pass(world, 20, rescuer.tick)
        dead = world.ids.new()
        _register(world, lock=_free_lock(world.backend, dead), worker_id=dead)
        world.claim_one(dead)

        rescuer.tick()

        assert world.job(job_id).state == "scheduled"


def test_a_glance_at_the_locks_asks_the_database_nothing(world: World, counts: Counts) -> None:
    rescuer = _rescuer(world)
    rescuer.tick()
    counts.clear()

    for _ in range(3):
        world.clock.advance(SECOND // 2)
        rescuer.tick()
    glances = counts.reads
    world.clock.advance(SECOND // 2)
    rescuer.tick()

    assert (glances, counts.reads) == ((0, 1) if world.backend.upkeep else (3, 4))


def test_a_worker_of_another_boot_that_nobody_can_prove_is_watched_for_one_lease(
    file_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(_: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(trust, "kind_of", network)
    world = file_world
    with closing(world.backend):
        silent, living = (_register(world, boot="another:1", lock="1:2") for _ in range(2))
        ids = [world.enqueue() for _ in range(2)]
        for worker in (silent, living):
            world.claim_one(worker)
        rescuer = _rescuer(world)

        def tick() -> None:
            world.backend.workers.beat(living, LEASE_US)
            rescuer.tick()

        _pass(world, 15, tick)
        early = [world.job(job_id).state for job_id in ids]
        _pass(world, 3, tick)
        world.clock.advance(SECOND)

        assert early == ["running", "running"]
        assert [world.job(job_id).state for job_id in ids] == ["scheduled", "running"]


def test_looks_are_half_a_second_apart_where_they_are_free_and_a_second_where_not(world: World) -> None:
    pauses = [_rescuer(world).tick() for _ in range(50)]

    longest = 0.5 if world.backend.upkeep else 1.0
    assert all(0.8 * longest <= pause <= longest for pause in pauses)
    assert len(set(pauses)) > 40
