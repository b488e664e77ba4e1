"""All that the tables say about one job, for whoever explains it."""

from __future__ import annotations

from dray.backends import rows
from dray.backends.database import Database, Session
from dray.backends.proof import are_comparable
from dray.model.circumstances import AHEAD_LIMIT, PARENTS_LIMIT, Circumstances, Closed, Parent, WorkerView
from dray.model.job import Attempt, Job, State
from dray.model.worker import Signs, Worker

_WORKERS = 1_000


def get(db: Database, job_id: str) -> Circumstances | None:
    now = db.now()

    def work(tx: Session) -> Circumstances | None:
        found = tx.rows("job_get", ids=[job_id])
        if not found:
            return None
        job = rows.job(found[0])
        workers = _workers(db, tx)
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
            ahead=_ahead(tx, job) if job.state == State.QUEUED else {},
            last=Attempt(*last[0]) if last else None,
            closed=Closed.of(dict(tx.rows("meta_list"))),
        )

    return db.read(work)


def _workers(db: Database, tx: Session) -> tuple[WorkerView, ...]:
    signs = {sign.id: sign for sign in (Signs(*row) for row in tx.rows("worker_live"))}
    proven = db.proofs.witness(tx, list(signs.values()))
    loads = dict(tx.rows("worker_loads"))
    listed = [rows.worker(row) for row in tx.rows("worker_list", limit=_WORKERS)]
    return tuple(_view(db, worker, signs[worker.id], proven, loads) for worker in listed if worker.id in signs)


def _view(db: Database, worker: Worker, sign: Signs, proven: dict[str, bool], loads: dict[str, int]) -> WorkerView:
    is_comparable = are_comparable(db.boot, worker.boot)
    return WorkerView(worker, loads.get(worker.id, 0), proven.get(worker.id), sign.left_us if is_comparable else None)


def _holder(tx: Session, job: Job, workers: tuple[WorkerView, ...]) -> WorkerView | None:
    if job.state != State.RUNNING or job.worker_id is None:
        return None
    for view in workers:
        if view.worker.id == job.worker_id:
            return view
    found = tx.rows("worker_get", id=job.worker_id)
    return WorkerView(rows.worker(found[0]), 1, is_proven=None, left_us=None) if found else None


def _ahead(tx: Session, job: Job) -> dict[str, int]:
    place = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at, "id": job.id}
    return {task: min(n, AHEAD_LIMIT) for task, n in tx.rows("ready_ahead", **place, limit=AHEAD_LIMIT) if n}
