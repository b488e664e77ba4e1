"""A task's name and options: what ``@app.task(...)`` takes, checked in one place.

A name must mean the same function in every process, so it is made of what is the same everywhere: the module and the
function's place in it. A function that a worker could not find, or could not call with JSON alone, is refused when it
is decorated.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from dray.errors import ConfigError, InvalidName
from dray.instants import SECOND
from dray.log import log
from dray.model import retry
from dray.model.bounds import DESCRIPTION_CHARS
from dray.model.job_retry import NO_RETRY, JobRetry
from dray.model.limit import Bound, Bounds, Kind, RateGiven, bounds_of
from dray.model.schedule import Rule
from dray.model.values import check_name, duration_us, shown
from dray.sanitize import HIDDEN
from dray.task import checks
from dray.task.checks import checks_of, choice, known_options, label, option, several, switch
from dray.task.keys import KeyGiven, KeyOption, key_option
from dray.task.signature import parameters_of

if TYPE_CHECKING:
    from dray.model.settlement import Rng


_NAME_IT = "or give it a name: @app.task(name=...)"


class RunnerKind(StrEnum):
    """How a worker runs a body."""

    THREAD = "thread"
    ASYNC = "async"
    PROCESS = "process"


class TaskKeywords(TypedDict, total=False):
    """What ``@app.task(...)`` takes; None means the default."""

    name: str | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    max_crashes: int | None
    timeout: float | timedelta | None
    retry: retry.Policy | timedelta | None
    runner: Literal["thread", "async", "process"] | None
    keep_args: bool | None
    redact: Collection[str] | None
    description: str | None
    retry_on: type[BaseException] | Collection[type[BaseException]] | None
    fail_on: type[BaseException] | Collection[type[BaseException]] | None
    cron: str | None
    every: float | timedelta | None
    tz: str | None
    limit: int | None
    rate: RateGiven | None
    key: KeyGiven | None
    key_limit: int | None
    key_rate: RateGiven | None


def retry_policy(name: str, value: Any) -> retry.Policy:
    if any(value is policy for policy in (retry.fixed, retry.linear, retry.exponential)):
        raise ConfigError(f"{name}: call it, as in retry=dray.{value.__name__}(...), to make a policy of it")
    if callable(value):
        return cast("retry.Policy", value)
    return retry.fixed(duration_us(f"{name} (if not a policy or a function of the attempt)", value) / SECOND)


def error_types(name: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds = (value,) if isinstance(value, type) else several(name, value, "exception types")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{name} must hold exception types, and {shown(cast('object', kind))} is none")
    return kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """A task's options, checked. Of a task that is known by name only, all but the name are the defaults."""

    name: str
    queue: str = option(checks.queue_name, "default")
    priority: int | None = option(checks.priority)  # None: the queue's default
    max_attempts: int = option(checks.at_least_once, 3)
    max_crashes: int = option(checks.at_least_once, 3)
    timeout: float | None = option(checks.timeout)
    retry: retry.Policy = option(retry_policy, retry.DEFAULT)
    runner: RunnerKind = RunnerKind.THREAD
    keep_args: bool = option(switch, default=True)
    redact: tuple[str, ...] = ()
    description: str | None = option(functools.partial(label, chars=DESCRIPTION_CHARS))
    retry_on: tuple[type[BaseException], ...] = option(error_types, ())  # none: any error is retried
    fail_on: tuple[type[BaseException], ...] = option(error_types, ())
    schedule: Rule | None = None  # the shorthand: cron with tz, or every
    key: KeyOption | None = None  # None: jobs have no key unless they are given one
    bounds: Bounds = field(default_factory=dict[Kind, tuple[Bound, ...]])  # limit, rate, key_limit and key_rate

    @classmethod
    def of(cls, function: Callable[..., Any], given: Mapping[str, Any]) -> TaskOptions:
        """The options of a function; the error says which task, which option, and what it may be."""
        check_function(function)
        known_options(given, TaskKeywords.__optional_keys__, "@app.task")
        given = {name: value for name, value in given.items() if value is not None}
        name = check_name("task", given["name"]) if "name" in given else task_name(function)
        of = f"task {name}"
        checked = {key: check(f"{of}: {key}", given[key]) for key, check in _CHECKS.items() if key in given}
        redact = _redact(f"{of}: redact", function, given.get("redact", ()))
        return cls(
            **checked,
            name=name,
            runner=_runner(f"{of}: runner", function, given.get("runner")),
            redact=redact,
            schedule=rule_of(of, given.get("cron"), given.get("every"), given.get("tz")),
            key=key_option(f"{of}: key", name, function, given["key"], redact) if "key" in given else None,
            bounds=bounds_of(of, given),
        )

    @property
    def job_fields(self) -> dict[str, Any]:
        """Fields of the jobs of this task, unless they have their own."""
        return {
            "queue": self.queue,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "max_crashes": self.max_crashes,
            "timeout": self.timeout,
            "description": self.description,
        }

    def hide(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return {name: HIDDEN if name in self.redact else value for name, value in args.items()}


_CHECKS = checks_of(TaskOptions)


def _runner(name: str, function: Any, value: Any) -> RunnerKind:
    usual = RunnerKind.ASYNC if inspect.iscoroutinefunction(function) else RunnerKind.THREAD
    runner = usual if value is None else choice(name, value, RunnerKind)
    if runner not in {usual, RunnerKind.PROCESS}:
        kind = "an async def" if usual is RunnerKind.ASYNC else "a def that is not async"
        raise ConfigError(f"{name} {runner} cannot run {kind}; use {usual} or {RunnerKind.PROCESS}")
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


def task_name(function: Callable[..., Any]) -> str:
    """``module.function``, as seen from outside; `TypeError` for what has no such name."""
    check_function(function)
    place = function.__qualname__
    if "<locals>" in place:
        raise TypeError(f"{place} is defined inside a function; move it to the top of its module, {_NAME_IT}")
    if "." in place:
        raise TypeError(f"{place} is defined inside a class; move it to the top of its module, {_NAME_IT}")
    name = ".".join(part for part in (_module(function), place) if part)
    try:
        return check_name("task", name)
    except InvalidName as error:
        raise InvalidName(f"{error}; give it another: @app.task(name=...)") from None


def check_function(function: Any) -> None:
    """Refuses what cannot be a task under any name, and says what to do instead."""
    problem = next((problem for fits, problem in _REFUSED if fits(function)), None)
    if problem is not None:
        raise TypeError(f"{getattr(function, '__qualname__', shown(function))} {problem}")


def _module(function: Any) -> str:
    name: str = function.__module__
    if name not in {"__main__", "__mp_main__"}:  # the latter is the same script in a child of multiprocessing
        return name
    module = sys.modules.get(name)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:  # python -m shop.jobs
        return spec.name.removesuffix(".__main__")
    # A shell or a notebook has no file, standard input only something like it: no other process finds it.
    return Path(file).stem if file and not file.startswith("<") else ""


def _is_method(function: Any) -> bool:
    if inspect.ismethod(function) or isinstance(function, staticmethod | classmethod):
        return True
    qualname = getattr(function, "__qualname__", "")
    inside_class = "." in qualname.rpartition("<locals>.")[2]
    code = getattr(inspect.unwrap(function), "__code__", None)
    return inside_class and code is not None and code.co_varnames[: code.co_argcount][:1] in {("self",), ("cls",)}


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


_REFUSED: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda function: hasattr(function, "enqueue"), "is a task already; use it as it is"),
    (inspect.isclass, "is a class; write a function that makes one and does the work"),
    (
        lambda function: isinstance(function, functools.partial),
        "has arguments built in, which no row shows; write a def that calls the function, or pass them to enqueue()",
    ),
    (_is_method, "is a method, and its object is not in the row; write a function that is passed an id"),
    (lambda function: getattr(function, "__name__", "") == "<lambda>", "has no name; write it as a def"),
    (_is_generator, "has a yield in it, so that calling it runs nothing; return a list instead"),
    (
        lambda function: not inspect.isfunction(inspect.unwrap(function)),
        "is not a Python function; write a def that calls it",
    ),
)


def error_name(kind: type[BaseException]) -> str:
    """What an exception type is called in a row: the same in the process that enqueues and in the one that runs."""
    return ".".join(part for part in (_module(kind), kind.__qualname__) if part)


def next_delay_us(
    options: TaskOptions, attempt: int, error: BaseException, rng: Rng, of_job: JobRetry = NO_RETRY
) -> int | None:
    """Microseconds until the next attempt; None: this error is final. Whether attempts are left is the job's to say.

    `fail_on` comes before `retry_on`; with neither, every error is tried again. What the job says itself comes before
    what its task says.
    """
    if isinstance(error, options.fail_on):
        return None
    if of_job.names:
        if of_job.names.isdisjoint(map(error_name, type(error).__mro__)):
            return None
    elif options.retry_on and not isinstance(error, options.retry_on):
        return None
    return policy_delay_us(options, attempt, rng, of_job)


def policy_delay_us(options: TaskOptions, attempt: int, rng: Rng, of_job: JobRetry = NO_RETRY) -> int:
    """Microseconds until the next attempt, as the job's policy has it, or its task's."""
    try:
        return retry.delay_us(options.retry if of_job.policy is None else of_job.policy, attempt, rng)
    except Exception:
        log.exception("task %s: its retry policy failed after attempt %d; using the default", options.name, attempt)
        return retry.delay_us(retry.DEFAULT, attempt, rng)
