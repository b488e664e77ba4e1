"""Whichever call fails while a program waits for a result: the wait goes on, and the result comes."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dray
from dray.app_interface import core_of
from dray.clock import Ids, SystemClock
from dray.model.job import Demand
from dray.model.settlement import completed
from dray.model.worker import NewWorker
from tests import verbs
from tests.faults.count import Figures
from tests.faults.databases import FaultyDatabase
from tests.faults.trial import ALL, RUNS, Trial, Way
from tests.faults.worker import LONG, until

_SOME_LOOKS = 1.5  # seconds
_ids = Ids(SystemClock())


class Waiting:
    """A process that waits, by the faulty way, and jobs that end by the direct one."""

    def __init__(self, database: FaultyDatabase) -> None:
        self._database = database
        self.start_over()

    def start_over(self) -> None:
        self.direct = dray.App(self._database.direct_url)
        self.app = dray.App(self._database.faulty_url, busy_timeout=0.5)
        clock = SystemClock()
        worker = NewWorker(id=_ids.new(), name="w", host="here", pid=1, boot=clock.boot)
        core_of(self.direct).backend.workers.register(worker, 3_600_000_000)
        self._worker_id, self._clock = worker.id, clock

    def close(self) -> None:
        self.app.close()
        self.direct.close()

    def run(self, way: Way, at: int) -> int:
        count = self._database.count
        job = self.direct.enqueue("any")
        backend = core_of(self.direct).backend
        (claim,) = verbs.claim(backend, self._worker_id, Demand(("default",), ("any",), 1))
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(self._wait, job.id)
            # A first look that fails raises.
            until(
                lambda: any(wait.is_under_way for wait in core_of(self.app).waiter._waits.get(job.id, ())),
                "the first look",
            )
            count.arm(way.fault, at)
            if way.fault.units == frozenset({"connect"}):
                self._database.cut_all()
            ends = time.monotonic() + _SOME_LOOKS
            until(lambda: count.injected or time.monotonic() > ends, "the fault")
            injected = count.disarm()
            now = self._clock.steady()
            verbs.settle(backend, self._worker_id, [completed(claim, now, now, '"the result"')])
            backend.announce_done()
            assert waiting.result(LONG) == "the result"
        return injected

    def _wait(self, job_id: str) -> Any:
        return dray.Job(core_of(self.app), job_id).result(timeout=LONG)


def test_a_result_that_is_waited_for_comes_whichever_call_fails(database: FaultyDatabase) -> None:
    figures = Figures(f"faults in a wait for a result, {database.name}")
    waiting = Waiting(database)
    try:
        trial = Trial("wait", waiting.run, database.count, figures)
        pairs = [(Way(fault), at) for fault in database.faults for at in range(1, 4)]
        trial.these(pairs if RUNS >= ALL else random.Random("wait").sample(pairs, 6))
    finally:
        waiting.close()
    figures.print()
