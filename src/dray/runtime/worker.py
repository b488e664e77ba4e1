"""A worker: its parts put together, started, and ended in stages."""

from __future__ import annotations

import enum
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Self, TypeVar

from dray.app_interface import AppInterface
from dray.errors import ConfigError, DrayError, StorageError
from dray.instants import SECOND
from dray.interrupts import OwnedLock, Signal, with_cleanup
from dray.log import log
from dray.maintenance import WorkerDuties
from dray.maintenance.unrun_log import teller
from dray.model.bounds import JOB_NAME_CHARS
from dray.model.values import duration_us
from dray.model.worker import NewWorker
from dray.runtime import loading, notes, outcome
from dray.runtime.claiming import ClaimPolicy, checked_concurrency, parse_queues
from dray.runtime.condition import Condition, LockPatience, SelfCheck
from dray.runtime.crew import Crew
from dray.runtime.end_log import EndLog
from dray.runtime.engine import Engine
from dray.runtime.events import Events
from dray.runtime.execution import Execution, StopCause
from dray.runtime.heartbeat import Heartbeat, Identity, WorkerLease
from dray.runtime.in_flight import InFlight
from dray.runtime.inbox import Inbox
from dray.runtime.notes import NoteBuffer, WorkerLink
from dray.runtime.notify import Voice, voice_of
from dray.runtime.ownership import Ownership
from dray.runtime.parts import Bodies, Hooks, Observer
from dray.runtime.service import EngineLoop, Loop, Service
from dray.runtime.signals import Signals
from dray.runtime.standbys import Standbys
from dray.runtime.stopper import KILL_GRACE, Stopper
from dray.task.checks import label, several, whole
from dray.wording import counted, short_id

T = TypeVar("T")

GRACE = 25.0
_PATIENCE = 2.0  # seconds that the engine waits for the write lock before it does other things and tries again
_LOCK_LOOK = 0.25  # seconds between two looks whether the database is locked
_LAST_WRITE = 10.0  # seconds for the last outcomes before the process ends


class Ending(enum.Enum):
    """How `run` ended."""

    DONE = "done"
    RENEW = "renew"  # a body does not stop: only a new process gets rid of it
    LEFT_BEHIND = "left behind"  # a body does not stop: the process has to end without waiting for it


class Worker:
    """Runs the jobs of an App's tasks, in this process.

    ``queues``: names in order, or with weights (``"mail:4,default"``, ``{"mail": 4}``); None: all queues.
    ``concurrency``: bodies at a time. ``grace``: seconds that running jobs have to end at shutdown. ``lease``:
    seconds after which a worker that cannot be seen counts as dead. ``max_jobs``: how many it claims in all.

    Example:

        >>> with app.worker(queues="mail:4,default", concurrency=4) as worker:
        ...     add.enqueue(1, 2).result(timeout=30)
        3
        >>> worker.ran
        1
    """

    def __init__(
        self,
        app: AppInterface,
        *,
        queues: str | Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int | None = None,
        grace: float | timedelta = GRACE,
        lease: float | timedelta | None = None,
        name: str | None = None,
        imports: Iterable[str] = (),
        max_jobs: int | None = None,
        owns_process: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self._app = app
        self._queues = parse_queues(queues)
        self._concurrency = checked_concurrency(concurrency)
        self._grace = duration_us("grace", grace) / SECOND
        self._lease_us = None if lease is None else duration_us("lease", lease, low_us=SECOND)
        self._name = f"{socket.gethostname()}:{os.getpid()}" if name is None else label("name", name, JOB_NAME_CHARS)
        self._imports: tuple[str, ...] = several("imports", imports, "module names")
        self._max_jobs = None if max_jobs is None else whole("max_jobs", max_jobs, 1)
        self._owns_process = owns_process
        self._observer: Observer = EndLog() if observer is None else observer
        self.voice: Voice = voice_of(os.environ)  # who is told how it is, while it runs in the foreground
        self._rng = random.Random()  # noqa: S311 - spreads retries, hides nothing
        self._lock_patience = LockPatience(app.settings.place, None)
        self._has_started = False
        self._replaced = 0
        self._wants_renewal = False
        self._asked_to_stop = Signal()
        self._on_asked: Callable[[], None] | None = None
        self._ends_when_idle = False
        self._has_stopped = self._has_left_behind = False
        self._services: tuple[Service, ...] = ()
        self._undo = ExitStack()  # closes what `start` has opened, until that is done
        self._stopping = OwnedLock()
        self._has_left = False

    @property
    def id(self) -> str:
        """``len(worker.id)  # 36``. It changes if the worker was declared dead and came back."""
        self._refuse_unless_started()
        return self._engine.worker_id

    @property
    def ran(self) -> int:
        """How many bodies have ended: ``worker.ran  # 0``."""
        self._refuse_unless_started()
        return self._in_flight.ran

    @property
    def stopped(self) -> int:
        """How many bodies were stopped because it ends, and their jobs handed back: ``worker.stopped  # 0``."""
        self._refuse_unless_started()
        return self._in_flight.stopped

    @property
    def slots(self) -> int:
        """How many bodies it runs at a time: ``worker.slots  # 2``."""
        return self._concurrency

    def condition(self) -> Condition:
        """What a probe is told. From any thread."""
        if not self._has_started:
            return Condition(None, "starting", 0, None, is_healthy=True, is_ready=False)
        return self._self_check.condition(self._engine.worker_id, self._heartbeat.state, self._in_flight.running)

    def turn(self) -> int:
        """Wakes the engine; returns how many steps it has taken: ``worker.turn() >= 0  # True``. From any thread."""
        self._refuse_unless_started()
        self._inbox.ring()
        return self._engine_loop.steps

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts in the background: ``night = app.worker(); night.start(); night.stop()``."""
        loading.stop_here()
        if self._has_started or self._has_left:
            raise ConfigError("this worker has been started before; make another one: app.worker()")
        self._app.load(self._imports)
        with_cleanup(self._start, self._undo_half_a_start)

    def _start(self) -> None:
        self._assemble(self._undo)
        self._app.on_enqueue.append(self._enqueued)
        self._app.on_recall.append(self._inbox.recall)
        self._app.on_schedule.append(self._duties.rescheduled)
        notes.start_capture(self)
        try:
            for service in self._services:
                service.start()
        except (RuntimeError, MemoryError) as error:
            raise DrayError(
                f"no thread could be started for this worker: {error}; end other processes, or raise the limit of "
                "processes or memory"
            ) from error
        self._has_started = True

    def _undo_half_a_start(self) -> None:
        """After a start that failed or was interrupted: running parts would keep the lease of no worker at all."""
        if self._has_started:
            return
        if not self._services:
            self._undo.close()
        elif self._services[-1].is_running:
            with_cleanup(self._stop, self._stopping.release_if_mine)  # it may have claimed jobs: they go back
        else:
            self._unhook()
            self._leave()

    def run(self, *, until_idle: bool = False) -> Ending:
        """``app.worker().run(until_idle=True)``, or until SIGTERM, SIGINT or SIGHUP; a second one ends the process.

        With `until_idle`, or until no job is due any more. A worker with `max_jobs` ends with the last of them. Under
        a service manager, SIGHUP asks one that owns its process for a new start (`Ending.RENEW`).
        """
        loading.stop_here()
        reloads = self.voice.reloads and self._owns_process  # a program that only contains a worker ends it
        with Signals(self._asked_to_stop.set, reloads=reloads) as signals:
            self._on_asked = signals.wake
            self._ends_when_idle = until_idle
            self.start()
            self.voice.started(self)
            signals.wait(self._asked_to_stop.is_set)
            self.voice.ends(reloads=not signals.count and (signals.is_reload or self._wants_renewal))
            if signals.count and self._in_flight.running:
                wait = f"{counted(self._in_flight.running, 'job')} may take {self._grace:g} s to end"
                log.info("worker %d is stopping: %s; a second signal ends it at once", os.getpid(), wait)
            signals.run_beside(self.stop)
        self.voice.close()
        self._raise_failure()
        is_to_go_on = not signals.count and not until_idle and self._max_jobs is None
        if (self._wants_renewal or signals.is_reload) and is_to_go_on:
            return Ending.RENEW
        return Ending.LEFT_BEHIND if self._has_left_behind else Ending.DONE

    def run_until_idle(self) -> int:
        """Runs all jobs that are due, and those that they enqueue: ``app.worker().run_until_idle()  # 0``, how many.

        `StorageLocked` if another connection keeps the write lock for longer than `busy_timeout`.
        """
        settings = self._app.settings
        self._lock_patience = LockPatience(settings.place, settings.busy_timeout)
        self.start()
        try:
            while not self._engine.is_idle.wait(_LOCK_LOOK):
                # A running body may keep the lock itself, in its own transaction.
                is_locked = self._self_check.outage.is_locked and not self._in_flight.running
                self._lock_patience.check(is_locked=is_locked)
        finally:
            self.stop()
        self._raise_failure()
        return self._in_flight.ran

    def stop(self) -> None:
        """``worker.stop()`` claims nothing more, lets running jobs end within `grace`, hands back the rest."""
        if self._has_started and not self._has_stopped:
            with_cleanup(self._stop, self._stopping.release_if_mine)

    def _stop(self) -> None:
        """Can be called again after an interrupt."""
        if not self._stopping.acquire(0):
            return  # another thread does it
        self._unhook()
        if self._events is not None:
            self._events.end_by(time.monotonic() + self._grace)
        self._heartbeat.drain()
        self._inbox.drain()
        if self._services[-1].is_running and not self._engine.settles_down(self._grace):
            self._stopper.stop_all(StopCause.SHUTDOWN)
            self._inbox.leave_locked()
            self._engine.settles_down(KILL_GRACE / SECOND + 2)
        if self._engine.is_empty:
            self._leave()
        else:
            self._leave_behind()
        self._has_stopped = True

    def _assemble(self, undo: ExitStack) -> None:
        app, settings = self._app, self._app.settings
        tasks = {task.name: task for task in app.registry}
        if not tasks:
            raise ConfigError("this worker knows no task; import the modules that define them (imports=, -i)")
        if app.hooks.middleware:
            app.hooks.warn_of_unwrapped({name: task.function for name, task in tasks.items()})
        patient = replace(settings, busy_timeout=_PATIENCE)
        self._backend, self._beats = patient.open(app.clock), patient.open(app.clock)
        undo.callback(self._beats.close)
        undo.callback(self._backend.close)
        self._watch = self._backend.watch(hears_done=False, queues=self._queues)
        undo.callback(self._watch.close)
        self._identity = identity = Identity(
            self._beats,
            self._watch,
            app.clock,
            app.ids,
            NewWorker(
                id="",
                name=self._name,
                host=socket.gethostname(),
                pid=os.getpid(),
                boot=app.clock.boot,
                queues=tuple(self._queues or ()),
                tasks=tuple(tasks),
                concurrency=self._concurrency,
            ),
            self._lease_us,
        )
        undo.callback(identity.proof.close)
        inbox, in_flight, note_buffer = Inbox(), InFlight(self._observer.ended), NoteBuffer()
        standbys = Standbys(app.clock)
        crew = Crew(
            self._concurrency, inbox.report, inbox.refuse, app.clock, tasks, settings.url, identity.lock_fd, standbys
        )
        crew.check()
        self._inbox, self._in_flight, self._crew = inbox, in_flight, crew
        identity.register_patiently(
            self._asked_to_stop.is_set, self._lock_patience, lambda: app.declare_limits(self._beats)
        )
        self._lease = lease = WorkerLease(identity.id, identity.proof, app.clock, identity.lease_us)
        self._self_check = check = SelfCheck(lease, inbox, crew, app.clock)
        self._stopper = stopper = Stopper(app.clock, in_flight.executions, lease, inbox, self._on_stuck)
        self._heartbeat = beat = Heartbeat(
            self._beats, lease, inbox, in_flight, stopper, app.clock, check.trouble, self._watch
        )
        self._events = Events(app) if app.hooks.worker_events else None
        told = teller(self._beats, None if self._events is None else self._events.cancelled)
        self._backend.db.on_cancelled = self._beats.db.on_cancelled = told
        started = self._events.started if self._events is not None and "started" in app.hooks.worker_events else None
        on_began = [tell for tell in (stopper.began, self._observer.began, started) if tell is not None]
        link = WorkerLink(app.clock, self._rng, lambda: app.backend, note_buffer, inbox.ring, on_began)
        self._engine = Engine(
            self._backend,
            self._watch,
            ClaimPolicy(
                self._concurrency, self._queues, tuple(tasks), self._rng, self._max_jobs, self._backend.db.most_ahead
            ),
            Bodies(tasks, crew, link, in_flight, note_buffer, inbox, standbys),
            Ownership(self._backend, beat, in_flight, stopper, inbox, check, app.clock, self._take_new_id),
            check,
            app.clock,
            Hooks(app.waiter.poke, self._became_idle, self._ask_to_stop),
            settings.durability == "full",
            self._events,
        )
        watch = self._watch
        self._duties = WorkerDuties(
            app,
            self._beats,
            identity.id,
            lease.duration_us,
            self._rng,
            self._wake_duties,
            lambda: watch.hears_deaths and in_flight.is_empty,  # a busy engine listens to its bodies first
            self._events,
        )
        self._duties.catch_up()
        self._duties_loop = Loop("dray-duties", self._duties.others.tick)
        self._rescue_loop = Loop("dray-rescuer", self._duties.rescue.tick)
        watch.tell_of_deaths(self._told_of_death)
        # They end in the opposite order: hooks are told of all that the others have written, while the lease holds.
        hooks = () if self._events is None else (self._events,)
        self._engine_loop = EngineLoop(self._engine, inbox, self._observer.tick)
        loops = (self._duties_loop, self._rescue_loop, self._engine_loop)
        self._services = (stopper, beat, *hooks, *loops)

    def _take_new_id(self) -> str:
        """After this worker was declared dead or lost its proof. On the engine's thread."""
        self._identity.renew()
        self._lease.renewed(self._identity.id, self._identity.proof)
        self._duties.rename(self._identity.id)
        return self._identity.id

    def _wake_duties(self) -> None:
        self._duties_loop.wake()

    def _told_of_death(self) -> None:
        """The kernel says that a worker may have died. On the engine's thread."""
        self._duties.told_of_death()
        self._rescue_loop.wake()

    def _enqueued(self, queues: Iterable[str]) -> None:
        if self._queues is None or any(queue in self._queues for queue in queues):
            self._inbox.look_soon()

    def _became_idle(self) -> None:
        """On the engine's thread."""
        has_run_all = self._max_jobs is not None and self._in_flight.ran >= self._max_jobs
        if self._ends_when_idle or has_run_all:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._asked_to_stop.set()
        if self._on_asked is not None:
            self._on_asked()

    def _unhook(self) -> None:
        _take_out(self._app.on_enqueue, self._enqueued)
        _take_out(self._app.on_recall, self._inbox.recall)
        _take_out(self._app.on_schedule, self._duties.rescheduled)

    def _on_stuck(self, execution: Execution) -> None:
        """A body goes on although force was used. On the stopper's thread."""
        if execution.stop is StopCause.SHUTDOWN:
            return
        claim = execution.claim
        if execution.stop is StopCause.TIMEOUT and claim.attempt >= claim.max_attempts:
            stack = execution.runner.stack(execution)
            self._inbox.report_stuck(execution, outcome.out_of_time(execution, stack))
        if self._owns_process:
            log.warning("job %s does not stop (%s); renewing this process", short_id(claim.id), execution.stop)
            self._wants_renewal = True
            self._ask_to_stop()
            return
        self._replaced += 1
        if self._replaced > self._concurrency:
            log.error(
                "job %s does not stop (%s), as %d before it did not; this worker claims nothing more: restart it",
                short_id(claim.id),
                execution.stop,
                self._concurrency,
            )
            self._inbox.drain()
            return
        job = short_id(claim.id)
        log.warning("job %s does not stop (%s); it keeps its thread until it ends", job, execution.stop)
        execution.runner.replace(execution)
        self._inbox.report_stuck(execution, None)

    def _leave_behind(self) -> None:
        """Ends although bodies cannot be stopped, or outcomes cannot be written."""
        self._has_left_behind = True
        stuck = [execution for execution in self._in_flight.executions() if not execution.is_over]
        if self._owns_process:
            self._leave_with_process(stuck)
        else:
            log.warning(
                "%s, and the claim is kept until the end",
                counted(len(stuck), "body does not stop", "bodies do not stop"),
            )
            try:
                threading.Thread(target=self._leave_later, name="dray-leave", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                log.warning("no thread could be started to wait for them: %s; this worker stays registered", error)

    def _leave_with_process(self, stuck: Sequence[Execution]) -> None:
        """Writes the outcomes of bodies that end with the process, as the very last thing.

        What could take time comes first: once their jobs may be claimed again, nothing must delay the end of this
        process. Other workers remove its row when they see that its proof of life is gone.
        """
        hooks = () if self._events is None else (self._events,)
        for service in (self._duties_loop, self._rescue_loop, *hooks, self._stopper):
            service.end()
        self._crew.close()
        self._deregister(self._duties.others.resign)
        for execution in stuck:
            execution.is_stuck = True  # the stopper leaves it alone
            settlement = outcome.left_behind(execution)
            if settlement is not None:
                self._inbox.report_stuck(execution, settlement)
        if not self._engine.settles_down(_LAST_WRITE):
            log.warning("outcomes could not be written; their jobs will be taken back and run again")
        self._observer.tick(is_over=True)

    def _leave_later(self) -> None:
        self._engine.has_ended.wait()
        self._leave()

    def _leave(self) -> None:
        """Ends once nothing is left to run or to write."""
        if self._has_left:
            return
        for service in reversed(self._services):
            service.end()
        self._observer.tick(is_over=True)
        self._crew.close()
        self._deregister(self._duties.others.resign)
        self._deregister(self._identity.deregister)
        for part in (self._identity.proof, self._watch, self._backend, self._beats):
            part.close()
        notes.end_capture(self)
        self._has_left = True

    def _deregister(self, step: Callable[[], object]) -> None:
        try:
            step()
        except StorageError as error:
            log.warning("worker %s could not deregister: %s", short_id(self._engine.worker_id), error)

    def _raise_failure(self) -> None:
        if self._self_check.failure is not None:
            raise self._self_check.failure

    def _refuse_unless_started(self) -> None:
        if not self._has_started:
            raise ConfigError("this worker has not been started; call start(), or use it in a with block")


def _take_out(hooks: list[T], hook: T) -> None:
    with suppress(ValueError):
        hooks.remove(hook)
