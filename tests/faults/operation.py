"""What is done while calls fail, one class an operation, and what must hold afterwards whichever call it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from dray.backends import Backend
from dray.errors import DrayError
from dray.model.job import Job
from tests.faults.databases import FaultyDatabase
from tests.faults.verb_worker import VerbWorker

LARGE = '{"text": "' + "x" * 3_000 + '"}'  # too large for the row, on SQLite


class Operation:
    """One run: made ready by the direct way, done by the faulty one, repeated if it failed, looked at."""

    is_cold = False  # by a process that has just started, with no connection yet

    def __init__(self, database: FaultyDatabase) -> None:
        self.database = database
        self.world = database.world
        self.direct = database.world.backend

    def prepare(self) -> None:
        """What is there before."""

    def act(self, backend: Backend) -> None:
        """The operation itself; it may raise any `DrayError`."""
        raise NotImplementedError

    def check(self, error: DrayError | None) -> None:
        """What must hold right after it, whether it returned or raised."""

    def recover(self, backend: Backend) -> None:
        """What its callers do after an error, once the driver works again. Mostly the same again."""
        self.act(backend)

    def verify(self, backend: Backend) -> None:
        """What must hold in the end."""

    # For the operations below

    def jobs(self, ids: Iterable[str]) -> dict[str, Job]:
        return {job.id: job for job in self.direct.jobs.get(list(ids))}

    def state(self, job_id: str) -> str:
        job = self.world.job(job_id)
        return job.state if job.reason is None else f"{job.state}({job.reason})"

    def total(self) -> int:
        """How many jobs there are in all."""
        return self.database.rows("SELECT count(*) FROM dray_jobs")[0][0]

    def outcomes(self, job_id: str) -> list[str]:
        """The recorded attempts."""
        return [attempt.outcome for attempt in self.direct.history.attempts(job_id)]

    def completes(self, backend: Backend, ids: Collection[str], worker: VerbWorker | None = None) -> None:
        """All that is there is run by the faulty way, which works now, and each of these jobs exactly once."""
        worker = worker or VerbWorker(self.world)
        worker.work_off(backend)
        assert {job_id: self.state(job_id) for job_id in ids} == dict.fromkeys(ids, "completed")
        assert {job_id: worker.ran[job_id] for job_id in ids} == dict.fromkeys(ids, 1)
        assert {job.id: job.attempt for job in self.jobs(ids).values()} == dict.fromkeys(ids, 1)
        assert worker.lost == []

    def repeated(self, values: Iterable[object]) -> list[object]:
        return [value for value, times in Counter(values).items() if times > 1]
