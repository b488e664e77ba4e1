"""Many workers on one table: every job is claimed once, none is skipped, and no lock error reaches a caller."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.address import SqliteAddress, parse_address
from dray.backends import open_backend
from dray.backends.database import Rivalry
from dray.backends.sqlite.connect import _pause
from dray.backends.sqlite.session import SqliteSession
from dray.backends.store.work import NOTHING
from tests.backends.processes import (
    ask_together,
    drain,
    enqueue,
    enqueue_some,
    integrity,
    job_ids,
    new_job,
    raw_sql,
    register,
    work_off,
)

JOBS = 2_000
WORKERS = 8
BATCH = 7  # does not divide the number of jobs, so the last claims are short

Rounds = list[list[list[Any]]]


@pytest.fixture
def filled(url: str) -> str:
    """A database with 2,000 jobs in its queue."""
    backend = open_backend(url)
    backend.migrate()
    backend.jobs.enqueue([new_job() for _ in range(JOBS)])
    backend.close()
    return url


def assert_each_once(url: str, by_worker: list[Rounds]) -> None:
    claims = [tuple(claim) for rounds in by_worker for claimed in rounds for claim in claimed]
    claimed_twice = [job_id for job_id, times in Counter(job_id for job_id, _, _ in claims).items() if times > 1]
    assert claimed_twice == []
    assert sorted(claims) == [(job_id, 1, 1) for job_id in job_ids(url)]
    assert len(claims) == JOBS
    assert raw_sql(url, "SELECT state, attempt, claim, count(*) FROM dray_jobs GROUP BY 1, 2, 3") == [
        ("completed", 1, 1, JOBS)
    ]
    for rounds in by_worker:
        for claimed in rounds:
            ids = [job_id for job_id, _, _ in claimed]
            assert ids == sorted(ids), "the oldest first"
            assert len(ids) <= BATCH
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        assert integrity(address.path) == "ok"
        for rounds in by_worker:
            ids = [job_id for claimed in rounds for job_id, _, _ in claimed]
            assert ids == sorted(ids), "one writer at a time: also from claim to claim"


def test_eight_threads_claim_every_job_exactly_once(filled: str) -> None:
    backend = open_backend(filled)
    start = threading.Barrier(WORKERS)

    def work(_: int) -> Rounds:
        worker = register(backend)
        start.wait(10)
        return drain(backend, worker, BATCH)

    with ThreadPoolExecutor(WORKERS) as threads:
        by_worker = list(threads.map(work, range(WORKERS)))

    backend.close()
    assert_each_once(filled, by_worker)


def test_eight_processes_claim_every_job_exactly_once(filled: str) -> None:
    by_worker = ask_together(work_off, [(filled, BATCH)] * WORKERS)

    assert_each_once(filled, by_worker)
    assert sum(1 for rounds in by_worker if rounds) > 1, "they did meet"


def test_producers_and_workers_in_one_database_lose_nothing(url: str) -> None:
    """Four threads enqueue, four work and one reads, all through one backend, next to two other processes."""
    backend = open_backend(url)
    backend.migrate()
    produced = threading.Event()

    def produce() -> list[str]:
        return [enqueue(backend) for _ in range(25)]

    def consume() -> list[str]:
        worker = register(backend)
        claimed: list[str] = []
        while True:
            last = produced.is_set()
            claimed += [job_id for claims in drain(backend, worker, 3) for job_id, _, _ in claims]
            if last:
                return claimed

    def look() -> int:
        looks = 0
        while not produced.is_set():
            backend.jobs.newest(limit=5)
            looks += 1
        return looks

    with ThreadPoolExecutor(9) as threads:
        producers = [threads.submit(produce) for _ in range(4)]
        consumers = [threads.submit(consume) for _ in range(4)]
        looking = threads.submit(look)
        try:
            elsewhere = ask_together(enqueue_some, [(url, 25)] * 2)
            made = [job_id for producer in producers for job_id in producer.result(30)]
        finally:
            produced.set()
        claimed = [job_id for consumer in consumers for job_id in consumer.result(30)]
        assert looking.result(30) > 0

    made += [job_id for each in elsewhere for job_id in each]
    backend.close()
    assert sorted(claimed) == sorted(made) == job_ids(url)
    assert raw_sql(url, "SELECT state, count(*) FROM dray_jobs GROUP BY 1") == [("completed", 150)]


def test_an_exchange_that_had_to_wait_for_the_write_lock_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(f"sqlite:///{tmp_path / 'jobs.db'}")
    backend.migrate()
    backend.jobs.enqueue([new_job()])
    worker_id, is_refused, begin = register(backend), threading.Event(), SqliteSession.begin

    def noted(session: SqliteSession) -> None:
        try:
            begin(session)
        except sqlite3.OperationalError:
            is_refused.set()
            raise

    assert backend.work.exchange(worker_id, (), NOTHING).rivalry is None
    monkeypatch.setattr(SqliteSession, "begin", noted)
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as rival:
        seen: list[Rivalry | None] = []
        for _ in range(2):
            rival.execute("BEGIN IMMEDIATE")
            with ThreadPoolExecutor(1) as pool:
                exchange = pool.submit(backend.work.exchange, worker_id, (), NOTHING)
                assert is_refused.wait(30)
                rival.execute("COMMIT")
                seen.append(exchange.result().rivalry)
            is_refused.clear()
            backend.jobs.enqueue([new_job() for _ in range(5)])
    backend.close()

    first, second = seen
    assert first is not None
    assert second is not None
    assert second.newest - first.newest == 5
    assert second.since > first.since


def test_a_waiter_for_the_lock_tries_again_soon_at_first_and_seldom_later() -> None:
    now = time.monotonic()

    assert all(_pause(time.monotonic()) <= 0.001 for _ in range(100))
    assert max(_pause(now - 10) for _ in range(100)) > 0.02
    assert all(_pause(now - 10) <= 0.05 for _ in range(100))
