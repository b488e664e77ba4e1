"""What is on disk when a verb returns, and what a power loss may lose, observed at each commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from dray.backends import Backend
from dray.backends.sqlite import SqliteDatabase
from dray.backends.sqlite import database as sqlite
from dray.instants import HOUR, MINUTE
from dray.model import settlement as model
from dray.model.new_job import MANY, AlikeJobs
from dray.model.settlement import Settlement
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends import raw
from tests.backends.test_schedules import make
from tests.backends.world import LEASE_US, World

FULL = 2  # value of PRAGMA synchronous: the log is on disk when COMMIT returns

# A deferred trigger runs last before the commit. A transaction has one level, however many rows it writes.
NOTING = (
    "CREATE TABLE levels (xact text PRIMARY KEY, level text)",
    """
    CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        INSERT INTO levels VALUES (pg_current_xact_id()::text, current_setting('synchronous_commit'))
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$
    """,
    *(
        f"CREATE CONSTRAINT TRIGGER note_level AFTER INSERT OR UPDATE OR DELETE ON {table} "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_level()"
        for table in ("dray_jobs", "dray_workers", "dray_schedules")
    ),
)


class Commits:
    """Records how durable the commits of a backend's own connections are, if they changed a row."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self._backend = backend
        self._levels: list[int] = []
        if isinstance(backend.db, SqliteDatabase):
            self._note_in_process(monkeypatch)
            return
        with raw.transaction(backend) as execute:
            for statement in NOTING:
                execute(statement)

    def _note_in_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        levels, connect = self._levels, sqlite.connect

        class Noting(sqlite3.Connection):
            changes_before = 0

            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if sql.startswith("BEGIN"):
                    self.changes_before = self.total_changes
                if sql == "COMMIT" and self.total_changes > self.changes_before:
                    self._note()
                is_alone, before = not self.in_transaction, self.total_changes
                cursor = super().execute(sql, *values)
                if is_alone and not self.in_transaction and self.total_changes > before:
                    self._note()  # a statement that is a transaction of its own
                return cursor

            def _note(self) -> None:
                levels.append(super().execute("PRAGMA synchronous").fetchone()[0])

        def noting(path: Path, factory: type[sqlite3.Connection] = Noting, **options: Any) -> sqlite3.Connection:
            return connect(path, factory, **options)

        monkeypatch.setattr(sqlite, "connect", noting)
        self._backend.close()  # so that the next connection is a recorded one

    def of(self, act: Callable[[], Any]) -> list[bool]:
        """Returns, for each commit of an action, whether it waits for the disk."""
        if isinstance(self._backend.db, SqliteDatabase):
            self._levels.clear()
            act()
            return [level >= FULL for level in self._levels]
        raw.run(self._backend, "DELETE FROM levels")
        act()
        return [level == "on" for (level,) in raw.run(self._backend, "SELECT level FROM levels ORDER BY xact::xid8")]


@pytest.fixture
def commits(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Generator[Commits]:
    yield Commits(backend, monkeypatch)
    if not isinstance(backend.db, SqliteDatabase):
        raw.run(backend, "DROP FUNCTION note_level CASCADE")
        raw.run(backend, "DROP TABLE levels")


Act = Callable[[], Any]


def enqueue(world: World) -> Act:
    return world.enqueue


def enqueue_many(world: World) -> Act:
    jobs = AlikeJobs(world.new(), world.ids.many(2 * MANY), ["{}"] * 2 * MANY)
    return lambda: world.backend.jobs.enqueue_alike(jobs)


def start_a_workflow(world: World) -> Act:
    workflow = Workflow(world.ids.new(), "etl", 0)
    return lambda: world.backend.jobs.enqueue([world.new(workflow_id=workflow.id)], workflow=workflow)


def cancel(world: World) -> Act:
    job = world.enqueue()
    return lambda: world.backend.jobs.cancel([job])


def retry(world: World) -> Act:
    job = world.enqueue()
    world.backend.jobs.cancel([job])
    return lambda: world.backend.jobs.retry([job])


def delete(world: World) -> Act:
    job = world.enqueue()
    return lambda: world.backend.jobs.delete([job])


def expire(world: World) -> Act:
    world.enqueue(expires_at=world.clock.now())
    return world.backend.jobs.expire


def rescue(world: World) -> Act:
    worker = world.worker()
    world.enqueue()
    world.claim_one(worker)
    world.clock.advance(LEASE_US + 1)
    verdicts = verbs.overdue(world.backend)
    return lambda: world.backend.workers.rescue(verdicts, rng=world.rng)


def declare(world: World) -> Act:
    return lambda: make(world)


def fire(world: World) -> Act:
    schedule = make(world)
    new = world.new(schedule=schedule.name, slot=schedule.next_at)
    return lambda: world.backend.schedules.fire(schedule, next_at=HOUR, last_at=schedule.next_at, new=[new])


def pause_a_schedule(world: World) -> Act:
    schedule = make(world)
    return lambda: world.backend.schedules.pause(schedule.name)


def register(world: World) -> Act:
    return world.worker


def _ended(world: World) -> tuple[str, Settlement]:
    worker, now = world.worker(), world.clock.steady()
    world.enqueue()
    return worker, model.completed(world.claim_one(worker), now, now)


def settle(world: World, *, durable: bool) -> Act:
    worker, settlement = _ended(world)
    return lambda: verbs.settle(world.backend, worker, [settlement], durable=durable)


def grow(world: World, *, durable: bool) -> Act:
    worker, settlement = _ended(world)
    return lambda: world.backend.work.grow(worker, settlement, [world.new()], durable=durable)


def beat(world: World, *, durable: bool) -> Act:
    worker = world.worker()
    return lambda: world.backend.workers.beat(worker, LEASE_US, durable=durable)


def enqueue_as_told(world: World, *, durable: bool) -> Act:
    return lambda: world.backend.jobs.enqueue([world.new()], durable=durable)


def claim(world: World) -> Act:
    worker = world.worker()
    world.enqueue()
    return lambda: world.claim_one(worker)


def promote(world: World) -> Act:
    world.enqueue(delay_us=1)
    world.clock.advance(MINUTE)
    return world.backend.jobs.promote


@pytest.mark.parametrize(
    "verb",
    [
        *(enqueue, enqueue_many, start_a_workflow, cancel, retry, delete, expire, rescue),
        *(declare, fire, pause_a_schedule, register),
    ],
)
def test_what_nobody_would_do_again_is_on_the_disk(
    world: World, commits: Commits, verb: Callable[[World], Act]
) -> None:
    """The consequences of an end may come later: the rows show them, and any worker can continue."""
    assert commits.of(verb(world))[0]


@pytest.mark.parametrize("verb", [claim, promote])
def test_what_is_done_again_after_a_power_loss_does_not_wait_for_the_disk(
    world: World, commits: Commits, verb: Callable[[World], Act]
) -> None:
    assert commits.of(verb(world)) == [False]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("verb", [settle, grow, beat, enqueue_as_told])
def test_the_caller_says_whether_it_waits_for_the_disk(
    world: World, commits: Commits, verb: Callable[..., Act], durable: bool
) -> None:
    assert commits.of(verb(world, durable=durable)) == [durable]


def test_a_commit_is_as_durable_as_it_should_be_whatever_the_one_before_it_was(
    world: World, commits: Commits
) -> None:
    def act() -> None:
        worker = world.worker()
        for _ in range(2):
            world.enqueue()
            world.complete(worker, world.claim_one(worker))

    assert commits.of(act) == [True, True, False, False, True, False, False]
