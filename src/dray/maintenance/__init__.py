"""Duties: what keeps a queue in order besides running jobs, in the order they are done."""

from __future__ import annotations

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


def duties(backend: Backend, clock: Clock, rng: Rng, retention: Retention | None = None) -> tuple[Duty, ...]:
    """The duties of any worker, except rescue, which has a thread of its own, and schedules, which need its tasks.

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


__all__ = ["Declarer", "Duty", "DutyRunner", "Rescuer", "Scheduler", "duties"]
