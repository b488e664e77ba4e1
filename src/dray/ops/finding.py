"""Which jobs somebody means: by a filter, by a part of an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from dray.errors import ConfigError, UnknownJob, UnknownWorkflow
from dray.instants import from_datetime
from dray.model.job import State, states_named
from dray.model.values import canonical_id, check_name, duration_us, shown

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.jobs import Filter

_CANDIDATES = 5
MAX_LIMIT = 10_000  # jobs in one list: each may carry a megabyte


def job_filter(
    backend: Backend,
    *,
    state: str | Iterable[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    since: datetime | timedelta | float | None = None,
) -> Filter:
    """Which jobs a list shows; the error says which part of it cannot be meant."""
    from dray.backends.store.jobs import Filter  # noqa: PLC0415 - an App that lists nothing needs no database

    states, reason = (frozenset(State), None) if state is None else _states(state)
    return Filter(
        states=states,
        reason=reason,
        queue=None if queue is None else check_name("queue", queue),
        task=None if task is None else check_name("task", task),
        tag=None if tag is None else check_name("tag", tag),
        since=None if since is None else _since(backend, since),
    )


def _states(given: str | Iterable[str]) -> tuple[frozenset[State], str | None]:
    words = [given] if isinstance(given, str) else list(given)
    try:
        named = [states_named(_word(word)) for word in words]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    reasons = [reason for _, reason in named if reason is not None]
    if not named or (reasons and len(named) > 1):
        raise ConfigError(
            f"state cannot be {shown(words)}: give states, or one of timeout, crashed and expired alone"
        )
    return frozenset(state for states, _ in named for state in states), next(iter(reasons), None)


def _word(word: object) -> str:
    if not isinstance(word, str):
        raise TypeError(f"state must be a word or a list of words, not {type(word).__name__}")
    return word


def _since(backend: Backend, value: datetime | timedelta | float) -> int:
    if not isinstance(value, datetime):
        return backend.now() - duration_us("since", value)
    if value.utcoffset() is None:
        raise ConfigError("since has no time zone, so it names no instant; use datetime.now(UTC), or .astimezone()")
    return from_datetime(value)


def job_named(backend: Backend, part: str) -> str:
    """The whole id of the job that a part of it names; the error says that there is none, or which there are."""
    return _whole_id(backend, part, backend.jobs.find, "job", UnknownJob)


def workflow_named(backend: Backend, part: str) -> str:
    """As `job_named`, of workflows."""
    return _whole_id(backend, part, backend.workflows.find, "workflow", UnknownWorkflow)


def _whole_id(
    backend: Backend, part: str, find: Callable[[str, int], list[str]], kind: str, unknown: type[Exception]
) -> str:
    wanted = part.strip().lower()
    whole = canonical_id(wanted)
    if whole is not None:
        return whole
    found = find(wanted, _CANDIDATES + 1) if wanted else []
    if not found:
        backend.queues.all()  # raises if there is no database: what cannot be an id is not even looked for
        raise unknown(f"no {kind}'s id contains {shown(part)}")
    if len(found) > 1:
        listed = ", ".join(found[:_CANDIDATES]) + (" and more" if len(found) > _CANDIDATES else "")
        raise ConfigError(f"{shown(part)} is part of several {kind}s' ids: {listed}; give more of it")
    return found[0]


def check_limit(limit: object) -> int:
    """How many jobs a list may have."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be a whole number, not {type(limit).__name__}")
    if not 1 <= limit <= MAX_LIMIT:
        raise ConfigError(f"limit must be between 1 and {MAX_LIMIT:,}, not {shown(limit)}; read on with after=")
    return limit
