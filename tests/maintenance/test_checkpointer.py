"""SQLite's write-ahead log is copied back by whoever has the duty, and unused pages are given back."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from dray.backends import Backend, open_backend
from dray.backends.database import Checkpoint
from dray.backends.sqlite.database import SqliteDatabase
from dray.backends.sqlite.upkeep import Upkeep
from dray.clock import Ids
from dray.instants import SECOND
from dray.maintenance import cleaning as module
from dray.maintenance.cleaning import Checkpointer
from tests.backends.world import LEASE_US, World
from tests.manual_clock import ManualClock

MEGABYTE = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def world(path: Path, clock: ManualClock, ids: Ids) -> Generator[World]:
    with closing(open_backend(f"sqlite:///{path}", clock=clock)) as backend:
        backend.migrate()
        world = World(backend, clock, ids)
        _upkeep(world).checkpoint()
        yield world


@pytest.fixture
def checkpoints(world: World, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each checkpoint that is made, and whether it waits."""
    made: list[bool] = []
    upkeep = _upkeep(world)
    checkpoint = upkeep.checkpoint

    def counting(*, waits: bool = False) -> Checkpoint:
        made.append(waits)
        return checkpoint(waits=waits)

    monkeypatch.setattr(upkeep, "checkpoint", counting)
    return made


def _upkeep(world: World) -> Upkeep:
    assert world.backend.upkeep is not None
    return world.backend.upkeep


def _checkpointer(world: World) -> Checkpointer:
    return Checkpointer(_upkeep(world), world.clock, world.rng)


def _jobs_in_the_file(path: Path) -> int:
    """Those that would be there without the log."""
    copy = path.with_name("copy.db")
    subprocess.run(["cp", path, copy], check=True)  # reading it here would drop SQLite's locks on it
    with closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as connection:
        return connection.execute("SELECT count(*) FROM dray_jobs").fetchone()[0]


# The duty


def test_what_was_written_is_copied_back(world: World, path: Path) -> None:
    world.enqueue()
    before = _jobs_in_the_file(path)

    _checkpointer(world).tick()

    assert (before, _jobs_in_the_file(path)) == (0, 1)


def test_what_was_not_written_is_not_copied_again(world: World, checkpoints: list[bool]) -> None:
    world.enqueue()
    checkpointer = _checkpointer(world)
    for _ in range(60):
        checkpointer.tick()
        world.clock.advance(SECOND)

    assert checkpoints == [False]


def test_a_little_is_copied_within_10_seconds(world: World, checkpoints: list[bool], path: Path) -> None:
    checkpointer = _checkpointer(world)
    checkpointer.tick()
    checkpoints.clear()
    world.enqueue()
    for _ in range(9):
        world.clock.advance(SECOND)
        checkpointer.tick()
    early = list(checkpoints)

    world.clock.advance(SECOND)
    checkpointer.tick()

    assert (early, checkpoints) == ([], [False])
    assert _jobs_in_the_file(path) == 1


def _write_much(world: World, megabytes: int = 2) -> None:
    world.backend.jobs.enqueue([world.new(args='{"x": "' + "y" * 100_000 + '"}') for _ in range(10 * megabytes)])


def test_much_is_copied_at_once_and_soon_looked_at_again(
    world: World, checkpoints: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GROWTH", MEGABYTE)
    monkeypatch.setattr(module, "_FRAMES", 250)
    checkpointer = _checkpointer(world)
    checkpointer.tick()
    idle = checkpointer.tick()
    checkpoints.clear()
    _write_much(world)

    pause = checkpointer.tick()

    assert checkpoints.count(False) == 1
    assert 1.6 <= idle <= 2.0
    assert pause <= 0.25


def test_in_a_log_that_grows_no_more_the_rate_of_the_last_time_tells_when_to_copy(
    world: World, checkpoints: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FRAMES", 250)
    _write_much(world, 4)
    assert isinstance(world.backend.db, SqliteDatabase)
    assert world.backend.db._writer is not None
    world.backend.db._writer.execute("PRAGMA wal_autocheckpoint = 40000")  # as beside the worker that has the duty
    checkpointer = _checkpointer(world)
    checkpointer.tick()
    for _ in range(11):  # about 250 pages a second, in the room that there is
        world.clock.advance(SECOND)
        _write_much(world, 1)
        checkpointer.tick()
    checkpoints.clear()

    for _ in range(8):
        world.clock.advance(SECOND)
        _write_much(world, 1)
        checkpointer.tick()

    assert 4 <= checkpoints.count(False) <= 8


@pytest.mark.parametrize(("seconds", "waits"), [(0.4, [False, True]), (4, [False])])
def test_a_log_that_grows_fast_starts_over_sooner(
    world: World, checkpoints: list[bool], monkeypatch: pytest.MonkeyPatch, seconds: float, waits: list[bool]
) -> None:
    monkeypatch.setattr(module, "_GROWTH", MEGABYTE)
    monkeypatch.setattr(module, "_FRAMES", 250)
    checkpointer = _checkpointer(world)
    checkpointer.tick()
    world.clock.advance(60 * SECOND)
    checkpointer.tick()  # nothing is new: from here on the log grows
    checkpoints.clear()
    world.clock.advance(round(seconds * SECOND))
    _write_much(world)  # 500 pages

    pause = checkpointer.tick()

    assert checkpoints == waits
    assert (pause <= 0.1) == (len(waits) == 2)


def test_a_log_that_writers_keep_from_starting_over_is_started_over_past_a_limit(
    world: World, path: Path, checkpoints: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIMIT", 400)
    _write_much(world)

    _checkpointer(world).tick()

    assert checkpoints == [False, True]
    size = _log_size(path)
    _write_much(world, 1)
    assert _log_size(path) == size, "the next write starts the log over, in the room there is"


def test_a_log_that_may_start_over_by_itself_makes_nobody_wait(world: World, checkpoints: list[bool]) -> None:
    _write_much(world)

    _checkpointer(world).tick()

    assert checkpoints == [False]


def _log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_a_reader_in_the_way_does_not_stop_it_for_long(world: World, path: Path) -> None:
    world.enqueue()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM dray_jobs").fetchall()
        world.enqueue()

        found = [_upkeep(world).checkpoint(), _upkeep(world).checkpoint(waits=True)]

        reader.execute("ROLLBACK")
    assert all(checkpoint.left for checkpoint in found)
    assert _upkeep(world).checkpoint().left == 0


def test_somebody_elses_checkpoint_or_transaction_is_no_error(world: World, path: Path) -> None:
    world.enqueue()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")

        _upkeep(world).checkpoint()
        _upkeep(world).checkpoint(waits=True)

        writer.execute("ROLLBACK")
    assert _jobs_in_the_file(path) == 1


# Unused pages


def _pages(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))  # type: ignore[return-value]


def _leave_many_unused(world: World) -> None:
    ids = [world.new(args='{"x": "' + "y" * 200_000 + '"}') for _ in range(60)]
    world.backend.jobs.enqueue(ids)
    world.backend.jobs.delete([job.id for job in ids])


def test_many_unused_pages_are_given_back_in_steps(world: World, path: Path) -> None:
    _leave_many_unused(world)
    unused, in_all = _pages(path)
    checkpointer = _checkpointer(world)
    steps = 0
    while checkpointer.tick() == 0.25:
        steps += 1

    left, size = _pages(path)
    assert unused > 2_000
    assert steps == (unused - 1_000 - 1) // 1_000
    assert left <= 1_000
    assert size < in_all - 1_000


def test_a_few_unused_pages_are_kept_for_the_next_jobs(world: World, path: Path) -> None:
    jobs = [world.new(args='{"x": "' + "y" * 100_000 + '"}') for _ in range(20)]
    world.backend.jobs.enqueue(jobs)
    world.backend.jobs.delete([job.id for job in jobs])
    before = _pages(path)

    _checkpointer(world).tick()

    assert before[0] > 100
    assert _pages(path) == before


def test_the_vacuum_mode_of_somebody_elses_file_is_left_alone(path: Path, clock: ManualClock, ids: Ids) -> None:
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE t (x)")
    with closing(open_backend(f"sqlite:///{path}", clock=clock)) as backend:
        backend.migrate()
        world = World(backend, clock, ids)
        _leave_many_unused(world)
        before = _pages(path)

        _checkpointer(world).tick()

        assert before[0] > 2_000
        assert _pages(path) == before


# Everybody else


def _threshold(backend: Backend) -> int:
    assert isinstance(backend.db, SqliteDatabase)
    assert backend.db._writer is not None
    return backend.db._writer.execute("PRAGMA wal_autocheckpoint").fetchone()[0]


def test_writers_copy_the_log_back_themselves_where_nobody_has_the_duty(world: World) -> None:
    world.worker()
    world.enqueue()

    assert _threshold(world.backend) == 1_000


def test_writers_leave_it_to_the_live_worker_that_has_the_duty(world: World, path: Path) -> None:
    worker = world.worker()
    world.backend.leases.take("checkpoint", worker)

    with closing(open_backend(f"sqlite:///{path}", clock=world.clock)) as other:
        World(other, world.clock, world.ids).enqueue()
        assert _threshold(other) == 40_000


@pytest.mark.parametrize(("has_duty", "frames"), [(False, 1_000), (True, 40_000)])
def test_a_block_leaves_it_to_that_worker_too(world: World, path: Path, has_duty: bool, frames: int) -> None:
    """Bodies with `ctx.transaction()` open one each, beside the worker that has the duty."""
    worker = world.worker()
    if has_duty:
        world.backend.leases.take("checkpoint", worker)

    with closing(open_backend(f"sqlite:///{path}", clock=world.clock)) as other:
        for _ in range(2):  # the first asks, the second is told
            with other.transaction() as block:
                assert block.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == frames
        World(other, world.clock, world.ids).enqueue()
        assert _threshold(other) == frames


@pytest.mark.parametrize("ending", ["silent", "left", "resigned"])
def test_writers_notice_within_5_seconds_that_nobody_does_it_any_more(world: World, ending: str) -> None:
    worker = world.worker()
    term = world.backend.leases.take("checkpoint", worker)
    assert term is not None
    world.clock.advance(5 * SECOND)
    world.enqueue()
    before = _threshold(world.backend)
    if ending == "silent":
        world.clock.advance(LEASE_US)
    elif ending == "left":
        world.backend.workers.deregister(worker)
    else:
        world.backend.leases.resign("checkpoint", worker, term)

    world.clock.advance(5 * SECOND)
    world.enqueue()

    assert (before, _threshold(world.backend)) == (40_000, 1_000)


def test_a_worker_of_another_boot_is_nobody_to_wait_for(world: World, path: Path) -> None:
    worker = world.worker()
    world.backend.leases.take("checkpoint", worker)
    rebooted = ManualClock(boot="another")

    with closing(open_backend(f"sqlite:///{path}", clock=rebooted)) as other:
        World(other, rebooted, Ids(rebooted)).enqueue()
        assert _threshold(other) == 1_000


def test_a_server_looks_after_its_own_log(postgres_url: str) -> None:
    with closing(open_backend(postgres_url)) as backend:
        assert backend.upkeep is None
