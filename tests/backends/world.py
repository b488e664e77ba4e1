"""A small world for storage tests: creates jobs and workers in one line, and claims and settles for them."""

from __future__ import annotations

import random
from typing import Any

from dray.backends import Backend
from dray.clock import Ids
from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Demand, Job, Outcome
from dray.model.new_job import NewJob
from dray.model.settlement import Settled
from dray.model.worker import NewWorker
from tests import verbs
from tests.manual_clock import ManualClock

LEASE_US = 15 * SECOND


class World:
    """A backend with helpers. Everything goes through the public verbs of the contract."""

    def __init__(self, backend: Backend, clock: ManualClock, ids: Ids) -> None:
        self.backend = backend
        self.clock = clock
        self.ids = ids
        self.rng = random.Random(7)

    def new(self, task: str = "task", **options: Any) -> NewJob:
        values: dict[str, Any] = {"id": self.ids.new(), "task": task, **options}
        return NewJob(**values)

    def enqueue(self, task: str = "task", **options: Any) -> str:
        return self.backend.jobs.enqueue([self.new(task, **options)])[0].id

    def worker(self, worker_id: str | None = None) -> str:
        worker = NewWorker(id=worker_id or self.ids.new(), name="w", host="here", pid=1, boot=self.clock.boot)
        self.backend.workers.register(worker, LEASE_US)
        return worker.id

    def claim(
        self,
        worker: str,
        limit: int = 1,
        *,
        ahead: int = 0,
        queue: str = "default",
        tasks: tuple[str, ...] = ("task",),
    ) -> list[Claim]:
        return verbs.claim(self.backend, worker, Demand((queue,), tasks, limit, ahead))

    def claim_one(self, worker: str, **options: Any) -> Claim:
        (claim,) = self.claim(worker, 1, **options)
        return claim

    def job(self, job_id: str) -> Job:
        (found,) = self.backend.jobs.get([job_id])
        return found

    def complete(self, worker: str, claim: Claim, result: str | None = None) -> Settled:
        now = self.clock.steady()
        return verbs.settle(self.backend, worker, [model.completed(claim, now, now, result)])

    def fail(self, worker: str, claim: Claim, *, delay_us: int = 0) -> Settled:
        """Settles a body that raised: retried after the delay, or failed if no attempt is left."""
        now = self.clock.steady()
        settlement = model.errored(claim, now, now, Outcome.ERROR, delay_us, "ValueError", "no", "trace")
        return verbs.settle(self.backend, worker, [settlement])

    def bury(self, worker: str) -> None:
        """Lets a worker's lease expire and rescues its jobs."""
        self.clock.advance(LEASE_US + SECOND)
        verdicts = [v for v in verbs.overdue(self.backend) if v.worker_id == worker]
        self.backend.workers.rescue(verdicts, rng=self.rng)
