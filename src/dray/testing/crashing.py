"""Crashes on demand: an attempt ends as if its worker had been killed at a given moment."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend
from dray.backends.store.work import WorkStore
from dray.errors import ConfigError
from dray.task.checks import whole
from dray.task.task import Task
from dray.testing.binding import refuse_others
from dray.wording import counted

When = Literal["before_commit", "after_commit"]


@dataclass(eq=False)
class Crash:
    """The next attempts of a task that are to crash."""

    app: App
    task: str
    when: When
    left: int


_armed: list[Crash] = []


@contextmanager
def crash(app: App, task: Task[..., Any] | str, *, when: When = "before_commit", times: int = 1) -> Generator[None]:
    """``with crash(app, send): drain(app)``: the next attempt of `send` ends as if its worker had been killed.

    ``before_commit``: the body has run, and nothing of its end is written; `ctx.transaction()` is rolled back.
    ``after_commit``: right after the job's end is written, by `ctx.transaction()` or by the worker. The worker is
    then declared dead and its jobs are taken back, as after a real death. `times`: how many attempts crash.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> with crash(app, add):
        ...     drain(app)
        2
        >>> [attempt.outcome for attempt in job.attempts()]
        ['crashed', 'completed']
    """
    refuse_others(app)
    name = task.name if isinstance(task, Task) else task
    core_of(app).registry.get(name)  # UnknownTask, with the names that are close
    if when not in ("before_commit", "after_commit"):
        raise ConfigError(f'when must be "before_commit" or "after_commit", not {when!r}')
    armed = Crash(app, name, when, whole("times", times, 1))
    try:
        _armed.append(armed)
        yield
    finally:
        while armed in _armed:
            _armed.remove(armed)
    if armed.left:
        ran = f"{counted(armed.left, 'attempt')} of {name} that should have crashed in this block did not run"
        raise AssertionError(f"{ran}: enqueue the job and call drain(app) inside the block")


def crash_of(app: App, task: str) -> Crash | None:
    """The crash that the next attempt of a task is to end with."""
    return next((each for each in _armed if each.app is app and each.task == task and each.left), None)


class Died(BaseException):
    """Unwinds a body whose process is dead: no `except Exception` of its own may go on."""


class DyingBackend(Backend):
    """The database as a body sees it whose process dies before it can complete its job."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.db)
        self.work = _DyingWork(backend.db)


class _DyingWork(WorkStore):
    def complete(self, *_: Any, **__: Any) -> NoReturn:
        raise Died

    async def complete_async(self, *_: Any, **__: Any) -> NoReturn:
        raise Died
