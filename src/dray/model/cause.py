"""Words for why a job is where it is: each kind of cause, and one cause with its sentence and its facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dray.instants import SECOND, to_datetime
from dray.wording import span


class Kind(StrEnum):
    """Stable words. The list may grow."""

    MOVED = "moved"  # its database is closed: the queue is elsewhere, or not all here yet
    # Not started
    EXPIRES = "expires"  # it is cancelled if it does not start in time, or is about to be
    HELD = "held"  # a parent ended otherwise, and its policy is to hold
    FANOUT = "fanout"  # a parent has ended, and that is still being passed on
    PARENTS = "parents"  # it waits for jobs that have not ended
    RETRY = "retry"  # an attempt failed, the next one has its time
    SNOOZED = "snoozed"  # its last run put it back, without an attempt
    SCHEDULED = "scheduled"  # it was asked for at a time that is to come
    DUE = "due"  # its time has come, it is about to be queued
    ARGUMENTS = "arguments"  # they do not fit the code; also of jobs that failed for it
    PAUSED = "paused"  # its queue
    STOPPED = "stopped"  # a limit of its task or its queue is 0
    NO_WORKER = "no_worker"  # none that lives serves its queue
    UNKNOWN_TASK = "unknown_task"  # none of those that serve its queue knows its task
    LIMIT = "limit"  # as many run as may run at the same time
    RATE = "rate"  # as many have started as may start in a while
    TURN = "turn"  # other keys have their turns before it
    SLOTS = "slots"  # all who could run it are full
    BEHIND = "behind"  # others come first
    READY = "ready"  # nothing is in its way
    # Running
    WORKER_GONE = "worker_gone"
    WORKER_SILENT = "worker_silent"
    OVERDUE = "overdue"  # past its timeout
    CANCEL_REQUESTED = "cancel_requested"
    RUNNING = "running"
    NOT_BEGUN = "not_begun"  # claimed, and its body has not started
    NO_ANSWER = "no_answer"  # its worker does not say where the body is
    NOT_ASKED = "not_asked"  # its worker could not be asked
    # Ended
    COMPLETED = "completed"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    RESULT = "result"
    CANCELLED = "cancelled"
    PARENT = "parent"
    EXPIRED = "expired"
    UNIQUE = "unique"  # it has ended and still keeps others of its key out
    OTHER = "other"  # a state or reason of a newer release


@dataclass(frozen=True, slots=True)
class Cause:
    kind: Kind
    text: str
    facts: dict[str, Any]


def cause(kind: Kind, text: str, **facts: Any) -> Cause:
    return Cause(kind, text, facts)


def when(at: int, now: int) -> str:
    """An instant as a distance from now, and as such."""
    shown = f"{to_datetime(at):%Y-%m-%dT%H:%M:%SZ}"
    if abs(at - now) < SECOND // 1000:
        return f"now ({shown})"
    return f"in {span((at - now) / SECOND)} ({shown})" if at > now else f"{span((now - at) / SECOND)} ago ({shown})"
