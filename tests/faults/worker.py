"""A worker whose driver fails, in this process, and work for it whose traces can be counted."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import dray
from dray.app_interface import core_of
from dray.clock import Ids, SystemClock
from dray.model.job import Demand
from dray.model.worker import NewWorker
from dray.ops.audit import audit
from dray.runtime.condition import Condition
from tests import verbs
from tests.faults.databases import FaultyDatabase, FaultySqlite
from tests.polling import pause

T = TypeVar("T")

LONG = 15.0  # seconds; only what never comes takes as long
SLOT = 0.25  # seconds between two slots of the schedule


class Bodies:
    """The tasks, and what they have done."""

    def __init__(self, ledger: str) -> None:
        self.ran: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ledger = ledger

    def note(self, label: str) -> None:
        with self._lock:
            self.ran[label] += 1

    def register(self, app: dray.App) -> None:
        """The same tasks on any App of the database: one has the worker, another enqueues."""

        @app.task(name="plain")
        def plain(label: str) -> str:
            self.note(label)
            return label

        @app.task(name="says")
        def says(label: str, ctx: dray.Context) -> None:
            ctx.log.info("line of %s", label)
            ctx.progress(50, "half")
            self.note(label)

        @app.task(name="fails_once", retry=0)
        def fails_once(label: str, ctx: dray.Context) -> None:
            self.note(label)
            if ctx.attempt == 1:
                raise ValueError(label)

        @app.task(name="grows")
        def grows(label: str, ctx: dray.Context) -> None:
            self.note(label)
            ctx.add(plain, f"{label}-grown", step="grown")

        # While only the connection of the body is read-only, it has an attempt every 15 ms.
        @app.task(name="pays", retry=0, max_attempts=1000)
        def pays(label: str, ctx: dray.Context) -> None:
            with ctx.transaction() as tx:
                tx.execute(f"INSERT INTO {self._ledger} VALUES ('{label}')")

        @app.task(name="ticks")
        def ticks() -> None:
            pass

        self.tasks = {task.name: task for task in (plain, grows)}


class WorkerUnderTest:
    """One worker over all runs, and the direct way to its database."""

    def __init__(self, database: FaultyDatabase, *, lease: float) -> None:
        if isinstance(database, FaultySqlite):
            database.driver.spared = threading.current_thread()
        self.database = database
        self.lease = lease
        self._ids = Ids(SystemClock())
        self._runs = 0
        schema = getattr(database, "schema", None)
        ledger = "faults_ledger" if schema is None else f'"{schema}".faults_ledger'
        database.run(f"CREATE TABLE {ledger} (what text)")
        self.bodies = Bodies(ledger)
        self._ledger = ledger
        self.direct = dray.App(database.direct_url)
        self.bodies.register(self.direct)
        self._hire()

    def _hire(self) -> None:
        self.app = dray.App(self.database.faulty_url)
        self.bodies.register(self.app)
        self.worker = self.app.worker(concurrency=2, lease=self.lease, grace=2)

    def start(self) -> None:
        self.direct.schedule("beat", "ticks", every=SLOT, misfire="all")
        self.worker.start()
        until(lambda: self.worker.condition().is_ready, "the worker to be ready")

    def start_over(self) -> None:
        """Another worker, on tables without jobs: a run that went wrong must not make the next ones do so."""
        self.database.count.disarm()
        self._dismiss()
        self.database.empty()
        self._hire()
        self.start()

    def _dismiss(self) -> None:
        self.worker.stop()
        self.app.close()

    def close(self) -> None:
        self.database.count.disarm()
        self._dismiss()
        self.direct.close()
        self.database.empty()  # of a schedule that is paused, too: tests come in any order
        self.database.run(f"DROP TABLE {self._ledger}")

    @property
    def condition(self) -> Condition:
        return self.worker.condition()

    @property
    def is_green(self) -> bool:
        condition = self.condition
        return condition.is_healthy and condition.is_ready

    @property
    def is_red(self) -> bool:
        condition = self.condition
        return not condition.is_healthy and not condition.is_ready

    # Work

    def enqueue_some(self, *, orphan: bool) -> Work:
        """Some of everything, by the direct way; an orphan takes a worker seconds to find."""
        self._runs += 1
        return Work(self, f"run-{self._runs}", orphan=orphan)

    def orphan(self, label: str) -> str:
        """A job that a worker which is gone has claimed."""
        backend = core_of(self.direct).backend
        worker = NewWorker(id=self._ids.new(), name="gone", host="here", pid=1, boot=SystemClock().boot)
        backend.workers.register(worker, 1)
        job = self.direct.enqueue("plain", {"label": label}, queue="orphans")
        claims = verbs.claim(backend, worker.id, Demand(("orphans",), ("plain",), 1))
        # The live one may have been faster: then there is nothing to rescue this time.
        assert len(claims) <= 1
        return job.id

    def paid(self, label: str) -> int:
        return self.database.rows(f"SELECT count(*) FROM {self._ledger} WHERE what = '{label}'")[0][0]

    # What must hold

    def is_well(self) -> None:
        """It is ready, completes a new job, and has left nothing open."""
        until(lambda: self.is_green, "the worker to be well", self.describe)
        self._runs += 1
        label = f"afterwards-{self._runs}"
        job = self.direct.enqueue("plain", {"label": label})
        until(lambda: job.refresh().state == "completed", "a new job", self.describe)
        self.database.check_connections_beside_a_worker()
        assert audit(core_of(self.direct).backend).broken == ()

    def check_slots(self) -> None:
        """The schedule has a job for each slot from its first until now, and one."""
        until(lambda: not self._owes_slots(), "the schedule to have caught up", self.describe)
        found = self.database.rows("SELECT slot FROM dray_jobs WHERE schedule = 'beat' ORDER BY slot")
        slots = [slot for (slot,) in found]
        gaps = {after - before for before, after in itertools.pairwise(slots)}
        assert gaps in ({SLOT * 1_000_000}, {timedelta(seconds=SLOT)})

    def _owes_slots(self) -> bool:
        """Whether one that has passed has no job, or too few have passed to tell."""
        (schedule,) = core_of(self.direct).backend.schedules.all()
        now = core_of(self.direct).backend.now()
        assert schedule.next_at is not None
        return schedule.next_at <= now or now - schedule.created_at < 3 * SLOT * 1_000_000

    def describe(self) -> str:
        rows = self.database.rows("SELECT task, state, attempt, crashes FROM dray_jobs WHERE finished_at IS NULL")
        return f"{self.condition}; not ended: {rows}"


class Work:
    """Jobs of one run, and what must have become of them."""

    def __init__(self, tested: WorkerUnderTest, label: str, *, orphan: bool) -> None:
        self._bench = tested
        self.label = label
        app, tasks = tested.direct, tested.bodies.tasks
        self.ids = [app.enqueue("plain", {"label": f"{label}-plain-{n}"}).id for n in range(2)]
        self.ids.append(app.enqueue("says", {"label": f"{label}-says"}).id)
        self._fails = app.enqueue("fails_once", {"label": f"{label}-fails"})
        self._pays = app.enqueue("pays", {"label": f"{label}-pays"})
        after = app.enqueue("plain", {"label": f"{label}-after-pays"}, after=[self._pays])
        self._orphan = tested.orphan(f"{label}-orphan") if orphan else None
        flow = app.workflow("grows")
        first = flow.add(tasks["grows"], f"{label}-grows")
        flow.add(tasks["plain"], f"{label}-after-grows", after=[first])
        run = flow.enqueue()
        self.ids += [self._fails.id, self._pays.id, after.id, *(job.id for job in run.jobs())]
        self.ids += [self._orphan] if self._orphan is not None else []
        self._run = run

    def is_over(self) -> bool:
        return len(core_of(self._bench.direct).backend.jobs.ended(self.ids).jobs) == len(self.ids) and (
            all(job.row.finished_at is not None for job in self._run.jobs())
        )

    def check(self, *, once: bool = True) -> None:
        """Each body ran once, where nothing but one fault happened; in any case each job has completed, what was paid
        was paid once, and what was taken back was taken back once."""
        tested, label = self._bench, self.label
        jobs = {
            job.id: job
            for job in core_of(tested.direct).backend.jobs.get([*self.ids, *(j.id for j in self._run.jobs())])
        }
        assert {(job.task, job.state, job.reason) for job in jobs.values()} == {
            (task, "completed", None) for task in ("plain", "says", "fails_once", "pays", "grows")
        }
        assert len(self._run.jobs()) == 3
        assert tested.paid(f"{label}-pays") == 1
        parts = ["plain-0", "plain-1", "says", "after-pays", "grows", "grows-grown", "after-grows"]
        parts += ["orphan"] if self._orphan is not None else []
        ran = {part: tested.bodies.ran[f"{label}-{part}"] for part in parts}
        assert min(ran.values()) >= 1
        if once:
            assert ran == dict.fromkeys(parts, 1)
            assert tested.bodies.ran[f"{label}-fails"] == 2
            assert [attempt.outcome for attempt in self._fails.attempts()] == ["error", "completed"]
            crashes = {job.id: job.crashes for job in jobs.values() if job.crashes}
            assert crashes in ({}, {self._orphan: 1})


def until(look: Callable[[], T], what: str, describe: Callable[[], Any] = lambda: "", seconds: float = LONG) -> T:
    """Waits for something to be true, and returns it."""
    began = looked_at = time.monotonic()
    while not (found := look()):
        assert looked_at < began + seconds, f"waited {seconds:g} s for {what}: {describe()}"
        pause(began, looked_at)
        looked_at = time.monotonic()
    return found
