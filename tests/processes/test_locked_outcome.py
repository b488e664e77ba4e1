"""A worker that has to go while a user's open transaction holds the row of a job whose body has ended.

`enqueue(after=[job], connection=…)` locks its parent until the user commits. What the body did is done: it is not run
again, however few attempts it has, and its result is not lost.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dray.address import PostgresAddress, parse_address
from dray.handle.job import Job
from tests.processes.harness import APPS, Fleet, Process
from tests.processes.places import Places, Scenario, Together

ATTEMPTS = [1, 3]


@contextmanager
def held(fleet: Fleet, job: Job[Any]) -> Generator[Job[Any]]:
    """A child of the job, enqueued in a transaction that is open until the block ends."""
    address = parse_address(fleet.url)
    assert isinstance(address, PostgresAddress)
    with psycopg.connect(address.conninfo) as connection:
        options: Any = {"after": [job], "connection": connection}
        yield fleet.app.enqueue(f"{APPS}.quick", {"label": "child"}, **options)


def ended_body(fleet: Fleet, worker: Process, job: Job[Any]) -> None:
    """Lets the body end, and waits until the worker has had time to find that it cannot write that."""
    (fleet.folder / "go.1").touch()
    fleet.until(lambda: fleet.ledger.ends("parent"), "the body to end")
    marker = fleet.enqueue("quick", label="marker")
    fleet.ended([marker])
    assert job.refresh().state == "running"


def leaving(max_attempts: int) -> Scenario:
    def scenario(places: Places) -> None:
        with places.postgres() as fleet:
            worker = fleet.start(concurrency=2, lease=3, grace=0.5)
            its_id = fleet.worker_of(worker)
            assert its_id is not None
            using = {"max_attempts": max_attempts}
            job = fleet.enqueue("until_there", label="parent", path=str(fleet.folder / "go"), using=using)
            fleet.until(lambda: fleet.ledger.starts("parent"), "the body to run")
            with held(fleet, job) as child:
                ended_body(fleet, worker, job)
                assert worker.end() == 0
                assert fleet.worker_state(its_id) == "stopped"
                assert "another transaction has locked the rows of 1 job" in worker.said
                # A successor comes while the row is still locked, and does nothing about it.
                successor = fleet.start(concurrency=2, lease=3)
                fleet.ended([fleet.enqueue("quick", label="later")])
                assert job.refresh().state == "running"
            fleet.ended([job, child])

            assert (job.refresh().state, job.result(), job.refresh().attempt) == ("completed", "attempt 1", 1)
            assert fleet.outcomes(job) == ["completed"]
            (attempt,) = job.attempts()
            assert attempt.worker == its_id
            assert len(fleet.ledger.starts("parent")) == 1
            assert child.refresh().state == "completed"
            assert fleet.sql("SELECT * FROM dray_outcomes") == []
            assert successor.end() == 0
            assert successor.lines("WARNING", "ERROR") == [], successor.said
            fleet.audit()

    return scenario


LEAVING = {count: leaving(count) for count in ATTEMPTS}


@pytest.mark.parametrize("max_attempts", ATTEMPTS)
def test_a_successor_learns_that_the_body_ended(together: Together, max_attempts: int) -> None:
    together.wait(LEAVING[max_attempts])


def test_a_row_that_is_free_within_grace_is_waited_for(together: Together) -> None:
    together.wait(patient)


def patient(places: Places) -> None:
    with places.postgres() as fleet:
        worker = fleet.start(concurrency=2, lease=3)
        using = {"max_attempts": 1}
        job = fleet.enqueue("until_there", label="parent", path=str(fleet.folder / "go"), using=using)
        fleet.until(lambda: fleet.ledger.starts("parent"), "the body to run")
        its_id = fleet.worker_of(worker)
        assert its_id is not None
        with held(fleet, job):
            ended_body(fleet, worker, job)
            worker.terminate()
            fleet.until(lambda: fleet.worker_state(its_id) == "draining", "it to stop claiming")
            assert worker.is_alive
        assert worker.wait() == 0
        assert (job.refresh().state, job.result()) == ("completed", "attempt 1")
        assert "another transaction" not in worker.said
        fleet.audit()


TOGETHER = (*LEAVING.values(), patient)
