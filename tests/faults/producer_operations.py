"""What producers and operators do: enqueue, cancel, retry, delete, pause, list, migrate."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg

from dray.backends import Backend
from dray.errors import DrayError, StorageError
from dray.model.action import NewAction
from dray.model.job import CancelResult, Enqueued
from dray.model.new_job import AlikeJobs, NewJob
from dray.model.workflow import Workflow
from dray.ops.audit import audit
from tests import verbs
from tests.backends.world import LEASE_US
from tests.faults.operation import LARGE, Operation
from tests.faults.verb_worker import VerbWorker


class Enqueue(Operation):
    """One job: there, whole, if the call returned; whole or not there if it raised; once after it was repeated."""

    def prepare(self) -> None:
        self.job = self.world.new(args=LARGE, unique_key="only one", tags=("x",))

    def act(self, backend: Backend) -> None:
        assert backend.jobs.enqueue([self.job]) == [Enqueued(self.job.id, duplicate=False)]

    def check(self, error: DrayError | None) -> None:
        found = self.direct.jobs.get([self.job.id])
        assert len(found) in ({1} if error is None else {0, 1})
        for job in found:
            assert (job.state, job.args, job.unique_lock, job.tags) == ("queued", LARGE, "only one", ("x",))

    def verify(self, backend: Backend) -> None:
        assert self.total() == 1
        self.completes(backend, [self.job.id])


class EnqueueAtStart(Enqueue):
    """The first call of a process: it opens the database too."""

    is_cold = True


class EnqueueMany(Operation):
    """One transaction: all of them or none."""

    def prepare(self) -> None:
        self.made = [self.world.new(queue="later" if number % 2 else "default") for number in range(60)]
        self.ids = [job.id for job in self.made]

    def act(self, backend: Backend) -> None:
        assert [each.id for each in backend.jobs.enqueue(self.made)] == self.ids

    def check(self, error: DrayError | None) -> None:
        assert self.total() in ({60} if error is None else {0, 60})

    def verify(self, backend: Backend) -> None:
        assert self.total() == 60
        self.completes(backend, self.ids)


class EnqueueAlike(EnqueueMany):
    """The same, by COPY where there is one."""

    def act(self, backend: Backend) -> None:
        args = [job.args for job in self.made]
        backend.jobs.enqueue_alike(AlikeJobs(self.made[0], self.ids, args))


class EnqueueAlone(Operation):
    """One job that no other decides about, to a queue that is known: one statement, or one round trip."""

    def prepare(self) -> None:
        self.first, self.job = self.world.new(), self.world.new(args=LARGE)

    def act(self, backend: Backend) -> None:
        backend.jobs.enqueue([self.first])
        assert backend.jobs.enqueue([self.job]) == [Enqueued(self.job.id, duplicate=False)]

    def check(self, error: DrayError | None) -> None:
        found = [job.args for job in self.direct.jobs.get([self.job.id])]
        assert found in ([[LARGE]] if error is None else [[], [LARGE]])

    def verify(self, backend: Backend) -> None:
        assert self.total() == 2
        self.completes(backend, [self.first.id, self.job.id])


class EnqueueWorkflow(Operation):
    """Steps, edges and the workflow's own row: all of them or none."""

    def prepare(self) -> None:
        self.before = self.world.enqueue()
        self.workflow = Workflow(self.world.ids.new(), "etl", 0)
        first = self._step("first")
        middle = self._step("middle", parents=(first.id,))
        last = self._step("last", parents=(first.id, middle.id, self.before))
        self.made = [first, middle, last]

    def _step(self, name: str, **options: Any) -> NewJob:
        return self.world.new(queue="steps", workflow_id=self.workflow.id, step=name, **options)

    def act(self, backend: Backend) -> None:
        enqueued = backend.jobs.enqueue(self.made, workflow=self.workflow)
        assert [each.id for each in enqueued] == [job.id for job in self.made]

    def check(self, error: DrayError | None) -> None:
        tables = ("dray_workflows", "dray_jobs", "dray_edges")
        found = tuple(self.database.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables)
        assert found in ({(1, 4, 4)} if error is None else {(0, 1, 0), (1, 4, 4)})

    def verify(self, backend: Backend) -> None:
        self.check(None)
        self.completes(backend, [self.before, *(job.id for job in self.made)])


class EnqueueReplacing(Operation):
    """A job whose unique key is held hands its arguments to the holder."""

    def prepare(self) -> None:
        self.holder = self.world.enqueue(unique_key="one", args='{"n": 1}')
        self.job = self.world.new(unique_key="one", args=LARGE, on_conflict="replace")

    def act(self, backend: Backend) -> None:
        assert backend.jobs.enqueue([self.job]) == [Enqueued(self.holder, duplicate=True, replaced=True)]

    def check(self, error: DrayError | None) -> None:
        assert self.world.job(self.holder).args in ({LARGE} if error is None else {LARGE, '{"n": 1}'})

    def verify(self, backend: Backend) -> None:
        assert self.world.job(self.holder).args == LARGE
        assert self.total() == 1
        self.completes(backend, [self.holder])


class EnqueueInTransaction(Operation):
    """On a user's own connection: the job and the user's row, or neither.

    After an error of the enqueue the user goes on and commits: then the row is there without the job, unless SQLite
    has rolled all of it back, or the connection is lost.
    """

    def prepare(self) -> None:
        self.job = self.world.new()
        self.ledger = Ledger(self)
        self.has_enqueued = self.has_committed = False

    def act(self, backend: Backend) -> None:
        with closing(self.ledger.connect()) as connection:
            self.ledger.note(connection, "order")
            try:
                backend.jobs.enqueue([self.job], connection=connection)
                self.has_enqueued = True
            except DrayError:
                self.ledger.commit(connection)
                raise
            self.ledger.commit(connection)
            self.has_committed = True

    def check(self, error: DrayError | None) -> None:
        jobs, orders = len(self.direct.jobs.get([self.job.id])), self.ledger.count("order")
        # A commit whose answer was lost may have happened. In any case there is no job without its order.
        if self.has_committed:
            assert (jobs, orders) == (1, 1)
        assert (jobs, orders) in ({(0, 0), (1, 1)} if self.has_enqueued else {(0, 0), (0, 1), (1, 1)})

    def recover(self, backend: Backend) -> None:
        backend.jobs.enqueue([self.job])

    def verify(self, backend: Backend) -> None:
        self.completes(backend, [self.job.id])


class EnqueueInFirstTransaction(EnqueueInTransaction):
    """The same as the first call of a process, which looks for the tables first, on a connection of its own."""

    is_cold = True


class Ledger:
    """A table of the user's own, in the same database."""

    def __init__(self, operation: Operation) -> None:
        self._database = operation.database
        schema = getattr(self._database, "schema", None)
        self._table = "faults_ledger" if schema is None else f'"{schema}".faults_ledger'
        self._run(f"CREATE TABLE IF NOT EXISTS {self._table} (what text)")
        self._run(f"DELETE FROM {self._table}")

    def connect(self) -> Any:
        """A connection of the user's, by the faulty way."""
        url = self._database.faulty_url
        with _user_errors():
            if url.startswith("sqlite"):
                return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0)
            server, _, schema = url.rpartition("&schema=")
            return psycopg.connect(server, options=f"-c search_path={schema}")

    def note(self, connection: Any, what: str) -> None:
        with _user_errors():
            connection.execute(f"INSERT INTO {self._table} VALUES ('{what}')")

    async def note_async(self, connection: Any, what: str) -> None:
        with _user_errors():
            done = connection.execute(f"INSERT INTO {self._table} VALUES ('{what}')")
            if isinstance(connection, psycopg.AsyncConnection):
                await done

    def commit(self, connection: Any) -> None:
        with _user_errors():
            connection.execute("COMMIT")

    def count(self, what: str) -> int:
        return self._database.rows(f"SELECT count(*) FROM {self._table} WHERE what = '{what}'")[0][0]

    def _run(self, sql: str) -> None:
        server, _, _ = self._database.direct_url.rpartition("&schema=")
        if self._database.direct_url.startswith("sqlite"):
            path = self._database.direct_url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute(sql)
            return
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.encode())


class _user_errors:  # noqa: N801 - reads as a statement
    """What the driver raises to a user is the user's to handle: here it ends the operation as an error of Dray's."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | psycopg.Error):
            raise StorageError(f"a statement of the user's: {error}") from error


class Cancel(Operation):
    """What has not started has ended, with what waits for it; what runs was asked to stop. The result says so."""

    def prepare(self) -> None:
        self.worker = VerbWorker(self.world)
        self.runs = self.world.enqueue()
        self.worker.claim(self.direct, 1)
        self.parent = self.world.enqueue()
        self.child = self.world.enqueue(parents=(self.parent,))
        self.other = self.world.enqueue(unique_key="one")
        self.wanted = {
            self.runs: CancelResult.REQUESTED,
            self.parent: CancelResult.CANCELLED,
            self.other: CancelResult.CANCELLED,
        }

    def act(self, backend: Backend) -> None:
        self.result = backend.jobs.cancel(list(self.wanted))

    def check(self, error: DrayError | None) -> None:
        if error is None:
            assert self.result == self.wanted

    def verify(self, backend: Backend) -> None:
        self.worker.work_off(backend)
        assert [self.state(job_id) for job_id in (self.runs, self.parent, self.child, self.other)] == [
            "completed",
            "cancelled(user)",
            "cancelled(parent)",
            "cancelled(user)",
        ]


class Retry(Operation):
    """Ended jobs start over, with the children that were cancelled with them."""

    def prepare(self) -> None:
        worker = VerbWorker(self.world)
        self.done = self.world.enqueue()
        self.failed = self.world.enqueue(max_attempts=1)
        self.child = self.world.enqueue(parents=(self.failed,))
        claims = {claim.id: claim for claim in verbs.claim(self.direct, worker.id, worker.demand(2))}
        self.world.complete(worker.id, claims[self.done], f'"{LARGE}"'[:2_000])
        self.world.fail(worker.id, claims[self.failed])
        assert self.state(self.child) == "cancelled(parent)"

    def act(self, backend: Backend) -> None:
        self.result = backend.jobs.retry([self.done, self.failed])

    def check(self, error: DrayError | None) -> None:
        states = (self.state(self.done), self.state(self.failed), self.state(self.child))
        retried = ("queued", "queued", "waiting")
        assert states in (
            {retried} if error is None else {retried, ("completed", "failed(error)", "cancelled(parent)")}
        )
        if error is None:
            assert sorted(self.result) == sorted([self.done, self.failed])

    def verify(self, backend: Backend) -> None:
        assert (self.outcomes(self.done), self.outcomes(self.failed)) == (["completed"], ["error"])
        self.completes(backend, [self.done, self.failed, self.child])


class RetryByPerson(Retry):
    """The same with a row that says who did it: it is there if the jobs start over, and counts each of them once."""

    def prepare(self) -> None:
        super().prepare()
        self._decide()

    def _decide(self) -> None:
        self.action = NewAction(self.world.ids.new(), "ann", "web", "retry", "jobs", "state:failed")

    def act(self, backend: Backend) -> None:
        self.result = backend.jobs.retry([self.done, self.failed], action=self.action)

    def check(self, error: DrayError | None) -> None:
        super().check(error)
        row = self.direct.actions.get(self.action.id)
        found = None if row is None else (row.done, row.refused)
        assert found == ((2, 0) if self.state(self.done) == "queued" else None)

    def recover(self, backend: Backend) -> None:
        self._decide()  # who got the error tries again
        super().recover(backend)


class Delete(Operation):
    """Jobs go with their history."""

    def prepare(self) -> None:
        self.gone = [self.world.enqueue(args=LARGE), self.world.enqueue()]
        self.kept = self.world.enqueue()

    def act(self, backend: Backend) -> None:
        self.result = backend.jobs.delete(self.gone)

    def check(self, error: DrayError | None) -> None:
        assert self.total() in ({1} if error is None else {1, 3})
        if error is None:
            assert sorted(self.result) == sorted(self.gone)

    def verify(self, backend: Backend) -> None:
        assert self.total() == 1
        self.completes(backend, [self.kept])


class Pause(Operation):
    """Once it has returned nothing is claimed from the queue."""

    def prepare(self) -> None:
        self.job = self.world.enqueue()
        self.worker = VerbWorker(self.world)

    def act(self, backend: Backend) -> None:
        self.changed = backend.queues.pause("default")

    def check(self, error: DrayError | None) -> None:
        if error is None:
            assert self.changed, "it says that the queue was paused before"

    def verify(self, backend: Backend) -> None:
        assert verbs.claim(backend, self.worker.id, self.worker.demand(1)) == []
        assert backend.queues.resume("default")
        self.completes(backend, [self.job], self.worker)


class Resume(Operation):
    """Claims go on."""

    def prepare(self) -> None:
        self.job = self.world.enqueue()
        self.direct.queues.pause("default")

    def act(self, backend: Backend) -> None:
        self.changed = backend.queues.resume("default")

    def check(self, error: DrayError | None) -> None:
        if error is None:
            assert self.changed, "it says that the queue was not paused"

    def verify(self, backend: Backend) -> None:
        self.completes(backend, [self.job])


class Look(Operation):
    """Whatever only reads leaves nothing behind."""

    def prepare(self) -> None:
        self.worker = VerbWorker(self.world)
        self.job = self.world.enqueue(args=LARGE)

    def act(self, backend: Backend) -> None:
        demand = self.worker.demand(1)
        assert [job.id for job in backend.jobs.newest()] == [self.job]
        assert backend.work.look(self.worker.id, demand, serves_all=True).is_ready
        assert verbs.probe(backend, demand)
        assert backend.jobs.ended([self.job]).jobs == []
        assert backend.history.stats(10**9).counts == {"default": {"queued": 1}}
        assert backend.schema_version() is not None
        assert backend.workers.judge(self.worker.id).left_us == LEASE_US
        assert audit(backend, patience=0).broken == ()

    def verify(self, backend: Backend) -> None:
        self.completes(backend, [self.job], self.worker)


class LookAtStart(Operation):
    """The first call of a process only reads."""

    is_cold = True

    def prepare(self) -> None:
        self.job = self.world.enqueue()

    def act(self, backend: Backend) -> None:
        assert [job.id for job in backend.jobs.newest()] == [self.job]

    def verify(self, backend: Backend) -> None:
        self.completes(backend, [self.job])


class ChangeSchedule(Operation):
    """Operators' verbs on a schedule say whether they changed it."""

    def prepare(self) -> None:
        now = self.world.clock.now()
        rule = ("{}", None, 60_000_000, "UTC", "last", 10, "allow", None, now + 60_000_000, None, now, now, None)
        from dray.model.schedule import Schedule

        self.schedule = Schedule("beat", "task", None, *rule)
        self.direct.schedules.upsert(self.schedule)

    def act(self, backend: Backend) -> None:
        self.results = [
            backend.schedules.upsert(replace(self.schedule, args='{"n": 2}')),
            backend.schedules.pause("beat"),
            backend.schedules.resume("beat", self.schedule.next_at),
            backend.schedules.delete("beat"),
        ]

    def check(self, error: DrayError | None) -> None:
        if error is None:
            assert self.results == [True] * 4
            assert self.direct.schedules.all() == []

    def recover(self, backend: Backend) -> None:
        backend.schedules.delete("beat")

    def verify(self, backend: Backend) -> None:
        assert backend.schedules.all() == []


PRODUCING = (
    *(
        Enqueue,
        EnqueueAtStart,
        EnqueueMany,
        EnqueueAlike,
        EnqueueAlone,
        EnqueueWorkflow,
        EnqueueReplacing,
        EnqueueInTransaction,
        EnqueueInFirstTransaction,
    ),
    *(Cancel, Retry, RetryByPerson, Delete, Pause, Resume, Look, LookAtStart, ChangeSchedule),
)
