"""Explains a job: why it waits or how it ended, and where its body is if it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from dray import backends
from dray.errors import DrayError, StorageError
from dray.model.cause import Cause, Kind, cause
from dray.model.causes import explain
from dray.model.circumstances import Circumstances
from dray.model.job import UNSTARTED, Job, State
from dray.task.registry import Registry
from dray.waiter import unknown_job

PATIENCE = 2.0  # seconds for a worker to say where a body is
_UNPUSHED_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Why:
    """A job and the causes of where it is, the most decisive first."""

    job: Job
    causes: list[Cause]
    stack: str | None = None  # where its body is, as Python shows it


def why(
    backend: backends.Backend,
    job_id: str,
    *,
    registry: Registry | None = None,
    new_id: Callable[[], str] | None = None,
    patience: float = PATIENCE,
) -> Why:
    """What the tables say of a job; with `new_id`, if it runs, also what its worker says when it is asked.

    `registry`: the tasks that are known here, to see whether the arguments fit.
    """
    around = _around(backend, job_id)
    holder = around.holder
    if new_id is None or around.closed or holder is None or not (holder.is_alive or holder.is_silent):
        return Why(around.job, explain(around, _misfit(around, registry)))
    try:
        stack = _ask(backend, around.job, new_id(), patience)
    except StorageError as error:
        text = f"Its worker could not be asked where the body is: {error}"
        return Why(around.job, [*explain(around), cause(Kind.NOT_ASKED, text, error=str(error))])
    now = _around(backend, job_id)
    causes = explain(now, _misfit(now, registry))
    if now.job.state != State.RUNNING or now.job.claim != around.job.claim:
        return Why(now.job, causes)
    if stack is None:
        text = (
            f"Its worker did not answer within {patience:g} s where the body is: the process is stopped or very "
            "busy, or the body keeps Python's lock (the GIL)."
        )
        causes.append(cause(Kind.NO_ANSWER, text, seconds=patience))
    elif not stack:
        causes.append(cause(Kind.NOT_BEGUN, "It is claimed, and its body has not begun or has just ended."))
    return Why(now.job, causes, stack or None)


def _around(backend: backends.Backend, job_id: str) -> Circumstances:
    found = backend.why.circumstances(job_id)
    if found is None:
        raise unknown_job(job_id)
    return found


def _misfit(around: Circumstances, registry: Registry | None) -> str | None:
    """What the code here has against the arguments of a job that has not started."""
    job = around.job
    if registry is None or job.state not in UNSTARTED or job.task not in registry or job.args is None:
        return None
    try:
        registry.get(job.task).arguments(job.args)
    except DrayError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a model's own code reads the arguments, and may raise anything
        return f"reading the arguments raised {type(error).__name__}"
    return None


def _ask(backend: backends.Backend, job: Job, stack_id: str, patience: float) -> str | None:
    """Where the body is, as its worker says; None: it did not, or the job runs no longer."""
    with closing(backend.watch(hears_work=False)) as watch:
        if not backend.stacks.ask(stack_id, job.id, job.claim):
            return None
        try:
            backend.announce([job.queue])  # a worker that wakes looks for questions
            deadline = time.monotonic() + patience
            while (stack := backend.stacks.read(stack_id)) is None and (left := deadline - time.monotonic()) > 0:
                watch.wait(left if watch.is_pushed else min(left, _UNPUSHED_LOOK))
            return stack
        finally:
            backend.stacks.drop(stack_id)
