"""What duties do: rescue, fire schedules, prune, promote, expire, look after the file."""

from __future__ import annotations

from dray.backends import Backend
from dray.errors import DrayError
from dray.instants import DAY, MINUTE, SECOND
from dray.maintenance.duty_runner import Agenda
from dray.maintenance.scheduler import Scheduler
from dray.model.retention import Retention
from dray.model.schedule import Schedule
from dray.model.worker import Rescued
from dray.model.workflow import Workflow
from dray.task.options import TaskOptions
from tests import verbs
from tests.backends.world import LEASE_US
from tests.faults.operation import LARGE, Operation
from tests.faults.verb_worker import VerbWorker


class Rescuing(Operation):
    """The jobs of a dead worker: each taken back once, one crash counted, its children told."""

    def prepare(self) -> None:
        world, dead = self.world, [VerbWorker(self.world), VerbWorker(self.world)]
        self.again, self.last = world.enqueue(), world.enqueue(max_attempts=1)
        self.stopped = world.enqueue()
        self.child = world.enqueue(parents=(self.last,), queue="steps")
        dead[0].claim(self.direct, 2)
        dead[1].claim(self.direct, 1)
        self.direct.jobs.cancel([self.stopped])
        world.clock.advance(LEASE_US + SECOND)
        self.worker = VerbWorker(world)
        self.rescued: list[Rescued] = []

    def act(self, backend: Backend) -> None:
        judgement = backend.workers.judge(self.worker.id)
        self.rescued += backend.workers.rescue([*judgement.dead, *judgement.overdue], rng=self.world.rng)

    def check(self, error: DrayError | None) -> None:
        if error is None:
            assert {each.id for each in self.rescued} == {self.again, self.last, self.stopped}

    def recover(self, backend: Backend) -> None:
        self.act(backend)

    def verify(self, backend: Backend) -> None:
        while backend.graph.fan_out().left:  # as the duty does, where the children could not be told at once
            continue
        taken = [self.again, self.last, self.stopped]
        assert [self.state(i) for i in taken] == ["scheduled", "failed(crashed)", "cancelled(user)"]
        assert [(self.world.job(i).crashes, self.outcomes(i)) for i in taken] == [
            (1, ["crashed"]),
            (1, ["crashed"]),
            (1, ["crashed"]),
        ]
        assert self.state(self.child) == "cancelled(parent)"
        self.world.clock.advance(MINUTE)
        self.worker.work_off(backend)
        assert (self.state(self.again), self.world.job(self.again).attempt) == ("completed", 2)
        assert self.worker.ran == {self.again: 1}


class Firing(Operation):
    """Each slot of a schedule has one job, and none is left out."""

    def prepare(self) -> None:
        clock = self.world.clock
        self.made_at = clock.now()
        for name, overlap in (("each", "allow"), ("alone", "skip")):
            first = self.made_at + MINUTE
            rule = (
                *("{}", None, MINUTE, "UTC", "all", 10, overlap, None),
                *(first, None, self.made_at, self.made_at),
            )
            self.direct.schedules.upsert(Schedule(name, "task", None, *rule, None))
        clock.advance(3 * MINUTE + SECOND)

    def act(self, backend: Backend) -> None:
        options = {"task": TaskOptions(name="task")}
        Scheduler(backend, self.world.clock, self.world.ids, options, None, Agenda(backend)).tick()

    def verify(self, backend: Backend) -> None:
        jobs = [job for job in self.direct.jobs.newest() if job.schedule is not None]
        slots = sorted((str(job.schedule), ((job.slot or 0) - self.made_at) // MINUTE) for job in jobs)
        assert slots == [("alone", 1), ("each", 1), ("each", 2), ("each", 3)]
        assert {row.next_at for row in self.direct.schedules.all()} == {self.made_at + 4 * MINUTE}
        self.completes(backend, [job.id for job in jobs])


class Pruning(Operation):
    """What is old goes, with its history; what is needed stays."""

    def prepare(self) -> None:
        world, worker = self.world, VerbWorker(self.world)
        workflow = Workflow(world.ids.new(), "old", 0)
        first = world.new(workflow_id=workflow.id, step="first")
        self.direct.jobs.enqueue(
            [first, world.new(workflow_id=workflow.id, step="last", parents=(first.id,))], workflow=workflow
        )
        for args in ("{}", LARGE):
            world.enqueue(args=args)
        self.direct.jobs.cancel([world.enqueue()])
        self.parent = world.enqueue()
        worker.work_off(self.direct)
        self.child = world.enqueue(parents=(self.parent,), delay_us=30 * DAY)
        world.clock.advance(8 * DAY)

    def act(self, backend: Backend) -> None:
        while verbs.prune_some(backend, Retention(), 3):
            continue

    def verify(self, backend: Backend) -> None:
        assert {job.id for job in self.direct.jobs.newest()} == {self.parent, self.child}
        for table in ("dray_workflows", "dray_attempts", "dray_logs"):
            assert self.database.rows(f"SELECT count(*) FROM {table}") == [(0,)]
        self.world.clock.advance(30 * DAY)
        backend.jobs.promote()
        self.completes(backend, [self.child])


class Promoting(Operation):
    """What is due is queued, what has expired is cancelled, and so are those who wait for it."""

    def prepare(self) -> None:
        world = self.world
        self.due = [world.enqueue(delay_us=SECOND), world.enqueue(delay_us=SECOND, queue="later")]
        self.expired = world.enqueue(expires_us=SECOND)
        self.child = world.enqueue(parents=(self.expired,))
        world.clock.advance(2 * SECOND)

    def act(self, backend: Backend) -> None:
        self.queues = backend.jobs.promote()
        self.ended = backend.jobs.expire()

    def check(self, error: DrayError | None) -> None:
        if error is None:
            assert (sorted(self.queues), self.ended) == (["default", "later"], [self.expired])

    def recover(self, backend: Backend) -> None:
        self.act(backend)

    def verify(self, backend: Backend) -> None:
        while backend.graph.fan_out().left:
            continue
        assert [self.state(i) for i in (*self.due, self.expired, self.child)] == [
            *("queued", "queued"),
            *("cancelled(expired)", "cancelled(parent)"),
        ]
        self.completes(backend, self.due)


class FileUpkeep(Operation):
    """The log is copied back, and unused pages are given back."""

    def prepare(self) -> None:
        self.job = self.world.enqueue()
        many = [self.world.enqueue(args=LARGE * 40) for _ in range(60)]
        self.direct.jobs.delete(many)

    def act(self, backend: Backend) -> None:
        if backend.upkeep is not None:
            backend.upkeep.checkpoint()
            backend.upkeep.checkpoint(waits=True)
            backend.upkeep.vacuum(100)

    def verify(self, backend: Backend) -> None:
        self.completes(backend, [self.job])


DUTIES = (Rescuing, Firing, Pruning, Promoting)
