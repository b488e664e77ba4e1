"""What both sources need: one job as it was found, and values of their rows, read with care."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Literal, NamedTuple, Protocol

from dray import codec
from dray.errors import ConfigError, PayloadError, PayloadTooLarge
from dray.instants import EPOCH, LAST_INSTANT, from_datetime
from dray.model.bounds import (
    ARGS_BYTES,
    DESCRIPTION_CHARS,
    ERROR_MESSAGE_BYTES,
    JOB_NAME_CHARS,
    LOG_MESSAGE_BYTES,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RESULT_BYTES,
    TRACEBACK_BYTES,
)
from dray.model.carried import Carried, Record, keep_us
from dray.model.job import Reason, State
from dray.model.new_job import NewJob
from dray.model.values import shown
from dray.sanitize import clean, clean_traceback

Running = Literal["refuse", "requeue", "skip"]
RUNS = "it runs in the source"
_SHORT = 300  # characters of the one-line error that lists show
_MOST = 1_000_000  # attempts that a job may have


class Unfit(ValueError):
    """A row that cannot be carried, and why; as is every error of Dray's about a job that cannot be."""


@dataclass(slots=True)
class Entry:
    """One job of the source: what it becomes, or why it becomes nothing."""

    number: int  # to find it again
    key: str  # its id in the source
    state: str  # in the source
    id: str | None = None  # its id here, as far as it can be told
    carried: Carried | None = None
    becomes: str | None = None  # the state that it starts in here
    why: str | None = None  # it is not carried
    lost: list[str] = field(default_factory=list[str])  # what of it is not carried


class Past(NamedTuple):
    """What has become of a job in the source."""

    state: State | None  # the one it ended in; None: it is still to run
    reason: Reason | None
    attempt: int
    record: Record
    started_at: int | None
    finished_at: int | None
    error: str | None

    def keep_us(self, now: int) -> int | None:
        return None if self.state is None or self.finished_at is None else keep_us(self.state, self.finished_at, now)

    def carried(self, job: NewJob, created_at: int, **more: Any) -> Carried:
        """The job with its past. It did not end before it started, whatever clocks said."""
        finished_at = None if self.finished_at is None else max(self.finished_at, self.started_at or 0)
        return Carried(
            job=job,
            created_at=created_at,
            state=self.state,
            reason=self.reason,
            attempt=self.attempt,
            claim=self.record.claim,
            started_at=self.started_at,
            finished_at=finished_at,
            error=None if self.state is State.COMPLETED else self.error,
            attempts=self.record.attempts,
            **more,
        )


class Known(Protocol):
    """What the tasks here say of jobs whose rows do not say it."""

    def options(self, task: str) -> Mapping[str, Any] | None:
        """The attempts and the timeout of a task's jobs; None: no code here knows the task."""
        ...

    def arguments(self, task: str) -> tuple[str, ...] | None:
        """The names of what a task takes; None: no code here knows the task."""
        ...


class Source(Protocol):
    """The jobs of another queue, in a copy of its database."""

    system: str
    place: str

    def total(self) -> int: ...

    def running(self) -> int: ...

    def entries(self) -> Iterator[Entry]: ...

    def entry(self, number: int) -> Entry: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How jobs are to be carried."""

    queue: str
    tasks: Mapping[str, str]  # its name in the source -> its name here
    running: Running
    now: int
    known: Known
    argument: str = "data"  # of lilota's input, for a task that no code here knows
    zone: tzinfo | None = None  # of GigQ's times; None: that of this machine


def instant(row: Mapping[str, Any], name: str, zone: tzinfo | None) -> int | None:
    """A moment in a row. One without a time zone is of `zone`, or of this machine's."""
    text = row[name]
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        when = when.astimezone() if when.tzinfo is None and zone is None else when
        at = from_datetime(when.replace(tzinfo=zone) if when.tzinfo is None else when)
    except (TypeError, ValueError, OverflowError, OSError):
        raise Unfit(f"{name} {shown(text)} is no time that can be read") from None
    if not 0 <= at <= LAST_INSTANT:
        raise Unfit(f"{name} {shown(text)} lies before {EPOCH:%Y} or after 9999")
    return at


def instant_if_read(row: Mapping[str, Any], name: str, zone: tzinfo | None) -> int | None:
    """As `instant`, for what only tells of the past: what cannot be read is left out."""
    try:
        return instant(row, name, zone)
    except Unfit:
        return None


def required(row: Mapping[str, Any], name: str, zone: tzinfo | None) -> int:
    at = instant(row, name, zone)
    if at is None:
        raise Unfit(f"it has no {name}")
    return at


def number(row: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = row[name]
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unfit(f"{name} {shown(value)} is no whole number")
    return value


def count(row: Mapping[str, Any], name: str, otherwise: int) -> int:
    return min(_MOST, max(0, number(row, name, otherwise)))


def priority(value: int) -> int:
    return min(PRIORITY_MAX, max(PRIORITY_MIN, value))


def decoded(row: Mapping[str, Any], name: str) -> Any:
    text = row[name]
    if text is None:
        return None
    if not isinstance(text, str):
        raise Unfit(f"{name} {shown(text)} is no JSON text")
    try:
        return codec.decode(text, path=name)
    except PayloadError as error:
        raise Unfit(str(error)) from None


def encoded_args(args: Mapping[str, Any]) -> str:
    try:
        return codec.encode(args, path="arguments", limit=ARGS_BYTES)
    except PayloadError as error:
        raise Unfit(str(error)) from None


def encoded_result(row: Mapping[str, Any], name: str, lost: list[str]) -> str | None:
    """The result of a completed job. One that Dray cannot hold is left behind: the job has completed all the same."""
    try:
        value = decoded(row, name)
        return None if value is None else codec.encode(value, path="result", limit=RESULT_BYTES)
    except Unfit as error:
        lost.append(f"its result: {error}")
    except PayloadTooLarge:
        lost.append(f"its result: it is larger than {RESULT_BYTES // 1024:,} KiB")
    except PayloadError as error:
        lost.append(f"its result: {error}")
    return None


def message(value: Any) -> str | None:
    return None if value is None else clean(str(value), ERROR_MESSAGE_BYTES)


def trace(value: Any) -> str | None:
    return clean_traceback(value, TRACEBACK_BYTES) if isinstance(value, str) and value else None


def log_text(value: Any) -> str:
    return clean(str(value), LOG_MESSAGE_BYTES)


def label(value: Any, chars: int) -> str | None:
    """A name or a description as Dray takes it: not empty, not too long."""
    if value is None:
        return None
    text = clean(str(value), 4 * chars)
    return (text if len(text) <= chars else f"{text[: chars - 1]}…") or None


def job_name(value: Any) -> str | None:
    return label(value, JOB_NAME_CHARS)


def description(value: Any) -> str | None:
    return label(value, DESCRIPTION_CHARS)


def one_line(kind: str | None, text: str | None) -> str | None:
    """An error as lists show it."""
    found = ": ".join(part for part in (kind, text) if part)
    found = " ".join(found.split())
    return (found if len(found) <= _SHORT else f"{found[: _SHORT - 1]}…") or None


def unknown_state(state: object) -> Unfit:
    return Unfit(f"its state {shown(state)} is not known")


def refuse_schema(system: str, place: str, problem: str) -> ConfigError:
    return ConfigError(
        f"{place}: {problem}, so this is no database of {system} that this version of Dray can read; "
        f"name another, or upgrade its tables with {system} first"
    )
