"""Whichever call fails while a worker starts or stops: it starts, or raises and leaves nothing; it always stops."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import dray
from dray.app_interface import core_of
from dray.errors import DrayError
from dray.ops.audit import audit
from tests.faults.count import Figures
from tests.faults.databases import FaultyDatabase
from tests.faults.trial import ALL, RUNS, Trial, Way
from tests.faults.worker import Bodies, until

_JOBS = 3


class Run:
    """A process that has just started: an App, its tasks and its jobs."""

    def __init__(self, database: FaultyDatabase) -> None:
        self._database = database
        database.empty()
        self._threads = dray_threads()
        self.app = dray.App(database.faulty_url, busy_timeout=0.5)
        self.bodies = Bodies("nothing")
        self.bodies.register(self.app)
        self.jobs = [self.app.enqueue("plain", {"label": f"job {n}"}) for n in range(_JOBS)]

    def worker(self) -> Any:
        return self.app.worker(concurrency=1, lease=1, grace=2)

    def all_is_done(self) -> None:
        """Another worker, of the same process, finds all well, and each body has run once."""
        until(lambda: not dray_threads() - self._threads, "threads to end", dray_threads)
        with self.worker():
            until(lambda: all(job.refresh().state == "completed" for job in self.jobs), "all jobs", self._describe)
        assert self.bodies.ran == {f"job {n}": 1 for n in range(_JOBS)}
        self._database.check_connections()
        assert audit(core_of(self.app).backend).broken == ()

    def _describe(self) -> str:
        return f"{self._database.rows('SELECT state, attempt, crashes, worker_id FROM dray_jobs')}"


def dray_threads() -> set[str]:
    """Those of workers; others go when an App is closed."""
    return {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if thread.name.startswith("dray-") and "notify" not in thread.name and "wait" not in thread.name
    }


def starting(database: FaultyDatabase, way: Way, at: int) -> int:
    run = Run(database)
    with run.app:
        worker, error = run.worker(), None
        database.count.arm(way.fault, at, lasting=way.is_lasting)
        try:
            worker.start()
        except DrayError as raised:
            error = raised.with_traceback(None)
        finally:
            injected = database.count.disarm()
            worker.stop()
        assert error is None or injected, error
        run.all_is_done()
    return injected


def stopping(database: FaultyDatabase, way: Way, at: int) -> int:
    run = Run(database)
    with run.app:
        worker = run.worker()
        worker.start()
        database.count.arm(way.fault, at, lasting=way.is_lasting)
        try:
            worker.stop()
        finally:
            injected = database.count.disarm()
        run.all_is_done()
    return injected


@pytest.mark.parametrize("what", [starting, stopping], ids=["start", "stop"])
def test_whichever_call_fails_while_a_worker_starts_or_stops(database: FaultyDatabase, what: Any) -> None:
    figures = Figures(f"faults while a worker is {what.__name__}, {database.name}")
    trial = Trial(what.__name__, lambda way, at: what(database, way, at), database.count, figures)
    trial.everywhere(list(map(Way, database.faults)), runs=RUNS if RUNS >= ALL else 4, at_a_time=3)
    figures.print()
