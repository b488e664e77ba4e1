"""Events: what happened to jobs, workers and queues, and what was logged, as those who follow are told of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dray.instants import SECOND, to_datetime
from dray.model.job import FINAL, UNSTARTED, State

if TYPE_CHECKING:
    from dray.backends.store.live import LiveJob, LiveLine, LiveWorker

# What happened at the same microsecond is told in this order.
_ORDER = (
    *("worker_started", "enqueued", "started", "log", "returned", "retrying", "completed", "failed", "cancelled"),
    *("worker_stopped", "worker_died", "queue_paused", "queue_resumed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something happened to a job; the rest is as it was right after that."""

    at: datetime
    event: str
    job: str
    task: str
    queue: str
    state: str
    reason: str | None = None
    attempt: int = 0
    max_attempts: int
    worker: str | None = None
    error: str | None = None
    run_at: datetime | None = None  # of those that wait for it
    seconds: float | None = None  # that the body ran, of those that ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """A line was logged inside a job."""

    at: datetime
    event: str = "log"
    job: str
    task: str
    queue: str
    seq: int
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent:
    """A worker came or went."""

    at: datetime
    event: str
    worker: str
    name: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """A queue was paused or resumed."""

    at: datetime
    event: str
    queue: str


Event = JobEvent | LogEvent | WorkerEvent | QueueEvent


def in_order(events: list[Event]) -> list[Event]:
    """Events by their time."""
    return sorted(events, key=lambda event: (event.at, _ORDER.index(event.event)))


def enqueued(job: LiveJob) -> JobEvent:
    """The job as it was when it came, whatever it has become since."""
    is_later = job.run_at > job.created_at
    state = job.state if job.state in UNSTARTED else State.SCHEDULED if is_later else State.QUEUED
    return JobEvent(
        at=to_datetime(job.created_at),
        event="enqueued",
        job=job.id,
        task=job.task,
        queue=job.queue,
        state=str(state),
        max_attempts=job.max_attempts,
        run_at=to_datetime(job.run_at) if is_later else None,
    )


def of_job(job: LiveJob, event: str, at: int) -> JobEvent:
    """What has just happened to a job, which is still as that left it."""
    began, finished = job.started_at, job.finished_at
    waits = job.state in UNSTARTED and job.run_at > job.updated_at
    return JobEvent(
        at=to_datetime(at),
        event=event,
        job=job.id,
        task=job.task,
        queue=job.queue,
        state=job.state,
        reason=job.reason,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        worker=job.worker_id,
        error=None if event == "started" else job.error,
        run_at=to_datetime(job.run_at) if waits else None,
        seconds=(finished - began) / SECOND if job.state in FINAL and began and finished else None,
    )


def logged(line: LiveLine) -> LogEvent:
    return LogEvent(
        at=to_datetime(line.at),
        job=line.job_id,
        task=line.task,
        queue=line.queue,
        seq=line.seq,
        level=line.level,
        logger=line.logger,
        message=line.message,
    )


def of_worker(worker: LiveWorker, event: str, at: int) -> WorkerEvent:
    return WorkerEvent(
        at=to_datetime(at), event=event, worker=worker.id, name=worker.name, host=worker.host, pid=worker.pid
    )
