"""Steps that a body adds to its own workflow. They are written in the transaction that completes its job, or never.

Their ids follow from the job and from what is added, in its order: a body that is run again, because somebody started
its completed job over, adds the same jobs again, which are there already.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from dray.errors import ConfigError
from dray.model.new_job import NewJob
from dray.runtime.execution import Execution
from dray.task.steps import Steps

_TIME_BITS = 48
_NUMBER_BITS = 24
_HASH_BITS = 50


def steps_of(execution: Execution) -> Steps:
    """What the body of an execution adds to."""
    claim = execution.claim
    if claim.workflow_id is None:
        raise ConfigError(
            f"job {claim.id} ({claim.task}) is no step of a workflow, so nothing can be added; "
            "enqueue it with app.workflow(...), or enqueue the other task from here"
        )
    workflow_id, link = claim.workflow_id, execution.link
    return Steps(
        workflow_id,
        lambda job, number: grown_id(claim.id, job, number),
        lambda step: link.backend.workflows.step(workflow_id, step),
    )


def grown_id(parent: str, job: NewJob, number: int) -> str:
    """The id of the n-th step that a job adds: a UUID of version 7 from the parent's time, n, and a hash of the rest.

    In this order, so that ready steps start in the order they were added in.
    """
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which few programs would need for nothing else

    said = "\0".join((parent, job.step or f"{job.task}\0{job.args}"))
    digest = int.from_bytes(hashlib.sha256(said.encode()).digest(), "big")
    tail = number << _HASH_BITS | digest & ((1 << _HASH_BITS) - 1)
    high, low = tail >> 62, tail & ((1 << 62) - 1)
    time = (UUID(parent).int >> (128 - _TIME_BITS)) + 1  # a millisecond later: it comes after its parent in lists
    return str(UUID(int=time << 80 | 7 << 76 | (high & 0xFFF) << 64 | 1 << 63 | low))


# Between a child process and its worker


def packed(job: NewJob) -> dict[str, Any]:
    return asdict(job)


def unpacked(given: dict[str, Any], workflow_id: str | None) -> NewJob:
    """A step as a child has sent it; ValueError or TypeError if it is none."""
    lists: dict[str, Any] = {name: tuple(given[name]) for name in ("parents", "tags")}
    job = NewJob(**{**given, **lists})
    if workflow_id is None or job.workflow_id != workflow_id:
        raise ValueError("a step of another workflow")
    return job
