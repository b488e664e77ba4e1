"""What `dray why` reads: all that the tables say about one job. Where its running body is: see `stacks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dray.backends import rows
from dray.backends.database import Session
from dray.backends.store import Store
from dray.backends.store.graph import lost_parents
from dray.backends.store.limits import stored_rule
from dray.backends.store.liveness import liveness
from dray.model.causes import Standstill, standstill
from dray.model.circumstances import (
    AHEAD_LIMIT,
    HOLDERS_LIMIT,
    PARENTS_LIMIT,
    Circumstances,
    Closed,
    LimitHolder,
    LimitUse,
    Parent,
    Turn,
    WorkerView,
)
from dray.model.job import UNSTARTED, Attempt, Job, State
from dray.model.limit import KEY_KINDS, RATE_KINDS, Kind, StoredRule, opens_at

_WORKERS = 1_000
_ORDER = [*Kind]  # in which limits are told


class WhyStore(Store):
    def circumstances(self, job_id: str) -> Circumstances | None:
        """One job with its queue, parents, the workers there are and what comes before it; None: there is none."""
        now = self._db.now()

        def work(tx: Session) -> Circumstances | None:
            found = tx.rows("job_get", ids=[job_id])
            if not found:
                return None
            job = rows.job(found[0])
            workers = self._workers(tx)
            parents = tx.rows("parents_open", id=job_id, limit=PARENTS_LIMIT)
            queue = tx.rows("queue_get", name=job.queue)
            last = tx.rows("attempt_last", id=job_id)
            return Circumstances(
                now=now,
                job=job,
                paused_at=queue[0][2] if queue else None,
                workers=workers,
                holder=_holder(tx, job, workers),
                parents=tuple(Parent(*row) for row in parents),
                start=_start(tx, job, last[0][1] if last else None),
                lost=lost_parents(tx, job_id),
                ahead=_ahead(tx, job) if job.state == State.QUEUED else {},
                ahead_keyed=_ahead_keyed(tx, job) if job.state == State.QUEUED else {},
                last=Attempt(*last[0]) if last else None,
                closed=Closed.of(dict(tx.rows("meta_list"))),
                limits=tuple(_limits(tx, job)) if job.state in UNSTARTED else (),
                turn=_turn(tx, job) if job.state == State.QUEUED and job.key is not None else None,
            )

        return self._db.read(work)

    def standstill(self, job_id: str) -> Standstill | None:
        """Why a job that has not ended does not run; None: it runs, or there is none."""
        around = self.circumstances(job_id)
        return None if around is None else standstill(around)

    def of_each_kind(self, ids: Sequence[str]) -> list[str]:
        """Of jobs that are waited for, a live one of each task, queue and state; those not started come first."""
        found = self._read("live_kinds", ids=list(ids))
        return [row[0] for row in sorted(found, key=lambda row: (row[3] == State.RUNNING, row[0]))]

    def _workers(self, tx: Session) -> tuple[WorkerView, ...]:
        found = {each.signs.id: each for each in liveness(self._db, tx)}
        loads = dict(tx.rows("worker_loads"))
        listed = [rows.worker(row) for row in tx.rows("worker_list", limit=_WORKERS)]
        return tuple(
            WorkerView(worker, loads.get(worker.id, 0), found[worker.id].is_proven, found[worker.id].left_us)
            for worker in listed
            if worker.id in found
        )


def _holder(tx: Session, job: Job, workers: tuple[WorkerView, ...]) -> WorkerView | None:
    if job.state != State.RUNNING or job.worker_id is None:
        return None
    if (view := next((each for each in workers if each.worker.id == job.worker_id), None)) is not None:
        return view
    found = tx.rows("worker_get", id=job.worker_id)
    return WorkerView(rows.worker(found[0]), 1, is_proven=None, left_us=None) if found else None


def _start(tx: Session, job: Job, last_claim: int | None) -> int:
    """Each start has one first attempt; that of a job that runs, or has completed, is not recorded yet."""
    recorded = tx.rows("attempt_starts", id=job.id)[0][0]
    is_first = job.attempt == 1 and last_claim != job.claim and job.state in {State.RUNNING, State.COMPLETED}
    return max(1, recorded + is_first)


def _ahead(tx: Session, job: Job) -> dict[str, int]:
    place = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at, "id": job.id}
    return {task: min(n, AHEAD_LIMIT) for task, n in tx.rows("ready_ahead", **place, limit=AHEAD_LIMIT) if n}


def _ahead_keyed(tx: Session, job: Job) -> dict[str, int]:
    but = "" if job.key is None else job.task  # of these its turn tells
    found = tx.rows("ready_ahead_keyed", queue=job.queue, priority=job.priority, but=but, limit=AHEAD_LIMIT)
    return {task: n for task, n in found if n}


def _limits(tx: Session, job: Job) -> Iterator[LimitUse]:
    found = [*tx.rows("limit_of", scope="queue", name=job.queue), *tx.rows("limit_of", scope="task", name=job.task)]
    for rule in sorted(map(stored_rule, found), key=lambda rule: (rule.scope, _ORDER.index(Kind(rule.kind)))):
        if rule.in_force and (rule.kind not in KEY_KINDS or job.key is not None):
            yield _use(tx, rule, job.key if rule.kind in KEY_KINDS else None)


def _use(tx: Session, rule: StoredRule, key: str | None) -> LimitUse:
    given = {"scope": rule.scope, "name": rule.name}
    most = rule.bound.most
    if rule.kind in RATE_KINDS:
        starts = tx.rows("starts_list", **given, key=key or "", period_us=rule.period_us)
        opening = opens_at(starts, most, rule.period_us)
        return LimitUse(rule, most, sum(n for _, n in starts), opens_at=opening)
    held = tx.rows("held_by", **given, key=key, limit=HOLDERS_LIMIT)
    return LimitUse(rule, most, held[0][0] if held else 0, tuple(LimitHolder(*row[1:]) for row in held))


def _turn(tx: Session, job: Job) -> Turn:
    line = {"queue": job.queue, "task": job.task, "priority": job.priority, "key": job.key}
    keys, of_key, higher = tx.rows("turns_ahead", **line, run_at=job.run_at, id=job.id, limit=AHEAD_LIMIT)[0]
    return Turn(keys, of_key, higher)
