"""Things as JSON shows them, one function for each kind: for ``--json``, the dashboard and agents.
docs/reference/json.md describes each.

Names may be added, but never removed or changed in meaning. Times are ISO 8601 in UTC, durations seconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dray import codec
from dray.app_interface import AppInterface
from dray.backends.store.jobs import Drawing
from dray.errors import PayloadError
from dray.handle.job import Attempt, Job
from dray.instants import SECOND, to_datetime
from dray.model.action import Action
from dray.model.job import State
from dray.model.job_retry import decode_retry, policy_text
from dray.model.workflow import Tally, Workflow, done_of, workflow_state
from dray.ops.listing import QueueInfo, values_of

if TYPE_CHECKING:
    from dray.ops.why import Why

log_line = partial(values_of, names="seq at level logger message claim")
worker = partial(
    values_of, names="id name host pid state queues tasks concurrency duties started_at last_seen_at stopped_at"
)
schedule = partial(
    values_of,
    names="name task queue args rule cron every tz misfire misfire_limit overlap priority next_at last_at created_at "
    "paused_at",
)


def action(found: Action) -> dict[str, Any]:
    told = values_of(found, "who via verb kind target note done refused")
    return {"id": found.id, "at": to_datetime(found.at), **told}


def job(found: Job[Any], workflow_name: str | None = None) -> dict[str, Any]:
    return {
        **values_of(found.row, "id task queue state reason priority attempt max_attempts crashes progress"),
        **values_of(found.row, "progress_message error name tags"),
        "worker": found.row.worker_id,
        **values_of(found, "created_at run_at started_at finished_at"),
        "workflow": found.row.workflow_id,
        "workflow_name": workflow_name,
        **values_of(found.row, "step schedule"),
    }


def jobs(app: AppInterface, found: Sequence[Job[Any]]) -> list[dict[str, Any]]:
    """Returns jobs, with the names of their workflows."""
    names = _workflow_names(app, found)
    return [job(each, names.get(each.id)) for each in found]


def whole_jobs(app: AppInterface, ids: Sequence[str]) -> list[dict[str, Any]]:
    found = [Job[Any](app, job_id).refresh() for job_id in ids]
    names = _workflow_names(app, found)
    return [whole_job(each, names.get(each.id)) for each in found]


def _workflow_names(app: AppInterface, found: Sequence[Job[Any]]) -> dict[str, str]:
    """Returns job id -> the name of its workflow."""
    workflows = {each.id: each.row.workflow_id for each in found if each.row.workflow_id is not None}
    names = app.backend.workflows.names(sorted(set(workflows.values())))
    return {job_id: names[workflow_id] for job_id, workflow_id in workflows.items() if workflow_id in names}


def whole_job(found: Job[Any], workflow_name: str | None = None, *, is_lenient: bool = False) -> dict[str, Any]:
    """`is_lenient`: arguments and a result that cannot be read (written by hand) are None instead of an error."""
    attempts = [attempt(each) for each in found.attempts()]  # reads the job again
    row = found.row
    retry = decode_retry(row.retry)
    return {
        **job(found, workflow_name),
        "description": row.description,
        "args": _read(lambda: found.args, is_lenient=is_lenient),
        "result": _read(lambda: result(found), is_lenient=is_lenient),
        "timeout": row.timeout,
        "expires_at": found.expires_at,
        "unique": row.unique_key,
        "headers": found.headers,
        "retry": None if retry.policy is None else policy_text(retry.policy),
        "retry_on": sorted(retry.names),
        "keep_for": None if row.keep_us is None else row.keep_us / SECOND,
        "waiting_on": row.waiting_on,
        "slot": found.slot,
        "is_cancel_requested": row.cancel_requested_at is not None,
        "attempts": attempts,
    }


def result(found: Job[Any]) -> Any:
    stored = found.row.result
    return None if stored is None else codec.decode(stored, path="result")


def _read(value: Callable[[], Any], *, is_lenient: bool) -> Any:
    try:
        return value()
    except PayloadError:
        if is_lenient:
            return None
        raise


def attempt(found: Attempt) -> dict[str, Any]:
    error = None if found.error is None else values_of(found.error, "type message traceback")
    return {**values_of(found, "number worker outcome started_at finished_at start claim"), "error": error}


def why(found: Why) -> dict[str, Any]:
    causes = [{"kind": each.kind.value, "text": each.text, **each.facts} for each in found.causes]
    return {**values_of(found.job, "id task queue state reason"), "causes": causes, "stack": found.stack}


def result_text(stored: str | None) -> str:
    """Returns a stored result as JSON, on one line of ASCII."""
    return json.dumps(None if stored is None else codec.decode(stored, path="result"))


def queue(found: QueueInfo) -> dict[str, Any]:
    return {**values_of(found, "name priority paused_at"), **_by_state(found.jobs)}


def workflow(found: Workflow, tally: Tally) -> dict[str, Any]:
    """Returns a workflow, its progress, and its number of jobs by state."""
    done, total = done_of(tally.counts)
    progress = {"state": workflow_state(tally), "done": done, "total": total}
    made = {**values_of(found, "id name"), **progress, "created_at": to_datetime(found.created_at)}
    return {**made, **_by_state(tally.counts)}


def whole_workflow(found: Workflow, drawing: Drawing) -> dict[str, Any]:
    """Returns a workflow with its steps, in the order they were added."""
    after = defaultdict[str, list[str]](list)
    for parent, child in drawing.edges:
        after[child].append(parent)
    steps = [{**step._asdict(), "after": after[step.id]} for step in drawing.nodes]
    return {**workflow(found, drawing.tally), "steps": steps}


def _by_state(jobs: Mapping[str, int]) -> dict[str, int]:
    return {state.value: jobs.get(state, 0) for state in State}
