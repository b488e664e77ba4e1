"""Rows with named columns: what statements read into the model, and what is written from it.

The order of the fields is that of the columns in the statements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from dray.backends.database import Row
from dray.model.job import Job, State
from dray.model.new_job import AlikeJobs, NewJob
from dray.model.worker import Worker

if TYPE_CHECKING:
    from dray.model.settlement import Settlement

PARKED = "parked"  # how a row says that a job with a key is queued

_JOB_FIELDS = [field.name for field in fields(Job)]
_TAGS = _JOB_FIELDS.index("tags")
_FANOUT = _JOB_FIELDS.index("fanout_pending")
_STATE = _JOB_FIELDS.index("state")
_WORKER_FIELDS = [field.name for field in fields(Worker)]


def job(row: Row) -> Job:
    values = list(row)
    values[_TAGS] = _tags(values[_TAGS]) if values[_TAGS] else ()
    values[_FANOUT] = bool(values[_FANOUT])
    values[_STATE] = shown_state(values[_STATE])
    return Job(*values)


def shown_state(state: str) -> str:
    """A job's state as people see it."""
    return State.QUEUED if state == PARKED else state


def _tags(text: str) -> tuple[str, ...]:
    """A row that was written by hand must not keep all others from being listed."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def worker(row: Row) -> Worker:
    values: dict[str, Any] = dict(zip(_WORKER_FIELDS, row, strict=False))  # the last may be left out
    for name in ("queues", "tasks"):
        values[name] = tuple(json.loads(values[name]))
    return Worker(**values)


class Start(NamedTuple):
    """How a new job starts: in a state of its own (None: queued or scheduled by its time), and with which edges."""

    state: str | None
    waiting_on: int
    edges: tuple[tuple[str, int], ...]  # parent id, satisfied


FREE = Start(None, 0, ())


def inserted(job: NewJob, start: Start, args: str | None) -> Row:
    """The columns of `job_insert`."""
    when = (job.priority, job.run_at, job.delay_us, start.state)
    limits = (job.max_attempts, job.max_crashes, job.timeout, job.expires_at, job.expires_us)
    unique = (job.unique_key, job.unique_us, job.unique_scope if job.unique_key is not None else None)
    origin = (job.workflow_id, job.step, start.waiting_on, job.on_parent_failure, job.schedule, job.slot)
    return (job.id, job.task, job.queue, *when, args, *limits, *unique, *origin, *_labels(job))


def _labels(job: NewJob) -> Row:
    return (job.name, job.description, tags_of(job), job.headers, job.retry, job.keep_us, job.key)


def tags_of(job: NewJob) -> str | None:
    return json.dumps(job.tags) if job.tags else None


def alike(job: NewJob, now: int, priority: int | None, *, instant: Callable[[int], Any]) -> tuple[Row, Row]:
    """What `job_insert_plain`, `job_insert_alike` and `job_copy` take for jobs of this pattern: the columns between
    id and arguments, and those after the arguments."""
    due = now + job.delay_us if job.run_at is None else job.run_at
    state = State.SCHEDULED if due > now else State.QUEUED if job.key is None else PARKED
    expires = now + job.expires_us if job.expires_at is None and job.expires_us is not None else job.expires_at
    before = (job.task, job.queue, state, priority, instant(due))
    limits = (job.max_attempts, job.max_crashes, job.timeout, None if expires is None else instant(expires))
    return before, (*limits, *_labels(job))


def merged(batch: Sequence[AlikeJobs]) -> Iterable[AlikeJobs]:
    """Those of one pattern as one: they are written by one statement."""
    together: dict[int, tuple[NewJob, list[str], list[str]]] = {}
    for pattern, ids, args in batch:
        _, all_ids, all_args = together.setdefault(id(pattern), (pattern, [], []))
        all_ids += ids
        all_args += args
    return starmap(AlikeJobs, together.values())


def replaced(job: NewJob, holder: str, args: str | None) -> Row:
    """The columns of `job_replace`: the work that the holder of a unique key takes over."""
    limits = (job.max_attempts, job.max_crashes, job.timeout)
    return (holder, job.unique_key, job.task, args, job.priority, *limits, *_labels(job))


class SettlementRow(NamedTuple):
    """The end of an attempt, with the readings of the worker's steady clock as ages, which any machine can use."""

    settlement: Settlement
    worker_id: str
    started_age_us: int | None  # None: the row's own time stays
    finished_age_us: int


class SettledRow(NamedTuple):
    id: str
    state: str
    fanout_pending: bool  # children may wait for it


class Orphan(NamedTuple):
    """A row of `rescue_pick`: a running job whose worker is gone."""

    id: str
    claim: int
    worker_id: str
    attempt: int
    max_attempts: int
    crashes: int
    max_crashes: int
    queue: str
    task: str

    @property
    def fence(self) -> tuple[str, int]:
        return self.id, self.claim


class Holding(NamedTuple):
    """A row of `settle_found`: which claim a job is in the hands of."""

    id: str
    state: str
    claim: int
    worker_id: str | None
