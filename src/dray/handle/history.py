"""What a job has been through, in the types that people work with: attempts, log lines, progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from dray.instants import to_datetime
from dray.model import job as model
from dray.model.job import Job, State


class Progress(NamedTuple):
    """How far a body says it is."""

    percent: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class AttemptError:
    """What an attempt ended with."""

    type: str | None
    message: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a job. `outcome` is ``running`` for the one under way; numbers start over with a retry."""

    number: int
    worker: str | None
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    error: AttemptError | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that was logged inside a job; give its `seq` to `Job.logs` to read on from there."""

    seq: int
    at: datetime
    level: str
    logger: str
    message: str


def attempts(row: Job, kept: Sequence[model.Attempt]) -> list[Attempt]:
    """The attempts that are kept and, after them, the one that only the job's own row shows."""
    found = [_ended(each) for each in kept]
    if row.state in {State.RUNNING, State.COMPLETED} and row.claim not in {each.claim for each in kept}:
        found.append(
            Attempt(row.attempt, row.worker_id, row.state, moment(row.started_at), moment(row.finished_at), None)
        )
    return found


def line(seq: int, stored: model.LogLine) -> LogLine:
    """A log line as people read it."""
    return LogLine(seq, to_datetime(stored.at), stored.level, stored.logger, stored.message)


def moment(at: int | None) -> datetime | None:
    """An instant that may not have come."""
    return None if at is None else to_datetime(at)


def _ended(each: model.Attempt) -> Attempt:
    told = (each.error_type, each.error_message, each.traceback)
    error = None if told == (None, None, None) else AttemptError(*told)
    return Attempt(
        each.attempt, each.worker_id, each.outcome, moment(each.started_at), moment(each.finished_at), error
    )
