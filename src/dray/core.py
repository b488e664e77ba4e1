"""What an App is made of: its settings, tasks and connections, and what the rest of Dray asks it for.

`App` is what users see; this is behind it, so that a user's editor offers no more on ``app.`` than there is to use.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dray import codec, forks
from dray.clock import Clock, Ids, SystemClock
from dray.errors import ConfigError, SchemaMissing, StorageUnavailable
from dray.handle.job import Job, in_thread
from dray.hooks import Hooks
from dray.log import log
from dray.model.limit import Bounds, Scope, Source
from dray.model.new_job import AlikeJobs
from dray.model.values import check_name
from dray.runtime import loading
from dray.runtime.execution import deliver_stop
from dray.sanitize import HIDDEN
from dray.settings import Durability, Settings
from dray.task.registry import Registry
from dray.waiter import Waiter

# Loaded by the calls that need it: a command that lists jobs should not pay for tasks and schedules.
if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.model.action import NewAction
    from dray.model.job import Enqueued
    from dray.model.new_job import NewJob
    from dray.model.workflow import Workflow as WorkflowRow
    from dray.schedules import Schedules
    from dray.task.options import TaskKeywords
    from dray.task.task import Task

Wake = Callable[[Iterable[str]], None]


class Binding(NamedTuple):
    """Where the jobs of an App are, and what time it is there."""

    settings: Settings
    clock: Clock
    ids: Ids
    opened: tuple[Backend, Waiter] | None


class AppCore:
    """One database and the tasks that belong to it; `AppInterface` for all below."""

    tables_hint: str | None = None  # for the message that the tables are missing: what makes them here

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.ids = Ids(self.clock)
        self.registry = Registry()
        self.hooks = Hooks()
        # What workers here want to be told: jobs were committed, jobs were cancelled or paused, schedules changed.
        self.on_enqueue: list[Wake] = []
        self.on_recall: list[Callable[[], None]] = []
        self.on_schedule: list[Callable[[], None]] = []
        self.hides_unknown_args = False  # of unknown tasks: only their code says what they redact
        self._schedules: Schedules | None = None
        self._queue_bounds: dict[str, Bounds] = {}
        self._opening = threading.Lock()
        self._opened: tuple[Backend, Waiter] | None = None
        forks.watch_child(self)

    def change_settings(self, **changed: Any) -> None:
        """Uses other settings from now on. Before the first use of the database."""
        self.settings = replace(self.settings, **changed)

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
                    backend.db.on_cancelled = self._tell_cancelled
                    self._opened = backend, Waiter(backend)
        return self._opened

    def _tell_cancelled(self, ids: Sequence[str]) -> None:
        if self.hooks.cancelled:
            self.hooks.tell("cancelled", [Job(self, job_id) for job_id in ids])

    @property
    def binding(self) -> Binding:
        """`dray.testing` sets another for a while, and then this one again."""
        return Binding(self.settings, self.clock, self.ids, self._opened)

    @binding.setter
    def binding(self, other: Binding) -> None:
        self.settings, self.clock, self.ids, self._opened = other

    def close(self) -> None:
        """Closes the connections; calls that wait for jobs raise. The next use opens them again."""
        opened = self._opened
        if opened is not None:
            backend, waiter = opened
            try:
                waiter.close()
            finally:
                backend.close()

    def after_fork_in_child(self) -> None:
        # Another thread of the parent may have held it.
        self._opening = threading.Lock()

    # Tasks

    def define(self, function: Callable[..., Any], options: TaskKeywords) -> Task[..., Any]:
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

    def local_context(self, task: Task[..., Any], args: Mapping[str, Any]) -> Any:
        from dray.runtime.context import LocalContext  # noqa: PLC0415 - few call tasks that ask for it

        return LocalContext(task.name, self.new_id(), args, task.options.queue)

    def load(self, more: Iterable[str] = ()) -> None:
        """Imports the modules that define tasks; a worker does so before it starts."""
        for module in (*self.settings.imports, *more):
            _import(module)

    # Enqueueing

    def new_id(self) -> str:
        """The id of the next job or workflow."""
        return self.ids.new()

    def submit(
        self,
        new: Sequence[NewJob],
        connection: Any = None,
        workflow: WorkflowRow | None = None,
        action: NewAction | None = None,
    ) -> list[Job[Any]]:
        """Writes jobs, all or none, and wakes workers: every enqueue comes through here or through the next three."""
        loading.stop_here()
        return self._enqueue(new, connection, workflow, action)

    async def asubmit(
        self, new: Sequence[NewJob], connection: Any = None, workflow: WorkflowRow | None = None
    ) -> list[Job[Any]]:
        """As `submit`, from a coroutine."""
        loading.stop_here()
        if connection is None:
            return await in_thread(lambda: self.submit(new, None, workflow))
        return await self._aenqueue(new, connection, workflow)

    def submit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]:
        """As `submit`, for plain jobs of one task."""
        loading.stop_here()
        return self._enqueue(jobs, connection)

    async def asubmit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]:
        """As `submit_alike`, from a coroutine."""
        loading.stop_here()
        if connection is None:
            return await in_thread(lambda: self.submit_alike(jobs))
        return await self._aenqueue(jobs, connection)

    def _enqueue(
        self,
        jobs: Sequence[NewJob] | AlikeJobs,
        connection: Any,
        workflow: WorkflowRow | None = None,
        action: NewAction | None = None,
    ) -> list[Job[Any]]:
        if not self.hooks.enqueued:
            return self._write(jobs, connection, workflow, action)
        with self.hooks.enqueuing(jobs) as enqueuing:
            handles = enqueuing.handles = self._write(enqueuing.jobs, connection, workflow, action)
        if connection is None:
            self.hooks.tell("enqueued", [job for job in handles if not job.duplicate])
        return handles

    async def _aenqueue(
        self, jobs: Sequence[NewJob] | AlikeJobs, connection: Any, workflow: WorkflowRow | None = None
    ) -> list[Job[Any]]:
        if not self.hooks.enqueued:
            return await self._awrite(jobs, connection, workflow)
        with self.hooks.enqueuing(jobs) as enqueuing:
            handles = enqueuing.handles = await self._awrite(enqueuing.jobs, connection, workflow)
        return handles

    def _write(
        self,
        jobs: Sequence[NewJob] | AlikeJobs,
        connection: Any,
        workflow: WorkflowRow | None,
        action: NewAction | None,
    ) -> list[Job[Any]]:
        durable = self.settings.durability is not Durability.NORMAL
        if isinstance(jobs, AlikeJobs):
            self.backend.jobs.enqueue_alike(jobs, connection=connection, durable=durable)
            handles, queues = self._alike_handles(jobs), {jobs.pattern.queue}
        else:
            given: dict[str, Any] = {"workflow": workflow, "connection": connection, "action": action}
            handles = self._handles(self.backend.jobs.enqueue(jobs, durable=durable, **given))
            queues = {job.queue for job in jobs}
        if connection is None:  # otherwise the user commits, and the database tells workers
            self._wake(queues)
        return handles

    async def _awrite(
        self, jobs: Sequence[NewJob] | AlikeJobs, connection: Any, workflow: WorkflowRow | None
    ) -> list[Job[Any]]:
        stored = self.backend.jobs
        if isinstance(jobs, AlikeJobs):
            await stored.enqueue_alike_async(jobs, connection=connection)
            return self._alike_handles(jobs)
        return self._handles(await stored.enqueue_async(jobs, workflow=workflow, connection=connection))

    def _alike_handles(self, jobs: AlikeJobs) -> list[Job[Any]]:
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

    # Queues

    def pause(self, queue: str, action: NewAction | None = None) -> bool:
        """As `App.pause`."""
        has_changed = self.backend.queues.pause(check_name("queue", queue), action=action)
        self.recall()
        return has_changed

    def resume(self, queue: str, action: NewAction | None = None) -> bool:
        """As `App.resume`."""
        has_changed = self.backend.queues.resume(check_name("queue", queue), action=action)
        if has_changed:
            self.announce([queue])
        return has_changed

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

    def declare_schedules(self, backend: Backend) -> None:
        """Writes the schedules that the code declares; a worker does so when it starts."""
        self.all_schedules.write_all(backend)

    # Limits

    def limit_queue(self, name: str, bounds: Bounds) -> None:
        """Declares limits of a queue: written now, or when a worker starts. Those of other kinds stay."""
        self._queue_bounds[name] = {**self._queue_bounds.get(name, {}), **bounds}
        if loading.is_under_way():
            return
        try:
            has_changed = self.backend.limits.add("queue", name, Source.DECLARED, bounds)
        except (StorageUnavailable, SchemaMissing) as error:
            log.warning("limits of queue %s are not stored yet: %s; a worker will do so when it starts", name, error)
        else:
            if has_changed:
                self._announce_room(self.backend, "queue", name)

    def declare_limits(self, backend: Backend) -> None:
        """Writes the limits that the code declares; a worker does so before it claims. Tasks that it knows and that
        no longer have any lose theirs, and queues that it declares those that it does not name. Parks jobs with keys
        that an earlier release has left among those without."""
        backend.limits.park_all()
        stored = {(rule.scope, rule.name) for rule in backend.limits.all() if rule.source == Source.DECLARED}
        for task in self.registry:
            has_some = task.options.bounds or ("task", task.name) in stored
            if has_some and backend.limits.say("task", task.name, Source.DECLARED, task.options.bounds):
                self._announce_room(backend, "task", task.name)
        for name, bounds in self._queue_bounds.items():
            if backend.limits.say("queue", name, Source.DECLARED, bounds):
                self._announce_room(backend, "queue", name)

    def override_limits(self, scope: Scope, name: str, bounds: Bounds, action: NewAction) -> bool:
        """Sets limits as an operator says, who wins over code; those of other kinds stay. False: nothing changed."""
        has_changed = self.backend.limits.add(scope, name, Source.OVERRIDE, bounds, action=action)
        if has_changed:
            self._announce_room(self.backend, scope, name)
        return has_changed

    def reset_limits(self, scope: Scope, name: str, action: NewAction) -> bool:
        """Takes back what operators have set: what code declares holds again. False: they had set nothing."""
        has_changed = self.backend.limits.say(scope, name, Source.OVERRIDE, {}, action=action)
        if has_changed:
            self._announce_room(self.backend, scope, name)
        return has_changed

    def _announce_room(self, backend: Backend, scope: Scope, name: str) -> None:
        """Wakes workers that may have got room: they wait until something changes."""
        queues = [name] if scope == "queue" else backend.limits.queues_of(name)
        if queues:
            self._wake(queues)
            backend.announce(queues)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        where = "run this where it can be imported, or set PYTHONPATH"
        raise ConfigError(f"there is no module {module!r} to import tasks from; {where}") from error
