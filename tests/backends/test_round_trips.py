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
from dray.backends.store.work import NOTHING
from tests.backends.world import World


class Wire:
    """What libpq sends (F) and receives (B) on the one connection of a backend."""

    def __init__(self, backend: Backend, path: Path) -> None:
        self._path = path
        assert isinstance(backend.db, PostgresDatabase)
        (self._connection,) = backend.db._pool.idle

    def round_trips(self, call: Callable[[], object]) -> int:
        """How often an answer follows what was sent."""
        with self._path.open("w") as file:
            self._connection.pgconn.trace(file.fileno())
            self._connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
            call()
            self._connection.pgconn.untrace()
        ways = [line[0] for line in self._path.read_text().splitlines() if line[:1] in {"F", "B"}]
        return [way for way, _ in itertools.groupby(ways)].count("B")


@pytest.fixture
def backend(postgres_url: str) -> Generator[Backend]:
    with closing(open_backend(postgres_url)) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def wire(backend: Backend, world: World, tmp_path: Path) -> Wire:
    world.enqueue()  # the queue is known afterwards
    return Wire(backend, tmp_path / "wire")


def test_enqueueing_a_job_takes_one(backend: Backend, world: World, wire: Wire) -> None:
    new = world.new()

    assert wire.round_trips(lambda: backend.jobs.enqueue([new])) == 1
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


def test_a_read_takes_two(backend: Backend, world: World, wire: Wire) -> None:
    job_id = world.enqueue()

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
