"""A worker that runs no bodies: the test decides how each job ends."""

from __future__ import annotations

import random
from typing import Any

from dray import codec
from dray.app import App
from dray.app_interface import core_of
from dray.handle.job import Job
from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Demand, Outcome, Reason
from dray.model.settlement import Settlement
from dray.model.worker import NewWorker
from tests import verbs
from tests.manual_clock import ManualClock

LEASE_US = 15 * SECOND


class Hands:
    """Claims and settles through the storage contract, as a worker does."""

    def __init__(self, app: App, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self.rng = random.Random(7)
        self._worker: str | None = None

    @property
    def worker(self) -> str:
        if self._worker is None:
            new = NewWorker(id=core_of(self.app).ids.new(), name="hands", host="here", pid=1, boot=self.clock.boot)
            core_of(self.app).backend.workers.register(new, LEASE_US)
            self._worker = new.id
        return self._worker

    def claim(self, job: Job[Any]) -> Claim:
        """Claims a job, which must be the first of its queue and task."""
        row = self.app.job(job.id).row
        (claim,) = verbs.claim(core_of(self.app).backend, self.worker, Demand((row.queue,), (row.task,), 1))
        assert claim.id == job.id
        return claim

    def complete(self, job: Job[Any], result: Any = None, claim: Claim | None = None) -> None:
        """Completes a job, as if its body had returned after a second."""
        claim = claim or self.claim(job)
        started = self.clock.steady()
        self.clock.advance(SECOND)
        text = codec.encode(result, path="result", limit=1 << 20)
        self.settle(model.completed(claim, started, self.clock.steady(), text))

    def fail(self, job: Job[Any], message: str = "no", *, reason: Reason = Reason.ERROR, traceback: str = "") -> None:
        """Fails a job, as if its body had raised a final error."""
        claim, now = self.claim(job), self.clock.steady()
        self.settle(model.failed(claim, now, now, reason, "ValueError", message, traceback or None))

    def stumble(self, job: Job[Any], message: str = "no") -> None:
        """Fails an attempt, as if the body had raised; the job is retried if an attempt is left."""
        claim, now = self.claim(job), self.clock.steady()
        self.settle(model.errored(claim, now, now, Outcome.ERROR, 0, "ValueError", message, "Traceback: here"))

    def settle(self, settlement: Settlement) -> None:
        settled = verbs.settle(core_of(self.app).backend, self.worker, [settlement])
        assert settled == ([], [], [], [], [])
        core_of(self.app).backend.announce_done()
