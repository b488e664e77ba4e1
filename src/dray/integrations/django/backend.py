"""`DrayBackend`: what Django's tasks are enqueued with, and their results read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core import checks
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskResult
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_enqueued
from django.utils import timezone
from django.utils.json import normalize_json

from dray.errors import ConfigError, InvalidName
from dray.instants import LAST_INSTANT, from_datetime
from dray.integrations.django.checks import problems
from dray.integrations.django.core import DjangoApp, backends
from dray.integrations.django.faults import translated
from dray.model.values import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DrayTask(Task):
    """A task with more options: ``@task(max_attempts=5)``, from Django 6.1 on. None: as OPTIONS say."""

    max_attempts: int | None = None
    timeout: float | None = None
    runner: str | None = None  # "process": each body in a child process


class DrayBackend(BaseTaskBackend):
    """Enqueues in the transaction that is open on the alias of OPTIONS["database"]; outside one, at once."""

    task_class = DrayTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    is_drays = True

    @property
    def app(self) -> DjangoApp:
        """The App of this alias: all that Dray can do beside Django's tasks."""
        return backends.of(self.alias)

    def validate_task(self, task: Any) -> None:
        """Django calls it whenever a task is made: that is where Dray comes to know the function."""
        super().validate_task(task)
        app = self.app
        try:
            app.learn(task)
            check_name("queue", task.queue_name)
            _check_run_after(task.run_after)
        except (ConfigError, InvalidName, TypeError) as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error

    def enqueue(  # pyright: ignore[reportIncompatibleMethodOverride] - Django's returns nothing, and is not typed
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult:
        self.validate_task(task)
        app = self.app
        try:
            call = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        except RecursionError:
            raise TypeError("Unsupported value: the arguments are nested too deep, or hold themselves") from None
        run_at = None if task.run_after is None else _aware(task.run_after)
        with translated(app.core):
            using = app.task_of(task.module_path).using(queue=task.queue_name, priority=task.priority, run_at=run_at)
            after = None if task.run_after is None else task.run_after.isoformat()
            job = using.enqueue(**call) if after is None else using.enqueue(**call, run_after=after)
            result = app.result_of(job.id)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        with translated(self.app.core):
            return self.app.result_of(result_id)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        return [*super().check(**kwargs), *problems(self.alias)]


def _check_run_after(when: datetime | None) -> None:
    try:
        is_storable = when is None or 0 <= from_datetime(_aware(when)) <= LAST_INSTANT
    except OverflowError:
        is_storable = False
    if not is_storable:
        raise ConfigError("run_after must lie between 1970-01-01 and 9999-12-30, in UTC")


def _aware(when: datetime) -> datetime:
    return timezone.make_aware(when) if timezone.is_naive(when) else when
