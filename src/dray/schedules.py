"""The schedules of an App: those that its code declares, and those that are stored.

Declaring a schedule checks it and writes it at once. While a module is being imported nothing is written: an import
opens no database, and ``dray --url`` chooses one only afterwards. Such a schedule is remembered, and so is one that
finds the database unavailable; the next worker that starts writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from dray import codec
from dray.convert.write import to_json
from dray.errors import ConfigError, SchemaMissing, StorageLocked, StorageUnavailable, UnknownSchedule
from dray.instants import SECOND, from_datetime, moment, to_datetime
from dray.log import log
from dray.model.action import NewAction
from dray.model.bounds import ARGS_BYTES
from dray.model.new_job import NewJob
from dray.model.schedule import MISFIRE_LIMIT_MAX, Misfire, Overlap, Rule, Schedule, placed, preview, same_rule
from dray.model.values import check_name, shown
from dray.runtime import loading
from dray.task.checks import choice, known_options, priority, queue_name, whole
from dray.task.job_options import job_of
from dray.task.options import TaskOptions, rule_of
from dray.task.signature import Signature
from dray.task.task import Task
from dray.wording import interval

if TYPE_CHECKING:
    from dray.app_interface import AppInterface
    from dray.backends import Backend


_TRIES = 100  # to change a schedule that fires meanwhile
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": queue_name,
    "misfire": lambda name, value: choice(name, value, Misfire).value,
    "misfire_limit": lambda name, value: whole(name, value, 1, MISFIRE_LIMIT_MAX),
    "overlap": lambda name, value: choice(name, value, Overlap).value,
    "priority": priority,
}


class ScheduleKeywords(TypedDict, total=False):
    """What ``app.schedule(...)`` takes; None means the default."""

    cron: str | None
    every: float | timedelta | None
    tz: str | None
    args: Mapping[str, Any] | None
    queue: str | None
    misfire: Literal["skip", "last", "all"] | None
    misfire_limit: int | None
    overlap: Literal["allow", "skip", "queue"] | None
    priority: int | None


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is stored."""

    name: str
    task: str
    queue: str | None  # None: the task's
    args: dict[str, Any]
    cron: str | None
    every: float | None  # seconds
    tz: str
    misfire: str
    misfire_limit: int
    overlap: str
    priority: int | None  # None: the task's, else the queue's
    next_at: datetime | None
    last_at: datetime | None  # the last slot that it reached
    created_at: datetime
    paused_at: datetime | None
    seen_at: datetime  # when this was read, by the database's clock

    @property
    def is_paused(self) -> bool:
        """Whether it makes no jobs at the moment: ``schedule.is_paused  # False``."""
        return self.paused_at is not None

    @property
    def rule(self) -> str:
        """When it fires, as text: ``schedule.rule  # '0 3 * * * Europe/Berlin'``."""
        if self.cron is not None:
            return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"
        return f"every {interval(self.every or 0)}"

    def next(self, n: int = 5) -> list[datetime]:
        """The next slots, as if it were not paused: ``len(schedule.next(3))  # 3``."""
        whole("n", n, 0, 10_000)
        every_us = None if self.every is None else round(self.every * SECOND)
        at, anchor_at = from_datetime(self.seen_at), from_datetime(self.created_at)
        return [to_datetime(slot) for slot in preview(Rule(self.cron, every_us, self.tz), at, anchor_at, n)]


class Schedules:
    """The schedules of one App, for any number of threads."""

    def __init__(self, app: AppInterface) -> None:
        self._app = app
        self._declared: dict[str, Schedule] = {}

    def declare(self, name: str, task: Task[..., Any] | str, given: Mapping[str, Any]) -> None:
        """Checks a schedule, then writes it, now or when a worker starts."""
        wanted = self._checked(name, task, given)
        self._declared[name] = wanted
        if loading.is_under_way():
            return
        try:
            store(self._app.backend, wanted)
        except (StorageUnavailable, SchemaMissing) as error:
            log.warning("schedule %s is not stored yet: %s; a worker will do so when it starts", name, error)
        self._tell()

    def write(self, name: str, task: Task[..., Any] | str, given: Mapping[str, Any]) -> None:
        """Checks a schedule and writes it now, or raises."""
        store(self._app.backend, self._checked(name, task, given))
        self._tell()

    def check_shorthand(self, task: Task[..., Any]) -> None:
        """Refuses ``@app.task(cron=…)`` of a function that cannot be called without arguments."""
        # A signature of its own: an annotation may name what is defined further down, and is read only once.
        try:
            Signature(task.function, task.name).fit({})
        except TypeError as error:
            raise ConfigError(f"{error}; give it defaults, or use app.schedule(name, task, args=...)") from None

    def remember_shorthand(self, task: Task[..., Any]) -> None:
        """The schedule of a task that has its rule with it is named after the task; a worker writes it."""
        assert task.options.schedule is not None
        self._declared[task.name] = _wanted(task.name, task.name, task.options.schedule)

    def write_all(self, backend: Backend) -> None:
        """Writes what the code declares and is not stored so, and says what is stored and no longer declared."""
        declared = dict(self._declared)
        stored = {schedule.name: schedule for schedule in backend.schedules.all()}
        for name, wanted in declared.items():
            if name not in stored or not same_rule(stored[name], wanted):
                store(backend, wanted)
                log.info("schedule %s was %s", name, "changed" if name in stored else "made")
        # Schedules of tasks that are not known here belong to other code.
        left = [s.name for s in stored.values() if s.name not in declared and s.task in self._app.registry]
        if left:
            log.info("not declared in this code, and still fired: %s; see `dray schedules remove`", ", ".join(left))

    def _checked(self, name: Any, task: Any, given: Mapping[str, Any]) -> Schedule:
        check_name("schedule", name)
        known_options(given, ScheduleKeywords.__optional_keys__, "app.schedule")
        given = {key: value for key, value in given.items() if value is not None}
        of = f"schedule {name}"
        rule = rule_of(of, given.get("cron"), given.get("every"), given.get("tz"))
        if rule is None:
            raise ConfigError(f'{of}: give cron="0 3 * * *" or every=30, to say when')
        task_name, args = self._call(of, task, given.get("args", {}))
        checked = {key: check(f"{of}: {key}", given[key]) for key, check in _CHECKS.items() if key in given}
        if "misfire_limit" in given and checked.get("misfire") != Misfire.ALL:
            raise ConfigError(f'{of}: misfire_limit means nothing without misfire="all"; add that, or leave it out')
        return _wanted(name, task_name, rule, args=args, **checked)

    def _call(self, of: str, task: Any, args: Any) -> tuple[str, str]:
        """Returns the task's name, and the arguments as they are stored."""
        name: Any = task.name if isinstance(task, Task) else task
        if not isinstance(name, str):
            raise TypeError(f"{of}: the second argument is a task or its name, not {shown(name)}")
        check_name("task", name)
        known = self._app.registry.get(name) if name in self._app.registry else None
        if isinstance(task, Task) and known is not task:
            raise ConfigError(f"{of}: task {name} belongs to another App; declare the schedule there")
        if not isinstance(args, Mapping):
            raise TypeError(f"{of}: args are given by name, as a dict, not as {type(args).__name__}")
        named = dict(cast("Mapping[str, Any]", args))
        fitted = to_json(named, "args") if known is None else known.signature.fit(named)
        return name, codec.encode(fitted, limit=ARGS_BYTES)

    def list(self) -> list[ScheduleInfo]:
        found = self._app.backend.schedules.all()
        now = self._app.backend.now()
        return [self.info(schedule, now) for schedule in found]

    def pause(self, name: str, action: NewAction | None = None) -> bool:
        return self._app.backend.schedules.pause(self.stored(name).name, action=action)

    def resume(self, name: str, action: NewAction | None = None) -> bool:
        """Resumes it. False: it was not paused."""
        stored, backend = self.stored(name), self._app.backend
        next_at = stored.rule.next_after(max(backend.now(), stored.last_at or 0), stored.created_at)
        has_changed = backend.schedules.resume(name, next_at, action=action)
        self._tell()
        return has_changed

    def job_now(self, name: str) -> NewJob:
        """A job of the schedule outside its slots."""
        stored, registry = self.stored(name), self._app.registry
        if stored.task in registry:
            options = registry.get(stored.task).options
        else:
            options = TaskOptions(name=stored.task, timeout=self._app.settings.default_timeout)
        return job_of(stored, options, self._app.new_id(), None)

    def remove(self, name: str, action: NewAction | None = None) -> None:
        """Removes it, here and from the database."""
        declared = self._declared.pop(check_name("schedule", name), None)
        if not self._app.backend.schedules.delete(name, action=action) and declared is None:
            raise _unknown(name)

    def stored(self, name: str) -> Schedule:
        """The schedule of this name; `UnknownSchedule` if none is stored."""
        stored = self._app.backend.schedules.get(check_name("schedule", name))
        if stored is None:
            raise _unknown(name)
        return stored

    def info(self, schedule: Schedule, now: int) -> ScheduleInfo:
        """A stored schedule as people see it, at this time of the database."""
        stored = asdict(schedule)
        del stored["every_us"], stored["updated_at"]
        for instant in ("next_at", "last_at", "created_at", "paused_at"):
            stored[instant] = moment(stored[instant])
        stored["args"] = self._app.shown_args(schedule.task, codec.decode(schedule.args))
        every = None if schedule.every_us is None else schedule.every_us / SECOND
        return ScheduleInfo(**stored, every=every, seen_at=to_datetime(now))

    def _tell(self) -> None:
        """Makes the workers of this process look at the schedules again."""
        for rescheduled in [*self._app.on_schedule]:
            rescheduled()


def store(backend: Backend, wanted: Schedule) -> bool:
    """Creates or changes a schedule. False: nothing was written, as it is stored like this already."""
    for _ in range(_TRIES):
        stored = backend.schedules.get(wanted.name)
        if stored is None:
            return backend.schedules.upsert(placed(wanted, None, backend.now()))
        if same_rule(stored, wanted):
            return False
        if backend.schedules.change(stored, placed(wanted, stored, backend.now())):
            return True
    raise StorageLocked(f"schedule {wanted.name} fires too often to be changed; pause it first")


def _wanted(name: str, task: str, rule: Rule, **options: Any) -> Schedule:
    return Schedule(name, task, cron=rule.cron, every_us=rule.every_us, tz=rule.tz, **options)


def _unknown(name: str) -> UnknownSchedule:
    return UnknownSchedule(f"no schedule is named {shown(name)}; `dray schedules` lists those that are stored")
