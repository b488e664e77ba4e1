"""The Apps behind Django's tasks: one for each alias of TASKS, for the whole process.

Django makes a backend object in every thread, and tests change settings after set-up. So an App is kept here, and
asks Django at each use where its database is and what its options are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.tasks import task_backends
from django.tasks.base import TaskResult
from django.tasks.exceptions import TaskResultDoesNotExist

from dray import forks
from dray.app import App
from dray.backends.base import Backend
from dray.backends.sqlite.database import SqliteDatabase
from dray.core import AppCore
from dray.errors import ConfigError, UnknownJob
from dray.handle.job import Job
from dray.integrations.django.addresses import MEMORY, address_of
from dray.integrations.django.bodies import body_of, tell_signals, tidily, tidily_async
from dray.integrations.django.faults import translated
from dray.integrations.django.joining import DjangoDatabase, open_transaction
from dray.integrations.django.options import (
    IN_MEMORY,
    LOCATION,
    checked_settings,
    database_of,
    drays_aliases,
    options_of,
    shares_jobs,
    task_options,
)
from dray.integrations.django.results import result_of
from dray.settings import Settings
from dray.task.task import Task, define
from dray.waiter import Waiter

if TYPE_CHECKING:
    from dray.app_interface import AppInterface
    from dray.model.action import NewAction
    from dray.model.new_job import AlikeJobs, NewJob
    from dray.model.workflow import Workflow as WorkflowRow
    from dray.task.options import TaskKeywords


class DjangoCore(AppCore):
    """An App's inside whose settings follow Django's, unless a test or ``--url`` has set others for a while."""

    tables_hint = "with Django: python manage.py migrate"

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.learning = threading.Lock()
        self.defined: dict[str, Any] = {}  # Django's tasks by name, as they were first defined
        self.borrowed: set[str] = set()  # names of tasks that only other aliases on the same tables define
        self._pinned: Settings | None = None
        self._known: tuple[Any, Settings] | None = None  # the settings, after what they were made of
        self._open_url: str | None = None
        super().__init__(Settings(url=""))

    @property
    def settings(self) -> Settings:  # pyright: ignore[reportIncompatibleVariableOverride] - it is read and set alike
        if self._pinned is not None:
            return self._pinned
        options = options_of(self.alias)
        key = dict(options), apps.ready, address_of(database_of(self.alias), options.get("schema"))
        if self._known is None or self._known[0] != key:
            self._known = key, checked_settings(self.alias)
        return self._known[1]

    @settings.setter
    def settings(self, given: Settings) -> None:
        is_djangos = not given.url or (self._known is not None and given is self._known[1])
        self._pinned = None if is_djangos else given

    @property
    def _is_djangos(self) -> bool:
        """Whether this is the database that Django's connection leads to."""
        return self._pinned is None or (self._known is not None and self._pinned.url == self._known[1].url)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self.learning = threading.Lock()  # another thread of the parent may have held it

    # Opening and enqueueing

    def _open(self) -> tuple[Backend, Waiter]:
        settings = self.settings
        with self._opening:
            if self._opened is not None and self._open_url != settings.url:
                for part in reversed(self._opened):
                    part.close()
                self._opened = None
            if self._opened is None:
                self._opened, self._open_url = self._made(settings), settings.url
            return self._opened

    def _made(self, settings: Settings) -> tuple[Backend, Waiter]:
        if settings.url == MEMORY:
            joining = Backend(DjangoDatabase(SqliteDatabase(IN_MEMORY, clock=self.clock), database_of(self.alias)))
            return joining, Waiter(joining)
        own = settings.open(self.clock)
        if not self._is_djangos:
            return own, Waiter(own)
        return Backend(DjangoDatabase(own.db, database_of(self.alias))), Waiter(own)

    @contextmanager
    def _joined(self, connection: Any) -> Generator[Any]:
        """The connection to enqueue with. Not left to `DjangoDatabase`: threads that enqueue at the same moment share
        a transaction, and this one may have its own."""
        if connection is None and self._is_djangos:
            with translated(self), open_transaction(database_of(self.alias)) as theirs:
                yield theirs
        else:
            yield connection

    def submit(
        self,
        new: Sequence[NewJob],
        connection: Any = None,
        workflow: WorkflowRow | None = None,
        action: NewAction | None = None,
    ) -> list[Job[Any]]:
        with self._joined(connection) as theirs:
            return super().submit(new, theirs, workflow, action)

    def submit_alike(self, jobs: AlikeJobs, connection: Any = None) -> list[Job[Any]]:
        with self._joined(connection) as theirs:
            return super().submit_alike(jobs, theirs)

    # Tasks

    @property
    def database(self) -> str:
        """The alias of DATABASES."""
        return database_of(self.alias)

    def define(self, function: Callable[..., Any], options: TaskKeywords) -> Task[..., Any]:
        """As for any App, but without a look at the settings: modules are imported before they are complete."""
        task = define(function, cast("AppInterface", self), **options)
        self.registry.register(task)
        return task

    def replace(self, function: Callable[..., Any], options: TaskKeywords) -> None:
        """As `define`, where another may be there: its module was loaded again, or the task was borrowed."""
        self.registry.forget(str(options.get("name")))
        self.define(function, options)


class DjangoApp(App):
    """The App of one alias of TASKS."""

    _core: DjangoCore

    def __init__(self, alias: str) -> None:
        self._core = DjangoCore(alias)
        for around in (tidily, tidily_async):
            self.middleware(around)
        tell_signals(self)

    @property
    def core(self) -> DjangoCore:
        return self._core

    @property
    def sender(self) -> type:
        """Of signals: the class of the backend."""
        return type(task_backends[self._core.alias])

    def learn(self, task: Any) -> None:
        """Makes one of Django's tasks known to the workers of every alias: their processes only import its module.

        Aliases on the same tables share the jobs, and run this one as its own alias says. On others there may be jobs
        of ``using(backend=…)``, which have the options of that alias."""
        if not self.learn_here(task):
            return
        own = self._core.alias
        for alias in drays_aliases():
            if alias != own:
                app = backends.of(alias)
                app.borrow(task, own) if shares_jobs(alias, own) else app.learn_here(task)

    def borrow(self, task: Any, alias: str) -> None:
        """Runs the jobs of a task as another alias says, unless this one has it too."""
        core, name = self._core, task.module_path
        with core.learning:
            if name in core.borrowed or name not in core.registry:
                core.replace(body_of(task, self.result_of), task_options(alias, task))
                core.borrowed.add(name)

    def learn_here(self, task: Any) -> bool:
        """Whether it is new here. The first of a name stays: `using()` makes more of them."""
        core, name = self._core, task.module_path
        with core.learning:
            known = core.defined.get(name)
            if known is None and name not in core.borrowed:
                core.define(body_of(task, self.result_of), task_options(core.alias, task))
            elif known is None or known.func is not task.func or known.takes_context != task.takes_context:
                core.replace(body_of(task, self.result_of), task_options(core.alias, task))
                core.borrowed.discard(name)
            else:
                return False
            core.defined[name] = task
            return True

    def task_of(self, name: str) -> Task[..., Any]:
        """What Dray has made of the task of this name."""
        return self._core.registry.get(name)

    def result_of(self, result_id: Any) -> TaskResult:
        """The result of this id, as this thread's transaction sees it. No name in a row is ever imported."""
        core = self._core
        try:
            job = self.job(str(result_id))
        except UnknownJob:
            raise TaskResultDoesNotExist(result_id) from None
        if backends.definition(job.task, core) is None:
            core.load()  # the modules of tasks that a worker would load
        task = backends.definition(job.task, core)
        if task is None:
            raise TaskResultDoesNotExist(
                f"{result_id} is a job of {job.task}, which is none of Django's tasks here; import its module, or "
                "name it in OPTIONS['imports']"
            )
        return result_of(job, task, core.alias)


class Backends:
    """The Apps by alias: ``backends.default``, ``dray --app dray.integrations.django:backends.reports``."""

    def __init__(self) -> None:
        self._apps: dict[str, DjangoApp] = {}
        self._making = threading.Lock()
        forks.watch_child(self)

    def after_fork_in_child(self) -> None:
        self._making = threading.Lock()

    def __getattr__(self, alias: str) -> App:
        if alias.startswith("__"):
            raise AttributeError(alias)
        _set_up()
        if alias not in drays_aliases():
            raise ConfigError(
                f"TASKS has no DrayBackend under {alias!r}; it has {', '.join(drays_aliases()) or 'none'}"
            )
        return self.of(alias)

    def only(self) -> App:
        """That of "default", else the only one that there is."""
        _set_up()
        found = drays_aliases()
        if "default" in found:
            return self.of("default")
        if len(found) == 1:
            return self.of(found[0])
        raise ConfigError(
            f"TASKS has several DrayBackends ({', '.join(found)}): name one, as {LOCATION}:backends.{found[0]}"
            if found
            else 'TASKS has no DrayBackend: TASKS = {"default": {"BACKEND": "dray.integrations.django.DrayBackend"}}'
        )

    def of(self, alias: str) -> DjangoApp:
        """The App of an alias, made at the first call; opens nothing."""
        with self._making:
            if alias not in self._apps:
                self._apps[alias] = DjangoApp(alias)
            return self._apps[alias]

    def definition(self, name: str, core: DjangoCore) -> Any:
        """The task of a name, as this alias knows it, else as another on the same database does."""
        others = (app.core for app in list(self._apps.values()) if app.core.database == core.database)
        return next((each.defined[name] for each in (core, *others) if name in each.defined), None)

    def close(self) -> None:
        """Closes every connection that the Apps have open; the next use opens them again."""
        for app in list(self._apps.values()):
            app.close()


backends = Backends()


def _set_up() -> None:
    if apps.ready:
        return
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise ConfigError(f"Django is not set up: {error} (set DJANGO_SETTINGS_MODULE, as manage.py does)") from error
    except ModuleNotFoundError as error:
        named = os.environ.get("DJANGO_SETTINGS_MODULE", "")
        if error.name is None or not f"{named}.".startswith(f"{error.name}."):
            raise  # an import inside the user's own code
        raise ConfigError(
            f"Django is not set up: there is no module {error.name}, which DJANGO_SETTINGS_MODULE={named} names; run "
            "this in the folder of manage.py"
        ) from error
