"""The clock of a PostgreSQL server is set: who lives keeps working, and who is dead is found in bounded time.

The server's clock is what its functions say: a schema that comes before pg_catalog has others of the same names.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Generator
from contextlib import closing

import psycopg
import pytest

from dray.app import App
from dray.backends import Backend, open_backend
from dray.clock import Ids, SystemClock
from dray.instants import SECOND
from dray.maintenance import Rescuer
from dray.model.job import Demand
from dray.model.new_job import NewJob
from dray.model.worker import NewWorker
from tests import verbs
from tests.backends import raw

LEASE_US = SECOND
HOUR = 3600
_numbers = itertools.count()

FUNCTIONS = """
    CREATE SCHEMA {0};
    CREATE TABLE {0}.clock (shift interval NOT NULL, up interval NOT NULL);
    INSERT INTO {0}.clock VALUES ('0', '1 day');
    CREATE FUNCTION {0}.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
        AS 'SELECT pg_catalog.statement_timestamp() + shift FROM {0}.clock';
    CREATE FUNCTION {0}.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql STABLE
        AS 'SELECT pg_catalog.statement_timestamp() - up FROM {0}.clock';
"""


class Server:
    """A server whose clock can be set."""

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self.url = f"{url}&schema={schema}&options=-csearch_path%3D{schema},pg_catalog"
        self._execute(FUNCTIONS.format(schema))

    def set_forward(self, seconds: float) -> None:
        self._execute(f"UPDATE {self._schema}.clock SET shift = shift + interval '{seconds} seconds'")

    def set_up_for(self, seconds: float) -> None:
        """How long the server has been up, by the clock of before it was set; negative: its start is to come."""
        self._execute(f"UPDATE {self._schema}.clock SET up = interval '{seconds} seconds'")

    def close(self) -> None:
        self._execute(f"DROP SCHEMA {self._schema} CASCADE")

    def _execute(self, text: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(text.encode())


@pytest.fixture
def server(postgres_server: str) -> Generator[Server]:
    made = Server(postgres_server, f"clock_{os.getpid()}_{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture
def backend(server: Server) -> Generator[Backend]:
    with closing(open_backend(server.url)) as opened:
        opened.migrate()
        yield opened


ids = Ids(SystemClock())


def worker(backend: Backend) -> str:
    new = NewWorker(id=ids.new(), name="w", host="h", pid=1, boot="b")
    backend.workers.register(new, LEASE_US)
    return new.id


def claimed(backend: Backend, worker_id: str) -> str:
    (job,) = backend.jobs.enqueue([NewJob(id=ids.new(), task="task")])
    assert [claim.id for claim in verbs.claim(backend, worker_id, Demand(("default",), ("task",), 1))] == [job.id]
    return job.id


def state(backend: Backend, worker_id: str) -> str:
    return next(row.state for row in backend.workers.all() if row.id == worker_id)


class Rescue:
    """A live worker that beats, and rescues."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.id = backend, worker(backend)
        self.rescuer = Rescuer(backend, self.id, SystemClock(), random.Random(7), LEASE_US, lambda: None)

        self._beat_at = 0.0

    def tick(self, *, beats: bool = True) -> None:
        """Looks first: the beat comes a moment after the clock was set."""
        self.rescuer.tick()
        if beats and time.monotonic() >= self._beat_at:
            assert self.backend.workers.beat(self.id, LEASE_US).alive
            self._beat_at = time.monotonic() + LEASE_US / SECOND / 3

    def live(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """How long it took."""
        began = time.monotonic()
        while not until() and time.monotonic() - began < seconds:
            self.tick()
            time.sleep(0.05)
        return time.monotonic() - began


def test_jobs_of_a_worker_that_died_before_the_clock_was_set_back_are_rescued_within_leases(
    server: Server, backend: Backend
) -> None:
    rescue, dead = Rescue(backend), worker(backend)
    job = claimed(backend, dead)
    rescue.tick()

    server.set_forward(-HOUR)
    took = rescue.live(20, until=lambda: state(backend, dead) == "dead")

    assert state(backend, dead) == "dead"
    assert took < 10  # about one lease and a look
    assert backend.jobs.get([job])[0].state in {"queued", "scheduled"}
    backend.jobs.enqueue([NewJob(id=ids.new(), task="task")])
    assert verbs.claim(backend, rescue.id, Demand(("default",), ("task",), 1))  # this one or the one that was rescued


def test_who_died_after_the_clock_was_set_back_is_rescued_as_ever(server: Server, backend: Backend) -> None:
    rescue = Rescue(backend)
    server.set_up_for(60)  # so its start is to come, by the new clock
    server.set_forward(-HOUR)
    rescue.live(2.5)
    dead = worker(backend)

    rescue.live(20, until=lambda: state(backend, dead) == "dead")

    assert state(backend, dead) == "dead"


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_a_live_worker_that_cannot_beat_keeps_its_jobs_while_it_proves_its_life(
    server: Server, backend: Backend, seconds: int
) -> None:
    rescue, stopped = Rescue(backend), worker(backend)
    job = claimed(backend, stopped)
    rescue.tick()
    with raw.postgres_proof_of_life(backend, stopped):
        server.set_forward(seconds)
        rescue.live(3.5)

        assert state(backend, stopped) == "active"
        assert backend.jobs.get([job])[0].state == "running"
    rescue.live(20, until=lambda: state(backend, stopped) == "dead")
    assert state(backend, stopped) == "dead"


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_a_live_worker_without_a_proof_is_not_buried_before_it_had_the_time_to_beat(
    server: Server, backend: Backend, seconds: int
) -> None:
    rescue, other = Rescue(backend), worker(backend)  # as behind a pooler
    rescue.tick()

    server.set_forward(seconds)
    assert backend.workers.beat(rescue.id, LEASE_US).alive  # it is the first to be back
    for _ in range(5):
        rescue.tick(beats=False)

    assert backend.workers.beat(other, LEASE_US).alive
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        rescue.tick()
        assert backend.workers.beat(other, LEASE_US).alive
        time.sleep(0.1)


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_a_worker_goes_on_and_what_is_delayed_from_then_on_runs_in_time(server: Server, seconds: int) -> None:
    with App(server.url, migrate=True) as app:

        @app.task(name="echo")
        def echo(word: str) -> str:
            return word

        with app.worker(concurrency=2, lease=1) as running:
            before = running.id
            assert echo.enqueue("first").result(timeout=20) == "first"
            waiting = echo.using(delay=HOUR / 2).enqueue("half an hour")

            server.set_forward(seconds)

            assert echo.enqueue("second").result(timeout=20) == "second"
            assert echo.using(delay=0.5).enqueue("third").result(timeout=20) == "third"
            time.sleep(2.5)
            assert echo.enqueue("fourth").result(timeout=20) == "fourth"
            assert running.id == before
            assert running.condition().is_ready
            if seconds > 0:
                assert waiting.result(timeout=20) == "half an hour"
            else:
                assert (
                    waiting.refresh().state == "scheduled"
                )  # by the clock on the wall it has more than an hour left
