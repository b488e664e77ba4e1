"""A job's handle: what `enqueue()` answers, to wait for the job, to look at it and to act on it.

What it shows is read once, when first asked for, and stays as it was until `refresh()`; `result()`, `cancel()` and
`retry()` see to it that the next look is new. A handle belongs to its process: pass ``job.id`` on, and use
``app.job(id)`` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast

from dray import codec
from dray.errors import JobCancelled, JobFailed
from dray.handle import history
from dray.handle.history import Attempt, LogLine, Progress, moment
from dray.instants import SECOND, to_datetime
from dray.model import job as model
from dray.model.job import CancelResult, State
from dray.model.values import duration_us
from dray.sanitize import clean_traceback
from dray.waiter import Waiter, unknown_job
from dray.wording import counted

if TYPE_CHECKING:
    from dray.backends.base import Backend

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

_TRACEBACK_BYTES = 8 * 1024  # of the last attempt's, shown with the error that result() raises


class Desk(Protocol):
    """What a handle asks of its App."""

    @property
    def backend(self) -> Backend: ...
    @property
    def waiter(self) -> Waiter: ...
    def decode_result(self, task: str, text: str) -> Any:
        """A stored result, as the task is annotated where it is known."""
        ...

    def shown_args(self, task: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as people may see them."""
        ...

    def recall(self) -> None:
        """Workers of this process may have claimed what they should not start any more."""
        ...

    def announce(self, queues: Iterable[str]) -> None:
        """There may be something to do in these queues."""
        ...


class Job(Generic[R_co]):
    """One request to run a task; R is what its function returns."""

    __slots__ = ("_desk", "_row", "duplicate", "id", "replaced")

    def __init__(
        self,
        desk: Desk,
        job_id: str,
        *,
        row: model.Job | None = None,
        duplicate: bool = False,
        replaced: bool = False,
    ) -> None:
        self.id = job_id
        self.duplicate = duplicate  # it was there before: the enqueue's unique key was held by this job
        self.replaced = replaced  # and it took over what the enqueue's on_conflict says, because it had not started
        self._desk = desk
        self._row = row

    def __repr__(self) -> str:
        known = "" if self._row is None else f" {self._row.task} {self._row.state}"
        return f"<Job {self.id}{known}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == cast("Job[Any]", other).id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the handle of job {self.id} stays in its process; pass job.id, and use app.job(id) there")

    # Waiting

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Waits for the job to end and returns what its body returned.

        Raises `JobFailed` or `JobCancelled`, `TimeoutError` when the time is over (the job goes on), and
        `UnknownJob` at once if there is no such job.
        """
        seconds = _seconds(timeout)
        ended = self._desk.waiter.wait([self.id], seconds)
        return self._outcome(ended, seconds)

    async def aresult(self, timeout: float | timedelta | None = None) -> R_co:
        """As `result`, from a coroutine."""
        import asyncio  # noqa: PLC0415 - whoever has a coroutine has loaded it; nobody else should

        seconds = _seconds(timeout)
        ended = await self._desk.waiter.wait_async([self.id], seconds)
        row = ended.get(self.id)
        if row is not None and row.state == State.COMPLETED:
            return self._outcome(ended, seconds)
        return await asyncio.to_thread(self._outcome, ended, seconds)  # reads the traceback

    def _outcome(self, ended: Mapping[str, model.Job], seconds: float | None) -> R_co:
        row = ended.get(self.id)
        if row is None:
            assert seconds is not None
            within = counted(seconds, "second")
            raise TimeoutError(
                f"job {self.id} has not ended within {within} and goes on; wait longer, or cancel() it"
            )
        self._row = row
        if row.state == State.COMPLETED:
            return self._desk.decode_result(row.task, row.result or "null")
        raise _failure(self, row, self._traceback(row))

    def _traceback(self, row: model.Job) -> str | None:
        if row.state != State.FAILED:
            return None
        last = self._desk.backend.history.attempts(self.id)[-1:]
        return next((attempt.traceback for attempt in last), None)

    # Looking

    @property
    def row(self) -> model.Job:
        """All that is stored of the job, as it was when it was first looked at."""
        if self._row is None:
            self.refresh()
            assert self._row is not None
        return self._row

    def refresh(self) -> Job[R_co]:
        """Reads the job anew; `UnknownJob` if it is gone."""
        found = self._desk.backend.jobs.get([self.id])
        if not found:
            raise unknown_job(self.id)
        self._row = found[0]
        return self

    async def arefresh(self) -> Job[R_co]:
        """As `refresh`, from a coroutine."""
        return await _in_thread(self.refresh)

    @property
    def state(self) -> str:
        return self.row.state

    @property
    def reason(self) -> str | None:
        """Why it failed or was cancelled."""
        return self.row.reason

    @property
    def task(self) -> str:
        return self.row.task

    @property
    def queue(self) -> str:
        return self.row.queue

    @property
    def priority(self) -> int:
        return self.row.priority

    @property
    def name(self) -> str | None:
        return self.row.name

    @property
    def tags(self) -> tuple[str, ...]:
        return self.row.tags

    @property
    def args(self) -> dict[str, Any] | None:
        """The arguments by name, those that the task redacts hidden; None: they were not kept."""
        stored = self.row.args
        return None if stored is None else self._desk.shown_args(self.row.task, codec.decode(stored))

    @property
    def attempt(self) -> int:
        """The number of the last attempt; 0: it has not started."""
        return self.row.attempt

    @property
    def max_attempts(self) -> int:
        return self.row.max_attempts

    @property
    def error(self) -> str | None:
        """One line that says what the last attempt ended with."""
        return self.row.error

    @property
    def progress(self) -> Progress:
        """How far the body says it is."""
        return Progress(self.row.progress, self.row.progress_message)

    @property
    def run_at(self) -> datetime:
        return to_datetime(self.row.run_at)

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.row.created_at)

    @property
    def started_at(self) -> datetime | None:
        return moment(self.row.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return moment(self.row.finished_at)

    @property
    def expires_at(self) -> datetime | None:
        return moment(self.row.expires_at)

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made it."""
        return self.row.schedule

    @property
    def slot(self) -> datetime | None:
        """The time for which its schedule made it."""
        return moment(self.row.slot)

    def attempts(self) -> list[Attempt]:
        """Every attempt that is kept, oldest first, with the one under way."""
        row = self.refresh().row  # before the others: what ends in between is then among those
        return history.attempts(row, self._desk.backend.history.attempts(self.id))

    def logs(self, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """What was logged inside the job, oldest first."""
        found = self._desk.backend.history.log_lines(self.id, after=after, limit=limit)
        return [history.line(seq, stored) for seq, stored in found]

    # Acting

    def cancel(self) -> bool:
        """Whether the job is cancelled now or, if it runs, asked to stop. False: it had ended already."""
        answer = self._desk.backend.jobs.cancel([self.id])[self.id]
        if answer is CancelResult.UNKNOWN:
            raise unknown_job(self.id)
        if answer is CancelResult.REQUESTED:
            self._desk.recall()
            self._desk.announce([self.queue])  # its worker looks for requests when it wakes
        elif answer is CancelResult.CANCELLED:
            self._desk.waiter.poke()
            self._desk.backend.announce_done()
        self._row = None
        return answer is not CancelResult.FINAL

    def retry(self) -> bool:
        """Whether the job, which had ended, starts over. False: it has not ended, or its arguments were not kept."""
        has_happened = bool(self._desk.backend.jobs.retry([self.id]))
        self.refresh()
        if has_happened:
            self._desk.announce([self.queue])
        self._row = None
        return has_happened

    def delete(self) -> bool:
        """Whether the job and its history are gone. False: it runs, or a live job needs it."""
        if not self._desk.backend.jobs.delete([self.id]):
            self.refresh()
            return False
        self._row = None
        return True

    async def acancel(self) -> bool:
        """As `cancel`, from a coroutine."""
        return await _in_thread(self.cancel)

    async def aretry(self) -> bool:
        """As `retry`, from a coroutine."""
        return await _in_thread(self.retry)


def _failure(job: Job[Any], row: model.Job, traceback: str | None) -> JobFailed | JobCancelled:
    """What result() raises: what happened, to which job, and what can be done."""
    kind = JobFailed if row.state == State.FAILED else JobCancelled
    attempts = f" in attempt {row.attempt} of {row.max_attempts}" if kind is JobFailed else ""
    what = f"job {row.id} ({row.task}) {_WORDS.get(row.reason or '', f'ended as {row.state}')}{attempts}"
    why = f": {row.error}" if row.error else ""
    advice = "see job.attempts(); job.retry() starts it over" if kind is JobFailed else "job.retry() starts it over"
    error = kind(f"{what}{why}\n{advice}", job, row.reason, row.error)
    if traceback:
        error.add_note(f"where the body failed:\n{clean_traceback(traceback, _TRACEBACK_BYTES)}")
    return error


_WORDS = {
    "error": "failed",
    "timeout": "ran out of time",
    "crashed": "lost its worker",
    "result": "completed, but its result cannot be stored",
    "arguments": "has arguments that its function does not take",
    "user": "was cancelled",
    "parent": "was cancelled, because a job that it depends on did not complete",
    "expired": "was cancelled, because it had not started in time",
}


def _seconds(timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else duration_us("timeout", timeout) / SECOND


async def _in_thread(work: Callable[[], T]) -> T:
    import asyncio  # noqa: PLC0415 - whoever has a coroutine has loaded it; nobody else should

    return await asyncio.to_thread(work)
