"""What ``--json`` prints, one function for each kind of thing; docs/reference/cli.md describes each.

Names may be added, but never removed or changed in meaning. Times are ISO 8601 in UTC, durations seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dray import codec
from dray.cli.output import STATES

if TYPE_CHECKING:
    from dray.handle import Job
    from dray.handle.job import Attempt, LogLine
    from dray.ops import QueueInfo, StepInfo, WorkerInfo, WorkflowInfo
    from dray.schedules import ScheduleInfo


def job(found: Job[Any]) -> dict[str, Any]:
    """Returns a job, as in lists."""
    row = found.row
    return {
        "id": found.id,
        "task": row.task,
        "queue": row.queue,
        "state": row.state,
        "reason": row.reason,
        "priority": row.priority,
        "attempt": row.attempt,
        "max_attempts": row.max_attempts,
        "crashes": row.crashes,
        "progress": row.progress,
        "progress_message": row.progress_message,
        "error": row.error,
        "name": row.name,
        "tags": list(row.tags),
        "worker": row.worker_id,
        "created_at": found.created_at,
        "run_at": found.run_at,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
    }


def whole_job(found: Job[Any]) -> dict[str, Any]:
    """Returns a job with everything that is known about it."""
    attempts = [attempt(each) for each in found.attempts()]  # reads the job again
    row = found.row
    return {
        **job(found),
        "description": row.description,
        "args": found.args,
        "result": None if row.result is None else codec.decode(row.result, path="result"),
        "timeout": row.timeout,
        "expires_at": found.expires_at,
        "unique": row.unique_key,
        "workflow": row.workflow_id,
        "step": row.step,
        "waiting_on": row.waiting_on,
        "schedule": row.schedule,
        "slot": found.slot,
        "is_cancel_requested": row.cancel_requested_at is not None,
        "attempts": attempts,
    }


def attempt(each: Attempt) -> dict[str, Any]:
    error = each.error
    return {
        "number": each.number,
        "worker": each.worker,
        "outcome": each.outcome,
        "started_at": each.started_at,
        "finished_at": each.finished_at,
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "traceback": error.traceback},
    }


def json_text(value: Any) -> str:
    """Returns a value as JSON, on one line of ASCII."""
    return json.dumps(value)


def result_text(stored: str | None) -> str:
    """Returns a stored result as JSON, on one line of ASCII."""
    return json_text(None if stored is None else codec.decode(stored, path="result"))


def log_line(line: LogLine) -> dict[str, Any]:
    return {"seq": line.seq, "at": line.at, "level": line.level, "logger": line.logger, "message": line.message}


def queue(found: QueueInfo) -> dict[str, Any]:
    """Returns a queue and its number of jobs by state."""
    counts = {state: found.jobs.get(state, 0) for state in STATES}
    return {"name": found.name, "priority": found.priority, "paused_at": found.paused_at, **counts}


def schedule(found: ScheduleInfo) -> dict[str, Any]:
    return {
        "name": found.name,
        "task": found.task,
        "queue": found.queue,
        "args": found.args,
        "rule": found.rule,
        "cron": found.cron,
        "every": found.every,
        "tz": found.tz,
        "misfire": found.misfire,
        "misfire_limit": found.misfire_limit,
        "overlap": found.overlap,
        "priority": found.priority,
        "next_at": found.next_at,
        "last_at": found.last_at,
        "created_at": found.created_at,
        "paused_at": found.paused_at,
    }


def workflow(found: WorkflowInfo) -> dict[str, Any]:
    """Returns a workflow, its progress, and its number of jobs by state."""
    return {
        "id": found.id,
        "name": found.name,
        "state": found.state,
        "done": found.done,
        "total": found.total,
        "created_at": found.created_at,
        **{state: found.jobs.get(state, 0) for state in STATES},
    }


def whole_workflow(found: WorkflowInfo, steps: Sequence[StepInfo]) -> dict[str, Any]:
    """Returns a workflow with its steps, in the order they were added."""
    return {**workflow(found), "steps": [{**asdict(step), "after": list(step.after)} for step in steps]}


def worker(found: WorkerInfo) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "host": found.host,
        "pid": found.pid,
        "state": found.state,
        "queues": list(found.queues),
        "tasks": list(found.tasks),
        "concurrency": found.concurrency,
        "duties": list(found.duties),
        "started_at": found.started_at,
        "last_seen_at": found.last_seen_at,
        "stopped_at": found.stopped_at,
    }
