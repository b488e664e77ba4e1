"""A job's handle, which `enqueue()` returns: to wait for the job, look at it and act on it.

Its row is read once, at first use, and kept until `refresh()`; after `result()`, `cancel()` and `retry()` it is read
again. A handle belongs to its process: pass ``job.id`` on, and use ``app.job(id)`` there.

A handle with a connection of the user's reads and acts in the transaction that is open there, and does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Self, TypeVar, cast, overload

from dray import codec
from dray.app_interface import AppInterface
from dray.errors import ConfigError, GraphError, JobCancelled, JobFailed, StorageError
from dray.instants import SECOND, moment, to_datetime
from dray.model import job as model
from dray.model.action import NewAction
from dray.model.headers import decode_headers
from dray.model.job import FINAL, CancelResult, State, StateName
from dray.model.lost_parents import advice
from dray.model.values import duration_us
from dray.sanitize import clean_traceback
from dray.waiter import Patience, unknown_job
from dray.wording import attempt_name, counted

if TYPE_CHECKING:
    from dray.backends import Backend

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

_PAGE = 500  # rows in one read
_TRACEBACK_BYTES = 8 * 1024  # of the last attempt's, shown with the error that result() raises


class Progress(NamedTuple):
    """How far the body says it is."""

    percent: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class AttemptError:
    """What an attempt ended with."""

    type: str | None
    message: str | None
    traceback: str | None
    class_path: str | None = None  # where its class is: "shop.mail.Bounced"; None: an earlier release recorded it


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a job. `outcome` is ``running`` for the one under way.

    With `Job.retry` the job starts over, and so do the numbers: `start` tells those with the same number apart, and
    `claim` is never used twice. `LogLine.claim` says in which attempt a line was logged.
    """

    number: int
    worker: str | None
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    error: AttemptError | None
    start: int = 1  # 1, and one more after each retry, as far as attempts are kept
    claim: int = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that was logged inside a job; give its `seq` to `Job.logs` to read on from there."""

    seq: int
    at: datetime
    level: str
    logger: str
    message: str
    claim: int = 0  # of the attempt that logged it


class _Column(Generic[T]):
    """A column of a job's row, read with it at first use; `shown` turns what is stored into what people see."""

    def __init__(self, shown: Callable[[Any], T] | None = None) -> None:
        self._shown = shown

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, job: None, owner: type) -> Self: ...
    @overload
    def __get__(self, job: Job[Any], owner: type) -> T: ...
    def __get__(self, job: Job[Any] | None, owner: type) -> Self | T:
        if job is None:
            return self
        value = getattr(job.row, self._name)
        return value if self._shown is None else self._shown(value)


class Job(Generic[R_co]):
    """One request to run a task; R is what its function returns.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> job.state, job.args
        ('queued', {'a': 1, 'b': 2})
        >>> job.cancel(), job.retry()
        (True, True)
        >>> app.worker().run_until_idle()
        1
        >>> job.result(timeout=10), job.attempts()[0].outcome
        (3, 'completed')
    """

    __slots__ = ("_app", "_connection", "_row", "duplicate", "id", "replaced")

    def __init__(
        self,
        app: AppInterface,
        job_id: str,
        *,
        row: model.Job | None = None,
        duplicate: bool = False,
        replaced: bool = False,
        connection: Any = None,
    ) -> None:
        self.id = job_id
        self.duplicate = duplicate  # it was there before: the enqueue's unique key was held by this job
        self.replaced = replaced  # and it took over what the enqueue's on_conflict says, because it had not started
        self._app = app
        self._connection = connection
        self._row = row

    @property
    def _backend(self) -> Backend:
        """The database, as a connection that was given sees it."""
        backend = self._app.backend
        return backend if self._connection is None else backend.seen_by(self._connection)

    def __repr__(self) -> str:
        known = "" if self._row is None else f" {self._row.task} {self._row.state}"
        return f"<Job {self.id}{known}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == cast("Job[Any]", other).id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the handle of job {self.id} stays in its process; pass job.id, and use app.job(id) there")

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Waits for the job to end and returns what its body returned: ``job.result(timeout=10)  # 3``.

        Raises `JobFailed` or `JobCancelled`, `TimeoutError` when the time is over, which says why if the job does not
        run, and `UnknownJob` at once if there is no such job.
        """
        seconds = seconds_of(timeout)
        if self._connection is not None:
            return self._outcome(self._ended_by_now(self.refresh()), seconds)
        return self._outcome(self._app.waiter.wait([self.id], seconds), seconds)

    def wait(self, timeout: float | timedelta | None = None) -> StateName:
        """Waits for the job to end and returns its state: ``job.wait(timeout=10)  # 'completed'``.

        When the time is over, it returns the state that the job has then.
        """
        seconds = seconds_of(timeout)
        if self._connection is not None:
            return self._now(self._ended_by_now(self.refresh()))
        return self._now(self._app.waiter.wait([self.id], seconds))

    async def await_(self, timeout: float | timedelta | None = None) -> StateName:
        """As `wait`, from a coroutine: ``await job.await_(timeout=10)  # 'completed'``."""
        seconds = seconds_of(timeout)
        if self._connection is not None:
            return self._now(self._ended_by_now(await self.arefresh()))
        ended = await self._app.waiter.wait_async([self.id], seconds)
        return self._now(ended) if ended else await in_thread(lambda: self._now(ended))

    def _now(self, ended: Mapping[str, model.Job]) -> StateName:
        self._row = ended.get(self.id)  # None: it is read now
        return self.state

    async def aresult(self, timeout: float | timedelta | None = None) -> R_co:
        """As `result`, from a coroutine: ``await job.aresult(timeout=10)  # 3``."""
        seconds = seconds_of(timeout)
        if self._connection is not None:
            return self._outcome(self._ended_by_now(await self.arefresh()), seconds)
        ended = await self._app.waiter.wait_async([self.id], seconds)
        row = ended.get(self.id)
        if row is not None and row.state == State.COMPLETED:
            return self._outcome(ended, seconds)
        return await in_thread(lambda: self._outcome(ended, seconds))  # reads the traceback

    def _ended_by_now(self, read: Job[Any]) -> dict[str, model.Job]:
        if read.row.state not in FINAL:
            raise _cannot_wait(self.id)
        return {self.id: read.row}

    def _outcome(self, ended: Mapping[str, model.Job], seconds: float | None) -> R_co:
        row = ended.get(self.id)
        if row is None:
            raise not_ended(self._app, f"job {self.id}", seconds or 0.0, [self.id])
        self._row = row
        if row.state == State.COMPLETED:
            return self._app.decode_result(row.task, row.result or "null")
        raise self._failure(row)

    def _failure(self, row: model.Job) -> JobFailed | JobCancelled:
        """What result() raises: what happened, to which job, and what can be done."""
        kind = JobFailed if row.state == State.FAILED else JobCancelled
        kept = self._backend.history.attempts(self.id) if kind is JobFailed else []
        start = max(model.starts(each.attempt for each in kept), default=1)
        name = attempt_name(row.attempt, start if start > 1 else None)
        attempts = f" in {name} of {row.max_attempts}" if kind is JobFailed else ""
        what = f"job {row.id} ({row.task}) {_WORDS.get(row.reason or '', f'ended as {row.state}')}{attempts}"
        why = f": {row.error}" if row.error else ""
        look = "see job.attempts(); " if kind is JobFailed else ""
        lost = self._backend.graph.lost(self.id)
        again = advice(lost) if any(lost) else "job.retry() starts it over"
        error = kind(f"{what}{why}\n{look}{again}", self, row.reason, row.error)
        for last in kept[-1:]:
            if last.traceback:
                error.add_note(f"where the body failed:\n{clean_traceback(last.traceback, _TRACEBACK_BYTES)}")
        return error

    @property
    def row(self) -> model.Job:
        """The stored job, as it was when it was first read: ``job.row.attempt  # 1``."""
        if self._row is None:
            self.refresh()
            assert self._row is not None
        return self._row

    @row.setter
    def row(self, row: model.Job | None) -> None:
        self._row = row

    def refresh(self) -> Job[R_co]:
        """Reads the job again: ``job.refresh().state  # 'completed'``. `UnknownJob` if it is gone."""
        return self._found(self._backend.jobs.get([self.id]))

    async def arefresh(self) -> Job[R_co]:
        """As `refresh`, from a coroutine: ``(await job.arefresh()).state``."""
        if self._connection is None:
            return await in_thread(self.refresh)
        return self._found(
            await self._app.backend.read_async(self._connection, lambda seen: seen.jobs.get([self.id]))
        )

    def _found(self, found: Sequence[model.Job]) -> Job[R_co]:
        if not found:
            raise unknown_job(self.id)
        self._row = found[0]
        return self

    state = _Column[StateName]()
    reason = _Column[str | None]()  # why it failed or was cancelled
    task = _Column[str]()
    queue = _Column[str]()
    priority = _Column[int]()
    name = _Column[str | None]()
    tags = _Column[tuple[str, ...]]()
    key = _Column[str | None]()  # it takes turns with the jobs of other keys, and limits of keys count it
    attempt = _Column[int]()  # the number of the last attempt; 0: it has not started
    max_attempts = _Column[int]()
    error = _Column[str | None]()  # one line that says what the last attempt ended with
    run_at = _Column[datetime](to_datetime)
    created_at = _Column[datetime](to_datetime)
    started_at = _Column[datetime | None](moment)
    finished_at = _Column[datetime | None](moment)
    expires_at = _Column[datetime | None](moment)
    workflow_id = _Column[str | None]()
    step = _Column[str | None]()
    schedule = _Column[str | None]()  # the name of the schedule that made it
    slot = _Column[datetime | None](moment)  # the time for which its schedule made it

    @property
    def args(self) -> dict[str, Any] | None:
        """The arguments by name, redacted ones hidden: ``job.args  # {'a': 1, 'b': 2}``. None: they were not kept."""
        stored = self.row.args
        return None if stored is None else self._app.shown_args(self.row.task, codec.decode_args(stored))

    @property
    def headers(self) -> dict[str, str]:
        """What it was enqueued with as `headers`: ``job.headers  # {'request_id': '7f3a'}``."""
        return decode_headers(self.row.headers)

    @property
    def progress(self) -> Progress:
        """How far the body says it is: ``job.progress.percent, job.progress.message  # (100.0, 'added')``."""
        return Progress(self.row.progress, self.row.progress_message)

    def attempts(self) -> list[Attempt]:
        """Every kept attempt, oldest first, and the one under way: ``job.attempts()[0].outcome  # 'completed'``."""
        row = self.refresh().row  # before the others: what ends in between is then among those
        kept = self._backend.history.attempts(self.id)
        found = [_attempt(each) for each in kept]
        if row.state in {State.RUNNING, State.COMPLETED} and row.claim not in {each.claim for each in kept}:
            times = moment(row.started_at), moment(row.finished_at)
            last = Attempt(row.attempt, row.worker_id, row.state, *times, None, claim=row.claim)
            found.append(last)  # only its own row shows it
        counted = model.starts(each.number for each in found)
        return [replace(each, start=start) for each, start in zip(found, counted, strict=True)]

    def logs(self, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """What was logged inside it, oldest first: ``[line.message for line in job.logs()]  # ['adding']``."""
        found = self._backend.history.log_lines(self.id, after=after, limit=limit)
        return [
            LogLine(seq, to_datetime(line.at), line.level, line.logger, line.message, line.claim)
            for seq, line in found
        ]

    def cancel(self) -> bool:
        """Cancels the job; if it runs, asks it to stop: ``later.cancel()  # True``. False: it had ended already."""
        result = self._cancel()
        if result is CancelResult.UNKNOWN:
            raise unknown_job(self.id)
        self._row = None
        return result is not CancelResult.FINAL

    def retry(self) -> bool:
        """Starts an ended job over: ``failed.retry()  # True``. False: it has not ended, or its arguments are gone.

        With live parents it waits for them. `GraphError` if one of them failed or was cancelled, unless the job runs
        after such too: the message says which to retry instead.
        """
        has_changed = self._retry()
        if not has_changed and self.refresh().row.state in FINAL:
            lost = self._backend.graph.lost(self.id)
            if any(lost):
                raise GraphError(f"job {self.id} ({self.task}) was not retried: {advice(lost)}")
        self._row = None
        return has_changed

    def delete(self) -> bool:
        """Deletes the job and its history: ``job.delete()  # True``. False: it runs, or another job needs it.

        A job that runs after it and is live, failed or cancelled needs it: it may ask for its result, now or when it
        is retried. Delete that one first.
        """
        if not self._backend.jobs.delete([self.id]):
            self.refresh()
            return False
        self._row = None
        return True

    # On the user's own connection their commit tells workers, and those who wait.

    def _cancel(self) -> CancelResult:
        if self._connection is None:
            return cancel(self._app, [self.id])[self.id]
        theirs = self._backend
        result = theirs.jobs.cancel([self.id])[self.id]
        if result is CancelResult.REQUESTED:
            theirs.announce([self.refresh().row.queue])
        elif result is CancelResult.CANCELLED:
            theirs.announce_done()
        return result

    def _retry(self) -> bool:
        if self._connection is None:
            return bool(retry(self._app, [self.id]))
        theirs = self._backend
        has_changed = bool(theirs.jobs.retry([self.id]))
        if has_changed:
            theirs.announce([self.refresh().row.queue])
        return has_changed

    async def acancel(self) -> bool:
        """As `cancel`, from a coroutine: ``await later.acancel()  # False``, if it had ended already."""
        return await in_thread(self.cancel)

    async def aretry(self) -> bool:
        """As `retry`, from a coroutine: ``await failed.aretry()  # False``, if it has not ended."""
        return await in_thread(self.retry)


def cancel(app: AppInterface, ids: Sequence[str], action: NewAction | None = None) -> dict[str, CancelResult]:
    """Cancels jobs that have not started and asks running ones to stop; returns what became of each."""
    results = app.backend.jobs.cancel(ids, action=action)
    asked = [job_id for job_id, result in results.items() if result is CancelResult.REQUESTED]
    if asked:
        app.recall()
        app.announce(_queues(app, asked))  # their workers look for requests when they wake
    if CancelResult.CANCELLED in results.values():
        app.waiter.poke()
        app.backend.announce_done()
        if app.hooks.cancelled:
            ended = [job_id for job_id, result in results.items() if result is CancelResult.CANCELLED]
            app.hooks.tell("cancelled", [Job(app, job_id) for job_id in ended])
    return results


def retry(app: AppInterface, ids: Sequence[str], action: NewAction | None = None) -> list[str]:
    """Starts jobs over that have ended; returns the ids of those that it could."""
    retried = app.backend.jobs.retry(ids, action=action)
    if retried:
        app.announce(_queues(app, retried))
    return retried


def why_not_retried(app: AppInterface, job_id: str) -> str:
    """Why `retry` left a job alone, and what to do instead."""
    found = app.backend.jobs.get([job_id])
    if not found:
        return "it is gone"
    if found[0].state not in FINAL:
        return f"it has not ended: it is {found[0].state}"
    lost = app.backend.graph.lost(job_id)
    return advice(lost) if any(lost) else "its arguments were not kept; enqueue it again"


def _queues(app: AppInterface, ids: Sequence[str]) -> set[str]:
    return {row.queue for row in rows(app, ids)}


def rows(app: AppInterface, ids: Sequence[str]) -> Iterator[model.Job]:
    """The jobs of these ids, a page at a time."""
    for start in range(0, len(ids), _PAGE):
        yield from app.backend.jobs.get(ids[start : start + _PAGE])


def _attempt(each: model.Attempt) -> Attempt:
    told = (each.error_type, each.error_message, each.traceback)
    error = None if told == (None, None, None) else AttemptError(*told, each.error_class)
    times = moment(each.started_at), moment(each.finished_at)
    return Attempt(each.attempt, each.worker_id, each.outcome, *times, error, claim=each.claim)


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


def not_ended(app: AppInterface, what: str, seconds: float, ids: Sequence[str]) -> TimeoutError:
    """The error of a wait whose time is over; `ids`: the jobs that say why. Reads the database."""
    begun = f"{what} has not ended within {counted(seconds, 'second')}"
    try:
        stuck = app.waiter.stuck(ids, Patience()) if len(ids) > 1 else None
        found = stuck[1] if stuck else app.waiter.standstill(ids[0]) if ids else None
    except StorageError as error:
        return TimeoutError(f"{begun}, and why cannot be read now: {error}")
    if found is None:
        return TimeoutError(f"{begun} and goes on; wait longer, or cancel() it")
    return TimeoutError(f"{begun} and does not run. {found.text}")


def refuse_connected(job: Job[Any]) -> None:
    """Refuses to wait for a job with a handle that reads on the user's own connection."""
    if job._connection is not None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - it is not for users
        raise _cannot_wait(job.id)


def _cannot_wait(job_id: str) -> ConfigError:
    return ConfigError(
        f"job {job_id} has not ended, and this handle reads on your own connection, where it does not wait: "
        "commit, then wait with the handle of app.job(id), without connection="
    )


def seconds_of(timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else duration_us("timeout", timeout) / SECOND


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work of a coroutine on a thread."""
    import asyncio  # noqa: PLC0415 - programs without coroutines do not load it

    return await asyncio.to_thread(work)
