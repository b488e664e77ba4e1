"""The options of a task: what ``@app.task(...)`` takes, checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypedDict, cast

from dray.errors import ConfigError
from dray.instants import SECOND
from dray.model import retry
from dray.model.schedule import Rule
from dray.model.values import check_name, duration_us, shown
from dray.sanitize import HIDDEN
from dray.task import checks
from dray.task.checks import choice, known_options, label, several, switch
from dray.task.naming import check_function, is_coroutine, task_name
from dray.task.parameters import parameters_of

_DESCRIPTION_CHARS = 500


class Runner(StrEnum):
    """How a worker runs a body."""

    THREAD = "thread"
    ASYNC = "async"
    PROCESS = "process"


class TaskKeywords(TypedDict, total=False):
    """What ``@app.task(...)`` takes; None is as good as leaving it out."""

    name: str | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    max_crashes: int | None
    timeout: float | timedelta | None
    retry: retry.Policy | timedelta | None
    runner: str | None
    keep_args: bool | None
    redact: Collection[str] | None
    description: str | None
    retry_on: type[BaseException] | Collection[type[BaseException]] | None
    fail_on: type[BaseException] | Collection[type[BaseException]] | None
    cron: str | None
    every: float | timedelta | None
    tz: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """A task's options, checked. Of a task that is known by name only, all but the name are the defaults."""

    name: str
    queue: str = "default"
    priority: int | None = None  # None: the queue's default
    max_attempts: int = 3
    max_crashes: int = 3
    timeout: float | None = None
    retry: retry.Policy = retry.DEFAULT
    runner: Runner = Runner.THREAD
    keep_args: bool = True
    redact: tuple[str, ...] = ()
    description: str | None = None
    retry_on: tuple[type[BaseException], ...] = ()  # none: any error is retried
    fail_on: tuple[type[BaseException], ...] = ()
    schedule: Rule | None = None  # the shorthand: cron with tz, or every

    @classmethod
    def of(cls, function: Callable[..., Any], given: Mapping[str, Any]) -> TaskOptions:
        """The options of a function; the error says which task, which option, and what it may be."""
        check_function(function)
        known_options(given, TaskKeywords.__optional_keys__, "@app.task")
        given = {name: value for name, value in given.items() if value is not None}
        name = check_name("task", given["name"]) if "name" in given else task_name(function)
        of = f"task {name}"
        checked = {key: check(f"{of}: {key}", given[key]) for key, check in _CHECKS.items() if key in given}
        return cls(
            **checked,
            name=name,
            runner=_runner(f"{of}: runner", function, given.get("runner")),
            redact=_redact(f"{of}: redact", function, given.get("redact", ())),
            schedule=rule_of(of, given.get("cron"), given.get("every"), given.get("tz")),
        )

    def hide(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as people may see them."""
        return {name: HIDDEN if name in self.redact else value for name, value in args.items()}


def _retry(name: str, value: Any) -> retry.Policy:
    if any(value is policy for policy in (retry.fixed, retry.linear, retry.exponential)):
        raise ConfigError(f"{name}: call it, as in retry=dray.{value.__name__}(...), to make a policy of it")
    if callable(value):
        return cast("retry.Policy", value)
    return retry.fixed(duration_us(f"{name} (if not a policy or a function of the attempt)", value) / SECOND)


def _description(name: str, value: Any) -> str:
    return label(name, value, _DESCRIPTION_CHARS)


def _errors(name: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds = (value,) if isinstance(value, type) else several(name, value, "exception types")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{name} must hold exception types, and {shown(cast('object', kind))} is none")
    return kinds


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": checks.queue_name,
    "priority": checks.priority,
    "max_attempts": checks.at_least_once,
    "max_crashes": checks.at_least_once,
    "timeout": checks.timeout,
    "retry": _retry,
    "keep_args": switch,
    "description": _description,
    "retry_on": _errors,
    "fail_on": _errors,
}


def _runner(name: str, function: Any, value: Any) -> Runner:
    usual = Runner.ASYNC if is_coroutine(function) else Runner.THREAD
    runner = usual if value is None else choice(name, value, Runner)
    if runner not in {usual, Runner.PROCESS}:
        kind = "an async def" if usual is Runner.ASYNC else "a def that is not async"
        raise ConfigError(f"{name} {runner} cannot run {kind}; use {usual} or {Runner.PROCESS}")
    return runner


def _redact(name: str, function: Any, value: Any) -> tuple[str, ...]:
    names = several(name, value, "parameter names")
    parameters = parameters_of(function)
    known = [parameter.name for parameter in parameters]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for each in names:
        if not isinstance(each, str) or not (takes_any or each in known):
            listed = ", ".join(known) or "none"
            raise ConfigError(f"{name}: {shown(each)} is no parameter; its parameters are {listed}")
    return names


def rule_of(of: str, cron: Any, every: Any, tz: Any) -> Rule | None:
    """The rule of a schedule, checked; None: neither is given."""
    if cron is None and tz is not None:
        raise ConfigError(f"{of}: tz says where a cron line counts; give cron too, or leave it out")
    if cron is not None and every is not None:
        raise ConfigError(f"{of}: give either cron or every, not both")
    if cron is not None:
        return Rule.from_cron(cron, tz or "UTC")
    return None if every is None else Rule.from_every(every)
