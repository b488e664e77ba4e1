"""An exception out of nowhere inside any call: nothing stays open, locked or lost, and the next call works.

Ctrl-C in a notebook, a time limit by a signal: on SQLite a transaction that is left open keeps every process of the
machine from writing. `DRAY_SOAK_INTERRUPTS` is how many calls are interrupted on each database, by each way.
"""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus

import dray
from dray.app_interface import core_of
from dray.backends.postgres import PostgresDatabase
from dray.backends.sqlite import SqliteDatabase
from dray.handle.job import Job
from dray.ops.audit import audit
from dray.runtime.worker import Worker
from tests.interrupts.harness import BySignal, ByThread, bombard
from tests.processes.harness import until

pytestmark = pytest.mark.usefixtures("cold")

HITS = int(os.environ.get("DRAY_SOAK_INTERRUPTS", "252"))
PATIENCE = 10.0


@pytest.fixture(autouse=True)
def _collect() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Whatever is collected is collected here, where warnings about it are expected."""
    yield
    gc.collect()


@pytest.fixture(name="app")
def opened(url: str) -> Generator[dray.App]:
    with dray.App(url, migrate=True) as made:

        @made.task(name="add")
        def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
            return a + b

        core_of(made).backend.migrate()
        yield made


class Calls:
    """Every public call that waits for the database, each time on jobs that fit."""

    def __init__(self, app: dray.App) -> None:
        self._app = app
        self._number = 0
        self.acknowledged: list[str] = []
        self.each: dict[str, Callable[[], Callable[[], object]]] = {
            "enqueue": lambda: self._enqueue,
            "enqueue_many": lambda: self._enqueue_many,
            "unique": lambda: lambda: self._app.enqueue("add", self._args(), unique="key"),
            "refresh": lambda: self._job().refresh,
            "result": lambda: self._wait(self._job()),
            "cancel": lambda: self._job().cancel,
            "retry": lambda: self._cancelled().retry,
            "delete": lambda: self._cancelled().delete,
            "list": lambda: lambda: list(self._app.jobs(limit=20)),
            "stats": lambda: self._app.stats,
            "pause": lambda: self._pause,
            "transaction": lambda: self._transaction,
        }

    def _args(self) -> dict[str, Any]:
        self._number += 1
        return {"a": self._number, "b": 1}

    def _job(self) -> Job[Any]:
        return self._app.enqueue("add", self._args())

    def _cancelled(self) -> Job[Any]:
        job = self._job()
        job.cancel()
        return job

    def _enqueue(self) -> None:
        self.acknowledged.append(self._job().id)

    def _enqueue_many(self) -> None:
        (add,) = core_of(self._app).registry
        jobs = add.enqueue_many([self._args() for _ in range(20)])
        self.acknowledged += [job.id for job in jobs]

    def _wait(self, job: Job[Any]) -> Callable[[], None]:
        def wait() -> None:
            with pytest.raises(TimeoutError):
                job.result(timeout=0.002)

        return wait

    def _pause(self) -> None:
        self._app.pause("mail")
        self._app.resume("mail")

    def _transaction(self) -> None:
        with core_of(self._app).backend.transaction() as connection:
            connection.execute("SELECT 1")


class Remains:
    """What a call may not leave behind."""

    def __init__(self, app: dray.App) -> None:
        self._app = app
        self._db = core_of(app).backend.db
        self._checks = 0

    def check(self) -> None:
        self._checks += 1
        if isinstance(self._db, SqliteDatabase):
            self._check_sqlite(self._db)
        else:
            assert isinstance(self._db, PostgresDatabase)
            self._check_postgres(self._db)
        assert self._app.enqueue("add", {"a": 1, "b": 2}).state == "queued"  # the next call works

    def _check_sqlite(self, db: SqliteDatabase) -> None:
        assert not db._write_lock.is_mine
        until(lambda: not db._readers.visits, "every reader to leave; the thread that waits for results may read")
        assert not db._blocks
        assert not [reader for reader in db._readers.idle if reader.in_transaction]
        other = sqlite3.connect(db.path, timeout=0, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        finally:
            other.close()

    def _check_postgres(self, db: PostgresDatabase) -> None:
        until(lambda: not db._pool.loans, "every loan to end; the notifier's thread may have one")
        assert not db._pool.waiting
        for connection in db._pool.idle:
            assert connection.info.transaction_status == TransactionStatus.IDLE
            assert connection.pgconn.pipeline_status == PipelineStatus.OFF
        if self._checks % 25 == 0:
            self.check_server(db)

    def check_server(self, db: PostgresDatabase) -> None:
        """The server ends the sessions of connections that were thrown away."""
        open_for_long = (
            "SELECT pid, state, query FROM pg_stat_activity WHERE application_name = 'dray' "
            "AND state LIKE 'idle in%' AND state_change < clock_timestamp() - interval '1 s'"
        )
        with psycopg.connect(db._conninfo, autocommit=True) as connection:
            deadline = time.monotonic() + PATIENCE
            while found := connection.execute(open_for_long).fetchall():
                assert time.monotonic() < deadline, found
                time.sleep(0.05)


# The exception may come inside the driver, whose unfinished connections and generators end when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("way", [BySignal(), ByThread()], ids=["signal", "thread"])
def test_a_call_that_is_interrupted_leaves_nothing_behind(
    app: dray.App, way: BySignal | ByThread, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, remains = Calls(app), Remains(app)
    app.queue("mail", priority=1)
    rng = random.Random(7)
    each = max(1, HITS // len(calls.each))
    for name, make_call in calls.each.items():
        account = bombard(way, make_call, remains.check, each, rng)
        with capsys.disabled():
            if HITS > 1_000:
                print(f"{core_of(app).settings.place[:8]} {way.name}: {name}: {account}")

    stored = {job.id for job in core_of(app).backend.jobs.get(calls.acknowledged)}
    assert stored == set(calls.acknowledged)
    assert audit(core_of(app).backend).broken == ()


WORKER_THREADS = ("dray-engine", "dray-heartbeat", "dray-duties", "dray-rescue", "dray-stopper", "dray-run")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_worker_whose_start_or_stop_is_interrupted_can_be_stopped_and_leaves_nothing_behind(app: dray.App) -> None:
    remains, workers = Remains(app), list[Worker]()

    def start_and_stop() -> Callable[[], object]:
        workers.append(worker := app.worker(concurrency=1, lease=5, grace=1))
        app.enqueue("add", {"a": 1, "b": 2})

        def call() -> None:
            worker.start()
            worker.stop()

        return call

    def check() -> None:
        workers[-1].stop()
        until(lambda: not _worker_threads(), "its threads to end", describe=lambda: str(_worker_threads()))
        remains.check()
        assert not core_of(app).on_enqueue
        assert not core_of(app).on_recall

    bombard(BySignal(), start_and_stop, check, HITS // 10, random.Random(3))

    with app.worker(lease=5) as worker:
        until(lambda: not list(app.jobs(state="pending")), "another worker to do what is left")
        assert worker.condition().is_healthy
    assert audit(core_of(app).backend).broken == ()


def _worker_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(WORKER_THREADS)]
