"""A new job: one request to run a task, checked before anything is written.

Both databases would refuse most of what is refused here, each in its own words and after work was done; here it is
one sentence that says what, where and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from dray.errors import ConfigError, PayloadError
from dray.instants import LAST_INSTANT
from dray.model.bounds import (
    DELAY_US,
    DESCRIPTION_CHARS,
    JOB_NAME_CHARS,
    KEY_CHARS,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TAG_CHARS,
    TAGS,
    UNIQUE_CHARS,
)
from dray.model.headers import add_headers, check_headers
from dray.model.values import check_name, shown
from dray.model.workflow import ParentPolicy

_RETRY_CHARS = 16_384
_MAX_COUNT = 1_000_000  # of attempts and crashes
_SCOPES = ("live", "queued")
_POLICIES = tuple(ParentPolicy)


class OnConflict(StrEnum):
    """What becomes of the job that holds the unique key of a new one, as long as it has not started."""

    KEEP = "keep"
    REPLACE = "replace"  # it takes over what is to be done: arguments, priority, attempts, timeout, labels
    RESCHEDULE = "reschedule"  # it takes over when: its time and its expiry


_CONFLICTS = tuple(OnConflict)


@dataclass(frozen=True, kw_only=True)
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
    on_conflict: str = OnConflict.KEEP
    parents: tuple[str, ...] = ()
    on_parent_failure: str = "cancel"
    workflow_id: str | None = None
    step: str | None = None
    schedule: str | None = None
    slot: int | None = None
    name: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    headers: str | None = None  # as `encode_headers` makes it
    retry: str | None = None  # as `encode_retry` makes it
    keep_us: int | None = None  # how long it is kept once it has ended; None: as its state is
    key: str | None = None  # it takes turns with the jobs of other keys, and limits count it; None: neither

    def like(self, job_id: str, args: str) -> NewJob:
        """The same job under another id and with other arguments. All else was checked when this one was made."""
        job = object.__new__(NewJob)
        vars(job).update(vars(self), id=job_id, args=args)
        return job

    def with_key(self, key: str | None) -> NewJob:
        """The same job with another key."""
        if key is not None:
            check_key(key)
        job = object.__new__(NewJob)
        vars(job).update(vars(self), key=key)
        return job

    def with_headers(self, more: Mapping[str, str]) -> NewJob:
        """The same job with more headers, as far as there is room. Its own win."""
        job = object.__new__(NewJob)
        vars(job).update(vars(self), headers=add_headers(self.headers, more))
        return job

    @cached_property
    def is_plain(self) -> bool:
        """Whether it has no parents, no unique key, no workflow and no schedule: no other job decides about it."""
        return (
            not self.parents
            and self.unique_key is None
            and self.workflow_id is None
            and self.schedule is None
            and self.on_parent_failure == ParentPolicy.CANCEL
        )

    def __post_init__(self) -> None:
        check_name("task", self.task)
        check_name("queue", self.queue)
        for problem in _problems(self):
            raise ConfigError(f"job of task {self.task}: {problem}")
        for kind, name in (("schedule", self.schedule), ("step", self.step)):
            if name is not None:
                check_name(kind, name)
        for path, text, limit in (
            ("unique", self.unique_key, UNIQUE_CHARS),
            ("name", self.name, JOB_NAME_CHARS),
            ("description", self.description, DESCRIPTION_CHARS),
            ("retry", self.retry, _RETRY_CHARS),
        ):
            if text is not None:
                _check_text(path, text, limit)
        if self.key is not None:
            check_key(self.key)
        for number, tag in enumerate(self.tags):
            _check_text(f"tags[{number}]", tag, TAG_CHARS)
        if self.headers is not None:
            check_headers(self.headers)


MANY = 50  # jobs in one call; fewer share a transaction with those of other threads


class AlikeJobs(NamedTuple):
    """New jobs, one or many, that differ in nothing but their ids and arguments, and are plain."""

    pattern: NewJob  # what they have in common; its own id and arguments do not count
    ids: Sequence[str]
    args: Sequence[str]


def one_by_one(jobs: Sequence[NewJob] | AlikeJobs) -> Sequence[NewJob]:
    """The jobs, each with all that it is made of."""
    if not isinstance(jobs, AlikeJobs):
        return jobs
    return [jobs.pattern.like(*own) for own in zip(jobs.ids, jobs.args, strict=True)]


def _problems(job: NewJob) -> Iterator[str]:
    """What is wrong with the numbers and words of a job; most have nothing to check."""
    if job.priority is not None and not PRIORITY_MIN <= job.priority <= PRIORITY_MAX:
        yield f"priority must be between {PRIORITY_MIN:,} and {PRIORITY_MAX:,}, not {shown(job.priority)}"
    if not 1 <= job.max_attempts <= _MAX_COUNT or not 1 <= job.max_crashes <= _MAX_COUNT:
        yield f"max_attempts and max_crashes must be between 1 and {_MAX_COUNT:,}"
    if job.timeout is not None and not (math.isfinite(job.timeout) and job.timeout > 0):
        yield f"timeout must be a number of seconds above 0, not {shown(job.timeout)}"
    spans = (job.delay_us, job.expires_us, job.unique_us, job.keep_us)
    if any(us is not None and not 0 <= us <= DELAY_US for us in spans):
        yield "delays and windows must be between 0 and ten years"
    if any(at is not None and not 0 <= at <= LAST_INSTANT for at in (job.run_at, job.expires_at, job.slot)):
        yield "run_at, expires_at and slots must lie between 1970-01-01 and 9999-12-30, in UTC"
    if job.unique_scope not in _SCOPES:
        yield f"unique_scope must be one of {', '.join(_SCOPES)}, not {shown(job.unique_scope)}"
    if job.on_conflict not in _CONFLICTS:
        yield f"on_conflict must be one of {', '.join(_CONFLICTS)}, not {shown(job.on_conflict)}"
    if job.on_parent_failure not in _POLICIES:
        yield f"on_parent_failure must be one of {', '.join(_POLICIES)}, not {shown(job.on_parent_failure)}"
    if len(job.tags) > TAGS:
        yield f"{len(job.tags)} tags are too many; at most {TAGS}"


def check_key(key: str) -> None:
    """`PayloadError` if a job cannot have this key."""
    _check_text("key", key, KEY_CHARS)
    if not key.isprintable():
        raise PayloadError("key", "must be one line of printable text")


def _check_text(path: str, text: str, limit: int) -> None:
    if not 1 <= len(text) <= limit:
        raise PayloadError(path, f"must have between 1 and {limit} characters, not {len(text)}")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise PayloadError(path, "contains a NUL or half a character, which no database can store; take it out")
