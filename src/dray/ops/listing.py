"""What there is: numbers, queues, workers, workflows."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dray.errors import UnknownWorkflow
from dray.handle.run import done_of
from dray.instants import SECOND, to_datetime
from dray.model.job import State
from dray.model.values import duration_us
from dray.model.worker import WorkerState
from dray.model.workflow import Workflow, workflow_state

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store import history


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of the whole database at one moment. Times are in seconds."""

    states: dict[str, int]  # jobs by state
    queues: dict[str, dict[str, int]]  # queue -> jobs by state
    oldest_queued: dict[str, float]  # queue -> how long its first job has been ready
    window: float  # the time that the numbers below are of, until now
    finished: dict[str, int]  # jobs that ended, by state
    throughput: float  # jobs that ended, a second
    p50: float | None  # how long completed bodies ran: half of them at most so long
    p95: float | None

    @property
    def oldest_queued_age(self) -> float | None:
        """How long the first ready job of all has been waiting."""
        return max(self.oldest_queued.values(), default=None)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**asdict(self), "oldest_queued_age": self.oldest_queued_age}


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue and what is in it."""

    name: str
    priority: int  # of jobs that name none
    paused_at: datetime | None
    jobs: dict[str, int]  # by state

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, alive or not."""

    id: str
    name: str
    host: str
    pid: int
    state: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    duties: tuple[str, ...]
    started_at: datetime
    last_seen_at: datetime
    stopped_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """A workflow and how far it is."""

    id: str
    name: str
    state: str
    done: int  # jobs that have ended
    total: int
    created_at: datetime
    jobs: dict[str, int]  # by state


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One job of a workflow."""

    id: str
    step: str | None
    task: str
    state: str
    reason: str | None
    after: tuple[str, ...]  # the jobs that it waits for, or did


def stats(backend: Backend, window: float | timedelta) -> Stats:
    """The numbers of the whole database; the newest of them within a window until now."""
    found = backend.history.stats(duration_us("window", window, low_us=1))
    return _shown(found)


def _shown(found: history.JobStats) -> Stats:
    seconds = found.window_us / SECOND
    states = {state.value: sum(jobs.get(state, 0) for jobs in found.counts.values()) for state in State}
    return Stats(
        states=states,
        queues={queue: dict(jobs) for queue, jobs in found.counts.items()},
        oldest_queued={queue: us / SECOND for queue, us in found.oldest_queued_us.items()},
        window=seconds,
        finished={state: found.finished.get(state, 0) for state in ("completed", "failed", "cancelled")},
        throughput=sum(found.finished.values()) / seconds,
        p50=None if found.p50_us is None else found.p50_us / SECOND,
        p95=None if found.p95_us is None else found.p95_us / SECOND,
    )


def queues(backend: Backend) -> list[QueueInfo]:
    """All queues by name: those that were set, served or paused, and those that have jobs."""
    counts = backend.history.stats(SECOND).counts
    known = {queue.name: queue for queue in backend.queues.all()}
    return [
        QueueInfo(
            name,
            known[name].priority if name in known else 0,
            moment(known[name].paused_at if name in known else None),
            counts.get(name, {}),
        )
        for name in sorted({*counts, *known})
    ]


def workers(backend: Backend) -> list[WorkerInfo]:
    """Workers that live, then those that ended, and who has which duty. Dead: also if nobody has noticed yet."""
    gone = backend.workers.gone()
    held = [(lease.holder, lease.duty) for lease in backend.leases.all()]
    return [
        WorkerInfo(
            worker.id,
            worker.name,
            worker.host,
            worker.pid,
            WorkerState.DEAD.value if worker.id in gone else worker.state,
            worker.queues,
            worker.tasks,
            worker.concurrency,
            tuple(duty for holder, duty in held if holder == worker.id),
            to_datetime(worker.started_at),
            to_datetime(worker.last_seen_at),
            moment(worker.stopped_at),
        )
        for worker in backend.workers.all()
    ]


def workflows(backend: Backend, limit: int) -> list[WorkflowInfo]:
    """The newest workflows."""
    rows = backend.workflows.newest(limit=limit)
    counts = backend.workflows.tallies([row.id for row in rows]) if rows else {}
    return [_workflow_info(row, counts[row.id]) for row in rows]


def workflow(backend: Backend, workflow_id: str) -> tuple[WorkflowInfo, list[StepInfo]]:
    """One workflow with its jobs."""
    found = backend.workflows.get(workflow_id)
    if found is None:
        raise UnknownWorkflow(f"no workflow has the id {workflow_id}")
    nodes, edges = backend.workflows.drawing(workflow_id)
    parents: dict[str, list[str]] = {}
    for parent, child in edges:
        parents.setdefault(child, []).append(parent)
    steps = [StepInfo(*node, tuple(parents.get(node.id, ()))) for node in nodes]
    return _workflow_info(found[0], Counter(node.state for node in nodes)), steps


def _workflow_info(row: Workflow, counts: dict[str, int]) -> WorkflowInfo:
    done, total = done_of(counts)
    created_at = to_datetime(row.created_at)
    return WorkflowInfo(row.id, row.name, workflow_state(counts), done, total, created_at, dict(counts))


def moment(at: int | None) -> datetime | None:
    """An instant that may not have come."""
    return None if at is None else to_datetime(at)
