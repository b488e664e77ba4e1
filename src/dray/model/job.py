"""A job: its states, what may follow what, and how an attempt's outcome becomes the job's next state.

Every change of state is one of the events in `TRANSITIONS`. The functions that build a `Settlement` are the
only place where the end of an attempt is turned into a state, a reason and a delay; the databases write what
they are told, and add only what no worker can know: that a cancel was requested meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Rng(Protocol):
    """Where chance comes from."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


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
    """How one attempt ended."""

    COMPLETED = "completed"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    RESULT = "result"
    ARGUMENTS = "arguments"
    CANCELLED = "cancelled"
    RETRY = "retry"


class Event(StrEnum):
    """What can happen to a job."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    FREE = "free"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    RESCUE = "rescue"
    CANCEL = "cancel"
    EXPIRE = "expire"
    PARENT_FAILED = "parent_failed"
    OPERATOR_RETRY = "operator_retry"
    DELETE = "delete"


_DUE = frozenset({State.SCHEDULED, State.QUEUED})
_BACK = _DUE | {State.CANCELLED}  # a job put back ends as cancelled where a cancel was requested meanwhile

TRANSITIONS: dict[Event, tuple[frozenset[State], frozenset[State]]] = {
    Event.ENQUEUE: (frozenset(), UNSTARTED | {State.CANCELLED}),
    Event.PROMOTE: (frozenset({State.SCHEDULED}), frozenset({State.QUEUED})),
    Event.FREE: (frozenset({State.WAITING}), _DUE),
    Event.CLAIM: (frozenset({State.QUEUED}), frozenset({State.RUNNING})),
    Event.COMPLETE: (frozenset({State.RUNNING}), frozenset({State.COMPLETED})),
    Event.FAIL: (frozenset({State.RUNNING}), frozenset({State.FAILED})),
    Event.RETRY: (frozenset({State.RUNNING}), _BACK),
    Event.SNOOZE: (frozenset({State.RUNNING}), _BACK),
    Event.RELEASE: (frozenset({State.RUNNING}), _BACK),
    Event.RESCUE: (frozenset({State.RUNNING}), _BACK | {State.FAILED}),
    Event.CANCEL: (LIVE, frozenset({State.CANCELLED, State.RUNNING})),
    Event.EXPIRE: (UNSTARTED, frozenset({State.CANCELLED})),
    Event.PARENT_FAILED: (frozenset({State.WAITING}), _BACK | {State.WAITING}),
    Event.OPERATOR_RETRY: (FINAL, UNSTARTED),
    Event.DELETE: (UNSTARTED | FINAL, frozenset()),
}


def may_become(event: Event, before: State, after: State) -> bool:
    """Whether `event` can take a job from `before` to `after`."""
    sources, targets = TRANSITIONS[event]
    return before in sources and after in targets


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """One request to run a task, checked and encoded, not yet written."""

    id: str
    task: str
    queue: str = "default"
    args: str = "{}"
    priority: int | None = None  # None: the queue's default
    run_at: int | None = None  # an instant; wins over delay_us
    delay_us: int = 0
    max_attempts: int = 3
    max_crashes: int = 3
    timeout: float | None = None
    expires_at: int | None = None
    expires_us: int | None = None
    unique_key: str | None = None
    unique_scope: str = "live"
    unique_us: int | None = None
    parents: tuple[str, ...] = ()
    on_parent_failure: str = "cancel"
    workflow_id: str | None = None
    step: str | None = None
    schedule: str | None = None
    slot: int | None = None
    name: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    trace: str | None = None


class Enqueued(NamedTuple):
    """The job that stands for a request: the new one, or the one that holds its unique key."""

    id: str
    duplicate: bool


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
    cancel_requested: bool


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
    trace: str | None
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None


class Settlement(NamedTuple):
    """The end of one attempt: which claim it ends, and what the job becomes. Build it with the functions below.

    `started` and `finished` are readings of the worker's steady clock, so that neither a clock step nor a
    database outage between the end of the body and the write moves the times that people see.
    """

    id: str
    claim: int
    state: str
    outcome: str | None  # None: no attempts row (the attempt is given back)
    started: int
    finished: int
    reason: str | None = None
    delay_us: int | None = 0  # until it may run again; None: it keeps its place in the queue
    gives_back: bool = False
    result: str | None = None
    drops_args: bool = False
    error: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None


def completed(
    claim: Claim, started: int, finished: int, result: str | None = None, *, keep_args: bool = True
) -> Settlement:
    """The body returned."""
    return Settlement(
        claim.id,
        claim.claim,
        State.COMPLETED,
        Outcome.COMPLETED,
        started,
        finished,
        result=result,
        drops_args=not keep_args,
    )


def failed(
    claim: Claim,
    started: int,
    finished: int,
    reason: Reason,
    error_type: str,
    message: str,
    traceback: str | None = None,
) -> Settlement:
    """The attempt failed and no other may follow it."""
    return Settlement(
        claim.id,
        claim.claim,
        State.FAILED,
        reason,
        started,
        finished,
        reason=reason,
        error=_short(error_type, message),
        error_type=error_type,
        error_message=message,
        traceback=traceback,
    )


def errored(
    claim: Claim,
    started: int,
    finished: int,
    outcome: Outcome,
    delay_us: int,
    error_type: str,
    message: str,
    traceback: str | None = None,
) -> Settlement:
    """The attempt failed: another follows after the delay, or, with none left, the job has failed."""
    if claim.attempt >= claim.max_attempts:
        reason = Reason.ERROR if outcome is Outcome.RETRY else Reason(outcome)
        return failed(claim, started, finished, reason, error_type, message, traceback)
    return Settlement(
        claim.id,
        claim.claim,
        State.SCHEDULED if delay_us > 0 else State.QUEUED,
        outcome,
        started,
        finished,
        delay_us=delay_us,
        error=_short(error_type, message),
        error_type=error_type,
        error_message=message,
        traceback=traceback,
    )


def cancelled(claim: Claim, started: int, finished: int, message: str | None = None) -> Settlement:
    """The body stopped because it was asked to, or asked for it itself."""
    return Settlement(
        claim.id,
        claim.claim,
        State.CANCELLED,
        Outcome.CANCELLED,
        started,
        finished,
        reason=Reason.USER,
        error=message,
        error_message=message,
    )


def snoozed(claim: Claim, started: int, finished: int, delay_us: int) -> Settlement:
    """The body asked to be run later; the attempt is given back."""
    state = State.SCHEDULED if delay_us > 0 else State.QUEUED
    return Settlement(claim.id, claim.claim, state, None, started, finished, delay_us=delay_us, gives_back=True)


def released(claim: Claim | Held, at: int) -> Settlement:
    """The job goes back unrun (shutdown, pause, a claim whose answer was lost); the attempt is given back."""
    return Settlement(claim.id, claim.claim, State.QUEUED, None, at, at, delay_us=None, gives_back=True)


def crashed(
    job_id: str,
    claim: int,
    worker_id: str | None,
    *,
    attempts_left: int,
    crashes_left: int,
    crashes: int,
    rng: Rng,
    at: int,
) -> Settlement:
    """The worker died. The attempt stays counted; the job runs again after a moment, or has failed."""
    message = f"worker {worker_id} died while it ran this job"
    ends = attempts_left <= 0 or crashes_left <= 0
    return Settlement(
        job_id,
        claim,
        State.FAILED if ends else State.SCHEDULED,
        Outcome.CRASHED,
        at,
        at,
        reason=Reason.CRASHED if ends else None,
        delay_us=0 if ends else crash_delay_us(crashes, rng),
        error=_short("WorkerDied", message),
        error_type="WorkerDied",
        error_message=message,
    )


def crash_delay_us(crashes: int, rng: Rng) -> int:
    """Spreads a dead worker's jobs, wider with each crash behind them: up to 0.25, 1, 4 … 64 seconds."""
    return 1 + int(rng.random() * 250_000 * 4 ** min(crashes - 1, 4))


def unstorable(settlement: Settlement, problem: str) -> Settlement:
    """What is written instead of an outcome that the database refuses for its data: the body is not run again."""
    return Settlement(
        settlement.id,
        settlement.claim,
        State.FAILED,
        Outcome.RESULT,
        settlement.started,
        settlement.finished,
        reason=Reason.RESULT,
        error=_short("Unstorable", problem),
        error_type="Unstorable",
        error_message=problem,
    )


_SHORT = 300  # characters of the one-line error that lists show


def _short(error_type: str, message: str) -> str:
    line = f"{error_type}: {message}".strip(": ")
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


class Settled(NamedTuple):
    """What became of a batch of settlements; ids that are in none of these lists were written."""

    stale: list[str]  # the claim was lost: nothing was written, the result is dropped
    already: list[str]  # this very outcome stands there already (a lost answer, a transaction of the body's)
    locked: list[str]  # somebody's open transaction holds the row: settle it again
    refused: list[str]  # the database refused the data: written as failed(result)
    cancelled: list[str]  # put back, but a cancel was requested meanwhile: ended as cancelled(user)


class CancelResult(StrEnum):
    CANCELLED = "cancelled"
    REQUESTED = "requested"
    FINAL = "final"
    UNKNOWN = "unknown"
