"""The handle of an enqueued workflow: to wait for it, look at it and act on it.

Unlike a job's handle it caches nothing, because steps come and go while it runs.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, overload

from dray.app_interface import AppInterface
from dray.errors import ConfigError, UnknownJob, UnknownWorkflow
from dray.handle.job import Job, cancel, in_thread, not_ended, retry, rows, seconds_of
from dray.instants import to_datetime
from dray.model.action import NewAction
from dray.model.job import FINAL, LIVE, CancelResult, State
from dray.model.values import check_name, shown
from dray.model.workflow import Done, RunState, Tally, Workflow, done_of, workflow_state
from dray.waiter import Patience
from dray.wording import counted

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_AWAITED = 500  # jobs that are waited for at a time
_ALL = frozenset[str](State)
_MOVING = LIVE - {State.WAITING}
_TRANSIT = 0.25  # seconds between two looks while the end of a job is being passed on to those that wait for it


class TaskOf(Protocol[R_co]):
    """A task, as far as a handle knows it."""

    @property
    def name(self) -> str: ...
    def decode_result(self, text: str, /) -> R_co: ...


class Run:
    """A workflow in the database.

    Example:

        >>> wf = app.workflow("sums")
        >>> _ = wf.add(add, 1, 2, step="left")
        >>> run = wf.enqueue()
        >>> app.worker().run_until_idle()
        1
        >>> run.wait(timeout=10) == "completed"
        True
        >>> run.progress.done, run.job("left").result()
        (1, 3)
    """

    __slots__ = ("_app", "_row", "id")

    def __init__(self, app: AppInterface, run_id: str, row: Workflow | None = None) -> None:
        self.id = run_id
        self._app = app
        self._row = row

    def __repr__(self) -> str:
        return f"<Run {self.id}{'' if self._row is None else f' {self._row.name}'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the handle of workflow {self.id} stays in its process; pass its id, and use app.workflow_run"
        )

    def _look(self) -> tuple[Workflow, Tally]:
        found = self._app.backend.workflows.get(self.id)
        if found is None:
            raise UnknownWorkflow(
                f"no workflow has the id {self.id}: it was never committed, was rolled back, or was pruned; "
                "app.workflows() lists them"
            )
        self._row = found[0]
        return found

    def refresh(self) -> Run:
        """Checks that it exists: ``run.refresh()``. `UnknownWorkflow` if not."""
        self._look()
        return self

    @property
    def name(self) -> str:
        """What the workflow is called: ``run.name  # 'sums'``."""
        return (self._row or self._look()[0]).name

    @property
    def created_at(self) -> datetime:
        """When it was enqueued: ``run.created_at.year``."""
        return to_datetime((self._row or self._look()[0]).created_at)

    @property
    def counts(self) -> dict[str, int]:
        """How many of its jobs are in which state, at one moment: ``run.counts  # {'completed': 1, 'failed': 1}``."""
        return self._look()[1].counts

    @property
    def state(self) -> RunState:
        """One word for the whole: running, waiting (every live job waits), failed, cancelled or completed.

        ``run.state  # 'failed'``

        Completed too if all steps that failed or were cancelled have children, and each of those has
        ``on_parent_failure="run"``; `counts` tells how many.
        """
        return workflow_state(self._look()[1])

    @property
    def progress(self) -> Done:
        """How many of its jobs have ended, of how many: ``run.progress.done, run.progress.total  # (2, 2)``."""
        return done_of(self.counts)

    def jobs(self) -> list[Job[Any]]:
        """All its jobs, in the order they were made: ``[job.step for job in run.jobs()]  # ['left', 'right']``."""
        ids = self._app.backend.workflows.jobs(self.id, _ALL)
        return [Job(self._app, row.id, row=row) for row in rows(self._app, ids)]

    @overload
    def job(self, step: str) -> Job[Any]: ...
    @overload
    def job(self, step: str, task: TaskOf[R]) -> Job[R]: ...
    def job(self, step: str, task: TaskOf[Any] | None = None) -> Job[Any]:
        """The job of one step: ``run.job("left", add).result()  # 3``. With its task, checkers know the type."""
        found = self._app.backend.workflows.step(self.id, check_name("step", step))
        if found is None:
            self._look()
            raise UnknownJob(f"workflow {self.id} has no step {shown(step)}; run.jobs() lists its steps")
        job = Job[Any](self._app, found).refresh()
        if task is not None and job.task != task.name:
            raise ConfigError(f"step {shown(step)} of workflow {self.id} calls {job.task}, not {task.name}")
        return job

    def wait(self, timeout: float | timedelta | None = None) -> RunState:
        """Waits until all of it has ended, with the steps it adds meanwhile: ``run.wait(timeout=60)  # 'failed'``.

        Returns its state. `waiting`: the rest is held, and only a retry or a cancel moves it. Raises `TimeoutError`
        after `timeout`; the workflow goes on.
        """
        seconds, began, patience = seconds_of(timeout), time.monotonic(), Patience()
        while isinstance(found := self._next(), _Ahead):
            left = _left(found, seconds, began)
            if left is not None and left <= 0:
                raise self._not_ended(found, seconds)
            patience = patience if found.is_in_transit else Patience()
            try:
                self._app.waiter.wait(found.ids, left, patience=patience)
            except UnknownJob:  # deleted meanwhile: look again at the rest
                continue
        return found

    async def await_(self, timeout: float | timedelta | None = None) -> RunState:
        """As `wait`, from a coroutine: ``await run.await_(timeout=60)  # 'failed'``."""
        seconds, began, patience = seconds_of(timeout), time.monotonic(), Patience()
        while isinstance(found := await in_thread(self._next), _Ahead):
            left = _left(found, seconds, began)
            if left is not None and left <= 0:
                raise await in_thread(partial(self._not_ended, found, seconds))
            patience = patience if found.is_in_transit else Patience()
            try:
                await self._app.waiter.wait_async(found.ids, left, patience=patience)
            except UnknownJob:
                continue
        return found

    def _not_ended(self, ahead: _Ahead, seconds: float | None) -> TimeoutError:
        return not_ended(self._app, f"workflow {self.id}", seconds or 0.0, ahead.ids)

    def _next(self) -> RunState | _Ahead:
        """Its state, if nothing will move by itself any more; else what to wait for before the next look."""
        backend = self._app.backend
        state = self.state
        if state in FINAL:
            return state
        moving = backend.workflows.jobs(self.id, _MOVING)[:_AWAITED]
        if moving:
            return _Ahead(moving)
        movers = backend.workflows.moved_by(self.id)
        if not movers:
            # Between the two looks the last one may have been freed.
            state = self.state
            return self._in_transit() if state == State.RUNNING else state
        ended = {job.id for job in backend.jobs.ended(movers).jobs}
        left = [mover for mover in movers if mover not in ended]
        return _Ahead(left) if left else self._in_transit()

    def _in_transit(self) -> _Ahead:
        """The end of a job has still to be passed on to one that waits, which then runs, or ends, or is held."""
        waiting = self._app.backend.workflows.jobs(self.id, frozenset({State.WAITING}))
        return _Ahead(waiting[:1], _TRANSIT)

    def cancel(self) -> int:
        """Cancels every job that has not started and asks running ones to stop; returns how many.

        ``run.cancel()  # 0``, if all have ended. What a running step adds before it stops is cancelled too.
        """
        touched = cancel_run(self._app, self.id)
        if not touched:
            self._look()
        return len(touched)

    def retry_failed(self, *, cancelled: bool = False) -> int:
        """Starts the failed steps over, and lets those that were cancelled because of them wait again.

        ``cancelled``: also those that were cancelled or expired. Returns how many start over:
        ``run.retry_failed()  # 1``
        """
        ids = retryable(self._app, self.id, cancelled=cancelled)
        if not ids:
            self._look()
            return 0
        return len(retry(self._app, ids))

    async def acancel(self) -> int:
        """As `cancel`, from a coroutine: ``await run.acancel()  # 1``."""
        return await in_thread(self.cancel)

    async def aretry_failed(self, *, cancelled: bool = False) -> int:
        """As `retry_failed`, from a coroutine: ``await run.aretry_failed(cancelled=True)  # 1``."""
        return await in_thread(lambda: self.retry_failed(cancelled=cancelled))


def cancel_run(
    app: AppInterface, run_id: str, action: NewAction | None = None, *, most: int | None = None
) -> dict[str, CancelResult]:
    """Cancels the live jobs of a workflow, with those that running ones add meanwhile; what became of each. Raises
    ConfigError before it cancels more than `most`."""
    results: dict[str, CancelResult] = {}
    while ids := [i for i in app.backend.workflows.jobs(run_id, LIVE) if i not in results]:
        check_most("cancel", len(results) + len(ids), most)
        results |= cancel(app, ids, action)
    return results


def check_most(verb: str, jobs: int, most: int | None) -> None:
    """Raises ConfigError if an action on a workflow would be on more jobs than one person may act on."""
    if most is not None and jobs > most:
        raise ConfigError(f"this would {verb} {counted(jobs, 'job')}, and the most is {most:,}; ask an admin")


def retryable(app: AppInterface, run_id: str, *, cancelled: bool) -> list[str]:
    """The steps that `Run.retry_failed` starts over."""
    states = frozenset({State.FAILED, State.CANCELLED}) if cancelled else frozenset({State.FAILED})
    ids = app.backend.workflows.jobs(run_id, states)
    return [row.id for row in rows(app, ids) if row.reason != "parent"] if cancelled else ids


class _Ahead(NamedTuple):
    """Jobs that end before their workflow does; where that is not certain, for how long to wait for them."""

    ids: list[str]
    seconds: float | None = None

    @property
    def is_in_transit(self) -> bool:
        """It is looked at in short parts of one wait."""
        return self.seconds is not None


def _left(ahead: _Ahead, seconds: float | None, began: float) -> float | None:
    """How long to wait for these jobs, within the time for the whole workflow; not above 0: that is over."""
    if seconds is None:
        return ahead.seconds
    left = began + seconds - time.monotonic()
    return left if ahead.seconds is None else min(left, ahead.seconds)
