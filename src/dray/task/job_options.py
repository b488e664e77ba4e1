"""The options of one job: what ``task.using(...)`` takes, checked, and the job made of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Protocol, TypedDict

from dray.errors import ConfigError
from dray.model.bounds import JOB_NAME_CHARS, KEY_CHARS, TAGS, UNIQUE_CHARS
from dray.model.headers import encode_headers
from dray.model.job_retry import encode_retry
from dray.model.new_job import NewJob, OnConflict
from dray.model.retry import Exponential, Fixed, Linear
from dray.model.schedule import Schedule
from dray.model.values import check_name, duration_us, parse_id
from dray.model.workflow import OnParentFailure, ParentPolicy
from dray.task import checks
from dray.task.checks import Check, instant, known_options, label, one_of, several
from dray.task.options import TaskOptions, error_name, error_types, retry_policy

_EITHER = (("delay", "run_at"), ("expires_at", "expires_in"))
_WITH_UNIQUE = ("unique_scope", "unique_for", "on_conflict")


class HasId(Protocol):
    """A job, as `after` takes it."""

    @property
    def id(self) -> str: ...


class UniqueScope(StrEnum):
    """How long a unique key is held."""

    LIVE = "live"  # until the job ends
    QUEUED = "queued"  # until it starts


class JobKeywords(TypedDict, total=False):
    """What ``task.using(...)`` takes; None means the default."""

    queue: str | None
    priority: int | None
    delay: float | timedelta | None
    run_at: datetime | None
    expires_at: datetime | None
    expires_in: float | timedelta | None
    unique: str | bool | None
    unique_scope: Literal["live", "queued"] | None
    unique_for: float | timedelta | None
    on_conflict: Literal["keep", "replace", "reschedule"] | None
    max_attempts: int | None
    timeout: float | timedelta | None
    after: Sequence[HasId | str] | HasId | str | None
    on_parent_failure: OnParentFailure | None
    name: str | None
    tags: Sequence[str] | None
    headers: Mapping[str, str] | None
    retry: Fixed | Linear | Exponential | float | timedelta | None
    retry_on: type[BaseException] | Collection[type[BaseException]] | None
    keep_for: float | timedelta | None
    key: str | None
    connection: Any


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What one ``using()`` sets, checked: fields of the jobs that are made with it. All else is as the task says."""

    fields: dict[str, Any] = field(default_factory=dict[str, Any])  # of `NewJob`
    connection: Any = None

    @classmethod
    def of(cls, given: Mapping[str, Any], caller: str = "using()") -> JobOptions:
        """The options as given, or an error that says what they may be."""
        known_options(given, JobKeywords.__optional_keys__, caller)
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("unique") is False:
            del given["unique"]
        for first, second in _EITHER:
            if first in given and second in given:
                raise ConfigError(f"{first} and {second} say the same in two ways; give only one of them")
        useless = next((name for name in _WITH_UNIQUE if name in given and "unique" not in given), None)
        if useless is not None:
            raise ConfigError(f"{useless} means nothing without unique; give unique=True, or a key of your own")
        connection = given.pop("connection", None)
        retry = _retry(given.pop("retry", None), given.pop("retry_on", None))
        fields = {_OPTIONS[name][0]: _OPTIONS[name][1](name, value) for name, value in given.items()}
        _check_it_can_run(**fields)
        return cls(fields if retry is None else {**fields, "retry": retry}, connection)


def _check_it_can_run(
    delay_us: int = 0,
    run_at: int | None = None,
    expires_at: int | None = None,
    expires_us: int | None = None,
    **_: Any,
) -> None:
    instants = run_at is not None and expires_at is not None and expires_at <= run_at
    if instants or (expires_us is not None and run_at is None and expires_us <= delay_us):
        raise ConfigError("the job would expire before it may run; let it expire later, or run sooner")


def prepare(job_id: str, task: TaskOptions, args: str, options: JobOptions) -> NewJob:
    """The job for these arguments, which are JSON text."""
    fields = {**task.job_fields, **options.fields}
    if fields.get("unique_key") is True:
        fields["unique_key"] = _fingerprint(task.name, args)
    if task.key is not None and "key" not in options.fields:
        fields["key"] = task.key.of(args)
    return NewJob(id=job_id, task=task.name, args=args, **fields)


def job_of(schedule: Schedule, task: TaskOptions, job_id: str, slot: int | None) -> NewJob:
    """The job of a schedule's slot; None: an operator runs the schedule now."""
    fields = task.job_fields
    fields["queue"] = schedule.queue or task.queue
    if schedule.priority is not None:
        fields["priority"] = schedule.priority
    if task.key is not None:
        fields["key"] = task.key.of(schedule.args)
    return NewJob(id=job_id, task=schedule.task, args=schedule.args, schedule=schedule.name, slot=slot, **fields)


def _fingerprint(task: str, args: str) -> str:
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which few programs would need for nothing else

    canonical = json.dumps(json.loads(args), sort_keys=True, separators=(",", ":"))
    return f"{task}:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _retry(policy: Any, kinds: Any) -> str | None:
    """The retry options as a row holds them; None: neither is given."""
    wanted = None if policy is None else retry_policy("retry", policy)
    if wanted is not None and not isinstance(wanted, Fixed | Linear | Exponential):
        raise ConfigError(
            "retry: a function of your own cannot be stored with a job; use seconds or dray.fixed, dray.linear or "
            "dray.exponential here, or give the function to the task: @app.task(retry=...)"
        )
    names = () if kinds is None else tuple(map(error_name, error_types("retry_on", kinds)))
    if kinds is not None and not names:
        raise ConfigError("retry_on names no exception type; leave it out, or give max_attempts=1 to retry nothing")
    return encode_retry(wanted, dict.fromkeys(names))


def _unique(name: str, value: Any) -> str | Literal[True]:
    """True: the key is made of the task and its arguments."""
    return True if value is True else label(name, value, UNIQUE_CHARS)


def _tags(name: str, value: Any) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(check_name("tag", tag) for tag in several(name, value, "tags")))
    if len(tags) > TAGS:
        raise ConfigError(f"a job has at most {TAGS} tags, not {len(tags)}")
    return tags


def _after(name: str, value: Any) -> tuple[str, ...]:
    parents = (value,) if isinstance(value, str) or hasattr(value, "id") else several(name, value, "jobs")
    return tuple(dict.fromkeys(parent_id(parent, "after takes jobs or their ids") for parent in parents))


def parent_id(parent: Any, takes: str) -> str:
    """The id of a job that another one runs after; a `TypeError` begins with `takes`."""
    return parse_id(
        parent, takes, lambda text: ConfigError(f"after: {text} is no job id; pass the job, or its whole id")
    )


# How `NewJob` calls each option, and how it is checked.
_OPTIONS: dict[str, tuple[str, Check]] = {
    "queue": ("queue", checks.queue_name),
    "priority": ("priority", checks.priority),
    "delay": ("delay_us", duration_us),
    "run_at": ("run_at", instant),
    "expires_at": ("expires_at", instant),
    "expires_in": ("expires_us", partial(duration_us, low_us=1)),
    "unique": ("unique_key", _unique),
    "unique_scope": ("unique_scope", one_of(UniqueScope)),
    "unique_for": ("unique_us", partial(duration_us, low_us=1)),
    "on_conflict": ("on_conflict", one_of(OnConflict)),
    "max_attempts": ("max_attempts", checks.at_least_once),
    "timeout": ("timeout", checks.timeout),
    "after": ("parents", _after),
    "on_parent_failure": ("on_parent_failure", one_of(ParentPolicy)),
    "name": ("name", partial(label, chars=JOB_NAME_CHARS)),
    "tags": ("tags", _tags),
    "headers": ("headers", encode_headers),
    "keep_for": ("keep_us", duration_us),
    "key": ("key", partial(label, chars=KEY_CHARS)),
}
