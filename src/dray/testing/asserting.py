"""What waits to run: asserted, with a message that says what there is instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dray import codec
from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend
from dray.backends.joined import JoinedDatabase
from dray.backends.store.jobs import Filter
from dray.convert.write import to_json
from dray.errors import ConfigError, DrayError, PayloadError
from dray.handle.job import Job
from dray.model import job as model
from dray.model.job import UNSTARTED
from dray.model.values import check_name
from dray.task.checks import whole
from dray.task.task import Enqueuer, Task
from dray.testing.binding import refuse_others
from dray.testing.draining import refuse_async
from dray.wording import counted

_PAGE, _MOST = 500, 10_000
_SHOWN = 5  # jobs in one message
_LONGEST = 200  # characters of a value in it
_OPTIONS = ("args", "max_attempts", "name", "priority", "queue", "run_at", "schedule", "state", "tags")


def all_enqueued(
    app: App, task: Task[..., Any] | Enqueuer[..., Any] | str | None = None, *, connection: Any = None
) -> list[Job[Any]]:
    """The jobs that wait to run (queued, scheduled or waiting for others), oldest first.

    `connection`: your own open connection, to see what it has not committed.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> [job.args for job in all_enqueued(app)]
        [{'a': 1, 'b': 2}]
    """
    refuse_others(app)
    refuse_async(connection)
    name = None if task is None else _name(app, task)
    rows = _rows(app, Filter(states=UNSTARTED, task=name), connection)
    return [Job(core_of(app), row.id, row=row) for row in rows]


def assert_enqueued(
    app: App,
    task: Task[..., Any] | Enqueuer[..., Any] | str,
    /,
    *,
    count: int | None = None,
    using: Mapping[str, Any] | None = None,
    connection: Any = None,
    **args: Any,
) -> list[Job[Any]]:
    """Asserts that jobs of a task wait to run with these arguments, by name; those that are not given do not matter.

    `count`: exactly this number; None: at least one. `using`: options of the job, ``using={"queue": "mail"}``.
    Returns the jobs.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> assert_enqueued(app, add, a=1, count=1) == [job]
        True
    """
    __tracebackhide__ = True
    wanted = _Wanted.of(app, task, args, using)
    least, most = (1, None) if count is None else (whole("count", count, 0),) * 2
    found = all_enqueued(app, task, connection=connection)
    fitting = [job for job in found if not wanted.differences(job)]
    if len(fitting) < least or (most is not None and len(fitting) > most):
        raise AssertionError(_message(wanted, count, fitting, found, connection))
    return fitting


def refute_enqueued(
    app: App,
    task: Task[..., Any] | Enqueuer[..., Any] | str,
    /,
    *,
    using: Mapping[str, Any] | None = None,
    connection: Any = None,
    **args: Any,
) -> None:
    """Asserts that no job of a task waits to run with these arguments.

    Example:

        >>> refute_enqueued(app, add, a=1)
    """
    __tracebackhide__ = True
    assert_enqueued(app, task, count=0, using=using, connection=connection, **args)


class _Wanted:
    """What a job has to be like."""

    def __init__(self, app: App, name: str, args: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.app, self.name, self.args, self.options = app, name, args, options
        self.task = core_of(app).registry.get(name) if name in core_of(app).registry else None

    @classmethod
    def of(cls, app: App, task: Any, args: Mapping[str, Any], using: Mapping[str, Any] | None) -> _Wanted:
        refuse_others(app)
        options = dict(using or {})
        unknown = next((name for name in options if name not in _OPTIONS), None)
        if unknown is not None:
            raise ConfigError(f"using: {unknown!r} cannot be asserted; known are {', '.join(_OPTIONS)}")
        found = cls(app, _name(app, task), {**args, **options.pop("args", {})}, options)
        if found.task is not None:
            found.task.signature.check_names(found.args)  # misspelt, it would make refute_enqueued pass for ever
        return found

    @property
    def words(self) -> str:
        pairs = [f"{name}={_shown(self._hide(name, value))}" for name, value in {**self.args, **self.options}.items()]
        return f" with {', '.join(pairs)}" if pairs else ""

    def differences(self, job: Job[Any]) -> dict[str, str]:
        """What is not as it should be: the argument or option, and what it is instead."""
        stored = self.stored(job.row)
        found: dict[str, str] = {}
        for name, value in self.args.items():
            if name not in stored:
                found[name] = "missing"
            elif not self._is_same(name, value, stored[name]):
                found[name] = _shown(self._hide(name, stored[name]))
        for name, value in self.options.items():
            is_value: Any = getattr(job, name)
            if is_value != (tuple(value) if name == "tags" else value):
                found[name] = _shown(is_value)
        return found

    def stored(self, row: model.Job) -> dict[str, Any]:
        """The arguments as the body would get them, defaults included."""
        raw: dict[str, Any] = codec.decode(row.args or "{}")
        if self.task is None:
            return raw
        try:
            return self.task.signature.decoded(raw)
        except PayloadError:  # of other code, or written by hand
            return raw

    def _is_same(self, name: str, given: Any, stored: Any) -> bool:
        if given == stored:
            return True
        try:  # a tuple is stored as a list, a dataclass as a dict
            return to_json(given, name) == to_json(stored, name)
        except PayloadError:
            return False

    def _hide(self, name: str, value: Any) -> Any:
        return core_of(self.app).shown_args(self.name, {name: value}).get(name, value) if name in self.args else value

    def described(self, job: Job[Any]) -> str:
        wrong = self.differences(job)
        parts = [f"{name} is {value}" for name, value in wrong.items()]
        others = {name: value for name, value in (job.args or {}).items() if name not in wrong}
        parts += [f"{name}={_shown(value)}" for name, value in others.items()]
        return f"  {job.id[-8:]} {job.state}: {', '.join(parts) or 'no arguments'}"


def _message(
    wanted: _Wanted, count: int | None, fitting: Sequence[Job[Any]], found: Sequence[Job[Any]], connection: Any
) -> str:
    least = "a job" if count is None else counted(count, "job")
    verb = "waits" if count in (None, 1) else "wait"
    lines = [f"expected that {least} of {wanted.name} {verb} to run{wanted.words}; there {_are(len(fitting))}"]
    shown = sorted(found, key=lambda job: len(wanted.differences(job)))[:_SHOWN]
    if shown:
        more = f" (the closest {len(shown)} of {len(found)})" if len(found) > len(shown) else ""
        lines += [f"jobs of {wanted.name} that wait{more}:", *map(wanted.described, shown)]
    else:
        others = Counter(job.task for job in all_enqueued(wanted.app, connection=connection))
        some = ", ".join(f"{task} ({n})" for task, n in others.most_common(_SHOWN))
        lines.append(f"jobs of other tasks wait: {some}" if some else "no job of any task waits")
    ended = Filter(states=frozenset(model.State) - UNSTARTED, task=wanted.name)
    past = Counter(row.state for row in _backend(wanted.app, connection).jobs.newest(ended, limit=_PAGE))
    if past:
        states = ", ".join(f"{n} {state}" for state, n in past.items())
        lines.append(f"jobs of {wanted.name} that do not wait any more: {states}")
    return "\n".join(lines)


def _are(count: int) -> str:
    return "is none" if count == 0 else "is 1" if count == 1 else f"are {count}"


def _backend(app: App, connection: Any) -> Backend:
    return (
        core_of(app).backend if connection is None else Backend(JoinedDatabase(core_of(app).backend.db, connection))
    )


def _rows(app: App, fit: Filter, connection: Any) -> list[model.Job]:
    backend = _backend(app, connection)
    found: list[model.Job] = []
    while page := backend.jobs.newest(fit, limit=_PAGE, before=found[-1].id if found else None):
        found += page
        if len(found) > _MOST:
            raise DrayError(
                f"more than {_MOST:,} jobs wait, too many to look at one by one; count them with app.stats()"
            )
        if len(page) < _PAGE:
            break
    return found[::-1]


def _name(app: App, task: Any) -> str:
    if isinstance(task, Enqueuer):
        return task.task.name  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(task, str):
        raise TypeError(f"this takes a task or its name, not {type(task).__name__}")
    name = check_name("task", task)
    if _module(name) in {_module(known) for known in core_of(app).registry.names()}:
        core_of(app).registry.get(name)  # UnknownTask: misspelt, it would make refute_enqueued pass for ever
    return name


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
