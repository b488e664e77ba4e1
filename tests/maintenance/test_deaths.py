"""A worker with every duty is killed, stopped or cut off, and another's runner sees it; real processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend, open_backend
from dray.backends.postgres.session import lock_key
from dray.backends.sqlite.database import SqliteDatabase
from dray.clock import Ids, SystemClock
from dray.instants import SECOND
from dray.maintenance import DutyRunner, Rescuer, duties, rescuer
from tests.backends.lives import live, register
from tests.backends.processes import Process, enqueue
from tests.runtime.watching import until

LEASE_US = 2 * SECOND
EXCLUSIVE = ("promote", "fan-out", "checkpoint", "prune", "reconcile", "rollups")


class Survivor:
    """A worker in this process that beats and keeps; it lives while it is told to."""

    def __init__(self, backend: Backend) -> None:
        clock, rng = SystemClock(), random.Random(7)
        self.backend = backend
        self.id = Ids(clock).new()
        self._watch = backend.watch()
        self._proof = backend.proofs.prove(self.id, self._watch)
        register(backend, self.id, self._proof, LEASE_US)
        rescuer = Rescuer(backend, self.id, clock, rng, LEASE_US, self._take_over)
        self._duty_runner = DutyRunner(backend, self.id, (rescuer, *duties(backend, clock, rng)), clock, rng)

    def _take_over(self) -> None:
        self._duty_runner.look_for_duties()

    def live_until(self, condition: Callable[[], bool], seconds: float) -> float:
        """How long it took."""
        began = beat_at = time.monotonic()
        while not condition():
            now = time.monotonic()
            assert now - began < seconds, "it did not happen"
            if now >= beat_at:
                assert self.backend.workers.beat(self.id, LEASE_US).alive
                beat_at = now + LEASE_US / SECOND / 3
            time.sleep(min(self._duty_runner.tick(), max(0.0, beat_at - time.monotonic())))
        return time.monotonic() - began

    def live_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self.live_until(lambda: time.monotonic() >= ends, seconds + 20)

    def close(self) -> None:
        self._duty_runner.resign()
        self._proof.close()
        self._watch.close()


@pytest.fixture
def backend(url: str) -> Generator[Backend]:
    with closing(open_backend(url)) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def survivor(backend: Backend) -> Generator[Survivor]:
    with closing(Survivor(backend)) as made:
        yield made


def _with_every_duty(backend: Backend, worker: Process) -> str:
    worker_id: str = worker.hear()["id"]
    for duty in EXCLUSIVE:
        assert backend.leases.take(duty, worker_id) == 1
    return worker_id


def _state(backend: Backend, job_id: str) -> str:
    return backend.jobs.get([job_id])[0].state


def _holders(backend: Backend) -> set[str | None]:
    ours = EXCLUSIVE if backend.upkeep else [duty for duty in EXCLUSIVE if duty != "checkpoint"]
    return {lease.holder for lease in backend.leases.all() if lease.duty in ours}


def test_the_jobs_and_the_duties_of_a_killed_worker_are_taken_over(
    url: str, backend: Backend, survivor: Survivor
) -> None:
    job_id = enqueue(backend)
    with Process(live, url, LEASE_US, 1) as worker:
        _with_every_duty(backend, worker)
        survivor.live_for(0.5)
        worker.say("beat")
        worker.hear()
        worker.kill()

        bound = 1.0 if backend.upkeep else LEASE_US / SECOND + 2
        seconds = survivor.live_until(lambda: _state(backend, job_id) != "running", 10 * bound)
        print(f"{seconds:.2f} s, {bound} s are allowed on an idle machine")
        survivor.live_until(lambda: _holders(backend) == {survivor.id}, 10)

    job = backend.jobs.get([job_id])[0]
    assert (job.attempt, job.crashes) == (1, 1)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="only Linux tells")
def test_the_kernel_tells_a_worker_of_the_death_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescuer, "_TOLD_GLANCE", 3600.0)
    monkeypatch.setattr(rescuer, "_LOOK_ANYWAY", 3600 * SECOND)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with App(url) as app:
        app.task(name="another")(_with_every_duty)
        job_id = enqueue(core_of(app).backend)
        with app.worker() as worker, Process(live, url, LEASE_US, 1) as other:
            other.hear()
            assert worker._watch.hears_deaths
            until(lambda: worker._duties.rescue._always[0].due_at > SystemClock().steady() + 1000 * SECOND)
            other.kill()

            until(lambda: _state(core_of(app).backend, job_id) != "running")


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="only Linux tells")
def test_a_busy_worker_looks_at_the_locks_more_often(tmp_path: Path) -> None:
    """Its engine listens to bodies first: in the demo, a death was noticed after 2 s instead of 0.2."""
    runs, may_end = threading.Event(), threading.Event()
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:

        @app.task(name="holds")
        def holds() -> None:
            runs.set()
            may_end.wait(30)

        with app.worker() as worker:
            relies_on_the_kernel = worker._duties._rescuer._hears_deaths
            until(relies_on_the_kernel)
            holds.enqueue()
            assert runs.wait(30)

            assert not relies_on_the_kernel()

            may_end.set()
            until(relies_on_the_kernel)


def test_a_worker_that_is_stopped_past_its_lease_keeps_its_jobs_and_duties(
    url: str, backend: Backend, survivor: Survivor
) -> None:
    job_id = enqueue(backend)
    with Process(live, url, LEASE_US, 1) as worker:
        worker_id = _with_every_duty(backend, worker)
        os.kill(worker.pid, signal.SIGSTOP)

        survivor.live_for(2.5 * LEASE_US / SECOND)

        assert _state(backend, job_id) == "running"
        assert _holders(backend) == {worker_id}
        os.kill(worker.pid, signal.SIGCONT)
        worker.say("beat")
        assert worker.hear()


def test_a_worker_that_is_stopped_and_whose_proof_is_taken_away_is_replaced(
    url: str, backend: Backend, survivor: Survivor
) -> None:
    job_id = enqueue(backend)
    with Process(live, url, LEASE_US, 1) as worker:
        worker_id = _with_every_duty(backend, worker)
        os.kill(worker.pid, signal.SIGSTOP)
        _take_proof_away(url, backend, worker_id)

        survivor.live_until(lambda: _state(backend, job_id) != "running", 30)
        survivor.live_until(lambda: _holders(backend) == {survivor.id}, 10)

        os.kill(worker.pid, signal.SIGCONT)
        worker.say("beat")
        assert not worker.hear()
        worker.say("check")
        assert worker.hear()[0] is (backend.upkeep is None)


def _take_proof_away(url: str, backend: Backend, worker_id: str) -> None:
    if isinstance(backend.db, SqliteDatabase):
        file = Path(f"{backend.db.path}-workers") / f"{worker_id}.lock"
        shutil.copy(file, file.with_suffix(".copy"))
        file.with_suffix(".copy").rename(file)
        return
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    lock = f"locktype = 'advisory' AND objid = {_key(worker_id)}::bigint::oid"
    key = f"SELECT pid FROM pg_locks WHERE {here} AND {lock}"
    with psycopg.connect(url.partition("&schema=")[0], autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM ({key}) AS l".encode())


def _key(worker_id: str) -> int:
    return lock_key(worker_id) & 0xFFFFFFFF
