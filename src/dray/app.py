"""App: one database and the tasks that belong to it; what users call.

An App is cheap to make: it parses its address and opens nothing until it is first used. Modules that define tasks can
be imported anywhere, and a process can fork after that. Threads share one App, and forked children use it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypedDict, TypeVar, Unpack

from dray.clock import Clock
from dray.core import AppCore
from dray.errors import ConfigError, UnknownJob, UnknownWorkflow
from dray.handle import waiting
from dray.handle.job import Job, in_thread
from dray.hooks import Event, F
from dray.model.limit import RateGiven, bounds_of
from dray.model.values import check_name, parse_id
from dray.settings import Durability, Settings
from dray.task import checks

# Loaded by the calls that need it: a command that lists jobs should not pay for tasks and schedules.
if TYPE_CHECKING:
    from uuid import UUID

    from dray.decorator import Decorator
    from dray.handle.run import Run
    from dray.handle.waiting import ReturnWhen, Waited
    from dray.model.job import StateWord
    from dray.model.new_job import NewJob
    from dray.model.workflow import Workflow as WorkflowRow
    from dray.ops.limits import LimitInfo
    from dray.ops.listing import QueueInfo, Stats, WorkerInfo
    from dray.runtime.lifespan import Lifespan
    from dray.runtime.worker import Worker
    from dray.schedules import ScheduleInfo, ScheduleKeywords
    from dray.task.job_options import HasId, JobKeywords
    from dray.task.task import Task
    from dray.workflow import Workflow


R = TypeVar("R")


class WorkerKeywords(TypedDict, total=False):
    """What ``app.worker(...)`` takes; see `dray.runtime.worker.Worker`."""

    queues: str | Iterable[str] | Mapping[str, int] | None
    concurrency: int | None
    grace: float | timedelta
    lease: float | timedelta | None
    name: str | None
    imports: Iterable[str]
    max_jobs: int | None


class App:
    """A queue of jobs in a database.

    ``url``: an address, a path, or libpq's parameters as a mapping; DRAY_URL, else ``sqlite:///dray.db`` in the
    current directory. ``durability``: what survives a power loss. ``default_timeout``: seconds, of tasks that have
    none. ``imports``: modules that define tasks, for workers. ``locator``: "module:object" where child processes find
    this App (or a function that returns it) with its tasks. ``migrate``: whether missing tables are made at the first
    use (None: in a SQLite file they are). ``busy_timeout``: seconds to wait for a locked database. ``notify``:
    whether a commit on your own connection wakes workers (PostgreSQL: a NOTIFY in it). ``listen_url``: a way to
    PostgreSQL around its pooler.

    Example:

        >>> app = dray.App("sqlite:///jobs.db")
        >>> @app.task
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> job = add.enqueue(1, 2)
        >>> app.worker().run_until_idle()
        1
        >>> job.result()
        3
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        durability: Literal["full", "default", "normal"] | Durability = "default",
        default_timeout: float | timedelta | None = None,
        imports: Collection[str] = (),
        locator: str | None = None,
        file_mode: int = 0o600,
        migrate: bool | None = None,
        busy_timeout: float | timedelta = 30.0,
        notify: bool = True,
        listen_url: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = Settings.of(
            url,
            durability=durability,
            default_timeout=default_timeout,
            imports=imports,
            locator=locator,
            file_mode=file_mode,
            migrate=migrate,
            busy_timeout=busy_timeout,
            notify=notify,
            listen_url=listen_url,
        )
        self._core = AppCore(settings, clock)

    def __repr__(self) -> str:
        return f"<App {self.place}>"

    @property
    def url(self) -> str:
        """The absolute address. It may hold a password: ``app.url``."""
        return self._core.settings.url

    @property
    def place(self) -> str:
        """The address without its password, for messages: ``print(app.place)``."""
        return self._core.settings.place

    @property
    def durability(self) -> Durability:
        """What survives a power loss: ``app.durability  # 'default'``."""
        return self._core.settings.durability

    def init(self, connection: Any = None) -> None:
        """Makes the tables, or upgrades them, now: ``app.init()``. Any number of processes may do it.

        Tables that are there stay. For a program that first enqueues with ``connection=``, and for PostgreSQL, where
        tables are made on request.
        ``connection``: your own open connection; the tables are made in its transaction, which is yours to commit.
        """
        if connection is None:
            self._core.backend.migrate()
        else:
            self._core.backend.migrate_in(connection)

    async def ainit(self, connection: Any = None) -> None:
        """As `init`, from a coroutine: ``await app.ainit()``; ``connection`` may be asynchronous."""
        if connection is None:
            await in_thread(self.init)
        else:
            await self._core.backend.migrate_in_async(connection)

    def close(self) -> None:
        """Closes the connections: ``app.close()``. Calls that wait for jobs raise. The next use opens them again."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Tasks

    @property
    def task(self) -> Decorator:
        """Turns a function into a task: ``@app.task``, or ``@app.task(queue="mail", max_attempts=5)``."""
        from dray.decorator import Decorator  # noqa: PLC0415 - listing jobs needs no tasks

        return Decorator(self._core.define)

    # Hooks

    def middleware(self, function: F) -> F:
        """Puts a function around each body: ``@app.middleware`` over ``def mw(ctx, call): return call()``, or async.

        Each goes around bodies of its own kind; the first is the outermost. What it raises or returns, the body does.
        """
        self._refuse_beside_a_worker("middleware")
        return self._core.hooks.add_middleware(function)

    def on(self, event: Event) -> Callable[[F], F]:
        """Calls a function with ``(job, error=None)`` after an event is written: ``@app.on("failed")``.

        Events are enqueued, started, completed, retried, failed and cancelled.
        """
        self._refuse_beside_a_worker("a hook")
        return self._core.hooks.on(event)

    def _refuse_beside_a_worker(self, what: str) -> None:
        if self._core.on_enqueue:
            raise ConfigError(f"a worker of this App is running; register {what} before the worker starts")

    # Enqueueing

    def enqueue(
        self, name: str, args: Mapping[str, Any] | None = None, /, *more: Never, **using: Unpack[JobKeywords]
    ) -> Job[Any]:
        """Enqueues a task by its name; its code need not be here: ``app.enqueue("mail.send", {"to": "ann"})``."""
        job, connection = self._prepared(name, args, more, using)
        return self._core.submit([job], connection)[0]

    async def aenqueue(
        self, name: str, args: Mapping[str, Any] | None = None, /, *more: Never, **using: Unpack[JobKeywords]
    ) -> Job[Any]:
        """As `enqueue`, from a coroutine: ``await app.aenqueue("mail.send", {"to": "ann"}, delay=60)``."""
        job, connection = self._prepared(name, args, more, using)
        return (await self._core.asubmit([job], connection))[0]

    def _prepared(
        self, name: str, args: Mapping[str, Any] | None, more: Sequence[Never], using: JobKeywords
    ) -> tuple[NewJob, Any]:
        from dray.task import task  # noqa: PLC0415 - listing jobs needs no tasks

        task.check_call_by_name(self._core, name, more, using)
        options = task.JobOptions.of(using, "app.enqueue(task, {arguments})")
        return task.prepare_by_name(self._core, name, args, options), options.connection

    @property
    def _listing(self):
        from dray.ops import listing  # noqa: PLC0415 - programs that enqueue list nothing

        return listing

    # Jobs

    def job(self, job_id: str | UUID | HasId, connection: Any = None) -> Job[Any]:
        """The job of this id: ``app.job(job.id).state  # 'completed'``. `UnknownJob` if there is none.

        `connection`: your own, of the kinds that ``using(connection=…)`` takes. The handle reads and acts in the
        transaction that is open there, so that it sees what is not committed. It does not wait.
        """
        return Job[Any](self._core, _id(job_id), connection=connection).refresh()

    async def ajob(self, job_id: str | UUID | HasId, connection: Any = None) -> Job[Any]:
        """As `job`, from a coroutine: ``(await app.ajob(job.id)).state``; `connection` may be asynchronous."""
        return await Job[Any](self._core, _id(job_id), connection=connection).arefresh()

    def jobs(
        self,
        *,
        state: StateWord | Iterable[StateWord] | None = None,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
        tag: str | None = None,
        workflow: str | UUID | Run | None = None,
        schedule: str | None = None,
        since: datetime | timedelta | float | None = None,
        limit: int = 100,
        after: str | UUID | HasId | None = None,
        connection: Any = None,
    ) -> list[Job[Any]]:
        """Matching jobs, newest first: ``app.jobs(state="failed", since=3600)``. The next page: `after` the last one.

        `workflow`: a run, its id, or a name that any number of runs have. `since`: enqueued at or after a time, or
        within the last seconds. `connection`: as in `job`.
        """
        name: Any = getattr(task, "name", task)
        of: dict[str, Any] = {"queue": queue, "task": name, "tag": tag, "workflow": workflow, "schedule": schedule}
        backend = self._core.backend if connection is None else self._core.backend.seen_by(connection)
        fit = self._listing.job_filter(backend, state=state, since=since, **of)
        before = None if after is None else _id(after)
        found = backend.jobs.newest(fit, limit=self._listing.check_limit(limit), before=before)
        return [Job(self._core, row.id, row=row, connection=connection) for row in found]

    def cancel(self, job_id: str | UUID | HasId, connection: Any = None) -> bool:
        """As `Job.cancel`: ``app.cancel(later.id)  # True``; with `connection`, in the transaction open there."""
        return Job[Any](self._core, _id(job_id), connection=connection).cancel()

    def retry(self, job_id: str | UUID | HasId, connection: Any = None) -> bool:
        """As `Job.retry`: ``app.retry(failed.id)  # True``; with `connection`, in the transaction open there."""
        return Job[Any](self._core, _id(job_id), connection=connection).retry()

    def delete(self, job_id: str | UUID | HasId, connection: Any = None) -> bool:
        """As `Job.delete`: ``app.delete(later.id)  # True``; with `connection`, in the transaction open there."""
        return Job[Any](self._core, _id(job_id), connection=connection).delete()

    def wait(
        self, jobs: Iterable[Job[R]], timeout: float | timedelta | None = None, return_when: ReturnWhen = "all"
    ) -> Waited[R]:
        """Waits until all of these jobs have ended, or the ``"first"`` of them, or the time is over.

        ``ended, pending = app.wait([job], timeout=10)``. Raises `UnknownJob` if one of them does not exist.
        """
        return waiting.wait(self._core, jobs, timeout, return_when)

    async def await_(
        self, jobs: Iterable[Job[R]], timeout: float | timedelta | None = None, return_when: ReturnWhen = "all"
    ) -> Waited[R]:
        """As `wait`, from a coroutine: ``await app.await_([job], timeout=10, return_when="first")``."""
        return await waiting.wait_async(self._core, jobs, timeout, return_when)

    def prune(self, older_than: float | timedelta | None = None) -> int:
        """Removes jobs that ended longer ago than that, or than their usual retention; returns how many.

        ``app.prune(older_than=7 * 86400)  # 0``. Keeps jobs while one that runs after them is live, failed or
        cancelled, and workflows that have not ended.
        """
        from dray.ops import pruning  # noqa: PLC0415 - workers prune by themselves

        return pruning.remove(self._core.backend, pruning.retention(older_than))

    def stats(self, window: float | timedelta = 3600) -> Stats:
        """Counts by state and queue, age of the oldest ready job; throughput and run times within a window.

        ``app.stats().finished["completed"]  # 2``
        """
        return self._listing.stats(self._core.backend, window)

    # Schedules

    def schedule(self, name: str, task: Task[..., Any] | str, **rule: Unpack[ScheduleKeywords]) -> None:
        """Enqueues a task on a schedule: ``cron="0 3 * * *", tz="Europe/Berlin"`` or ``every=30``.

        Written at once; by the next worker that starts if a module is being imported or the database is unavailable.
        A schedule of this name is changed; an unchanged rule writes nothing.
        ``app.schedule("nightly", add, cron="0 3 * * *", tz="Europe/Berlin", args={"a": 1, "b": 2})``
        """
        self._core.all_schedules.declare(name, task, rule)

    def schedules(self) -> list[ScheduleInfo]:
        """All schedules that are stored, by name: ``app.schedules()[0].name  # 'nightly'``."""
        return self._core.all_schedules.list()

    def pause_schedule(self, name: str) -> bool:
        """Pauses the schedule: ``app.pause_schedule("nightly")  # True``. False: it was paused already."""
        return self._core.all_schedules.pause(name)

    def resume_schedule(self, name: str) -> bool:
        """Resumes the schedule with its next slot; slots of the pause are skipped. False: it was not paused.

        ``app.resume_schedule("nightly")  # True``
        """
        return self._core.all_schedules.resume(name)

    def run_schedule(self, name: str) -> Job[Any]:
        """Enqueues a job of the schedule now, outside its slots and regardless of its overlap rule.

        ``app.run_schedule("nightly").state  # 'queued'``
        """
        return self._core.submit([self._core.all_schedules.job_now(name)])[0]

    def remove_schedule(self, name: str) -> None:
        """Removes a schedule; its jobs stay: ``app.remove_schedule("nightly")``.

        A schedule that the code declares returns with the next worker.
        """
        self._core.all_schedules.remove(name)

    # Workflows

    def workflow(self, name: str) -> Workflow:
        """A new workflow: ``wf = app.workflow("etl")``. `add` its steps, then `enqueue` it, in one transaction."""
        from dray.workflow import Workflow  # noqa: PLC0415 - only for workflows

        return Workflow(self._core, name)

    def workflow_run(self, run_id: str | UUID | HasId) -> Run:
        """The enqueued workflow: ``app.workflow_run(run.id).name  # 'sums'``. `UnknownWorkflow` if there is none."""
        return self._run(_id(run_id, "workflow", "run", UnknownWorkflow)).refresh()

    def workflows(self, *, limit: int = 100, after: str | UUID | HasId | None = None) -> list[Run]:
        """Workflows, newest first: ``app.workflows(limit=10)``. Pass the last one as `after` to get the next page."""
        before = {} if after is None else {"before": _id(after, "workflow", "run", UnknownWorkflow)}
        found = self._core.backend.workflows.newest(limit=self._listing.check_limit(limit), **before)
        return [self._run(row.id, row) for row in found]

    def _run(self, run_id: str, row: WorkflowRow | None = None) -> Run:
        from dray.handle.run import Run  # noqa: PLC0415 - only for workflows

        return Run(self._core, run_id, row)

    # Queues and workers

    def pause(self, queue: str) -> bool:
        """Pauses the queue: ``app.pause("mail")  # True``. Nothing is claimed from it once this returns.

        Workers of this process give back what they claimed ahead; other processes may start theirs for 50 ms more.
        False: it was paused already.
        """
        return self._core.pause(queue)

    def resume(self, queue: str) -> bool:
        """Resumes the queue: ``app.resume("mail")  # True``. False: it was not paused."""
        return self._core.resume(queue)

    def queue(
        self,
        name: str,
        *,
        priority: int | None = None,
        limit: int | None = None,
        rate: RateGiven | None = None,
        key_limit: int | None = None,
        key_rate: RateGiven | None = None,
    ) -> QueueInfo:
        """Returns a queue: ``app.queue("mail", priority=10).priority  # 10``, the default of its future jobs.

        `limit`: at most this many of its jobs run at the same time, over all workers; 0 stops it. `rate`: at most
        this many attempts start in any such period, as in ``"10/s"`` or ``["10/s", "1000/day"]``. `key_limit` and
        `key_rate`: the same for the jobs of each key. What an operator has set (``dray limits set``) wins.
        """
        check_name("queue", name)
        bounds = bounds_of(
            f"queue {name}", {"limit": limit, "rate": rate, "key_limit": key_limit, "key_rate": key_rate}
        )
        if priority is not None:
            self._core.backend.queues.upsert(name, checks.priority("priority", priority))
        if bounds:
            self._core.limit_queue(name, bounds)
        found = (queue for queue in self.queues() if queue.name == name)
        return next(found, self._listing.QueueInfo(name, 0, None, {}))

    def queues(self) -> list[QueueInfo]:
        """All queues by name: ``[queue.name for queue in app.queues()]  # ['default', 'mail']``."""
        return self._listing.queues(self._core.backend)

    def limits(self) -> list[LimitInfo]:
        """The limits of queues, then those of tasks, by name: what is in force, who said so, how much is used.

        ``[(each.name, each.rate) for each in app.limits()]  # [('add', ('100/s',))]``
        """
        from dray.ops import limits  # noqa: PLC0415 - programs that enqueue list nothing

        return limits.limits(self._core.backend)

    def workers(self) -> list[WorkerInfo]:
        """Workers that live, then those that ended: ``[worker.state for worker in app.workers()]``."""
        return self._listing.workers(self._core.backend)

    def worker(self, **options: Unpack[WorkerKeywords]) -> Worker:
        """A worker in this process: ``with app.worker(concurrency=8): ...``, ``.run()`` or ``.run_until_idle()``."""
        from dray.runtime.worker import Worker  # noqa: PLC0415 - producers do not need it

        return Worker(self._core, **options)

    def lifespan(self, *, worker: bool = False, **options: Unpack[WorkerKeywords]) -> Lifespan:
        """For ASGI: ``FastAPI(lifespan=app.lifespan(worker=True))``, or ``async with app.lifespan(): ...`` in yours.

        Checks the tables (makes them where `migrate` allows it), and closes the connections at the end. With
        ``worker=True`` a worker with these options runs meanwhile, one in each process of the server.
        """
        from dray.runtime.lifespan import Lifespan  # noqa: PLC0415 - it loads asyncio

        if not worker and options:
            raise ConfigError(f"{', '.join(options)}: for a worker, which this lifespan has not; add worker=True")
        if worker:
            self.worker(**options)  # refuses bad options here, not when the server starts
        return Lifespan(self._check_tables, (lambda: self.worker(**options)) if worker else None, self.close)

    def _check_tables(self) -> None:
        settings = self._core.settings
        if settings.is_sqlite if settings.migrate is None else settings.migrate:
            self.init()
        else:
            self._core.backend.noted("version")  # SchemaMissing says what to do


def _id(given: Any, of: str = "job", handle: str = "job", unknown: type[Exception] = UnknownJob) -> str:
    """The id of a job or a workflow, from its handle or as text."""
    return parse_id(
        given,
        f"a {of}'s id is a string",
        lambda text: unknown(f"{text} is no {of}'s id; pass a whole one, as {handle}.id has it"),
    )
