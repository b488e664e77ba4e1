"""Guards in the statements: each test fails if its guard is removed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dray.backends import open_backend
from dray.backends.sqlite.database import SqliteDatabase
from dray.clock import Ids
from dray.instants import SECOND
from tests import verbs
from tests.backends import raw
from tests.backends.world import LEASE_US, World
from tests.manual_clock import ManualClock

if TYPE_CHECKING:
    from dray.model.job import Claim

PATIENCE = 10.0  # seconds; the calls below take milliseconds unless they wait for the open transaction

Made = Callable[[World], str]


def queued(world: World) -> str:
    return world.enqueue(priority=9)


def due(world: World) -> str:
    """A job that is due and not yet queued by a worker."""
    job = world.enqueue(priority=9, run_at=world.clock.now() + SECOND)
    world.clock.advance(2 * SECOND)
    return job


def expired(world: World) -> str:
    """A job that has expired and is not yet cancelled by a worker."""
    job = world.enqueue(priority=9, expires_at=world.clock.now() + SECOND)
    world.clock.advance(2 * SECOND)
    return job


@pytest.mark.parametrize("made", [queued, due, expired])
def test_a_row_that_a_users_transaction_holds_does_not_block_the_queue(server: World, made: Made) -> None:
    """Only PostgreSQL locks single rows. The claim skips the row; a claim that waits for it would block the worker
    for as long as the user's transaction is open."""
    held, free = made(server), server.enqueue()
    worker = server.worker()

    def claim() -> list[Claim]:
        return server.claim(worker, 2)

    with ThreadPoolExecutor(1) as pool, raw.job_held(server.backend, held):
        claimed = pool.submit(claim).result(PATIENCE)
        assert [each.id for each in claimed] == [free]

    if made is not expired:
        assert [each.id for each in server.claim(worker, 2)] == [held]


def drain(world: World) -> str:
    """A worker that drains, with a valid lease."""
    worker = world.worker()
    assert world.backend.workers.beat(worker, LEASE_US, "draining").alive
    return worker


def test_a_worker_that_drains_keeps_its_duties(world: World) -> None:
    """It keeps them until it resigns: a second holder would do the same work at the same time."""
    worker, other = world.worker(), world.worker()
    world.backend.leases.take("prune", worker)
    world.backend.workers.beat(worker, LEASE_US, "draining")

    held = [(lease.duty, lease.holder, lease.term) for lease in world.backend.leases.held()]
    assert held == [("prune", worker, 1)]
    assert world.backend.leases.take("prune", other) is None
    assert verbs.is_held(world.backend, "prune", worker, 1)


def test_a_worker_that_drains_renews_its_lease(world: World) -> None:
    worker = drain(world)
    job = world.enqueue()
    claim = world.claim_one(worker)  # before its engine knows that it drains
    world.clock.advance(LEASE_US - SECOND)

    beat = world.backend.workers.beat(worker, LEASE_US, "draining")

    assert beat.alive
    assert [row.id for row in beat.held] == [job]
    world.clock.advance(LEASE_US - SECOND)
    assert verbs.overdue(world.backend) == []
    assert world.complete(worker, claim).stale == []


def test_the_jobs_of_a_worker_that_drains_are_not_taken_from_it(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    world.backend.workers.beat(worker, LEASE_US, "draining")

    assert not world.backend.workers.judge().has_orphans
    assert world.backend.workers.rescue([], rng=world.rng) == []
    assert world.complete(worker, claim).stale == []


def test_a_worker_that_drains_and_dies_is_buried(world: World) -> None:
    worker = world.worker()
    job = world.enqueue()
    world.claim_one(worker)
    world.backend.leases.take("prune", worker)
    world.backend.workers.beat(worker, LEASE_US, "draining")

    world.clock.advance(LEASE_US + SECOND)
    verdicts = verbs.overdue(world.backend)
    assert [verdict.worker_id for verdict in verdicts] == [worker]
    assert world.backend.workers.judge().overdue == verdicts
    rescued = world.backend.workers.rescue(verdicts, rng=world.rng)

    assert [each.id for each in rescued] == [job]
    assert not world.backend.workers.beat(worker, LEASE_US, "draining").alive
    assert world.backend.leases.held() == []


def test_a_worker_that_drains_leaves_in_order(world: World) -> None:
    worker = drain(world)
    world.backend.leases.take("prune", worker)

    assert world.backend.workers.deregister(worker)

    assert [each.state for each in world.backend.workers.all()] == ["stopped"]
    assert world.backend.leases.take("prune", world.worker()) == 2


def test_sqlite_writers_leave_the_log_to_a_worker_that_drains(tmp_path: Path, clock: ManualClock, ids: Ids) -> None:
    """It still holds the checkpoint duty; writers would checkpoint again, each in its own commit."""
    with closing(open_backend(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock)) as backend:
        backend.migrate()
        world = World(backend, clock, ids)
        world.backend.leases.take("checkpoint", drain(world))
        clock.advance(5 * SECOND)  # after this time a writer checks again
        world.enqueue()

        assert isinstance(backend.db, SqliteDatabase)
        assert backend.db._writer is not None
        assert backend.db._writer.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 40_000
