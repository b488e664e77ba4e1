"""App: one database and the tasks that belong to it; where all parts are put together.

An App is cheap to make: it parses its address and opens nothing until it is first used. Modules that define tasks can
be imported anywhere, and a process can fork after that. Threads share one App, and forked children use it too.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from dray import codec, forks
from dray.clock import Clock, Ids, SystemClock
from dray.errors import ConfigError, UnknownJob, UnknownWorkflow
from dray.handle.job import Job, in_thread
from dray.model.values import check_name, parse_id
from dray.runtime import loading
from dray.runtime.execution import deliver_stop
from dray.sanitize import HIDDEN
from dray.settings import Durability, Settings
from dray.task import checks
from dray.task.registry import Registry
from dray.waiter import Waiter

# Loaded by the calls that need it: a command that lists jobs should not pay for tasks and schedules.
if TYPE_CHECKING:
    from uuid import UUID

    from dray.backends import Backend
    from dray.decorator import Decorator
    from dray.handle.run import Run
    from dray.model.job import Enqueued
    from dray.model.new_job import AlikeJobs, NewJob
    from dray.model.workflow import Workflow as WorkflowRow
    from dray.ops.listing import QueueInfo, Stats, WorkerInfo
    from dray.runtime.worker import Worker
    from dray.schedules import ScheduleInfo, ScheduleKeywords, Schedules
    from dray.task.job_options import HasId, JobKeywords
    from dray.task.options import TaskKeywords
    from dray.task.task import Task
    from dray.workflow import Workflow

Wake = Callable[[Iterable[str]], None]


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

    ``url``: DRAY_URL, else ``sqlite:///dray.db`` in the current directory. ``durability``: what survives a power
    loss. ``default_timeout``: seconds, of tasks that have none. ``imports``: modules that define tasks, for workers.
    ``migrate``: whether missing tables are made at the first use (None: in a SQLite file they are).
    ``busy_timeout``: seconds to wait for a locked database. ``notify``: whether a commit on your own connection wakes
    workers (PostgreSQL: a NOTIFY in it). ``listen_url``: a way to PostgreSQL around its pooler.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        durability: str = "default",
        default_timeout: float | timedelta | None = None,
        imports: Collection[str] = (),
        file_mode: int = 0o600,
        migrate: bool | None = None,
        busy_timeout: float | timedelta = 30.0,
        notify: bool = True,
        listen_url: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = Settings.of(
            url,
            durability=durability,
            default_timeout=default_timeout,
            imports=imports,
            file_mode=file_mode,
            migrate=migrate,
            busy_timeout=busy_timeout,
            notify=notify,
            listen_url=listen_url,
        )
        self.clock: Clock = clock or SystemClock()
        self.ids = Ids(self.clock)
        self.registry = Registry()
        # What workers here want to be told: jobs were committed, jobs were cancelled or paused, schedules changed.
        self.on_enqueue: list[Wake] = []
        self.on_recall: list[Callable[[], None]] = []
        self.on_schedule: list[Callable[[], None]] = []
        self.hides_unknown_args = False  # of unknown tasks: only their code says what they redact
        self._schedules: Schedules | None = None
        self._opening = threading.Lock()
        self._opened: tuple[Backend, Waiter] | None = None
        forks.watch_child(self)

    def __repr__(self) -> str:
        return f"<App {self.settings.place}>"

    @property
    def url(self) -> str:
        """The absolute address. It may hold a password; `settings.place` does not."""
        return self.settings.url

    @property
    def durability(self) -> Durability:
        return self.settings.durability

    # Opening and closing

    @property
    def backend(self) -> Backend:
        """The storage; it connects at its first use."""
        deliver_stop()
        return self._open()[0]

    @property
    def waiter(self) -> Waiter:
        """Waits for jobs to end, for the whole process."""
        return self._open()[1]

    def _open(self) -> tuple[Backend, Waiter]:
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    backend = self.settings.open(self.clock)
                    self._opened = backend, Waiter(backend)
        return self._opened

    def close(self) -> None:
        """Closes the connections; calls that wait for jobs raise. The next use opens them again."""
        opened = self._opened
        if opened is not None:
            backend, waiter = opened
            try:
                waiter.close()
            finally:
                backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        # Another thread of the parent may have held it.
        self._opening = threading.Lock()

    # Tasks

    @property
    def task(self) -> Decorator:
        """Turns a function into a task: ``@app.task``, or ``@app.task(queue="mail", max_attempts=5)``."""
        from dray.decorator import Decorator  # noqa: PLC0415 - listing jobs needs no tasks

        return Decorator(self._define)

    def _define(self, function: Callable[..., Any], options: TaskKeywords) -> Task[..., Any]:
        if options.get("timeout") is None and self.settings.default_timeout is not None:
            options["timeout"] = self.settings.default_timeout
        from dray.task.task import define  # noqa: PLC0415 - listing jobs needs no tasks

        task = define(function, self, **options)
        if task.options.schedule is not None:
            self.all_schedules.check_shorthand(task)
        self.registry.register(task)
        if task.options.schedule is not None:
            self.all_schedules.remember_shorthand(task)
        return task

    def local_context(self, task: Task[..., Any]) -> Any:
        from dray.runtime.context import LocalContext  # noqa: PLC0415 - few call tasks that ask for it

        return LocalContext(task.name, self.new_id())

    def load(self, more: Iterable[str] = ()) -> None:
        """Imports the modules that define tasks; a worker does so before it starts."""
        for module in (*self.settings.imports, *more):
            _import(module)

    # Enqueueing

    def enqueue(self, name: str, args: Mapping[str, Any] | None = None, /, **using: Unpack[JobKeywords]) -> Job[Any]:
        """Enqueues a job of a task by its name, whose code need not be here; arguments by name."""
        job, connection = self._prepared(name, args, using)
        return self.submit([job], connection)[0]

    async def aenqueue(
        self, name: str, args: Mapping[str, Any] | None = None, /, **using: Unpack[JobKeywords]
    ) -> Job[Any]:
        """As `enqueue`, from a coroutine."""
        job, connection = self._prepared(name, args, using)
        return (await self.asubmit([job], connection))[0]

    def _prepared(self, name: str, args: Mapping[str, Any] | None, using: JobKeywords) -> tuple[NewJob, Any]:
        from dray.task.task import JobOptions, prepare_by_name  # noqa: PLC0415 - listing jobs needs no tasks

        options = JobOptions.of(using, "app.enqueue(task, {arguments})")
        return prepare_by_name(self, name, args, options), options.connection

    def new_id(self) -> str:
        """The id of the next job or workflow."""
        return self.ids.new()

    def submit(
        self, new: Sequence[NewJob], connection: Any = None, workflow: WorkflowRow | None = None
    ) -> list[Job[Any]]:
        """Writes jobs, all or none, and wakes workers: every enqueue comes through here or through `asubmit`."""
        loading.stop_here()
        durable = self.settings.durability is not Durability.NORMAL
        written = self.backend.jobs.enqueue(new, workflow=workflow, connection=connection, durable=durable)
        if connection is None:  # otherwise the user commits, and the database tells workers
            self._wake({job.queue for job in new})
        return self._handles(written)

    async def asubmit(
        self, new: Sequence[NewJob], connection: Any = None, workflow: WorkflowRow | None = None
    ) -> list[Job[Any]]:
        """As `submit`, from a coroutine."""
        loading.stop_here()
        if connection is None:
            return await in_thread(lambda: self.submit(new, None, workflow))
        return self._handles(await self.backend.jobs.enqueue_async(new, workflow=workflow, connection=connection))

    def submit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]:
        """As `submit`, for plain jobs of one task."""
        loading.stop_here()
        durable = self.settings.durability is not Durability.NORMAL
        self.backend.jobs.enqueue_alike(jobs, connection=connection, durable=durable)
        if connection is None:
            self._wake([jobs.pattern.queue])
        return [Job(self, job_id) for job_id in jobs.ids]

    async def asubmit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]:
        """As `submit_alike`, from a coroutine."""
        loading.stop_here()
        if connection is None:
            return await in_thread(lambda: self.submit_alike(jobs))
        await self.backend.jobs.enqueue_alike_async(jobs, connection=connection)
        return [Job(self, job_id) for job_id in jobs.ids]

    def _handles(self, written: Sequence[Enqueued]) -> list[Job[Any]]:
        return [Job(self, each.id, duplicate=each.duplicate, replaced=each.replaced) for each in written]

    def announce(self, queues: Iterable[str]) -> None:
        """Wakes the workers of these queues: those of this process, then all others."""
        self._wake(queues)
        self.backend.announce(queues)

    def _wake(self, queues: Iterable[str]) -> None:
        for wake in list(self.on_enqueue):
            wake(queues)

    def recall(self) -> None:
        """Makes the workers of this process give back claimed jobs that they have not started."""
        for give_back in list(self.on_recall):
            give_back()

    # What handles ask for

    def decode_result(self, task: str, text: str) -> Any:
        """A stored result, in the type that the task is annotated with if it is known here."""
        if task in self.registry:
            return self.registry.get(task).decode_result(text)
        return codec.decode(text, path="result")

    def shown_args(self, task: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as people may see them: redacted ones hidden."""
        if task in self.registry:
            return self.registry.get(task).options.hide(args)
        return dict.fromkeys(args, HIDDEN) if self.hides_unknown_args else dict(args)

    @property
    def _listing(self):
        from dray.ops import listing  # noqa: PLC0415 - programs that enqueue list nothing

        return listing

    # Jobs

    def job(self, job_id: str | UUID | HasId) -> Job[Any]:
        """The job of this id; `UnknownJob` if there is none."""
        return Job[Any](self, _id(job_id)).refresh()

    def jobs(
        self,
        *,
        state: str | Iterable[str] | None = None,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
        tag: str | None = None,
        since: datetime | timedelta | float | None = None,
        limit: int = 100,
        after: str | UUID | HasId | None = None,
    ) -> list[Job[Any]]:
        """Matching jobs, newest first. Pass the last one as `after` to get the next page.

        `since`: enqueued at or after a time, or within the last seconds.
        """
        name: Any = getattr(task, "name", task)
        fit = self._listing.job_filter(self.backend, state=state, queue=queue, task=name, tag=tag, since=since)
        before = None if after is None else _id(after)
        found = self.backend.jobs.newest(fit, limit=self._listing.check_limit(limit), before=before)
        return [Job(self, row.id, row=row) for row in found]

    def cancel(self, job_id: str | UUID | HasId) -> bool:
        """As `Job.cancel`."""
        return Job[Any](self, _id(job_id)).cancel()

    def retry(self, job_id: str | UUID | HasId) -> bool:
        """As `Job.retry`."""
        return Job[Any](self, _id(job_id)).retry()

    def delete(self, job_id: str | UUID | HasId) -> bool:
        """As `Job.delete`."""
        return Job[Any](self, _id(job_id)).delete()

    def prune(self, older_than: float | timedelta | None = None) -> int:
        """Removes jobs that ended longer ago than that, or than their usual retention; returns how many.

        Keeps what a live job needs, and workflows that have not ended.
        """
        from dray.ops import pruning  # noqa: PLC0415 - workers prune by themselves

        return pruning.remove(self.backend, pruning.retention(older_than))

    def stats(self, window: float | timedelta = 3600) -> Stats:
        """Counts by state and queue, age of the oldest ready job; throughput and run times within a window."""
        return self._listing.stats(self.backend, window)

    # Schedules

    @property
    def all_schedules(self) -> Schedules:
        """The schedules: those that the code declares, and those that are stored."""
        if self._schedules is None:
            from dray.schedules import Schedules  # noqa: PLC0415 - only for schedules

            with self._opening:
                if self._schedules is None:
                    self._schedules = Schedules(self)
        return self._schedules

    def schedule(self, name: str, task: Task[..., Any] | str, **rule: Unpack[ScheduleKeywords]) -> None:
        """Enqueues a task on a schedule: ``cron="0 3 * * *", tz="Europe/Berlin"`` or ``every=30``.

        Written at once; by the next worker that starts if a module is being imported or the database is unavailable.
        A schedule of this name is changed; an unchanged rule writes nothing.
        """
        self.all_schedules.declare(name, task, rule)

    def declare_schedules(self, backend: Backend) -> None:
        """Writes the schedules that the code declares; a worker does so when it starts."""
        self.all_schedules.write_all(backend)

    def schedules(self) -> list[ScheduleInfo]:
        """All schedules that are stored, by name."""
        return self.all_schedules.list()

    def pause_schedule(self, name: str) -> bool:
        """Stops the schedule until it is resumed. False: it was paused already."""
        return self.all_schedules.pause(name)

    def resume_schedule(self, name: str) -> bool:
        """Resumes the schedule with its next slot; slots of the pause are skipped. False: it was not paused."""
        return self.all_schedules.resume(name)

    def run_schedule(self, name: str) -> Job[Any]:
        """Enqueues a job of the schedule now, outside its slots and regardless of its overlap rule."""
        return self.submit([self.all_schedules.job_now(name)])[0]

    def remove_schedule(self, name: str) -> None:
        """Removes a schedule; its jobs stay. A schedule that the code declares returns with the next worker."""
        self.all_schedules.remove(name)

    # Workflows

    def workflow(self, name: str) -> Workflow:
        """A new workflow: `add` its steps, then `enqueue` it, in one transaction."""
        from dray.workflow import Workflow  # noqa: PLC0415 - only for workflows

        return Workflow(self, name)

    def workflow_run(self, run_id: str | UUID | HasId) -> Run:
        """The workflow that was enqueued under this id; `UnknownWorkflow` if there is none."""
        from dray.handle.run import Run  # noqa: PLC0415 - only for workflows

        return Run(self, _id(run_id, "workflow", "run", UnknownWorkflow)).refresh()

    def workflows(self, *, limit: int = 100, after: str | UUID | HasId | None = None) -> list[Run]:
        """Workflows, newest first. Pass the last one as `after` to get the next page."""
        from dray.handle.run import Run  # noqa: PLC0415 - only for workflows

        before = {} if after is None else {"before": _id(after, "workflow", "run", UnknownWorkflow)}
        found = self.backend.workflows.newest(limit=self._listing.check_limit(limit), **before)
        return [Run(self, row.id, row) for row in found]

    # Queues and workers

    def pause(self, queue: str) -> bool:
        """Pauses the queue: nothing is claimed from it once this returns. False: it was paused already.

        Workers of this process give back what they claimed ahead; other processes may start theirs for 50 ms more.
        """
        has_changed = self.backend.queues.pause(check_name("queue", queue))
        self.recall()
        return has_changed

    def resume(self, queue: str) -> bool:
        """Resumes the queue. False: it was not paused."""
        has_changed = self.backend.queues.resume(check_name("queue", queue))
        if has_changed:
            self.announce([queue])
        return has_changed

    def queue(self, name: str, *, priority: int | None = None) -> QueueInfo:
        """Returns a queue. `priority` sets the default priority of its future jobs."""
        check_name("queue", name)
        if priority is not None:
            self.backend.queues.upsert(name, checks.priority("priority", priority))
        found = (queue for queue in self.queues() if queue.name == name)
        return next(found, self._listing.QueueInfo(name, 0, None, {}))

    def queues(self) -> list[QueueInfo]:
        """All queues by name."""
        return self._listing.queues(self.backend)

    def workers(self) -> list[WorkerInfo]:
        """Workers that live, then those that ended."""
        return self._listing.workers(self.backend)

    def worker(self, **options: Unpack[WorkerKeywords]) -> Worker:
        """A worker in this process: ``with app.worker(concurrency=8): ...``, ``.run()`` or ``.run_until_idle()``."""
        from dray.runtime.worker import Worker  # noqa: PLC0415 - producers do not need it

        return Worker(self, **options)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        where = "run this where it can be imported, or set PYTHONPATH"
        raise ConfigError(f"there is no module {module!r} to import tasks from; {where}") from error


def _id(given: Any, of: str = "job", handle: str = "job", unknown: type[Exception] = UnknownJob) -> str:
    """The id of a job or a workflow, from its handle or as text."""
    return parse_id(
        given,
        f"a {of}'s id is a string",
        lambda text: unknown(f"{text} is no {of}'s id; pass a whole one, as {handle}.id has it"),
    )
