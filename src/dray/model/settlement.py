"""Settlements: how the end of an attempt becomes the job's next state.

The functions that build a `Settlement` are the only place where that is decided; the databases write what they are
told, and add only what no worker can know: that a cancel was requested meanwhile.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

from dray.model.error_group import error_key
from dray.model.job import Claim, Held, Outcome, Reason, State

Error: TypeAlias = tuple[str, str, str | None]  # its type, its message and its traceback
_OWN = frozenset({"Timeout", "ProcessDied", "WorkerDied", "Unstorable", "Misfit"})  # types that Dray itself records
_SHORT = 300  # characters of the one-line error that lists show


class Rng(Protocol):
    """Where chance comes from."""

    def random(self) -> float: ...


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
    task: str | None = None  # None: it cannot have failed
    reason: str | None = None
    delay_us: int | None = 0  # until it may run again; None: it keeps its place in the queue
    gives_back: bool = False
    result: str | None = None
    drops_args: bool = False
    error: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    counts_crash: bool = False
    keeps_error: bool = False  # nothing was tried: the error that the job had still tells its story
    error_class: str | None = None  # where the class of the error is: "shop.mail.Bounced"
    key: str | None = None  # the key that the job should have had
    unspent: tuple[tuple[str, str, int], ...] = ()  # rates that its start does not count for after all, as in `Claim`

    @property
    def error_key(self) -> str | None:
        """The group of the failure; None: the job has not failed."""
        if self.state != State.FAILED or self.task is None:
            return None
        return error_key(self.task, self.error or "")


def _ended(
    claim: Claim | Held | Settlement,
    state: State,
    outcome: str | None,
    times: tuple[int, int],
    failure: Error | None = None,
    **fields: Any,
) -> Settlement:
    task = None if isinstance(claim, Held) else claim.task
    settlement = Settlement(claim.id, claim.claim, state, outcome, *times, task, **fields)
    if failure is None:
        return settlement
    kind, message, traceback = failure
    error = _short(kind, message)
    own = f"dray.errors.{kind}" if kind in _OWN else None
    return settlement._replace(
        error=error, error_type=kind, error_message=message, traceback=traceback, error_class=own
    )


def _runnable(delay_us: int) -> State:
    return State.SCHEDULED if delay_us > 0 else State.QUEUED


def completed(
    claim: Claim, started: int, finished: int, result: str | None = None, *, keep_args: bool = True
) -> Settlement:
    """The body returned."""
    end = Settlement(claim.id, claim.claim, State.COMPLETED, Outcome.COMPLETED, started, finished, claim.task)
    return end if result is None and keep_args else end._replace(result=result, drops_args=not keep_args)


def failed(claim: Claim, started: int, finished: int, reason: Reason, *error: *Error) -> Settlement:
    """The attempt failed and no other may follow it."""
    return _ended(claim, State.FAILED, reason, (started, finished), error, reason=reason)


def errored(claim: Claim, started: int, finished: int, outcome: Outcome, delay_us: int, *error: *Error) -> Settlement:
    """The attempt failed: another follows after the delay, or, with none left, the job has failed."""
    if claim.attempt >= claim.max_attempts:
        reason = Reason.ERROR if outcome is Outcome.RETRY else Reason(outcome)
        return failed(claim, started, finished, reason, *error)
    return _ended(claim, _runnable(delay_us), outcome, (started, finished), error, delay_us=delay_us)


def cancelled(claim: Claim, started: int, finished: int, message: str | None = None) -> Settlement:
    """The body stopped because it was asked to, or cancelled its own job."""
    fields: dict[str, Any] = {"reason": Reason.USER, "error": message, "error_message": message}
    return _ended(claim, State.CANCELLED, Outcome.CANCELLED, (started, finished), **fields)


def snoozed(claim: Claim, started: int, finished: int, delay_us: int) -> Settlement:
    """The body asked to be run later; the attempt is given back."""
    return _ended(claim, _runnable(delay_us), None, (started, finished), delay_us=delay_us, gives_back=True)


def released(claim: Claim | Held, at: int, key: str | None = None) -> Settlement:
    """The job goes back unrun (shutdown, pause, a claim whose reply was lost); the attempt is given back.

    It keeps its error: since when its arguments have not fitted is counted from there. With a key: it was enqueued by
    name, where its task and so its key was not known, and takes its turn from now on. That was no start: a rate would
    be spent twice for each such job.
    """
    unspent = claim.spent if key is not None and isinstance(claim, Claim) else ()
    fields: dict[str, Any] = {"gives_back": True, "keeps_error": True, "key": key, "unspent": unspent}
    return _ended(claim, State.QUEUED, None, (at, at), delay_us=None, **fields)


def postponed(claim: Claim, at: int, delay_us: int) -> Settlement:
    """The body could not be started now, for no fault of the job's; as `released`, after a delay."""
    return released(claim, at)._replace(state=State.SCHEDULED, delay_us=delay_us)


def child_died(
    claim: Claim, started: int, finished: int, delay_us: int, message: str, stack: str | None
) -> Settlement:
    """The process that ran the body died, and nothing else did: one attempt and one crash of this job."""
    ends = claim.attempt >= claim.max_attempts or claim.crashes + 1 >= claim.max_crashes
    return _crashed(claim, (started, finished), ("ProcessDied", message, stack), None if ends else delay_us)


def misfit(claim: Claim, at: int, delay_us: int, message: str) -> Settlement:
    """The arguments do not fit the code at hand: other code may come, so the attempt is given back."""
    fields: dict[str, Any] = {"delay_us": delay_us, "gives_back": True, "error": _short("Misfit", message)}
    return _ended(claim, State.SCHEDULED, None, (at, at), **fields)


def crashed(
    job_id: str,
    claim: int,
    worker_id: str | None,
    *,
    task: str,
    attempts_left: int,
    crashes_left: int,
    crashes: int,
    rng: Rng,
    at: int,
) -> Settlement:
    """The worker died. The attempt stays counted; the job runs again after a moment, or has failed."""
    error = "WorkerDied", f"worker {worker_id} died while it ran this job", None
    ends = attempts_left <= 0 or crashes_left <= 0
    held = Held(job_id, claim, cancel_requested=False)
    return _crashed(held, (at, at), error, None if ends else crash_delay_us(crashes, rng))._replace(task=task)


def _crashed(claim: Claim | Held, times: tuple[int, int], error: Error, delay_us: int | None) -> Settlement:
    """Without a delay the job has failed."""
    state = State.FAILED if delay_us is None else _runnable(delay_us)
    reason = Reason.CRASHED if delay_us is None else None
    return _ended(
        claim, state, Outcome.CRASHED, times, error, reason=reason, delay_us=delay_us or 0, counts_crash=True
    )


def crash_delay_us(crashes: int, rng: Rng) -> int:
    """Spreads a dead worker's jobs, wider with each crash behind them: up to 0.25, 1, 4 … 64 seconds."""
    return 1 + int(rng.random() * 250_000 * 4 ** min(crashes - 1, 4))


def unstorable(settlement: Settlement, problem: str) -> Settlement:
    """What is written instead of an outcome that the database refuses for its data: the body is not run again."""
    times, error = (settlement.started, settlement.finished), ("Unstorable", problem, None)
    return _ended(settlement, State.FAILED, Outcome.RESULT, times, error, reason=Reason.RESULT)


def _short(error_type: str, message: str) -> str:
    line = f"{error_type}: {message}".strip(": ")
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


class Settled(NamedTuple):
    """What became of a batch of settlements; ids that are in none of these lists were written."""

    stale: list[str]  # the claim was lost: nothing was written, the result is dropped
    already: list[str]  # this very outcome stands there already (a lost reply, a transaction of the body's)
    locked: list[str]  # another transaction has locked the row: settle it again
    refused: list[str]  # the database refused the data: written as failed(result)
    cancelled: list[str]  # put back, but a cancel was requested meanwhile: ended as cancelled(user)
