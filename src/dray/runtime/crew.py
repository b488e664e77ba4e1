"""The runners of a worker, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dray.clock import Clock
from dray.errors import ConfigError
from dray.hooks import name_of
from dray.log import log
from dray.model.job import Claim
from dray.runtime import loading
from dray.runtime.claiming import Capacity
from dray.runtime.condition import Outage
from dray.runtime.execution import Execution
from dray.runtime.runners import Refuse, Report, Runner
from dray.runtime.runners.thread import ThreadRunner
from dray.runtime.standbys import Standbys
from dray.task.task import Task

_FAREWELL = 1.0  # seconds for child processes to end


@dataclass(eq=False)
class Crew:
    """One runner of each kind at most."""

    _size: int
    _report: Report
    _refuse: Refuse
    _clock: Clock
    _tasks: Mapping[str, Task[..., Any]]
    _url: str
    _lock_fd: Callable[[], int | None]
    _standbys: Standbys
    _runners: dict[str, Runner] = field(default_factory=dict[str, Runner])
    _not_isolated: set[str] = field(default_factory=set[str])

    def check(self) -> None:
        """Raises `ConfigError` for a task that could not run in the runner it asks for."""
        for task in self._tasks.values():
            reason = _why_not(task) if task.options.runner == "process" else None
            if reason is not None:
                raise ConfigError(f"task {task.name} cannot run in a child process: {reason}")

    def runner_of(self, claim: Claim) -> Runner:
        """The runner of the task. A job that has crashed a worker before runs in a child process, if it can."""
        kind: str = self._tasks[claim.task].options.runner
        if claim.crashes and kind != "process" and self._can_isolate(claim.task):
            kind = "process"
        runner = self._runners.get(kind)
        if runner is None:
            runner = self._runners[kind] = self._make(kind)
        return runner

    def mend(self) -> Capacity | None:
        """Makes the threads and processes that runners lack. Returns what can run without them; None: all."""
        short = {kind: runner for kind, runner in self._runners.items() if runner.outage.is_on}
        if not short:
            return None
        for runner in short.values():
            runner.mend()
        capacities = {kind: runner.capacity for kind, runner in short.items()}
        tasks = [name for name, task in self._tasks.items() if capacities.get(task.options.runner, 1)]
        return Capacity(min([each for each in capacities.values() if each], default=self._size), tuple(tasks))

    def hurry(self, now: int) -> float | None:
        """Starts what waits for no reason; returns the seconds after which to call it again, None: nothing does."""
        pauses = [runner.hurry(now) for runner in self._runners.values()]
        return min([each for each in pauses if each is not None], default=None)

    def outages(self) -> list[Outage]:
        """Of threads and processes. For any thread."""
        return [runner.outage for runner in list(self._runners.values())]

    def take_back(self) -> list[Execution]:
        return [execution for runner in self._runners.values() for execution in runner.take_back()]

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()
        for runner in self._runners.values():
            runner.join(_FAREWELL)

    def _make(self, kind: str) -> Runner:
        # Each pays for itself only: asyncio alone is a fifth of an idle worker's memory.
        shared = self._size, self._report, self._refuse, self._clock
        if kind == "async":
            from dray.runtime.runners.loop import LoopRunner  # noqa: PLC0415 - it loads asyncio

            return LoopRunner(*shared)
        if kind == "process":
            from dray.runtime.runners.process import ProcessRunner  # noqa: PLC0415 - only for tasks that ask for processes

            return ProcessRunner(*shared, self._lock_fd, self._url)
        return ThreadRunner(*shared, self._standbys)

    def _can_isolate(self, name: str) -> bool:
        if name in self._not_isolated:
            return False
        reason = _why_not(self._tasks[name])
        if reason is not None:
            self._not_isolated.add(name)
            log.warning("task %s has crashed a worker and cannot be isolated in a child process: %s", name, reason)
        return reason is None


def _why_not(task: Task[..., Any]) -> str | None:
    """Why a child process could not run this task; None: it can."""
    found = loading.locate(task)
    if isinstance(found, str):
        return found
    for function in task.app.hooks.middleware:
        found = loading.locate_middleware(function)
        if isinstance(found, str):
            return f"middleware {name_of(function)} is not to be found there: {found}"
    return None
