"""A cause: why a job is where it is, as a word for programs, a sentence for people, and the facts behind both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dray.instants import SECOND, to_datetime
from dray.model.circumstances import Parent, WorkerView
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
    NO_WORKER = "no_worker"  # none that lives serves its queue
    UNKNOWN_TASK = "unknown_task"  # none of those that serve its queue knows its task
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


# Words for sentences


def when(at: int, now: int) -> str:
    """An instant as a distance from now, and as such."""
    shown = f"{to_datetime(at):%Y-%m-%dT%H:%M:%SZ}"
    if abs(at - now) < SECOND // 1000:
        return f"now ({shown})"
    return f"in {span((at - now) / SECOND)} ({shown})" if at > now else f"{span((now - at) / SECOND)} ago ({shown})"


def listed(words: Sequence[str], most: int = 5) -> str:
    more = len(words) - most
    return ", ".join(words) if more <= 0 else f"{', '.join(words[:most])} and {more:,} more"


def ended_as(state: str, reason: str | None) -> str:
    return f"{state}({reason})" if reason else state


def parent_words(parent: Parent) -> str:
    return f"{parent.step or parent.task} {parent.id}"


def parent_facts(parent: Parent) -> dict[str, Any]:
    return {name: getattr(parent, name) for name in ("id", "task", "step", "state", "reason")}


def worker_words(view: WorkerView) -> str:
    worker = view.worker
    return f"{worker.name} (host {worker.host}, pid {worker.pid})"


def worker_facts(view: WorkerView) -> dict[str, Any]:
    facts = {name: getattr(view.worker, name) for name in ("id", "name", "host", "pid", "state")}
    return {**facts, "last_seen_at": to_datetime(view.worker.last_seen_at)}
