"""The one place where people act: the command line, the dashboard and agents call this.

Each action leaves a row in `dray_actions`, written in the transaction of what it does; one that is refused leaves a
row too. An error before anything was done (an unknown schedule, a name that cannot be) leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from dray import codec
from dray.app_interface import AppInterface
from dray.errors import ConfigError, UnknownJob, UnknownWorkflow
from dray.handle import job as handles
from dray.handle.job import Job
from dray.handle.run import Run, cancel_run, check_most, retryable
from dray.model.action import By, Kind, NewAction, Verb, ids_target
from dray.model.job import FINAL, CancelResult
from dray.model.limit import Bounds, Scope
from dray.model.new_job import NewJob
from dray.model.values import check_name, parse_id
from dray.model.workflow import Workflow
from dray.ops import limits, pruning
from dray.wording import listed, span

_CHUNK = 500  # jobs in one transaction
STAYS = "it runs, or a job that runs after it has not completed and may need it: delete that one first"
_LOOKED_UP = 100  # refused jobs of which the row is read to say why
_EXPLAINED = 20  # and of which the parents are: each takes two reads


class Acted(NamedTuple):
    """What became of jobs."""

    done: list[str]
    refused: dict[str, str]  # id -> why, in words


# Jobs


def retry(
    core: AppInterface, ids: Sequence[str], by: By, *, action_id: str | None = None, target: str | None = None
) -> Acted:
    """Starts ended jobs over, 500 a transaction. `action_id`: of the action that this is a part of. `target`: the
    words of the search that found the jobs."""
    chosen = _whole_ids(ids)
    action = _on_jobs(core, "retry", chosen, by, action_id, target)
    # Oldest first: a job comes after its parents, and can start over with them.
    return _each_chunk(core, sorted(chosen), action, handles.retry, _why_not_retried)


def cancel(
    core: AppInterface, ids: Sequence[str], by: By, *, action_id: str | None = None, target: str | None = None
) -> Acted:
    """Cancels jobs that have not started, and asks running ones to stop. The rest as `retry`."""
    chosen = _whole_ids(ids)
    action = _on_jobs(core, "cancel", chosen, by, action_id, target)
    return _each_chunk(core, chosen, action, _cancelled, partial(_gone_or, "it had ended already"))


def delete(
    core: AppInterface, ids: Sequence[str], by: By, *, action_id: str | None = None, target: str | None = None
) -> Acted:
    """Removes jobs with their history, but for running ones and those that others need. The rest as `retry`."""
    chosen = _whole_ids(ids)
    action = _on_jobs(core, "delete", chosen, by, action_id, target)
    # The newest first: a job comes before its parents, which can go once it has gone.
    return _each_chunk(core, sorted(chosen, reverse=True), action, _deleted, partial(_gone_or, STAYS))


def _on_jobs(
    core: AppInterface, verb: Verb, ids: Sequence[str], by: By, action_id: str | None, target: str | None
) -> NewAction:
    kind, named = ids_target(ids)
    return _new(core, by, verb, "jobs", target, action_id) if target else _new(core, by, verb, kind, named, action_id)


def _each_chunk(
    core: AppInterface,
    ids: Sequence[str],
    action: NewAction,
    act: Callable[[AppInterface, Sequence[str], NewAction], Collection[str]],
    why_not: Callable[[AppInterface, Sequence[str]], dict[str, str]],
) -> Acted:
    if not ids:
        core.backend.actions.note(action)
    done: set[str] = set()
    for start in range(0, len(ids), _CHUNK):
        done.update(act(core, ids[start : start + _CHUNK], action))
    refused = [job_id for job_id in ids if job_id not in done]
    return Acted([job_id for job_id in ids if job_id in done], why_not(core, refused) if refused else {})


def _cancelled(core: AppInterface, ids: Sequence[str], action: NewAction) -> list[str]:
    results = handles.cancel(core, ids, action)
    return [i for i, result in results.items() if result in {CancelResult.CANCELLED, CancelResult.REQUESTED}]


def _deleted(core: AppInterface, ids: Sequence[str], action: NewAction) -> list[str]:
    return core.backend.jobs.delete(ids, action=action)


def _why_not_retried(core: AppInterface, ids: Sequence[str]) -> dict[str, str]:
    words = dict.fromkeys(
        ids, "it has not ended, a job that it runs after did not complete, or its arguments were not kept"
    )
    looked_up = ids[:_LOOKED_UP]
    states = {row.id: row.state for row in handles.rows(core, looked_up)}
    words |= {i: f"it has not ended: it is {states[i]}" if i in states else "it is gone" for i in looked_up}
    ended = [i for i in looked_up if states.get(i) in FINAL]
    words |= dict.fromkeys(ended, "a job that it runs after did not complete, or its arguments were not kept")
    return words | {i: handles.why_not_retried(core, i) for i in ended[:_EXPLAINED]}


def _gone_or(why: str, core: AppInterface, ids: Sequence[str]) -> dict[str, str]:
    looked_up = ids[:_LOOKED_UP]
    there = {row.id for row in handles.rows(core, looked_up)}
    return {**dict.fromkeys(ids, why), **{i: "it is gone" for i in looked_up if i not in there}}


def enqueue(
    core: AppInterface, task: str, args: Mapping[str, Any] | None, options: Mapping[str, Any], by: By
) -> Job[Any]:
    """Enqueues a job of a task by its name; `options` are those of `App.enqueue`, but for `connection`."""
    from dray.task.task import JobOptions, prepare_by_name  # noqa: PLC0415 - most commands need no tasks

    if "connection" in options:
        raise ConfigError("what a person enqueues is committed at once; leave connection= away")
    new = prepare_by_name(core, task, args, JobOptions.of(options, "app.enqueue(task, {arguments})"))
    return core.submit([new], action=_new(core, by, "enqueue", "job", new.id, note=task))[0]


def enqueue_workflow(core: AppInterface, workflow: Workflow, jobs: Sequence[NewJob], by: By) -> Run:
    """Writes the jobs of a workflow, parents before children, in one transaction."""
    core.submit(
        jobs, workflow=workflow, action=_new(core, by, "enqueue", "workflow", workflow.id, note=workflow.name)
    )
    return Run(core, workflow.id)


def reveal(core: AppInterface, job_id: str, by: By) -> dict[str, Any]:
    """The arguments of a job with those that its task redacts. The row is committed before they are read."""
    job = Job[Any](core, _job_id(job_id)).refresh()
    if job.row.args is None:
        raise ConfigError(
            f"job {job.id} ({job.task}) has no arguments to show: they were not kept when it completed; "
            "leave keep_args=False out of its task to keep them"
        )
    core.backend.actions.note(_new(core, by, "reveal", "job", job.id, note=job.task), done=1)
    return codec.decode_args(job.row.args)


# Queues


def pause_queue(core: AppInterface, name: str, by: By, note: str | None = None) -> bool:
    """As `App.pause`; False: it was paused already. `note`: why, for others to read."""
    return core.pause(name, _new(core, by, "pause", "queue", check_name("queue", name), note=note))


def resume_queue(core: AppInterface, name: str, by: By) -> bool:
    """As `App.resume`; False: it was not paused."""
    return core.resume(name, _new(core, by, "resume", "queue", check_name("queue", name)))


# Limits


def set_limits(core: AppInterface, scope: Scope, name: str, bounds: Bounds, by: By) -> bool:
    """Limits a task or a queue, whatever code declares; kinds that are not named stay. False: it was so already."""
    action = _new(core, by, "set", scope, check_name(scope, name), note=limits.in_words(bounds))
    return core.override_limits(scope, name, bounds, action)


def reset_limits(core: AppInterface, scope: Scope, name: str, by: By) -> bool:
    """Takes back what `set_limits` has said: what code declares holds again. False: it had said nothing."""
    return core.reset_limits(scope, name, _new(core, by, "reset", scope, check_name(scope, name)))


# Schedules


def pause_schedule(core: AppInterface, name: str, by: By) -> bool:
    """As `App.pause_schedule`; False: it was paused already."""
    return core.all_schedules.pause(name, _new(core, by, "pause", "schedule", name))


def resume_schedule(core: AppInterface, name: str, by: By) -> bool:
    """As `App.resume_schedule`; False: it was not paused."""
    return core.all_schedules.resume(name, _new(core, by, "resume", "schedule", name))


def run_schedule(core: AppInterface, name: str, by: By) -> Job[Any]:
    """As `App.run_schedule`."""
    new = core.all_schedules.job_now(name)
    return core.submit([new], action=_new(core, by, "run", "schedule", name, note=f"job {new.id}"))[0]


def remove_schedule(core: AppInterface, name: str, by: By) -> None:
    """As `App.remove_schedule`."""
    core.all_schedules.stored(name)  # raises before a row is written
    core.all_schedules.remove(name, _new(core, by, "remove", "schedule", name))


# Workflows


def cancel_workflow(core: AppInterface, workflow_id: str, by: By, *, most: int | None = None) -> Acted:
    """Cancels every job of a workflow that has not started and asks running ones to stop. ConfigError: that would be
    more than `most`."""
    run = _run(core, workflow_id)
    action = _new(core, by, "cancel", "workflow", run.id)
    results = cancel_run(core, run.id, action, most=most)
    if not results:
        core.backend.actions.note(action)
    done = [i for i, result in results.items() if result in {CancelResult.CANCELLED, CancelResult.REQUESTED}]
    return Acted(done, dict.fromkeys(results.keys() - set(done), "it had ended already"))


def retry_workflow(
    core: AppInterface, workflow_id: str, by: By, *, cancelled: bool = False, most: int | None = None
) -> Acted:
    """Starts the failed steps of a workflow over, and with `cancelled` those that were cancelled or expired; in one
    transaction. ConfigError: that would be more than `most`."""
    run = _run(core, workflow_id)
    action = _new(core, by, "retry", "workflow", run.id)
    ids = retryable(core, run.id, cancelled=cancelled)
    if not ids:
        core.backend.actions.note(action)
        return Acted([], {})
    check_most("retry", len(ids), most)
    done = set(handles.retry(core, ids, action))
    refused = [job_id for job_id in ids if job_id not in done]
    return Acted([job_id for job_id in ids if job_id in done], _why_not_retried(core, refused) if refused else {})


def _run(core: AppInterface, workflow_id: str) -> Run:
    whole = parse_id(
        workflow_id,
        "a workflow's id is a string",
        lambda text: UnknownWorkflow(f"{text} is no workflow's id; `dray workflows` lists them"),
    )
    return Run(core, whole).refresh()


# The database


def prune(
    core: AppInterface,
    older_than: float | timedelta | None,
    states: Collection[str],
    by: By,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Removes jobs of these states that ended longer ago than that, or than their usual retention; how many.

    The row is there before the first job goes, and counts with each transaction.
    """
    kept = pruning.retention(older_than, states)
    age = "past their retention" if older_than is None else f"older than {span(_seconds(older_than))}"
    action = _new(core, by, "prune", "database", core.settings.place, note=f"{listed(sorted(states))} jobs {age}")
    core.backend.actions.note(action)
    return pruning.remove(core.backend, kept, progress, action)


def _seconds(given: float | timedelta) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else given


def _new(
    core: AppInterface,
    by: By,
    verb: Verb,
    kind: Kind,
    target: str,
    action_id: str | None = None,
    *,
    note: str | None = None,
) -> NewAction:
    return NewAction(action_id or core.new_id(), by.who, by.via, verb, kind, target, note)


def _whole_ids(given: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(_job_id, given)))


def _job_id(given: str) -> str:
    return parse_id(
        given, "a job's id is a string", lambda text: UnknownJob(f"{text} is no job's id; pass a whole one")
    )
