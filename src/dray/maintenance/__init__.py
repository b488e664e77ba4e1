"""Duties: what keeps a queue in order besides running jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from dray.app_interface import AppInterface
from dray.backends import Backend
from dray.clock import Clock
from dray.errors import StorageError
from dray.maintenance.cleaning import Checkpointer, Pruner
from dray.maintenance.duty_runner import Agenda, Duty, DutyRunner
from dray.maintenance.rescuer import Rescuer
from dray.maintenance.rollups import RollUp
from dray.maintenance.scheduler import Declarer, Scheduler
from dray.maintenance.waiting_jobs import Fanner, Promoter, Reconciler
from dray.model.settlement import Rng
from dray.model.worker import Rescued


class Witness(Protocol):
    """Who is told of what duties have written, for the App's hooks."""

    def enqueued(self, ids: Iterable[str]) -> None: ...
    def rescued(self, jobs: Sequence[Rescued]) -> None: ...


class WorkerDuties:
    """All duties of one worker, on two runners: no other duty may keep rescue waiting."""

    def __init__(
        self,
        app: AppInterface,
        backend: Backend,
        worker_id: str,
        lease_us: int,
        rng: Rng,
        wake_others: Callable[[], None],  # the thread that ticks `others`
        hears_deaths: Callable[[], bool] = lambda: False,  # whether `told_of_death` is called
        witness: Witness | None = None,
    ) -> None:
        clock = app.clock
        self._wake_others = wake_others
        self._declarer = Declarer(backend, app.declare_schedules)
        options = {task.name: task.options for task in app.registry}
        agenda = Agenda(backend, clock.steady)
        self._scheduler, deputy = (
            Scheduler(
                backend,
                clock,
                app.ids,
                options,
                app.settings.default_timeout,
                agenda,
                is_exclusive=is_exclusive,
                on_fired=None if witness is None else witness.enqueued,
            )
            for is_exclusive in (True, False)
        )
        self._rescuer = Rescuer(backend, worker_id, clock, rng, lease_us, self._take_over, hears_deaths)
        self._rescuer.on_rescued = None if witness is None else witness.rescued
        self.rescue = DutyRunner(backend, worker_id, (self._rescuer,), clock, rng)
        others = (*duties(backend, clock, rng, agenda), self._declarer, self._scheduler, deputy)
        self.others = DutyRunner(backend, worker_id, others, clock, rng, self.rescue)

    def catch_up(self) -> None:
        """Makes the jobs that schedules owe. Before the first look for jobs: a worker that runs until nothing is due
        has to see them."""
        with suppress(StorageError):  # the duty runner tries again, and logs it
            self._declarer.tick()
            self._scheduler.tick()

    def rename(self, worker_id: str) -> None:
        """The worker came back under a new id."""
        for runner in (self.others, self.rescue):
            runner.rename(worker_id)
        self._rescuer.worker_id = worker_id

    def rescheduled(self) -> None:
        """The worker's code has declared or changed schedules. From any thread."""
        self._declarer.ask()
        for duty in (Declarer.name, Scheduler.name):
            self.others.poke(duty)
        self._wake_others()

    def told_of_death(self) -> None:
        """A worker may have died. From any thread, which then wakes the one that ticks `rescue`."""
        self._rescuer.told_of_death()
        self.rescue.poke(Rescuer.name)

    def _take_over(self) -> None:
        """Another worker was buried: its duties are free. On the rescuer's thread."""
        self.others.look_for_duties()
        self._wake_others()


def duties(backend: Backend, clock: Clock, rng: Rng, agenda: Agenda | None = None) -> tuple[Duty, ...]:
    """The duties of any worker, in the order they are done. Without rescue, and schedules, which need its tasks."""
    file = (Checkpointer(backend.upkeep, clock, rng),) if backend.upkeep is not None else ()
    agenda = agenda or Agenda(backend, clock.steady)
    return (
        Promoter(backend, agenda),
        Fanner(backend, rng, agenda),
        *file,
        Pruner(backend, rng),
        Reconciler(backend, rng),
        RollUp(backend),
    )
