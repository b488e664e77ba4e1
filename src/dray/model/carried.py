"""A job of another queue, with its history, as Dray keeps it: what an import writes.

The other queue numbers and ends attempts by rules of its own. What is made here holds what the audit asks for: a
claim for every attempt, a record of the last attempt of a failed job and none of a completed one, no end before its
start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from dray.instants import MILLISECOND
from dray.model.bounds import ATTEMPTS_KEPT, DELAY_US
from dray.model.job import Attempt, LogLine, Outcome, Reason, State
from dray.model.new_job import NewJob
from dray.model.retention import Retention

_RANDOM_BITS = 74
_LOW_BITS = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A job that was another queue's."""

    job: NewJob
    created_at: int
    state: State | None = None  # the one it ended in; None: it is still to run
    reason: Reason | None = None
    attempt: int = 0
    claim: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error: str | None = None
    result: str | None = None
    progress: float | None = None
    keeps_args: bool = True
    attempts: tuple[Attempt, ...] = ()
    logs: tuple[LogLine, ...] = ()

    @property
    def size(self) -> int:
        """About how many characters it has."""
        texts = [self.job.args, self.result, *(line.message for line in self.logs)]
        texts += [text for each in self.attempts for text in (each.error_message, each.traceback)]
        return sum(len(text) for text in texts if text is not None)


class Execution(NamedTuple):
    """One attempt as the other queue has recorded it."""

    outcome: Outcome
    started_at: int | None
    finished_at: int | None
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None


class Record(NamedTuple):
    """The attempts of a job: how many there were, and the rows of those that are kept."""

    claim: int
    attempts: tuple[Attempt, ...]


def derived_id(system: str, key: str, created_at: int) -> str:
    """The id of a job of another queue: the same at every import, and in the order of time like every other id."""
    chance = int.from_bytes(blake2b(f"{system}:{key}".encode(errors="replace"), digest_size=16).digest())
    value = (created_at // MILLISECOND & (1 << 48) - 1) << _RANDOM_BITS | chance & (1 << _RANDOM_BITS) - 1
    high, low = value >> _LOW_BITS, value & (1 << _LOW_BITS) - 1 | 1 << 63
    time = f"{high >> 28:08x}-{high >> 12 & 0xFFFF:04x}"
    return f"{time}-7{high & 0xFFF:03x}-{low >> 48:04x}-{low & 0xFFFFFFFFFFFF:012x}"


def recorded(job_id: str, executions: Sequence[Execution], attempt: int, *, completed: bool = False) -> Record:
    """Numbers the executions of a job, oldest first, of which the last `attempt` count.

    Those before were made when the job was started for the first time. The one that completed a job leaves no row.
    """
    count = len(executions)
    claim = max(count, attempt)
    rows: list[Attempt] = []
    for place, each in enumerate(executions):
        if completed and place == count - 1:
            break
        number = claim - count + place + 1
        of_start = number - (claim - attempt) if number > claim - attempt else number
        ended_at = each.finished_at
        if ended_at is not None and each.started_at is not None:
            ended_at = max(ended_at, each.started_at)
        said = (each.outcome, each.error_type, each.message, each.traceback)
        rows.append(Attempt(job_id, number, of_start, None, *said, each.started_at, ended_at))
    return Record(claim, tuple(rows[-ATTEMPTS_KEPT:]))


def keep_us(state: State, finished_at: int, now: int) -> int | None:
    """How long an ended job is kept: as long from the import on as one that ends at that moment."""
    usual = Retention().by_state()[state]
    return None if usual is None else min(DELAY_US, max(0, now - finished_at) + usual)
