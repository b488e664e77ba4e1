"""A worker that cannot claim, run or write reports healthy for no longer than two beats."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import StorageLocked, StorageUnavailable
from dray.runtime import service
from dray.runtime.worker import Worker
from dray.task.task import Task
from tests.runtime.watching import LONG, Gate, ended, sql, state_of, until

LEASE = 1.5
TWO_BEATS = 2 * LEASE / 3
SLACK = 5 * TWO_BEATS  # for a busy machine; a lease is only 1.5 times as long as two beats


@pytest.fixture
def quick(app: App) -> Task[..., Any]:
    @app.task(name="quick")
    def quick() -> None: ...

    return quick


@pytest.fixture
def worker(app: App, quick: Task[..., Any]) -> Generator[Worker]:
    with app.worker(concurrency=2, lease=LEASE, grace=0) as started:
        until(lambda: is_green(started))
        yield started


def is_green(worker: Worker) -> bool:
    condition = worker.condition()
    if condition.is_healthy and condition.is_ready:
        assert condition.reason is None
    return condition.is_healthy and condition.is_ready


def turns_red(worker: Worker, why: str) -> None:
    """From now on the worker cannot work: it reports that in time, with the reason, and writes it to its row."""
    began = time.monotonic()
    until(lambda: not worker.condition().is_healthy)
    assert time.monotonic() - began < TWO_BEATS + SLACK
    condition = worker.condition()
    assert not condition.is_ready
    assert why in (condition.reason or "")


@contextmanager
def failing(backend: Any, verb: str, error: Exception) -> Generator[list[str]]:
    """Makes every call of a verb fail."""
    calls: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        calls.append(verb)
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, verb, refuse)
        yield calls


def trouble(app: App, worker: Worker) -> str | None:
    return next(each.trouble for each in core_of(app).backend.workers.all() if each.id == worker.id)


@pytest.mark.parametrize("error", [StorageUnavailable("read-only"), StorageLocked("locked for long")], ids=repr)
def test_an_engine_that_cannot_write_though_the_beats_get_through(
    app: App, worker: Worker, quick: Task[..., Any], error: Exception
) -> None:
    with failing(worker._backend.work, "exchange", error):
        job = quick.enqueue()
        turns_red(worker, f"cannot use the database: {error}")
        until(lambda: str(error) in (trouble(app, worker) or ""))
        assert state_of(job) == "queued"

    assert ended(job) == "completed"
    until(lambda: is_green(worker))
    until(lambda: trouble(app, worker) is None)


def test_an_outcome_that_cannot_be_written_with_its_steps(app: App, worker: Worker, quick: Task[..., Any]) -> None:
    """All other writes of the engine succeed, again and again."""
    worker.stop()

    @app.task(name="grow")
    def grow(ctx: dray.Context) -> None:
        ctx.add(quick)

    with app.worker(concurrency=2, lease=LEASE, grace=0) as other:
        with failing(other._backend.work, "grow", StorageUnavailable("full")):
            wf = app.workflow("growing")
            wf.add(grow)
            run = wf.enqueue()
            began = time.monotonic()
            while other.condition().is_healthy:
                quick.enqueue()
                time.sleep(0.02)
                assert time.monotonic() - began < TWO_BEATS + SLACK
        assert run.wait(LONG) == "completed"
        until(lambda: is_green(other))


def test_a_transaction_that_does_not_come_back(
    worker: Worker, quick: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, exchange = threading.Event(), worker._backend.work.exchange

    def hang(*args: Any, **options: Any) -> Any:
        assert answer.wait(LONG)
        return exchange(*args, **options)

    monkeypatch.setattr(worker._backend.work, "exchange", hang)
    job = quick.enqueue()
    turns_red(worker, "waits to use the database")

    answer.set()
    assert ended(job) == "completed"
    until(lambda: is_green(worker))


def test_an_engine_with_a_defect(worker: Worker, quick: Task[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_AFTER_A_DEFECT", 0.05)
    with failing(worker._backend.work, "exchange", ZeroDivisionError("a defect")):
        job = quick.enqueue()
        turns_red(worker, "cannot use the database: a defect")

    assert ended(job) == "completed"
    until(lambda: is_green(worker))


def test_a_worker_that_waits_for_jobs_is_well(worker: Worker) -> None:
    ends = time.monotonic() + 2 * TWO_BEATS
    while time.monotonic() < ends:
        assert is_green(worker), worker.condition()
        time.sleep(0.01)


def test_a_look_that_failed_is_forgotten_with_the_next_though_nothing_is_written(worker: Worker) -> None:
    with failing(worker._backend.work, "look", StorageUnavailable("away")):
        worker._inbox.look_soon()
        turns_red(worker, "cannot use the database: away")
    until(lambda: is_green(worker))


def test_a_claim_that_failed_is_forgotten_once_there_is_nothing_to_claim(
    app: App, worker: Worker, quick: Task[..., Any]
) -> None:
    with failing(worker._backend.work, "exchange", StorageUnavailable("away")) as calls:
        job = quick.enqueue()
        turns_red(worker, "cannot use the database: away")
        assert job.cancel()
        until(lambda: is_green(worker))
        count = len(calls)
    assert len(calls) == count


def test_a_lease_that_cannot_be_renewed(worker: Worker) -> None:
    with failing(worker._beats.workers, "beat", StorageUnavailable("away")):
        turns_red(worker, "cannot renew its lease: away")
    until(lambda: is_green(worker))


def test_a_beat_that_does_not_come_back(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, beat = threading.Event(), worker._beats.workers.beat

    def hang(*args: Any, **options: Any) -> Any:
        assert answer.wait(LONG)
        return beat(*args, **options)

    monkeypatch.setattr(worker._beats.workers, "beat", hang)
    turns_red(worker, "waits to renew its lease")
    answer.set()
    until(lambda: is_green(worker))


def test_a_proof_that_was_taken_away_while_a_body_runs(
    app: App, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims nothing more until the body has ended, and then recovers on its own."""
    worker.stop()
    gate = Gate()

    @app.task(name="long")
    def long() -> None:
        gate.pass_through()

    with app.worker(concurrency=2, lease=LEASE) as other:
        job = long.enqueue()
        gate.await_arrival()
        before = other.id
        with monkeypatch.context() as taken:
            taken.setattr(other._heartbeat.lease.proof, "check", lambda: False)
            other._heartbeat.wake()
            until(lambda: not other.condition().is_ready)
        turns_red(other, "has lost its proof of life")
        gate.open()
        assert ended(job) == "completed"
        until(lambda: is_green(other))
        assert other.id != before


def test_a_worker_that_was_declared_dead_and_cannot_come_back(app: App, worker: Worker) -> None:
    with failing(worker._beats.workers, "register", StorageUnavailable("full")):
        sql(app, "UPDATE dray_workers SET state = 'dead', stopped_at = started_at")
        worker._heartbeat.wake()
        turns_red(worker, "")
    until(lambda: is_green(worker))


def test_what_cannot_be_repaired_is_said_at_once(app: App, worker: Worker, quick: Task[..., Any]) -> None:
    from dray.errors import StorageDamaged

    with failing(worker._backend.work, "exchange", StorageDamaged("malformed")):
        quick.enqueue()
        until(lambda: not worker.condition().is_healthy)
        assert worker.condition().reason == "malformed"


def test_a_locked_file(tmp_path: Path) -> None:
    """Another program holds the write lock for long: only reads work."""
    import sqlite3

    app = App(tmp_path / "jobs.db")

    @app.task(name="quick")
    def quick() -> None: ...

    with app, app.worker(lease=LEASE) as worker:
        job = quick.enqueue()
        assert ended(job) == "completed"
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        turns_red(worker, "")
        connection.execute("ROLLBACK")
        connection.close()
        until(lambda: is_green(worker))
