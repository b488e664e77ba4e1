"""Waiting for many jobs at once: one wait, one thread and batched reads, however many they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from dray.app_interface import AppInterface
from dray.errors import ConfigError
from dray.handle.job import Job, refuse_connected, seconds_of
from dray.model import job as model
from dray.model.values import shown

R = TypeVar("R")

ReturnWhen: TypeAlias = Literal["all", "first"]


class Waited(NamedTuple, Generic[R]):
    """What `app.wait` returns: the jobs that have ended and those that have not, each in the order given."""

    ended: list[Job[R]]
    pending: list[Job[R]]


def wait(
    app: AppInterface, jobs: Iterable[Job[R]], timeout: float | timedelta | None, return_when: ReturnWhen
) -> Waited[R]:
    """Waits until all of these jobs have ended, or the first of them, or the time is over."""
    handles, enough = _by_id(jobs), _enough(return_when)
    return _split(handles, app.waiter.wait(handles, seconds_of(timeout), enough=enough))


async def wait_async(
    app: AppInterface, jobs: Iterable[Job[R]], timeout: float | timedelta | None, return_when: ReturnWhen
) -> Waited[R]:
    """As `wait`, from a coroutine."""
    handles, enough = _by_id(jobs), _enough(return_when)
    return _split(handles, await app.waiter.wait_async(handles, seconds_of(timeout), enough=enough))


def _by_id(jobs: Any) -> dict[str, Job[Any]]:
    if not isinstance(jobs, Iterable) or isinstance(jobs, str):
        raise TypeError(f"wait() takes several jobs, not {type(jobs).__name__}; for one of them use job.wait()")
    found: dict[str, Job[Any]] = {}
    for job in cast("Iterable[Any]", jobs):
        if not isinstance(job, Job):
            raise TypeError(f"wait() takes jobs, not {type(job).__name__}; for an id use app.job(id)")
        refuse_connected(cast("Job[Any]", job))
        found[job.id] = cast("Job[Any]", job)
    return found


def _enough(return_when: object) -> int | None:
    if return_when not in ("all", "first"):
        raise ConfigError(f'return_when must be "all" or "first", not {shown(return_when)}')
    return 1 if return_when == "first" else None


def _split(handles: Mapping[str, Job[Any]], ended: Mapping[str, model.Job]) -> Waited[Any]:
    found = Waited[Any]([], [])
    for job_id, job in handles.items():
        job.row = ended.get(job_id)  # None: it is read when it is asked for
        (found.ended if job_id in ended else found.pending).append(job)
    return found
