"""What an operator does to jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from dray.model.job import CancelResult
from dray.ops.pruning import remove, retention

if TYPE_CHECKING:
    from dray.backends.base import Backend


def cancel(backend: Backend, ids: Sequence[str]) -> dict[str, CancelResult]:
    """Cancels jobs that have not started and asks running ones to stop; what became of each."""
    answer = backend.jobs.cancel(ids)
    asked = [job_id for job_id, result in answer.items() if result is CancelResult.REQUESTED]
    if asked:
        backend.announce({job.queue for job in backend.jobs.get(asked)})  # a worker that wakes looks for requests
    if CancelResult.CANCELLED in answer.values():
        backend.announce_done()
    return answer


def retry(backend: Backend, ids: Sequence[str]) -> list[str]:
    """Starts ended jobs over; those that it did."""
    retried = backend.jobs.retry(ids)
    if retried:
        backend.announce({job.queue for job in backend.jobs.get(retried)})
    return retried


def prune(backend: Backend, older_than: float | timedelta | None) -> int:
    """Removes ended jobs that are older than that, or past their usual retention; answers how many."""
    return remove(backend, retention(older_than))
