"""What `dray why` reads: all that the tables say about one job, and where its running body is.

A stack is asked for in a row; the worker that runs the body writes the answer into it. No stack is durable or needed:
one that a power loss forgets is asked for again.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.backends import rows
from dray.backends.database import Session
from dray.backends.store import Store
from dray.backends.store.liveness import liveness
from dray.model.circumstances import AHEAD_LIMIT, PARENTS_LIMIT, Circumstances, Closed, Parent, WorkerView
from dray.model.job import Attempt, Job, State
from dray.model.limits import PRUNE_CHUNK

_WORKERS = 1_000


class Asked(NamedTuple):
    """A request to a worker for the stack of the body of this claim."""

    id: str
    job_id: str
    claim: int


class StackStore(Store):
    def ask(self, stack_id: str, job_id: str, claim: int) -> bool:
        """Asks the worker that runs a job for the stack of its body; `announce` the queue, so that it looks. False:
        the job does not run under this claim."""
        given = {"stack_id": stack_id, "id": job_id, "claim": claim}
        return self._db.write(lambda tx: tx.run("stack_ask", **given), durable=False) > 0

    def read(self, stack_id: str) -> str | None:
        """The stack, empty if the body has not begun or is over; None: the worker has not written it yet."""
        found = self._db.glance("stack_read", id=stack_id)
        return found[0][0] if found else None

    def answer(self, worker_id: str, stack_id: str, stack: str) -> bool:
        """Writes the stack that `work.look` asked for. False: the request was dropped."""
        given = {"id": stack_id, "worker_id": worker_id, "stack": stack}
        return self._db.write(lambda tx: tx.run("stack_answer", **given), durable=False) > 0

    def drop(self, stack_id: str) -> None:
        self._db.write(lambda tx: tx.run("stack_drop", id=stack_id), durable=False)

    def prune(self, before: int, limit: int = PRUNE_CHUNK) -> int:
        """Removes at most `limit` requests from before an instant that were never dropped."""
        return self._db.write(lambda tx: tx.run("stack_prune", before=before, limit=limit), durable=False)


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
                ahead=_ahead(tx, job) if job.state == State.QUEUED else {},
                last=Attempt(*last[0]) if last else None,
                closed=Closed.of(dict(tx.rows("meta_list"))),
            )

        return self._db.read(work)

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


def _ahead(tx: Session, job: Job) -> dict[str, int]:
    place = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at, "id": job.id}
    return {task: min(n, AHEAD_LIMIT) for task, n in tx.rows("ready_ahead", **place, limit=AHEAD_LIMIT) if n}
