"""An App and a Context that stand in for the real ones, and functions to make tasks of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from dray.clock import Ids
from dray.hooks import Hooks
from dray.model.new_job import AlikeJobs, NewJob
from dray.task.options import TaskOptions
from dray.task.task import Task
from tests.manual_clock import ManualClock


class Context:
    """What the worker hands to a body; the real one has the same mark."""

    __dray_context__ = True


@dataclass
class Handle:
    """What an App returns for an enqueue."""

    job: NewJob

    @property
    def id(self) -> str:
        return self.job.id

    def result(self, timeout: float | None = None) -> Any:
        raise TimeoutError

    async def aresult(self, timeout: float | None = None) -> Any:
        raise TimeoutError


class FakeApp:
    """An App that notes what it is asked to write."""

    def __init__(self) -> None:
        self.context: Any = None
        self.batches: list[list[NewJob]] = []
        self.connections: list[Any] = []
        self.ids = Ids(ManualClock())
        self.hooks = Hooks()
        self.new_id = self.ids.new

    def submit(self, new: Sequence[NewJob], connection: Any = None, workflow: Any = None) -> list[Any]:
        self.batches.append(list(new))
        self.connections.append(connection)
        return [Handle(each) for each in new]

    async def asubmit(self, new: Sequence[NewJob], connection: Any = None, workflow: Any = None) -> list[Any]:
        return self.submit(new, connection)

    def submit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Any]:
        return self.submit([jobs.pattern.like(*each) for each in zip(jobs.ids, jobs.args, strict=True)], connection)

    async def asubmit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Any]:
        return self.submit_alike(jobs, connection)

    def local_context(self, task: Task[..., Any], args: Mapping[str, Any]) -> Any:
        return self.context

    @property
    def jobs(self) -> list[NewJob]:
        return [each for batch in self.batches for each in batch]


def add(a: int, b: int = 2) -> int:
    return a + b


def report(day: date, *, total: Decimal = Decimal(0), ctx: Context) -> tuple[date, Decimal, Any]:
    return day, total, ctx


async def fetch(url: str) -> dict[str, Any]:
    return {"url": url}


def doubled(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        return 2 * function(*args, **kwargs)

    return wrapper


@doubled
def decorated(n: int) -> int:
    return n


def options(function: Callable[..., Any] = add, **given: Any) -> TaskOptions:
    return TaskOptions.of(function, given)
