"""What ``--json`` prints, one function for each kind of thing; docs/reference/cli.md describes each.

Names may be added, but never removed or changed in meaning. Times are ISO 8601 in UTC, durations seconds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dray import codec
from dray.cli.output import STATES
from dray.instants import to_datetime
from dray.model.workflow import Workflow, done_of, workflow_state

if TYPE_CHECKING:
    from dray.backends.store.jobs import Node
    from dray.handle import Job
    from dray.handle.job import Attempt, LogLine
    from dray.ops.listing import QueueInfo, WorkerInfo
    from dray.schedules import ScheduleInfo


def _fields(found: Any, names: str) -> dict[str, Any]:
    values = {name: getattr(found, name) for name in names.split()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def job(found: Job[Any]) -> dict[str, Any]:
    return {
        **_fields(found.row, "id task queue state reason priority attempt max_attempts crashes progress"),
        **_fields(found.row, "progress_message error name tags"),
        "worker": found.row.worker_id,
        **_fields(found, "created_at run_at started_at finished_at"),
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


def attempt(found: Attempt) -> dict[str, Any]:
    error = None if found.error is None else _fields(found.error, "type message traceback")
    return {**_fields(found, "number worker outcome started_at finished_at"), "error": error}


def result_text(stored: str | None) -> str:
    """Returns a stored result as JSON, on one line of ASCII."""
    return json.dumps(None if stored is None else codec.decode(stored, path="result"))


def log_line(found: LogLine) -> dict[str, Any]:
    return _fields(found, "seq at level logger message")


def queue(found: QueueInfo) -> dict[str, Any]:
    return {**_fields(found, "name priority paused_at"), **_by_state(found.jobs)}


def schedule(found: ScheduleInfo) -> dict[str, Any]:
    return _fields(
        found,
        "name task queue args rule cron every tz misfire misfire_limit overlap priority"
        " next_at last_at created_at paused_at",
    )


def workflow(found: Workflow, jobs: Mapping[str, int]) -> dict[str, Any]:
    """Returns a workflow, its progress, and its number of jobs by state."""
    done, total = done_of(jobs)
    progress = {"state": workflow_state(jobs), "done": done, "total": total}
    return {**_fields(found, "id name"), **progress, "created_at": to_datetime(found.created_at), **_by_state(jobs)}


def whole_workflow(found: Workflow, steps: Sequence[Node], edges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns a workflow with its steps, in the order they were added."""
    after = defaultdict[str, list[str]](list)
    for parent, child in edges:
        after[child].append(parent)
    made = workflow(found, Counter(step.state for step in steps))
    return {**made, "steps": [{**step._asdict(), "after": after[step.id]} for step in steps]}


def worker(found: WorkerInfo) -> dict[str, Any]:
    return _fields(found, "id name host pid state queues tasks concurrency duties started_at last_seen_at stopped_at")


def _by_state(jobs: Mapping[str, int]) -> dict[str, int]:
    return {state: jobs.get(state, 0) for state in STATES}
