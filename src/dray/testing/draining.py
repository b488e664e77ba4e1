"""Runs jobs in the calling thread, as a worker would, with a clock that jumps to the next job that is due.

The parts are a worker's own: a registered worker, claims with their fence, the calls of bodies and what their ends
mean, the transaction that writes outcomes, rescue. Only the threads are missing, and time passes at once.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from queue import Empty, SimpleQueue
from typing import Any

from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend
from dray.backends.store.jobs import Filter
from dray.backends.store.work import NOTHING
from dray.backends.user_connection import is_asyncpg
from dray.clock import Clock
from dray.errors import ConfigError, DrayError, GraphError, StorageError, StorageLocked, UnknownJob
from dray.instants import HOUR
from dray.interrupts import with_cleanup
from dray.log import log
from dray.maintenance.duty_runner import Agenda
from dray.maintenance.scheduler import Scheduler
from dray.maintenance.unrun_log import teller
from dray.model.job import FINAL, Claim, Demand, Job, State
from dray.model.settlement import Rng, Settlement, released
from dray.model.worker import DeathVerdict, NewWorker
from dray.runtime import notes
from dray.runtime.end_log import EndLog
from dray.runtime.events import Events
from dray.runtime.execution import Execution, StopCause
from dray.runtime.here import run_here
from dray.runtime.in_flight import InFlight
from dray.runtime.notes import NoteBuffer
from dray.runtime.runners.loop import LoopRunner
from dray.testing.binding import movable, refuse_others, refuse_workers
from dray.testing.crashing import Crash, Died, DyingBackend, crash_of
from dray.testing.movable import MovableClock

MOST_ATTEMPTS = 10_000
_LEASE_US = HOUR  # nothing renews it: no other worker is there to judge this one
_LOCK_TRIES, _LOCK_PAUSE = 50, 0.02  # of an outcome whose row another transaction has locked
_STOP_GRACE = 5.0  # seconds for a coroutine that is out of time
_PAGE = 500
_SCHEDULE_TICKS = 1000


def drain(app: App, delays: bool = True, retries: bool = True, connection: Any = None) -> int:  # noqa: FBT001, FBT002 - the contract
    """Runs what is enqueued to its end, in this thread; returns how many attempts it ran.

    With what bodies enqueue, retries, workflows, and slots of schedules that are due when it is called. When nothing
    is due, the clock jumps to the next job that will be. `delays=False`: it does not jump. `retries=False`: no second
    attempt follows one that failed. `connection`: your own open connection; jobs that are not committed are seen,
    everything happens in its transaction, and nothing is committed.

    Example:

        >>> job = add.using(delay=3600).enqueue(1, 2)
        >>> drain(app)  # it does not wait for the hour
        1
        >>> job.result()
        3
    """
    refuse_others(app)
    refuse_async(connection)
    refuse_workers(app, "it runs the jobs already, or stop it and let drain(app) do so")
    core_of(app).load()
    try:
        with movable(app, connection) as clock:
            return Drainer(app, clock, delays=delays, retries=retries).run()
    except StorageLocked as error:
        settings = core_of(app).settings
        if connection is not None or not settings.is_sqlite:
            raise
        raise StorageLocked(
            f"{settings.place}: another connection has kept the write lock for {settings.busy_timeout:g} s, so no "
            "job can run. If your test, or a fixture, keeps a transaction open, end it first, or run the jobs inside "
            "it: drain(app, connection=…)"
        ) from error


def refuse_async(connection: Any) -> None:
    """Bodies run in the calling thread, which cannot await."""
    if iscoroutinefunction(getattr(connection, "commit", None)) or is_asyncpg(connection):
        raise ConfigError(
            f"connection={type(connection).__name__} is asynchronous; dray.testing takes a sqlite3.Connection, a "
            "psycopg or psycopg2 connection, or a SQLAlchemy Session or Connection: commit, and leave connection= out"
        )


class Tally:
    """How many attempts ran, with those that ran inside others, and how many do so now."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()  # by task
        self.depth = 0

    def count(self, task: str) -> None:
        self.ran[task] += 1
        total = self.ran.total()
        if total >= MOST_ATTEMPTS:
            often, times = self.ran.most_common(1)[0]
            raise DrayError(
                f"{total:,} attempts have run and jobs are still coming, {times:,} times of {often}: does it enqueue "
                "itself, or snooze for ever? drain(app, delays=False) runs only what is due now"
            )


@dataclass(eq=False)
class HandLink:
    """The `Link` of bodies that run here."""

    app: App
    clock: Clock
    tally: Tally
    _notes: NoteBuffer
    rng: Rng = field(default_factory=random.Random)
    crash: Crash | None = None  # how the body that runs now is to end
    events: Events | None = None

    @property
    def backend(self) -> Backend:
        backend = core_of(self.app).backend
        return DyingBackend(backend) if self.crash is not None and self.crash.when == "before_commit" else backend

    def began(self, execution: Execution) -> None:
        """Nothing watches over it: there is no other thread."""
        if self.events is not None:
            self.events.started(execution)
            self.events.tick()

    def note(self, execution: Execution) -> None:
        self._notes.add(execution)

    def written(self, execution: Execution) -> None:  # noqa: ARG002
        """The body has committed the end of its job itself."""
        if self.crash is not None:
            raise Died


class Drainer:
    """A worker without threads, for one call. `only`: it runs these jobs and what comes of them, and no others."""

    def __init__(
        self,
        app: App,
        clock: MovableClock,
        *,
        delays: bool = True,
        retries: bool = True,
        only: set[str] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._app, self._backend, self._clock = app, core_of(app).backend, clock
        self._delays, self._retries, self._only = delays, retries, only
        self._tasks = {task.name: task for task in core_of(app).registry}
        self._failed: set[str] = set()  # jobs that are not to be tried again
        self._aside: list[Claim] = []  # claimed, and not for this call: they go back at its end
        self._end_log, core = EndLog(), core_of(app)
        self._in_flight, self._notes = InFlight(self._end_log.ended), NoteBuffer()
        self._events = Events(core) if core.hooks.worker_events else None  # without its thread
        self._link = HandLink(app, clock, tally or Tally(), self._notes, events=self._events)
        self._worker_id: str | None = None
        self._reports: SimpleQueue[Settlement | None] = SimpleQueue()
        self._loop: LoopRunner | None = None

    def run(self) -> int:
        db, tells = self._backend.db, None if self._events is None else self._events.cancelled
        before, db.on_cancelled = db.on_cancelled, teller(self._backend, tells)

        def leave() -> None:
            db.on_cancelled = before
            self._leave()

        return with_cleanup(self._run, leave)

    def _run(self) -> int:
        notes.start_capture(self)
        functions = {name: task.function for name, task in self._tasks.items()}
        core_of(self._app).hooks.warn_of_unwrapped(functions)
        self._register()
        if self._only is None:
            core_of(self._app).declare_limits(self._backend)
            self._fire_schedules()
        while self._step():
            pass
        return self._in_flight.ran

    def _register(self) -> None:
        worker_id = core_of(self._app).new_id()
        self._backend.workers.register(
            NewWorker(
                id=worker_id,
                name="dray.testing",
                host=socket.gethostname(),
                pid=os.getpid(),
                boot=self._clock.boot,
                tasks=tuple(self._tasks),
            ),
            _LEASE_US,
        )
        self._worker_id = worker_id

    def _fire_schedules(self) -> None:
        """Makes the jobs that schedules owe by now."""
        backend, clock = self._backend, self._clock
        core_of(self._app).declare_schedules(backend)
        options = {name: task.options for name, task in self._tasks.items()}
        timeout = core_of(self._app).settings.default_timeout
        scheduler = Scheduler(backend, clock, core_of(self._app).ids, options, timeout, Agenda(backend, clock.steady))
        for _ in range(_SCHEDULE_TICKS):  # each fires some; those of unknown tasks are left to other workers
            slot_us = backend.jobs.upcoming().slot_us
            if slot_us is None or slot_us > 0 or scheduler.tick() >= _LEFT_TO_OTHERS:
                return

    def _step(self) -> bool:
        """Runs one job, or finds others to run. False: there is nothing left to do."""
        has_moved = self._tend()
        claim = self._claim()
        if claim is not None:
            self._attempt(claim)
            return True
        return has_moved or (self._delays and self._jump())

    @property
    def _id(self) -> str:
        assert self._worker_id is not None
        return self._worker_id

    def _claim(self) -> Claim | None:
        """The next job, in the order of the queues' names; None: none is ready."""
        work, tasks = self._backend.work, tuple(self._tasks)
        while queues := self._ready_queues():
            brought = work.exchange(self._id, (), Demand(queues, tasks, 1, tends=False))
            if not brought.claims:
                if brought.goes_on:
                    continue  # it has not looked at all keys yet
                return self._take_past_others()
            (claim,) = brought.claims
            if not self._is_wanted(claim.id):
                self._aside.append(claim)
            elif not self._parks(claim):
                return claim
        return None

    def _ready_queues(self) -> tuple[str, ...]:
        seen = self._backend.work.look(self._id, Demand((), tuple(self._tasks), 1), serves_all=True)
        return tuple(seen.queues)

    def _parks(self, claim: Claim) -> bool:
        """Hands a job back that was enqueued by name, without the key that it should have."""
        option = self._tasks[claim.task].options.key
        key = None if option is None or claim.key is not None else option.of(claim.args)
        if key is not None:
            self._backend.work.exchange(self._id, [released(claim, self._clock.steady(), key)], NOTHING)
        return key is not None

    def _take_past_others(self) -> Claim | None:
        """A job that is wanted, where limits keep it back only because of jobs that were set aside."""
        if self._only is None or not any(claim.held for claim in self._aside):
            return None
        found = self._backend.jobs.get(sorted(self._only))
        ready = [job.id for job in found if job.state == State.QUEUED and self._is_wanted(job.id)]
        return next(iter(self._backend.work.take(self._id, ready[:1])), None)

    def _is_wanted(self, job_id: str) -> bool:
        return job_id not in self._failed and (self._only is None or job_id in self._only)

    def _tend(self) -> bool:
        """Does what a worker's duties do for jobs that wait. Returns whether anything has changed."""
        backend, coming = self._backend, self._backend.jobs.upcoming()
        has_moved = False
        if coming.has_fanout:
            has_moved = not backend.graph.fan_out_all(to_end=True).left
        if coming.expires_us is not None and coming.expires_us <= 0:
            expired = backend.jobs.expire()
            has_moved |= bool(expired)
        if coming.due_us is not None and coming.due_us <= 0:
            has_moved |= bool(backend.jobs.promote())
        if has_moved and self._events is not None:
            self._events.tick()
        return has_moved

    def _jump(self) -> bool:
        """Lets time pass until the next job is due. False: none is going to be."""
        if self._only is None and not self._failed:
            due_us = self._backend.jobs.upcoming().due_us
        else:
            times = [job.run_at for job in self._scheduled() if self._is_wanted(job.id)]
            due_us = min(times) - self._backend.now() if times else None
        opens_us = self._opens_us()
        if opens_us is not None and (due_us is None or opens_us < due_us):
            due_us = opens_us
        if due_us is None:
            return False
        self._clock.advance(max(1, due_us))
        return True

    def _opens_us(self) -> int | None:
        """How long it takes until a rate lets a job start; None: none waits for that."""
        queues = self._ready_queues()
        seen = self._backend.work.look(self._id, Demand(queues, tuple(self._tasks), 1))
        if seen.is_ready:
            return 0  # the rate has opened since the claim, by the time that passes by itself
        return None if seen.opens_at is None else seen.opens_at - seen.now

    def _scheduled(self) -> list[Job]:
        found = self._backend.jobs.newest(_SCHEDULED, limit=_PAGE)
        while len(found) % _PAGE == 0 and (
            more := self._backend.jobs.newest(_SCHEDULED, limit=_PAGE, before=found[-1].id if found else None)
        ):
            found += more
        return found

    # One attempt

    def _attempt(self, claim: Claim) -> None:
        execution = Execution(claim, self._tasks[claim.task], self._id, self._link)
        crash = self._link.crash = crash_of(self._app, claim.task)
        self._in_flight.take([execution])
        try:
            settlement = self._body(execution)
        except Died:
            settlement = None
        finally:
            self._link.crash = None
        if execution.started is None:
            crash = None  # no body ran
        if crash is not None and crash.when == "before_commit":
            self._in_flight.ran += 1
        else:
            self._in_flight.end(execution, settlement)
            if self._events is not None and execution.is_written:
                self._events.completed(execution)
            if settlement is not None and settlement.outcome is not None and settlement.state not in FINAL:
                self._has_failed(claim)
            self._write()
        if crash is not None:
            self._die(crash, claim)
        if execution.started is not None:
            self._link.tally.count(claim.task)
        if self._events is not None:
            self._events.tick()

    def _has_failed(self, claim: Claim) -> None:
        if not self._retries:
            self._failed.add(claim.id)

    def _body(self, execution: Execution) -> Settlement | None:
        if execution.task.options.runner != "async":
            return run_here(execution)
        if self._loop is None:
            self._loop = LoopRunner(1, self._report, self._refused, self._clock)
        execution.runner = self._loop
        self._loop.start([execution])
        for patience, stop in (
            (execution.claim.timeout, self._loop.stop),
            (_STOP_GRACE, self._loop.abandon),
        ):
            try:
                return self._reports.get(timeout=patience)
            except Empty:
                execution.stop = execution.stop or StopCause.TIMEOUT
                stop(execution)
        try:
            return self._reports.get(timeout=_STOP_GRACE)
        except Empty:
            raise DrayError(
                f"job {execution.claim.id} ({execution.claim.task}) is out of time and blocks its event loop, so "
                "nothing can stop it; await what takes long"
            ) from None

    def _report(self, _: Execution, settlement: Settlement | None) -> None:
        self._reports.put(settlement)

    def _refused(self, _: object) -> None:
        raise DrayError(
            "no thread could be started for the event loop of coroutine tasks; "
            "end others, or raise the limit of threads"
        )

    def _write(self) -> None:
        """Writes the outcome, what the body logged, and the steps that it added."""
        flight = self._in_flight
        for _ in range(_LOCK_TRIES):
            batch = flight.plain()
            said = self._notes.collect(flight, self._clock.steady())
            answer = self._backend.work.exchange(self._id, batch, NOTHING, said)
            self._notes.keep(answer.late)
            flight.written(batch, answer.settled)
            if self._events is not None:
                self._events.settled(batch, answer.settled)
            self._grow()
            if not flight.outcomes:
                core_of(self._app).waiter.poke()
                return
            if flight.plain() == batch:
                time.sleep(_LOCK_PAUSE)
        locked = ", ".join(flight.outcomes)
        raise StorageLocked(
            f"{self._backend.db.place}: another transaction has locked job {locked}, whose body has ended: end that "
            "transaction, or pass its connection: drain(app, connection=…)"
        )

    def _grow(self) -> None:
        for settlement, new in self._in_flight.growing():
            try:
                settled = self._backend.work.grow(self._id, settlement, new)
            except (GraphError, UnknownJob) as error:
                self._in_flight.refuse_growth(settlement, error)
                continue
            if not settled.locked:
                self._in_flight.written([settlement], settled)
                if self._events is not None:
                    self._events.grown(settlement, new, settled)
                if self._only is not None:
                    self._only.update(job.id for job in new)

    def _die(self, crash: Crash, claim: Claim) -> None:
        """This worker is dead: it is declared so and its jobs are taken back; another goes on."""
        self._give_back(self._aside)
        crash.left -= 1
        dead, self._worker_id = self._id, None
        self._in_flight.held.clear()
        self._in_flight.count = 0
        workers = self._backend.workers
        workers.beat(dead, 0)  # its lease ends now
        self._clock.advance(1)
        verdicts = [DeathVerdict(dead, worker.lease_until) for worker in workers.all() if worker.id == dead]
        rescued = workers.rescue(verdicts, rng=self._link.rng)
        if self._events is not None:
            self._events.rescued(rescued)
        self._has_failed(claim)
        self._register()

    # The end

    def _leave(self) -> None:
        """Can be called again after an interrupt."""
        running = list(self._in_flight.held.values())
        if self._loop is not None:
            for execution in running:
                self._stop_coroutine(self._loop, execution)
            self._loop.close()
            self._loop.join(_STOP_GRACE)
        notes.end_capture(self)
        self._end_log.tick(is_over=True)
        if self._worker_id is None:
            return
        try:
            self._give_back([*self._aside, *(execution.claim for execution in running)])
            self._backend.workers.deregister(self._worker_id)
        except StorageError as error:
            log.warning("dray.testing could not give back what it had claimed: %s", error)

    def _stop_coroutine(self, loop: LoopRunner, execution: Execution) -> None:
        """After an interrupt. What it has begun in a thread runs to its end first: it may be a drain of its own."""
        if execution.runner is loop and not execution.is_over:
            execution.stop = execution.stop or StopCause.SHUTDOWN
            loop.abandon(execution)
            with suppress(Empty):
                self._reports.get(timeout=_STOP_GRACE)

    def _give_back(self, claims: list[Claim]) -> None:
        if claims:
            now = self._clock.steady()
            self._backend.work.exchange(self._id, [released(claim, now) for claim in claims], NOTHING)
        self._aside.clear()


_SCHEDULED = Filter(states=frozenset({State.SCHEDULED}))
_LEFT_TO_OTHERS = 0.01  # seconds until the scheduler looks again, if it could not fire all that is due
