"""Verbs of the storage contract in the small portions that tests need, made of those that Dray itself uses."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from dray.backends import Backend
from dray.backends.database import FIRST_ID
from dray.backends.store import history
from dray.backends.store.liveness import Evidence, liveness
from dray.backends.store.work import NOTHING, Notes, Report
from dray.model.job import Claim, Demand, LogLine
from dray.model.retention import Retention
from dray.model.settlement import Settled, Settlement
from dray.model.worker import DeathVerdict


def claim(backend: Backend, worker_id: str, demand: Demand) -> list[Claim]:
    """Returns what the claiming half of an exchange does."""
    return backend.work.exchange(worker_id, (), demand).claims


def settle(backend: Backend, worker_id: str, settlements: Sequence[Settlement], *, durable: bool = False) -> Settled:
    """Returns what the settling half of an exchange does."""
    return backend.work.exchange(worker_id, settlements, NOTHING, durable=durable).settled


def probe(backend: Backend, demand: Demand) -> bool:
    """Returns whether a worker that looks finds anything of a demand ready."""
    return backend.work.look(FIRST_ID, demand).is_ready


def progress(
    backend: Backend, worker_id: str, reports: Sequence[tuple[str, int, float | None, str | None]]
) -> list[bool]:
    """Notes how far jobs are; False for each whose claim is lost, or whose row is locked."""
    given = [Report(*report) for report in reports]
    unkept = _keep(backend, worker_id, Notes((), given)).reports
    return [report not in unkept for report in given]


def write_logs(backend: Backend, worker_id: str, lines: Sequence[LogLine]) -> list[bool]:
    """Keeps log lines; False for each whose claim is lost, or whose row another transaction is about to delete."""
    unkept = _keep(backend, worker_id, Notes(lines)).lines
    return [not any(line is each for each in unkept) for line in lines]


def _keep(backend: Backend, worker_id: str, notes: Notes) -> Notes:
    """Keeps notes as an exchange does; returns those that were not kept, of lost claims too."""
    return backend.work._transact(worker_id, (), NOTHING, notes, durable=False).unkept


def next_due(backend: Backend) -> int | None:
    """Returns when the earliest scheduled job is due."""
    due_us = backend.jobs.upcoming().due_us
    return None if due_us is None else backend.now() + due_us


def prune(backend: Backend, retention: Retention) -> int:
    """Removes ended jobs past their retention; returns how many."""
    return sum(step.jobs for step in backend.history.prune_steps(retention))


def prune_some(backend: Backend, retention: Retention, limit: int) -> int:
    """As `prune`, and stops after the first transaction that removed jobs; none removes more than `limit`."""
    with patch.object(history, "_FOUND", limit):
        return next((step.jobs for step in backend.history.prune_steps(retention) if step.jobs), 0)


def overdue(backend: Backend) -> list[DeathVerdict]:
    """Returns the workers of which nothing is known but that their lease is over."""
    found = backend.db.read(lambda tx: liveness(backend.db, tx))
    over = [each.signs for each in found if each.evidence is Evidence.LEASE_OVER]
    return [DeathVerdict(signs.id, signs.lease_until) for signs in over]


def is_held(backend: Backend, duty: str, holder: str, term: int) -> bool:
    """Returns whether a duty is still held under this term."""
    return (duty, holder, term) in [(lease.duty, lease.holder, lease.term) for lease in backend.leases.all()]
