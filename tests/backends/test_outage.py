"""A PostgreSQL server that crashes, recovers and loses asynchronous commits: nothing that was promised is lost.

This file uses its own server, because each crash affects all of its connections.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.database import Session
from dray.backends.postgres.notify import WINDOW
from dray.clock import SystemClock
from dray.errors import StorageUnavailable
from dray.model.job import Demand
from dray.model.settlement import completed
from tests import verbs
from tests.backends.processes import enqueue, job_ids, new_job, raw_sql, register
from tests.server import GUARDED, Server

T = TypeVar("T")
DEMAND = Demand(("default",), ("task",), 1)
SETTINGS_OF_17 = os.environ.get("PGSERVER_POSTGRES_VERSION", "18") != "16"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    own = Server("max_notify_queue_pages=64") if SETTINGS_OF_17 else Server()
    yield own
    own.remove()


@pytest.fixture
def address(server: Server) -> Iterator[str]:
    """A schema with tables, dropped afterwards."""
    url = f"{server.url}&schema=outage"
    backend = open_backend(url)
    backend.migrate()
    backend.close()
    yield url
    raw_sql(server.url, "DROP SCHEMA outage CASCADE")


@pytest.fixture
def backend(address: str) -> Iterator[Backend]:
    opened = open_backend(address)
    yield opened
    opened.close()


def persistently(work: Callable[[], T]) -> T:
    """Retries while the server is down, as a producer does."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return work()
        except StorageUnavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)  # a server does not announce that it is back


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_every_acknowledged_job_is_there_once_after_a_crash_amid_enqueues(
    server: Server, backend: Backend, address: str
) -> None:
    acknowledged: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            new = new_job()
            # The same id again, if the response was lost: this must not create a second job.
            acknowledged.append(persistently(lambda: backend.jobs.enqueue([new])[0].id))  # noqa: B023

    with ThreadPoolExecutor(4) as threads:
        producers = [threads.submit(produce) for _ in range(4)]
        try:
            for _ in range(2):
                before = len(acknowledged)
                wait_for(lambda: len(acknowledged) > before + 50)  # noqa: B023
                server.crash()
            before = len(acknowledged)
            wait_for(lambda: len(acknowledged) > before + 50)
        finally:
            stop.set()
        for producer in producers:
            producer.result(20)

    assert len(acknowledged) > 150
    assert job_ids(address) == sorted(acknowledged)
    assert len(set(acknowledged)) == len(acknowledged)


@pytest.mark.skipif(not SETTINGS_OF_17, reason="PostgreSQL 16 has no setting for the size of that queue")
def test_a_job_is_enqueued_once_though_the_queue_of_notifications_is_full(
    server: Server, backend: Backend, address: str
) -> None:
    backend.jobs.enqueue([new_job()])  # its queue is known
    with (
        psycopg.connect(server.url, autocommit=True) as deaf,
        psycopg.connect(server.url, autocommit=True) as loud,
    ):
        deaf.execute("LISTEN something")
        deaf.execute("BEGIN")  # what it has not heard cannot be removed
        with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
            for number in range(10_000):
                loud.execute("SELECT pg_notify('something', %s || repeat('x', 7900))", (str(number),))
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            loud.execute("SELECT pg_notify('something', repeat('x', 7900))")

        for _ in range(3):
            time.sleep(WINDOW)  # or the notification is left to a thread
            backend.jobs.enqueue([new_job()])

    assert len(job_ids(address)) == 4


def hold_connections(backend: Backend, count: int) -> None:
    """Makes the pool open this many connections; all are idle afterwards."""
    together = threading.Barrier(count)

    def look(tx: Session) -> None:
        tx.rows("server_now")
        together.wait(10)

    with ThreadPoolExecutor(count) as threads:
        for reader in [threads.submit(backend.db.read, look) for _ in range(count)]:
            reader.result()


USES: dict[str, Callable[[Backend], Any]] = {
    "enqueue": enqueue,
    "read": lambda backend: backend.jobs.newest(),
    "claim": lambda backend: verbs.claim(backend, "00000000-0000-7000-8000-000000000000", DEMAND),
    "version": lambda backend: backend.schema_version(),
    "migrate": lambda backend: backend.migrate(),
    "time": lambda backend: backend.now(),
}


def test_connections_that_died_in_the_pool_are_replaced_without_an_error(server: Server, backend: Backend) -> None:
    problems: list[str] = []
    for name, use in USES.items():
        hold_connections(backend, 5)
        raw_sql(server.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dray'")
        for attempt in range(6):
            try:
                use(backend)
            except StorageUnavailable as error:
                problems.append(f"{name}, call {attempt + 1}: {error}")

    assert problems == []


def test_idle_connections_are_replaced_after_the_server_is_back(
    server: Server, backend: Backend, address: str
) -> None:
    made = [enqueue(backend)]
    hold_connections(backend, 5)
    server.crash()

    with ThreadPoolExecutor(5) as threads:
        made += [each.result() for each in [threads.submit(enqueue, backend) for _ in range(10)]]

    assert job_ids(address) == sorted(made)


def test_while_the_server_is_down_each_call_says_so_at_once_and_afterwards_all_is_well(
    server: Server, backend: Backend, address: str
) -> None:
    made = [enqueue(backend)]
    server.stop()
    try:
        before = time.monotonic()
        for use in (lambda: enqueue(backend), backend.jobs.newest, backend.schema_version, backend.migrate):
            with pytest.raises(StorageUnavailable, match="cannot be reached") as caught:
                use()
            assert "\n" not in str(caught.value)
        fresh = open_backend(address)
        with pytest.raises(StorageUnavailable):
            fresh.jobs.newest()
        assert time.monotonic() - before < 5
    finally:
        server.start()

    made += [enqueue(backend), enqueue(fresh)]
    fresh.close()
    assert job_ids(address) == sorted(made)


def test_a_connection_lost_inside_a_transaction_runs_it_again_from_the_start(
    server: Server, backend: Backend, address: str
) -> None:
    enqueue(backend)
    tries: list[int] = []

    def work(tx: Session) -> None:
        tries.append(len(tries))
        tx.rows("job_find", ids=["00000000-0000-7000-8000-000000000000"])
        if len(tries) == 1:
            everybody = "pid <> pg_backend_pid() AND application_name = 'dray'"
            raw_sql(server.url, f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {everybody}")
        tx.run("queue_add", names=["made-once"])

    backend.db.write(work)

    assert tries == [0, 1]
    assert raw_sql(address, "SELECT count(*) FROM dray_queues WHERE name = 'made-once'") == [(1,)]


def test_a_claim_that_a_crash_forgot_is_no_ones_but_the_next_claimers(
    server: Server, backend: Backend, address: str
) -> None:
    """The number of a lost claim is used again: only together with the worker's id does it identify a claim."""
    job_id = enqueue(backend)
    old, new = register(backend), register(backend)
    (lost,) = verbs.claim(backend, old, DEMAND)
    server.crash()
    if not forgotten(address, job_id):
        # Once the server had written the claim in time, once it had not.
        raw_sql(
            address,
            "UPDATE dray_jobs SET state = 'queued', worker_id = NULL, started_at = NULL, claim = 0, attempt = 0",
        )
    (again,) = persistently(lambda: verbs.claim(backend, new, DEMAND))
    assert (again.id, again.claim) == (lost.id, lost.claim) == (job_id, 1)
    before = raw_sql(address, "SELECT * FROM dray_jobs")

    now = SystemClock().steady()
    settled = verbs.settle(backend, old, [completed(lost, now, now, '"the old one"')])

    assert settled.stale == [job_id]
    assert raw_sql(address, "SELECT * FROM dray_jobs") == before
    assert backend.workers.beat(old, 60_000_000).held == []
    assert [held.id for held in backend.workers.beat(new, 60_000_000).held] == [job_id]
    assert not any(verbs.settle(backend, new, [completed(again, now, now, '"the new one"')]))
    (job,) = backend.jobs.get([job_id])
    assert (job.state, job.result, job.worker_id) == ("completed", '"the new one"', new)
    assert verbs.settle(backend, old, [completed(lost, now, now, '"the old one"')]).stale == [job_id]
    assert backend.jobs.get([job_id]) == [job]


def forgotten(address: str, job_id: str) -> bool:
    ((state,),) = raw_sql(address, f"SELECT state FROM dray_jobs WHERE id = '{job_id}'")
    return state == "queued"


def test_a_settle_that_a_crash_forgot_can_be_written_again(server: Server, backend: Backend, address: str) -> None:
    job_id = enqueue(backend)
    worker = register(backend)
    (claim,) = verbs.claim(backend, worker, DEMAND)
    enqueue(backend)  # durable, with everything before it: the claim survives
    now = SystemClock().steady()
    outcome = completed(claim, now, now)
    verbs.settle(backend, worker, [outcome])
    server.crash()

    settled = persistently(lambda: verbs.settle(backend, worker, [outcome]))

    assert settled.stale == []
    (job,) = backend.jobs.get([job_id])
    assert (job.state, job.attempt) == ("completed", 1)


def test_a_durable_settle_outlives_a_crash(server: Server, backend: Backend) -> None:
    for _ in range(2):
        job_id = enqueue(backend)
        worker = register(backend)
        (claim,) = verbs.claim(backend, worker, DEMAND)
        now = SystemClock().steady()
        verbs.settle(backend, worker, [completed(claim, now, now)], durable=True)
        server.crash()

        (job,) = persistently(lambda: backend.jobs.get([job_id]))  # noqa: B023
        assert job.state == "completed"


def test_a_wrong_password_is_one_line_that_does_not_show_it(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    raw_sql(server.url, f"CREATE ROLE ann LOGIN PASSWORD 'r1ght' IN ROLE {GUARDED}")
    right = server.url.replace("postgres:@", "ann:r1ght@")
    wrong = server.url.replace("postgres:@", "ann:wr0ng@")
    with contextlib.closing(psycopg.connect(right)):
        pass

    with pytest.raises(StorageUnavailable, match="password authentication failed") as caught:
        open_backend(wrong).jobs.newest()

    assert "\n" not in str(caught.value)
    assert "wr0ng" not in str(caught.value) + caplog.text
    assert "ann:***@" in str(caught.value)
