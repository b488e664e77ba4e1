"""A workflow that was enqueued: to wait for all of it, to look at it and to act on it.

Unlike a job's handle it keeps nothing: each look is a new one, because steps come and go while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

from dray.errors import UnknownJob, UnknownWorkflow
from dray.handle.job import Desk, Job
from dray.instants import SECOND, to_datetime
from dray.model.job import FINAL, LIVE, CancelResult, State
from dray.model.values import check_name, duration_us, shown
from dray.model.workflow import Workflow, workflow_state
from dray.wording import counted

T = TypeVar("T")

_PAGE = 500
_ALL = frozenset[str](State)
_MOVING = LIVE - {State.WAITING}
_TRANSIT = 0.25  # seconds between two looks while the end of a job is being passed on to those that wait for it


class Done(NamedTuple):
    """How far a workflow is: steps that have ended, and steps in all."""

    done: int
    total: int


class Run:
    """A workflow in the database."""

    __slots__ = ("_desk", "_row", "id")

    def __init__(self, desk: Desk, run_id: str, row: Workflow | None = None) -> None:
        self.id = run_id
        self._desk = desk
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

    # Looking

    def _look(self) -> tuple[Workflow, dict[str, int]]:
        found = self._desk.backend.workflows.get(self.id)
        if found is None:
            raise UnknownWorkflow(
                f"no workflow has the id {self.id}: it was never committed, was rolled back, or was pruned"
            )
        self._row = found[0]
        return found

    def refresh(self) -> Run:
        """Makes sure that it is there; `UnknownWorkflow` if not."""
        self._look()
        return self

    @property
    def name(self) -> str:
        return (self._row or self._look()[0]).name

    @property
    def created_at(self) -> datetime:
        return to_datetime((self._row or self._look()[0]).created_at)

    @property
    def counts(self) -> dict[str, int]:
        """How many of its jobs are in which state, at one moment."""
        return self._look()[1]

    @property
    def state(self) -> str:
        """One word for the whole: running, waiting (every live job waits), failed, cancelled or completed."""
        return workflow_state(self.counts)

    @property
    def progress(self) -> Done:
        """How many of its jobs have ended, and how many there are."""
        return done_of(self.counts)

    def jobs(self) -> list[Job[Any]]:
        """All its jobs, in the order they were made."""
        ids = self._desk.backend.workflows.jobs(self.id, _ALL)
        pages = (self._desk.backend.jobs.get(page) for page in _pages(ids))
        return [Job(self._desk, row.id, row=row) for page in pages for row in page]

    def job(self, step: str) -> Job[Any]:
        """The job of one step."""
        found = self._desk.backend.workflows.step(self.id, check_name("step", step))
        if found is None:
            self._look()
            raise UnknownJob(f"workflow {self.id} has no step {shown(step)}")
        return Job[Any](self._desk, found).refresh()

    # Waiting

    def wait(self, timeout: float | timedelta | None = None) -> str:
        """Waits until all of it has ended, whatever it grows by, and answers its state.

        `waiting`: what is left is held, and nothing will move it but a retry or a cancel. `TimeoutError` when the
        time is over; the workflow goes on.
        """
        clock = _Countdown(timeout)
        while isinstance(found := self._next(), _Ahead):
            clock.check(self.id)
            try:
                self._desk.waiter.wait(found.ids, clock.at_most(found.seconds))
            except UnknownJob:  # deleted meanwhile: what is left is looked at anew
                continue
        return found

    async def await_(self, timeout: float | timedelta | None = None) -> str:
        """As `wait`, from a coroutine."""
        import asyncio  # noqa: PLC0415 - whoever has a coroutine has loaded it; nobody else should

        clock = _Countdown(timeout)
        while isinstance(found := await asyncio.to_thread(self._next), _Ahead):
            clock.check(self.id)
            try:
                await self._desk.waiter.wait_async(found.ids, clock.at_most(found.seconds))
            except UnknownJob:
                continue
        return found

    def _next(self) -> str | _Ahead:
        """Its state, if nothing will move by itself any more; else what to wait for before the next look."""
        backend = self._desk.backend
        state = self.state
        if state in FINAL:
            return state
        moving = backend.workflows.jobs(self.id, _MOVING)[:_PAGE]
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
        waiting = self._desk.backend.workflows.jobs(self.id, frozenset({State.WAITING}))
        return _Ahead(waiting[:1], _TRANSIT)

    # Acting

    def cancel(self) -> int:
        """Cancels every job that has not started and asks those that run to stop; answers how many that were.

        What a running step adds before it stops is cancelled too.
        """
        touched: set[str] = set()
        while ids := [i for i in self._desk.backend.workflows.jobs(self.id, LIVE) if i not in touched]:
            answers = self._desk.backend.jobs.cancel(ids)
            touched.update(ids)
            asked = [i for i, answer in answers.items() if answer is CancelResult.REQUESTED]
            self._desk.recall()
            self._desk.announce(self._queues(asked))  # their workers look for requests when they wake
        if not touched:
            self._look()
        self._desk.waiter.poke()
        self._desk.backend.announce_done()
        return len(touched)

    def retry_failed(self, *, cancelled: bool = False) -> int:
        """Starts the failed steps over, and lets those that were cancelled because of them wait again.

        ``cancelled``: those too that somebody cancelled, or that expired. Answers how many start over.
        """
        backend = self._desk.backend
        states = frozenset({State.FAILED, State.CANCELLED}) if cancelled else frozenset({State.FAILED})
        ids = backend.workflows.jobs(self.id, states)
        if cancelled:
            rows = (row for page in _pages(ids) for row in backend.jobs.get(page))
            ids = [row.id for row in rows if row.reason != "parent"]
        if not ids:
            self._look()
            return 0
        retried = backend.jobs.retry(ids)
        self._desk.announce(self._queues(retried))
        return len(retried)

    async def acancel(self) -> int:
        """As `cancel`, from a coroutine."""
        return await _in_thread(self.cancel)

    async def aretry_failed(self, *, cancelled: bool = False) -> int:
        """As `retry_failed`, from a coroutine."""
        return await _in_thread(lambda: self.retry_failed(cancelled=cancelled))

    def _queues(self, ids: list[str]) -> set[str]:
        return {row.queue for page in _pages(ids) for row in self._desk.backend.jobs.get(page)}


def done_of(counts: dict[str, int]) -> Done:
    """How far a workflow with these counts is."""
    return Done(sum(counts.get(state, 0) for state in FINAL), sum(counts.values()))


def _pages(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _PAGE):
        yield ids[start : start + _PAGE]


class _Ahead(NamedTuple):
    """Jobs that end before their workflow does; where that is not certain, for how long to wait for them."""

    ids: list[str]
    seconds: float | None = None


class _Countdown:
    """What is left of somebody's time."""

    def __init__(self, timeout: float | timedelta | None) -> None:
        self._seconds = None if timeout is None else duration_us("timeout", timeout) / SECOND
        self._began = time.monotonic()

    @property
    def left(self) -> float | None:
        return None if self._seconds is None else max(0.0, self._began + self._seconds - time.monotonic())

    def at_most(self, seconds: float | None) -> float | None:
        return min((each for each in (self.left, seconds) if each is not None), default=None)

    def check(self, run_id: str) -> None:
        if self._seconds is not None and self.left == 0.0:
            within = counted(self._seconds, "second")
            raise TimeoutError(
                f"workflow {run_id} has not ended within {within} and goes on; wait longer, or cancel() it"
            )


async def _in_thread(work: Callable[[], T]) -> T:
    import asyncio  # noqa: PLC0415 - whoever has a coroutine has loaded it; nobody else should

    return await asyncio.to_thread(work)
