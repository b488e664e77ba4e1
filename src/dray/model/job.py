"""A job, its attempts and its queue: states, and what people and workers see of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

# How type checkers know a job's state, and the words that filters take for states.
StateName: TypeAlias = Literal["waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled"]
StateWord: TypeAlias = StateName | Literal["pending", "created", "succeeded", "timeout", "crashed", "expired"]


class State(StrEnum):
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNSTARTED = frozenset({State.WAITING, State.SCHEDULED, State.QUEUED})
LIVE = UNSTARTED | {State.RUNNING}
FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Reason(StrEnum):
    """Why a job failed or was cancelled. Open-ended in the database: the list may grow."""

    ERROR = "error"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    RESULT = "result"
    ARGUMENTS = "arguments"
    USER = "user"
    PARENT = "parent"
    EXPIRED = "expired"


class Outcome(StrEnum):
    COMPLETED = "completed"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    RESULT = "result"
    ARGUMENTS = "arguments"
    CANCELLED = "cancelled"
    RETRY = "retry"


# The words people bring from elsewhere, for every list that filters by state.
_ALIASES: dict[str, tuple[frozenset[State], Reason | None]] = {
    "pending": (UNSTARTED, None),
    "created": (UNSTARTED, None),
    "succeeded": (frozenset({State.COMPLETED}), None),
    "timeout": (frozenset({State.FAILED}), Reason.TIMEOUT),
    "crashed": (frozenset({State.FAILED}), Reason.CRASHED),
    "expired": (frozenset({State.CANCELLED}), Reason.EXPIRED),
}


def states_named(word: str) -> tuple[frozenset[State], Reason | None]:
    """The states, and the reason if any, that a word in a filter stands for; ValueError lists what is known."""
    if word in _ALIASES:
        return _ALIASES[word]
    try:
        return frozenset({State(word)}), None
    except ValueError:
        known = ", ".join([*State, *_ALIASES])
        raise ValueError(f"there is no job state {word[:40]!r}; known are {known}") from None


class Enqueued(NamedTuple):
    """The job that stands for a request: the new one, or the one that holds its unique key."""

    id: str
    duplicate: bool
    replaced: bool = False  # the holder took what `on_conflict` says over from the request


ALL_QUEUES = ""  # announced: workers hear it whichever queues they serve; no queue is called so


class Claim(NamedTuple):
    """A job in a worker's hands. (id, worker_id, claim) is the fence that every later write carries."""

    id: str
    claim: int
    task: str
    queue: str
    args: str
    attempt: int
    max_attempts: int
    crashes: int
    max_crashes: int
    timeout: float | None
    priority: int
    run_at: int
    workflow_id: str | None
    headers: str | None = None
    retry: str | None = None
    key: str | None = None
    held: bool = False  # limits count it while it runs
    spans_queues: bool = False  # one of these limits is its task's: jobs of other queues may wait for its end
    spent: tuple[tuple[str, str, int], ...] = ()  # without a key: the rates its start counts for; scope, name, period
    is_standby: bool = False  # claimed ahead under a limit, and not counted: it waits for the place of another

    @property
    def gives_room_to(self) -> set[str]:
        """The queues in which jobs may have waited for its end."""
        if self.spans_queues:
            return {ALL_QUEUES}
        return {self.queue} if self.held else set()


class Held(NamedTuple):
    """A running row as its worker's beat sees it."""

    id: str
    claim: int
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One row, as people see it."""

    id: str
    task: str
    queue: str
    state: str
    reason: str | None
    priority: int
    run_at: int
    args: str | None
    result: str | None
    error: str | None
    attempt: int
    max_attempts: int
    crashes: int
    max_crashes: int
    claim: int
    worker_id: str | None
    timeout: float | None
    expires_at: int | None
    unique_key: str | None
    unique_lock: str | None
    unique_until: int | None
    unique_scope: str | None
    workflow_id: str | None
    step: str | None
    waiting_on: int
    on_parent_failure: str
    fanout_pending: bool
    schedule: str | None
    slot: int | None
    progress: float | None
    progress_message: str | None
    cancel_requested_at: int | None
    name: str | None
    description: str | None
    tags: tuple[str, ...]
    headers: str | None  # a JSON object of strings
    retry: str | None  # JSON: see `model/job_retry.py`
    keep_us: int | None  # how long it is kept once it has ended; None: as its state is
    key: str | None  # it takes turns with the jobs of other keys
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None


class CancelResult(StrEnum):
    CANCELLED = "cancelled"
    REQUESTED = "requested"
    FINAL = "final"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a job, kept for people to read."""

    job_id: str
    claim: int
    attempt: int
    worker_id: str | None
    outcome: str
    error_type: str | None
    error_message: str | None
    traceback: str | None
    started_at: int | None
    finished_at: int | None
    error_class: str | None = None  # where the class of the error is; None: it is not known


def starts(numbers: Iterable[int]) -> list[int]:
    """Which start of a job each of its attempts belongs to: when the job starts over, so do their numbers."""
    found: list[int] = []
    start, last = 0, 0
    for number in numbers:
        start += number <= last or not found
        found.append(start)
        last = number
    return found


@dataclass(frozen=True, slots=True)
class LogLine:
    job_id: str
    claim: int
    at: int
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class Queue:
    """A named line of jobs with a default priority, which can be paused."""

    name: str
    priority: int
    paused_at: int | None
    created_at: int


class Demand(NamedTuple):
    """What a worker would take: `limit` jobs to start now and `ahead` more to have at hand, of tasks it knows.

    All that one queue has comes before the next queue's. A job taken ahead may die with its worker before it
    started, so only jobs that can lose an attempt harmlessly are: more than one left, and no crash so far.
    """

    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    limit: int
    ahead: int = 0
    tends: bool = True  # what has expired is cancelled first, and what is due is queued
    ahead_in_turn: int = 0  # of those ahead, how many may have keys; with a limit, none
    standby_tasks: tuple[str, ...] = ()  # tasks whose jobs may be claimed ahead under a limit, as standbys
