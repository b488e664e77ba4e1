"""Jobs as producers and operators see them: enqueue, look up, cancel, retry, delete."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dray.backends import rows
from dray.backends.database import Database, Row, Session
from dray.backends.plain import MANY
from dray.backends.store import graph, repeated, unique
from dray.errors import GraphError, StorageError
from dray.model.job import CancelResult, Enqueued, Job, State
from dray.model.limits import ATTEMPTS_KEPT
from dray.model.new_job import NewJob
from dray.model.retention import STEP_ROWS, Budget
from dray.model.workflow import Workflow

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_INSERT_ROUNDS = 3
_ID_CHARS = set("0123456789abcdef-")


def enqueue(
    db: Database,
    known_queues: set[str],
    jobs: Sequence[NewJob],
    workflow: Workflow | None = None,
    connection: Any = None,
    *,
    durable: bool = True,
) -> list[Enqueued]:
    if connection is not None:
        # Not in a user's transaction: until they commit, every other enqueue to a new queue would wait for it.
        return db.join(connection, _writing(jobs, workflow), ready={job.queue for job in jobs})
    new_queues = {job.queue for job in jobs} - known_queues
    answer = db.write(_writing(jobs, workflow, new_queues), durable=durable, many=len(jobs) >= MANY)
    known_queues.update(new_queues)
    return answer


async def enqueue_async(
    db: Database, jobs: Sequence[NewJob], workflow: Workflow | None, connection: Any
) -> list[Enqueued]:
    return await db.join_async(connection, _writing(jobs, workflow), ready={job.queue for job in jobs})


def _writing(
    jobs: Sequence[NewJob], workflow: Workflow | None, new_queues: Collection[str] = ()
) -> Callable[[Session], list[Enqueued]]:
    def work(tx: Session) -> list[Enqueued]:
        if new_queues:
            tx.run("queue_add", names=sorted(new_queues))
        if workflow is not None:
            tx.run("workflow_insert", id=workflow.id, name=workflow.name)
        return insert(tx, jobs)

    return work


def insert(tx: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Writes jobs and their edges in an open transaction."""
    locks = sorted({job.unique_key for job in jobs if job.unique_key is not None})
    if locks:
        tx.run("unique_expire", locks=locks)
    places = graph.place(tx, jobs)
    written = tx.insert([_row(job, places.get(job.id, graph.FREE)) for job in jobs])
    fresh = {job.id for job, was_written in zip(jobs, written, strict=True) if was_written}
    winners = {} if len(fresh) == len(jobs) else _winners(tx, jobs, fresh, places)
    graph.wire(tx, jobs, places, fresh, {job_id: winner.id for job_id, winner in winners.items()})
    return [winners.get(job.id) or Enqueued(job.id, duplicate=False) for job in jobs]


def _winners(
    tx: Session, jobs: Sequence[NewJob], fresh: set[str], places: dict[str, graph.Place]
) -> dict[str, Enqueued]:
    """For each job that was not written because another holds its unique key: that other, and what became of it.

    Jobs whose key turned out to be free again are written, and added to `fresh`.
    """
    winners: dict[str, Enqueued] = {}
    left = [job for job in jobs if job.id not in fresh]
    for _ in range(_INSERT_ROUNDS):
        # An id that is there already is this very enqueue, whose COMMIT answer was lost: not a duplicate.
        own = {row[0] for row in tx.rows("job_find", ids=[job.id for job in left])}
        left = [job for job in left if job.id not in own]
        winners.update(unique.meet(tx, left))
        left = [job for job in left if job.id not in winners]
        _refuse_repeated_steps(tx, left)
        if not left:
            return winners
        # The holder ended between our INSERT and our look: the key is free again.
        again = tx.insert([_row(job, places.get(job.id, graph.FREE)) for job in left])
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


def _row(job: NewJob, place: graph.Place) -> Row:
    return (
        job.id,
        job.task,
        job.queue,
        job.priority,
        job.run_at,
        job.delay_us,
        place.state,
        job.args,
        job.max_attempts,
        job.max_crashes,
        job.timeout,
        job.expires_at,
        job.expires_us,
        job.unique_key,
        job.unique_us,
        job.unique_scope if job.unique_key is not None else None,
        job.workflow_id,
        job.step,
        place.waiting_on,
        job.on_parent_failure,
        job.schedule,
        job.slot,
        job.name,
        job.description,
        json.dumps(job.tags) if job.tags else None,
        job.trace,
    )


def get(db: Database, ids: Sequence[str]) -> list[Job]:
    return [rows.job(row) for row in db.read(lambda tx: tx.rows("job_get", ids=list(ids)))]


def find(db: Database, part: str, limit: int) -> list[str]:
    if not is_part_of_id(part):
        return []
    return [row[0] for row in db.read(lambda tx: tx.rows("job_find_part", pattern=f"%{part}%", limit=limit))]


def is_part_of_id(part: str) -> bool:
    """Whether it can be looked for in ids; anything else would be a pattern of its own."""
    return not set(part) - _ID_CHARS


class Ended(NamedTuple):
    """What those who wait for jobs can be told; the ids in neither of the two are live."""

    jobs: list[Job]
    missing: list[str]


def ended(db: Database, ids: Sequence[str]) -> Ended:
    def work(tx: Session) -> Ended:
        found = dict(tx.rows("job_ended", ids=list(ids)))
        final = [job_id for job_id, has_ended in found.items() if has_ended]
        full = tx.rows("job_get", ids=final) if final else []
        return Ended([rows.job(row) for row in full], [job_id for job_id in ids if job_id not in found])

    return db.read(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs a list shows; what is None does not matter."""

    states: frozenset[State] = frozenset(State)
    reason: str | None = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    workflow_id: str | None = None
    schedule: str | None = None
    since: int | None = None


def list_jobs(db: Database, fit: Filter, limit: int, before: str | None) -> list[Job]:
    asked = {**asdict(fit), "states": sorted(fit.states)}
    found = db.read(lambda tx: tx.listed(asked, before or LAST_ID, limit))
    return [rows.job(row) for row in found]


# The three below answer what they did. A try whose COMMIT went through and whose answer was lost is followed by one
# that finds it done: what an earlier try of the same call wrote counts, if it is there.


def cancel(db: Database, ids: Sequence[str]) -> dict[str, CancelResult]:
    tried: dict[str, str] = {}

    def work(tx: Session) -> dict[str, CancelResult]:
        states: dict[str, str] = dict(tx.rows("job_cancel", ids=list(ids)))
        tx.run("fanout_mark", ids=list(states))
        final = {i: state for i, state, *_ in tx.rows("settle_found", ids=[i for i in ids if i not in states])}
        states |= {i: tried[i] for i, state in final.items() if i in tried and state == State.CANCELLED}
        tried.update(states)
        return {
            i: CancelResult.REQUESTED
            if states.get(i) == State.RUNNING
            else CancelResult.CANCELLED
            if i in states
            else CancelResult.FINAL
            if i in final
            else CancelResult.UNKNOWN
            for i in ids
        }

    answer = db.write(work)
    graph.fan_out_all(db, to_end=True)
    return answer


def retry(db: Database, ids: Sequence[str]) -> list[str]:
    tried: set[str] = set()

    def work(tx: Session) -> list[str]:
        tx.rows("job_lock", ids=list(ids))
        tx.rows("retry_lock_parents", ids=list(ids))
        tx.run("attempt_keep", ids=list(ids))
        tx.run("attempt_trim", ids=list(ids), keep=ATTEMPTS_KEPT)
        retried = [row[0] for row in tx.rows("job_retry", ids=list(ids))]
        tx.forget_results(retried)
        tx.run("retry_own_edges", ids=retried)
        tx.run("retry_wait", ids=retried)
        graph.revive_children(tx, retried)
        before = sorted(tried.difference(retried))
        live = [i for i, has_ended in tx.rows("job_ended", ids=before) if not has_ended] if before else []
        tried.update(retried)
        return retried + live

    return db.write(work) if ids else []


def delete(db: Database, ids: Sequence[str]) -> list[str]:
    found = db.read(lambda tx: tx.rows("job_rows", ids=list(ids), most=STEP_ROWS))
    rows_of: dict[str, int] = dict(found)
    left = sorted(rows_of)
    tried: set[str] = set()
    deleted: set[str] = set()

    def work(tx: Session) -> tuple[list[str], list[str]]:
        budget, gone, later = Budget(db.clock.steady()), list[str](), left
        while later and budget.allowed():
            count = budget.fitting(rows_of[job_id] for job_id in later)
            if not count and budget.spent:
                break
            count = count or 1  # a job goes whole, however large
            some, later = later[:count], later[count:]
            tx.rows("job_lock", ids=some)
            gone += [row[0] for row in tx.rows("job_delete", ids=some)]
            budget.spend(sum(rows_of[job_id] for job_id in some), db.clock.steady())
        before = tried.difference(deleted, gone)
        there = {row[0] for row in tx.rows("job_find", ids=sorted(before))} if before else set[str]()
        tried.update(gone)
        return [*gone, *(before - there)], later

    while left:
        gone, left = db.write(work)
        deleted.update(gone)
    return [job_id for job_id in dict.fromkeys(ids) if job_id in deleted]


def promote(db: Database, limit: int) -> list[str]:
    """The queues that got jobs, one entry a job."""
    return [row[0] for row in repeated.write(db, lambda tx: tx.rows("job_promote", limit=limit), durable=False)]


def next_due(db: Database) -> int | None:
    return db.read(lambda tx: tx.rows("job_next_due"))[0][0]


class Upcoming(NamedTuple):
    """What there is to do for jobs that nobody runs; times in microseconds from now, negative where overdue."""

    due_us: int | None  # the earliest scheduled job
    expires_us: int | None  # the earliest that may not be started any more
    has_fanout: bool  # an ended parent whose children have not been told


def upcoming(db: Database) -> Upcoming:
    due_at, expires_at, has_fanout, now = db.read(lambda tx: tx.rows("job_upcoming"))[0]
    return Upcoming(
        None if due_at is None else due_at - now, None if expires_at is None else expires_at - now, bool(has_fanout)
    )


def expire(db: Database, limit: int) -> list[str]:
    expired = [row[0] for row in repeated.write(db, lambda tx: tx.rows("job_expire", limit=limit))]
    if expired:
        graph.fan_out_all(db)
    return expired
