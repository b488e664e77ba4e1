"""Workers that a test is itself: they claim, end and lose jobs when the test says so."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dray import App
from dray.app_interface import core_of
from dray.backends.postgres import PostgresDatabase
from dray.clock import Ids, SystemClock
from dray.instants import MINUTE
from dray.model import settlement
from dray.model.job import Claim, Demand, Reason
from dray.model.worker import DeathVerdict, NewWorker
from tests import verbs


class Hand:
    def __init__(self, app: App, name: str = "hand", *, slots: int = 4, queues: Sequence[str] = ()) -> None:
        self.backend = core_of(app).backend
        self.id = Ids(SystemClock()).new()
        self.name = name
        new = NewWorker(
            id=self.id,
            name=name,
            host="here",
            pid=42,
            boot=SystemClock().boot,
            queues=tuple(queues),
            tasks=("send",),
            concurrency=slots,
        )
        self.backend.workers.register(new, 10 * MINUTE)

    def claim(self, queue: str, task: str = "send", most: int = 1) -> list[Claim]:
        return verbs.claim(self.backend, self.id, Demand((queue,), (task,), most))

    def complete(self, queue: str, task: str = "send", most: int = 1) -> None:
        now = SystemClock().steady()
        ended = [settlement.completed(claim, now, now, "null") for claim in self.claim(queue, task, most)]
        verbs.settle(self.backend, self.id, ended)

    def fail(self, queue: str, message: str, task: str = "send", most: int = 1) -> None:
        """Claims jobs and lets them fail; `{n}` in the message is another number each time."""
        now = SystemClock().steady()
        ended = [
            settlement.failed(claim, now, now, Reason.ERROR, "ValueError", message.format(n=n), "trace")
            for n, claim in enumerate(self.claim(queue, task, most))
        ]
        verbs.settle(self.backend, self.id, ended)

    def progress(self, claim: Claim, percent: float, message: str) -> None:
        verbs.progress(self.backend, self.id, [(claim.id, claim.claim, percent, message)])

    def die(self) -> None:
        """Another worker declares it dead and takes its jobs back."""
        self.backend.workers.beat(self.id, 0)  # its lease ends now
        verdicts = [
            DeathVerdict(worker.id, worker.lease_until)
            for worker in self.backend.workers.all()
            if worker.id == self.id
        ]
        self.backend.workers.rescue(verdicts, rng=random.Random(1))

    def stop(self) -> None:
        self.backend.workers.deregister(self.id)


def put_back(app: App, table: str, column: str, ago_us: int) -> None:
    """Makes an instant of all rows of a table older."""
    backend = core_of(app).backend
    if not isinstance(backend.db, PostgresDatabase):
        where, older = f"dray_{table}", f"{column} - {ago_us}"
    else:
        where, older = f"{backend.db.schema}.dray_{table}", f"{column} - interval '{ago_us} microseconds'"
    with backend.transaction() as connection:
        connection.cursor().execute(f"UPDATE {where} SET {column} = {older}")
