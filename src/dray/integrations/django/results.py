"""A job as Django's TaskResult."""

from __future__ import annotations

import builtins
from dataclasses import fields
from datetime import datetime
from typing import Any

from django.conf import settings
from django.tasks.base import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, TaskError, TaskResult, TaskResultStatus
from django.utils import timezone

from dray import codec
from dray.handle.job import Attempt, Job

_STATUS = {
    "waiting": TaskResultStatus.READY,
    "scheduled": TaskResultStatus.READY,
    "queued": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
_ENDED = {"failed": "dray.errors.JobFailed", "cancelled": "dray.errors.JobCancelled"}


def result_of(job: Job[Any], task: Any, alias: str) -> TaskResult:
    """The result as it is stored now. `task`: as it was defined."""
    attempts = job.attempts()  # reads the job again first
    status = _STATUS[job.state]
    stored = {} if job.row.args is None else codec.decode_args(job.row.args)
    run_after = stored.get("run_after")
    made = TaskResult(
        task=as_stored(
            task,
            priority=max(TASK_MIN_PRIORITY, min(TASK_MAX_PRIORITY, job.priority)),
            queue_name=job.queue,
            run_after=None if run_after is None else datetime.fromisoformat(run_after),
            backend=alias,
        ),
        id=job.id,
        status=status,
        enqueued_at=_local(job.created_at),
        started_at=_local(attempts[0].started_at if attempts else None),
        last_attempted_at=_local(attempts[-1].started_at if attempts else None),
        finished_at=_local(job.finished_at),
        args=stored.get("args") or [],
        kwargs=stored.get("kwargs") or {},
        backend=alias,
        errors=_errors(job, attempts),
        worker_ids=[each.worker or "" for each in attempts],
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(made, "_return_value", codec.decode(job.row.result or "null", path="result"))
    return made


def as_stored(task: Any, **changed: Any) -> Any:
    """A task with other values, unchecked: what is stored is shown, even if it could not be enqueued today."""
    made = object.__new__(type(task))
    for each in fields(task):
        object.__setattr__(made, each.name, changed.get(each.name, getattr(task, each.name)))
    return made


def _errors(job: Job[Any], attempts: list[Attempt]) -> list[TaskError]:
    found = [
        TaskError(exception_class_path=_path(each), traceback=f"{(each.error.traceback or _said(each)).rstrip()}\n")
        for each in attempts
        if each.error is not None
    ]
    if job.state in _ENDED and (job.state == "cancelled" or not found):
        why = f"{_ENDED[job.state]}: {job.reason or job.state}{f': {job.error}' if job.error else ''}\n"
        found.append(TaskError(exception_class_path=_ENDED[job.state], traceback=why))
    return found


def _said(attempt: Attempt) -> str:
    """Instead of a traceback, which a worker that died has not left."""
    assert attempt.error is not None
    return ": ".join(filter(None, (_path(attempt), attempt.error.message)))


def _path(attempt: Attempt) -> str:
    """Where the exception's class can be imported from; of what older releases have written, as far as it is told."""
    assert attempt.error is not None
    if attempt.error.class_path is not None:
        return attempt.error.class_path
    name = attempt.error.type or "Exception"
    return f"builtins.{name}" if hasattr(builtins, name) else "dray.errors.JobFailed"


def _local(at: datetime | None) -> datetime | None:
    """As Django has instants: without a zone if USE_TZ is off."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)
