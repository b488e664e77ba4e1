"""What ended a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dray.instants import SECOND
from dray.model.attempt import Attempt
from dray.model.causes.cause import Cause, Kind, cause, ended_as, instant, parent_facts, parent_words, when
from dray.model.circumstance import Circumstances
from dray.model.job import Reason, State
from dray.wording import span

_FAILED = {
    Reason.ERROR: (Kind.ERROR, "raised"),
    Reason.TIMEOUT: (Kind.TIMEOUT, "ran out of time"),
    Reason.CRASHED: (Kind.CRASHED, "died with what ran it"),
    Reason.RESULT: (Kind.RESULT, "returned, but what it left cannot be stored"),
    Reason.ARGUMENTS: (Kind.ARGUMENTS, "has arguments that do not fit its task"),
}


def ended(around: Circumstances) -> list[Cause]:
    return [_end(around), *_fanout(around), *_unique(around)]


def _end(around: Circumstances) -> Cause:
    job = around.job
    if job.state == State.COMPLETED:
        return _completed(around)
    if job.state == State.FAILED and job.reason in _FAILED:
        return _failed(around, *_FAILED[Reason(job.reason)])
    if job.reason == Reason.USER:
        return _cancelled(around)
    if job.reason == Reason.PARENT:
        return _with_parent(around)
    if job.reason == Reason.EXPIRED:
        return _expired(around)
    text = f"It ended {_at(around)} as {ended_as(job.state, job.reason)}."
    return cause(Kind.OTHER, text, finished_at=instant(job.finished_at))


def _at(around: Circumstances) -> str:
    return when(around.job.finished_at or around.job.updated_at, around.now)


def _tries(around: Circumstances) -> dict[str, Any]:
    job = around.job
    return {
        "finished_at": instant(job.finished_at),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "crashes": job.crashes,
        "max_crashes": job.max_crashes,
    }


def _completed(around: Circumstances) -> Cause:
    job = around.job
    took = None if job.started_at is None or job.finished_at is None else (job.finished_at - job.started_at) / SECOND
    text = f"It completed {_at(around)}, in attempt {job.attempt} of {job.max_attempts}"
    text += f", after {span(took)}" if took is not None else ""
    text += ", with a result." if job.result is not None else ", without a result."
    return cause(Kind.COMPLETED, text, **_tries(around), seconds=took, has_result=job.result is not None)


def _failed(around: Circumstances, kind: Kind, words: str) -> Cause:
    job, last = around.job, _last(around)
    counted = f"attempt {job.attempt} of {job.max_attempts}"
    if kind is Kind.CRASHED:
        counted += f", crash {job.crashes} of {job.max_crashes}"
    text = f"It failed {_at(around)}: {counted} {words}"
    text += ", and no other may follow" if job.attempt < job.max_attempts else ""
    text += f": {job.error}" if job.error else "."
    error_type, message = (None, job.error) if last is None else (last.error_type, last.error_message)
    return cause(kind, text, **_tries(around), error_type=error_type, error=message)


def _last(around: Circumstances) -> Attempt | None:
    """The attempt that the job ended with, where it is recorded."""
    last = around.last
    return last if last is not None and last.claim == around.job.claim else None


def _cancelled(around: Circumstances) -> Cause:
    job = around.job
    asked_at = job.cancel_requested_at
    note = f" ({job.error})" if job.error else ""
    text = f"Its own body cancelled it {_at(around)}{note}."
    if asked_at is not None:
        had_begun = "while it ran" if job.started_at is not None else "before it started"
        text = f"Somebody cancelled it, {had_begun}: it ended {_at(around)}, asked for {when(asked_at, around.now)}."
    return cause(Kind.CANCELLED, text, **_tries(around), cancel_requested_at=instant(asked_at), error=job.error)


def _with_parent(around: Circumstances) -> Cause:
    parents = [parent for parent in around.parents if parent.satisfied < 0]
    text = f"It was cancelled {_at(around)} with a parent that is not there any more."
    if parents:
        first = parents[0]
        text = f"It was cancelled {_at(around)} with its parent {parent_words(first)}, which is now "
        text += f"{ended_as(first.state, first.reason)}. `dray job retry {first.id}` brings both back."
    shown = [parent_facts(parent) for parent in parents]
    return cause(Kind.PARENT, text, finished_at=instant(around.job.finished_at), parents=shown)


def _expired(around: Circumstances) -> Cause:
    at = around.job.expires_at
    text = f"It was cancelled {_at(around)}: it had not started"
    text += f" when it expired, {when(at, around.now)}." if at is not None else " in time."
    return cause(Kind.EXPIRED, text, finished_at=instant(around.job.finished_at), expires_at=instant(at))


def _fanout(around: Circumstances) -> Iterator[Cause]:
    if around.job.fanout_pending:
        yield cause(Kind.FANOUT, "Its end is still being passed on to its children.", parent=None)


def _unique(around: Circumstances) -> Iterator[Cause]:
    job = around.job
    if job.unique_lock is None:
        return
    until = "" if job.unique_until is None else f" until {when(job.unique_until, around.now)}"
    if job.unique_until is not None and job.unique_until <= around.now:
        return  # the next request for it clears the lock
    text = f"It holds the unique key {job.unique_lock}{until}: who asks for that key gets this job."
    yield cause(Kind.UNIQUE, text, unique=job.unique_lock, unique_until=instant(job.unique_until))
