"""How often a call waits for PostgreSQL: over a network, that is what it costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from psycopg.pq import Trace

from dray.backends import Backend, open_backend
from dray.backends.database import DataRefused
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.connect import OwnConnection
from dray.backends.postgres.notify import WINDOW
from dray.backends.postgres.session import PostgresSession
from dray.backends.sqlite.session import SqliteSession
from dray.backends.statements import Statement
from dray.backends.store.turns import Turns
from dray.backends.store.work import NOTHING, Exchange
from dray.clock import Ids
from dray.model.job import Demand
from dray.model.limit import Source, bounds_of
from tests.backends.world import World
from tests.manual_clock import ManualClock


class Wire:
    """What libpq sends (F) and receives (B) on the one connection of a backend."""

    def __init__(self, backend: Backend, path: Path) -> None:
        self._path = path
        assert isinstance(backend.db, PostgresDatabase)
        self._db = backend.db
        self._db._notifier.flush()
        (self._connection,) = self._db._pool.idle

    def round_trips(self, call: Callable[[], object]) -> int:
        """How often an answer follows what was sent."""
        return _round_trips(self.messages(call))

    def messages(self, call: Callable[[], object]) -> list[str]:
        self._db._notifier.flush()  # it would be sent on the same connection, and the call on another one
        pool = self._db._pool
        for each in [each for each in pool.idle if each is not self._connection]:
            pool.idle.remove(each)
            each.close()
        with self._path.open("w") as file:
            self._connection.pgconn.trace(file.fileno())
            self._connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
            call()
            self._connection.pgconn.untrace()
        return self._path.read_text().splitlines()


def _round_trips(messages: list[str]) -> int:
    ways = [line[0] for line in messages if line[:1] in {"F", "B"}]
    return [way for way, _ in itertools.groupby(ways)].count("B")


@pytest.fixture
def backend(postgres_url: str) -> Generator[Backend]:
    with closing(open_backend(postgres_url)) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def job_id(world: World) -> str:
    """A job whose queue is known afterwards. A second one would be told by another thread, on the same connection."""
    return world.enqueue()


@pytest.fixture
def wire(backend: Backend, job_id: str, tmp_path: Path) -> Wire:
    assert job_id
    return Wire(backend, tmp_path / "wire")


def test_telling_the_workers_takes_no_other(backend: Backend, world: World, wire: Wire) -> None:
    time.sleep(WINDOW)  # since the last one: within it, another thread tells them

    messages = wire.messages(lambda: backend.jobs.enqueue([world.new()]))

    commit, notify = (next(n for n, line in enumerate(messages) if word in line) for word in ("COMMIT", "pg_notify"))
    assert commit < notify, "inside the transaction it would take a lock of the whole server"
    assert _round_trips(messages) == 1


def test_within_the_window_of_the_last_one_a_job_is_one_statement(
    backend: Backend, world: World, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.backends.postgres.database.WINDOW", 1.0)
    backend.announce([world.new().queue])

    new = world.new()
    messages = wire.messages(lambda: backend.jobs.enqueue([new]))

    assert not any("BEGIN" in line for line in messages)
    assert _round_trips(messages) == 1
    assert world.job(new.id).state == "queued"


def test_enqueueing_it_again_changes_nothing(backend: Backend, world: World) -> None:
    new = world.new()
    backend.jobs.enqueue([new])
    world.claim_one(world.worker())

    again = backend.jobs.enqueue([new])

    assert [(each.id, each.duplicate) for each in again] == [(new.id, False)]
    assert world.job(new.id).state == "running"


def test_a_key_that_may_be_held_takes_more(backend: Backend, world: World, wire: Wire) -> None:
    unique = world.new(unique_key="report")

    assert wire.round_trips(lambda: backend.jobs.enqueue([unique])) > 1


def test_a_worker_s_exchange_takes_one(backend: Backend, world: World, wire: Wire) -> None:
    worker = world.worker()

    assert wire.round_trips(lambda: backend.work.exchange(worker, [], NOTHING)) == 1


CLAIM = Demand(("default",), ("task",), 8)


def test_a_claim_takes_one_where_there_are_no_limits_and_no_keys(backend: Backend, world: World, wire: Wire) -> None:
    worker = world.worker()
    backend.work.exchange(worker, [], CLAIM)  # from the first one it knows that there are none
    for _ in range(3):
        world.enqueue()
    brought: list[Exchange] = []

    assert wire.round_trips(lambda: brought.append(backend.work.exchange(worker, [], CLAIM))) == 1
    assert len(brought[0].claims) == 3


PLAIN = {
    "sqlite": ["tend_due", "claim_few"],
    "postgres": ["work_begin", "work_tend", "job_claim"],
}


@pytest.mark.parametrize("dialect", PLAIN)
def test_a_claim_sends_nothing_for_limits_and_keys_where_there_are_none(
    dialect: str, request: pytest.FixtureRequest, clock: ManualClock, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dialect == "postgres":
        url: str = request.getfixturevalue("postgres_url")
    else:
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'jobs.db'}"
    sent: list[str] = []
    on_sqlite, on_postgres = SqliteSession._execute, PostgresSession._run

    def note_sqlite(self: SqliteSession, name: str, params: dict[str, Any]) -> Any:
        sent.append(name)
        return on_sqlite(self, name, params)

    def note_postgres(self: PostgresSession, statement: Statement, params: dict[str, Any]) -> Any:
        sent.append(statement.name)
        return on_postgres(self, statement, params)

    with closing(open_backend(url, clock=clock)) as opened:
        opened.migrate()
        world = World(opened, clock, ids)
        worker = world.worker()
        opened.work.exchange(worker, [], CLAIM)
        world.enqueue()
        monkeypatch.setattr(SqliteSession, "_execute", note_sqlite)
        monkeypatch.setattr(PostgresSession, "_run", note_postgres)

        assert len(opened.work.exchange(worker, [], CLAIM).claims) == 1

    assert sent == PLAIN[dialect]


@pytest.mark.parametrize(
    ("bounds", "trips"),
    [
        ({}, 5),
        ({"limit": 9}, 6),
        ({"key_limit": 1}, 6),
        ({"limit": 9, "key_limit": 1, "rate": "9/s", "key_rate": "5/min"}, 7),
    ],
    ids=str,
)
def test_a_claim_under_limits_takes_more_but_no_more_for_more_keys(
    backend: Backend, world: World, wire: Wire, bounds: dict[str, Any], trips: int
) -> None:
    backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", bounds))
    worker = world.worker()
    world.complete(worker, world.claim_one(worker))
    counted: list[tuple[int, int]] = []
    for keys in ("a", "abcd"):
        for key in keys:
            world.enqueue(key=key)
        backend.work._turns = Turns()
        brought: list[Exchange] = []
        took = wire.round_trips(lambda: brought.append(backend.work.exchange(worker, [], CLAIM)))  # noqa: B023
        counted.append((len(brought[0].claims), took))
        for claim in brought[0].claims:
            world.complete(worker, claim)

    assert counted == [(1, trips), (4, trips)]


def test_a_read_takes_two(backend: Backend, job_id: str, wire: Wire) -> None:
    assert wire.round_trips(lambda: backend.jobs.get([job_id])) == 2


@pytest.mark.parametrize("pauses", [(0.0, 0.0), (0.002, 0.0), (0.0, 0.002)])
def test_an_error_is_raised_as_itself_whenever_it_arrives(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, float]
) -> None:
    execute = OwnConnection.execute

    def slowly(self: OwnConnection, query: Any, *args: Any) -> Any:
        time.sleep(pauses[0] if query == "COMMIT" else 0)
        cursor = execute(self, query, *args)
        time.sleep(pauses[1] if query == "COMMIT" else 0)
        return cursor

    def work(tx: Any) -> Any:
        tx._connection.execute("SELECT 1/0")
        return tx.later("queue_list")

    monkeypatch.setattr(OwnConnection, "execute", slowly)
    for _ in range(20):
        with pytest.raises(DataRefused, match="division by zero"):
            backend.db.exchange(work)
    assert backend.jobs.find("00") == []  # the connection is as before
