"""Rescue has a thread of its own: another duty that takes long keeps no dead worker's job waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.maintenance.cleaning import Pruner
from dray.model.job import Demand
from dray.model.worker import NewWorker
from tests import verbs


@pytest.fixture
def app(url: str) -> Generator[App]:
    with App(url, migrate=True) as opened:
        opened.task(name="task")(_nothing)
        yield opened


def _nothing() -> None:
    """A body."""


def _left_running(app: App) -> str:
    """A job in the hands of a worker that has gone."""
    gone = NewWorker(id=core_of(app).new_id(), name="gone", host="here", pid=1, boot=core_of(app).clock.boot)
    core_of(app).backend.workers.register(gone, 15_000_000)
    job = app.enqueue("task", queue="left")  # which the worker of the test does not serve: it would be faster
    assert [claim.id for claim in verbs.claim(core_of(app).backend, gone.id, Demand(("left",), ("task",), 1))] == [
        job.id
    ]
    core_of(app).backend.workers.deregister(gone.id)
    return job.id


def test_a_job_is_rescued_while_another_duty_is_at_work(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    is_pruning, is_over = threading.Event(), threading.Event()

    def takes_long(_: Pruner) -> float:
        is_pruning.set()
        assert is_over.wait(60)
        return 60.0

    monkeypatch.setattr(Pruner, "tick", takes_long)
    with app.worker(queues=["default"]):
        try:
            assert is_pruning.wait(10)

            job, deadline = app.job(_left_running(app)), time.monotonic() + 20

            while [attempt.outcome for attempt in job.attempts()] != ["crashed"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            is_over.set()


def test_the_duties_of_a_dead_worker_are_taken_by_the_keeper_that_rests(app: App) -> None:
    dead = NewWorker(id=core_of(app).new_id(), name="dead", host="here", pid=1, boot=core_of(app).clock.boot)
    core_of(app).backend.workers.register(dead, 1_000_000)
    for duty in ("promote", "prune"):
        assert core_of(app).backend.leases.take(duty, dead.id) == 1
    with app.worker(lease=1) as worker:
        deadline = time.monotonic() + 20
        while {lease.holder for lease in core_of(app).backend.leases.all()} != {worker.id}:
            assert time.monotonic() < deadline
            time.sleep(0.01)

        buried_at = next(row.stopped_at for row in core_of(app).backend.workers.all() if row.id == dead.id)
        taken_at = {lease.duty: lease.taken_at for lease in core_of(app).backend.leases.all()}

    assert buried_at is not None
    assert all(0 <= taken_at[duty] - buried_at < 1_000_000 for duty in ("promote", "prune"))
