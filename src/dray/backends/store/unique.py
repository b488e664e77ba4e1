"""Two requests under one unique key: the second finds the holder, and changes it where it asks for that.

The key itself is taken by an INSERT and only ever cleared, so nothing here can make a second holder. A holder that
starts or ends meanwhile is left alone: if it keeps the key the answer is that it was kept, if not the key is free.
PostgreSQL locks a row that it has waited for even if it then leaves it alone: a holder that was just being started
is settled once the transaction that met it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from dray.backends.database import Row, Session
from dray.model.job import Enqueued
from dray.model.new_job import NewJob, OnConflict


def meet(tx: Session, jobs: Sequence[NewJob]) -> dict[str, Enqueued]:
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
    changed = tx.replace([_work(*pair) for pair in replacing])
    changed += tx.each("job_reschedule", [_time(*pair) for pair in rescheduling])
    pairs = [*replacing, *rescheduling]
    return {job.id for (job, _), was_changed in zip(pairs, changed, strict=True) if was_changed}


def _work(job: NewJob, holder: str) -> Row:
    return (
        holder,
        job.unique_key,
        job.task,
        job.args,
        job.priority,
        job.max_attempts,
        job.max_crashes,
        job.timeout,
        job.name,
        job.description,
        json.dumps(job.tags) if job.tags else None,
        job.trace,
    )


def _time(job: NewJob, holder: str) -> Row:
    return holder, job.unique_key, job.run_at, job.delay_us, job.expires_at, job.expires_us
