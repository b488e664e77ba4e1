"""New jobs in an open transaction: written with their edges, or met by the holder of their unique key.

A second request under a unique key finds the holder, and changes it where it asks for that. The key itself is taken
by an INSERT and only ever cleared, so nothing here can make a second holder. A holder that starts or ends meanwhile
is left alone: if it keeps the key the answer is that it was kept, if not the key is free. PostgreSQL locks a row that
it has waited for even if it then leaves it alone: a holder that was just being started is settled once the
transaction that met it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dray.backends.database import Session
from dray.backends.rows import Start
from dray.backends.store import graph
from dray.errors import GraphError, StorageError
from dray.model.job import Enqueued
from dray.model.new_job import NewJob, OnConflict

_INSERT_ROUNDS = 20  # three were too few for 64 producers of one key on two busy cores


def insert(tx: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Writes jobs and their edges in an open transaction."""
    locks = sorted({job.unique_key for job in jobs if job.unique_key is not None})
    if locks:
        tx.run("unique_expire", locks=locks)
    starts = graph.place(tx, jobs)
    written = tx.insert(jobs, starts)
    fresh = {job.id for job, was_written in zip(jobs, written, strict=True) if was_written}
    winners = {} if len(fresh) == len(jobs) else _winners(tx, jobs, fresh, starts)
    graph.wire(tx, jobs, starts, fresh, {job_id: winner.id for job_id, winner in winners.items()})
    return [winners.get(job.id) or Enqueued(job.id, duplicate=False) for job in jobs]


def _winners(tx: Session, jobs: Sequence[NewJob], fresh: set[str], starts: dict[str, Start]) -> dict[str, Enqueued]:
    """For each job that was not written because another holds its unique key: that other, and what became of it.

    Jobs whose key turned out to be free again are written, and added to `fresh`.
    """
    winners: dict[str, Enqueued] = {}
    left = [job for job in jobs if job.id not in fresh]
    for _ in range(_INSERT_ROUNDS):
        # An id that is there already is this very enqueue, whose COMMIT answer was lost: not a duplicate.
        own = {row[0] for row in tx.rows("job_find", ids=[job.id for job in left])}
        left = [job for job in left if job.id not in own]
        winners.update(_meet(tx, left))
        left = [job for job in left if job.id not in winners]
        _refuse_repeated_steps(tx, left)
        if not left:
            return winners
        # The holder ended between our INSERT and our look: the key is free again.
        again = tx.insert(left, starts)
        fresh.update(job.id for job, was_written in zip(left, again, strict=True) if was_written)
        left = [job for job in left if job.id not in fresh]
        if not left:
            return winners
    raise StorageError(
        f"job {left[0].id}: its unique key {left[0].unique_key!r} changed hands "
        f"{_INSERT_ROUNDS} times while it was being enqueued; nothing was written, enqueue it again"
    )


def _refuse_repeated_steps(tx: Session, jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        if job.workflow_id is None or job.step is None:
            continue
        if tx.rows("step_find", workflow_id=job.workflow_id, steps=[job.step]):
            raise GraphError(
                f"workflow {job.workflow_id} has a step {job.step!r} already; give this step another name"
            )


def _meet(tx: Session, jobs: Sequence[NewJob]) -> dict[str, Enqueued]:
    """What becomes of jobs that were not written, where their key is held. Those not in it find their key free."""
    holders = _holders(tx, jobs)
    met = [(job, holders[job.unique_key]) for job in jobs if job.unique_key in holders]
    changed = _change(tx, met)
    if all(job.on_conflict == OnConflict.KEEP or job.id in changed for job, _ in met):
        still = holders
    else:
        # A holder that could not be changed has started, or has ended: then its key may be free.
        still = _holders(tx, [job for job, _ in met])
    return {
        job.id: Enqueued(holder, duplicate=True, replaced=job.id in changed)
        for job, holder in met
        if still.get(job.unique_key) == holder
    }


def _holders(tx: Session, jobs: Iterable[NewJob]) -> dict[str | None, str]:
    keys = sorted({job.unique_key for job in jobs if job.unique_key is not None})
    return dict(tx.rows("unique_find", locks=keys)) if keys else {}


def _change(tx: Session, met: Sequence[tuple[NewJob, str]]) -> set[str]:
    """The jobs whose holders took over what they ask for."""
    # In the order of the holders, so that two enqueues do not wait for each other; of one holder in that of the jobs.
    met = sorted(met, key=lambda pair: pair[1])
    replacing = [pair for pair in met if pair[0].on_conflict == OnConflict.REPLACE]
    rescheduling = [pair for pair in met if pair[0].on_conflict == OnConflict.RESCHEDULE]
    changed = tx.replace(replacing)
    times = [(holder, j.unique_key, j.run_at, j.delay_us, j.expires_at, j.expires_us) for j, holder in rescheduling]
    changed += tx.each("job_reschedule", times)
    pairs = [*replacing, *rescheduling]
    return {job.id for (job, _), was_changed in zip(pairs, changed, strict=True) if was_changed}
