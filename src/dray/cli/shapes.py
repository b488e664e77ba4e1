"""What ``--json`` prints, one function for each kind of thing; docs/reference/cli.md describes each.

Names may be added, but never removed or changed in meaning. Times are ISO 8601 in UTC, durations seconds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import dray
from dray import codec
from dray.backends.store.jobs import Node
from dray.cli.output import STATES
from dray.handle.job import Attempt
from dray.instants import to_datetime
from dray.model.workflow import Workflow, done_of, workflow_state
from dray.ops.listing import QueueInfo, values_of

log_line = partial(values_of, names="seq at level logger message")
worker = partial(
    values_of, names="id name host pid state queues tasks concurrency duties started_at last_seen_at stopped_at"
)
schedule = partial(
    values_of,
    names="name task queue args rule cron every tz misfire misfire_limit overlap priority next_at last_at created_at "
    "paused_at",
)


def job(found: dray.Job[Any]) -> dict[str, Any]:
    return {
        **values_of(found.row, "id task queue state reason priority attempt max_attempts crashes progress"),
        **values_of(found.row, "progress_message error name tags"),
        "worker": found.row.worker_id,
        **values_of(found, "created_at run_at started_at finished_at"),
    }


def whole_job(found: dray.Job[Any]) -> dict[str, Any]:
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
        **values_of(row, "step waiting_on schedule"),
        "slot": found.slot,
        "is_cancel_requested": row.cancel_requested_at is not None,
        "attempts": attempts,
    }


def attempt(found: Attempt) -> dict[str, Any]:
    error = None if found.error is None else values_of(found.error, "type message traceback")
    return {**values_of(found, "number worker outcome started_at finished_at"), "error": error}


def result_text(stored: str | None) -> str:
    """Returns a stored result as JSON, on one line of ASCII."""
    return json.dumps(None if stored is None else codec.decode(stored, path="result"))


def queue(found: QueueInfo) -> dict[str, Any]:
    return {**values_of(found, "name priority paused_at"), **_by_state(found.jobs)}


def workflow(found: Workflow, jobs: Mapping[str, int]) -> dict[str, Any]:
    """Returns a workflow, its progress, and its number of jobs by state."""
    done, total = done_of(jobs)
    progress = {"state": workflow_state(jobs), "done": done, "total": total}
    return {**values_of(found, "id name"), **progress, "created_at": to_datetime(found.created_at), **_by_state(jobs)}


def whole_workflow(found: Workflow, steps: Sequence[Node], edges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns a workflow with its steps, in the order they were added."""
    after = defaultdict[str, list[str]](list)
    for parent, child in edges:
        after[child].append(parent)
    made = workflow(found, Counter(step.state for step in steps))
    return {**made, "steps": [{**step._asdict(), "after": after[step.id]} for step in steps]}


def _by_state(jobs: Mapping[str, int]) -> dict[str, int]:
    return {state: jobs.get(state, 0) for state in STATES}
