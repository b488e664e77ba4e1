"""Duties: what keeps a queue in order besides running jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dray.maintenance.checkpointer import Checkpointer
from dray.maintenance.duty_runner import Duty, DutyRunner
from dray.maintenance.pruner import Pruner
from dray.maintenance.rescuer import Rescuer
from dray.maintenance.scheduler import Declarer, Scheduler
from dray.maintenance.waiting_jobs import Fanner, Promoter, Reconciler

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.clock import Clock, Rng
    from dray.model.retention import Retention


class WorkerDuties:
    """All duties of one worker, on two runners: no other duty may keep rescue waiting.

    `wake_others` wakes the thread that ticks `others`.
    """

    def __init__(
        self,
        backend: Backend,
        worker_id: str,
        clock: Clock,
        rng: Rng,
        lease_us: int,
        declarer: Declarer,
        schedulers: tuple[Scheduler, ...],
        wake_others: Callable[[], None],
    ) -> None:
        self._declarer = declarer
        self._wake_others = wake_others
        self._rescuer = Rescuer(backend, worker_id, clock, rng, lease_us, on_burial=self._take_over)
        self.rescue = DutyRunner(backend, worker_id, (self._rescuer,), clock, rng)
        others = (*duties(backend, clock, rng), declarer, *schedulers)
        self.others = DutyRunner(backend, worker_id, others, clock, rng, beside=self.rescue)

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

    def _take_over(self) -> None:
        """Another worker was buried: its duties are free. On the rescuer's thread."""
        self.others.look_for_duties()
        self._wake_others()


def duties(backend: Backend, clock: Clock, rng: Rng, retention: Retention | None = None) -> tuple[Duty, ...]:
    """The duties of any worker, in the order they are done. Without rescue, and schedules, which need its tasks.

    Without a retention the default holds.
    """
    file = (Checkpointer(backend, clock, rng),) if backend.has_file else ()
    return (
        Promoter(backend),
        Fanner(backend, rng),
        *file,
        Pruner(backend, rng, retention),
        Reconciler(backend, rng),
    )


__all__ = ["Declarer", "Duty", "DutyRunner", "Rescuer", "Scheduler", "WorkerDuties", "duties"]
