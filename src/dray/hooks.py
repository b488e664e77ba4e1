"""Functions of the user's that Dray calls: middleware around bodies, and hooks after events.

A hook is told of an event once it is written, and changes no outcome: what it raises is logged. Middleware is a part
of the body: what it raises is the body's error, what it returns is the job's result. What goes around enqueues is for
integrations: it may add headers to the jobs, and what it raises is logged.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from dray.errors import ConfigError
from dray.interrupts import with_cleanup
from dray.log import log
from dray.model.new_job import AlikeJobs, NewJob, one_by_one
from dray.model.values import shown
from dray.wording import close_matches, listed, short_id

if TYPE_CHECKING:
    from dray.handle.job import AttemptError, Job

Event: TypeAlias = Literal["enqueued", "started", "completed", "retried", "failed", "cancelled"]
EVENTS: tuple[str, ...] = get_args(Event)
Middleware: TypeAlias = Callable[[Any, Callable[[], Any]], Any]
F = TypeVar("F", bound=Callable[..., Any])


class _Hook(NamedTuple):
    function: Callable[..., Any]
    takes_error: Literal["by position", "by name", "not"]

    def call(self, job: Job[Any], error: AttemptError | None) -> None:
        if self.takes_error == "by position":
            self.function(job, error)
        elif self.takes_error == "by name":
            self.function(job, error=error)
        else:
            self.function(job)


class Enqueuing:
    """One enqueue, as a function around it sees it."""

    def __init__(self, jobs: Sequence[NewJob] | AlikeJobs, *, is_added: bool = False) -> None:
        self.jobs: Sequence[NewJob] | AlikeJobs = jobs
        self.is_added = is_added  # a step that a body adds: it is written later, when the body's job completes
        self.handles: list[Job[Any]] | None = None  # once the jobs are written

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Adds headers to all jobs. Those that a job has win; one that has no room is left out."""
        if isinstance(self.jobs, AlikeJobs):
            self.jobs = self.jobs._replace(pattern=self.jobs.pattern.with_headers(headers))
        else:
            self.add_headers_each([headers] * len(self.jobs))

    def add_headers_each(self, headers: Sequence[Mapping[str, str]]) -> None:
        """Adds headers to each job."""
        self.jobs = [job.with_headers(more) for job, more in zip(one_by_one(self.jobs), headers, strict=True)]


AroundEnqueue: TypeAlias = Callable[[Enqueuing], AbstractContextManager[None]]

_NAMED = 5  # of several functions in one line


class Hooks:
    """What one App has registered. Workers read it: it does not change while one runs."""

    def __init__(self) -> None:
        self.around_def: tuple[Middleware, ...] = ()  # the outermost first
        self.around_async: tuple[Middleware, ...] = ()
        self.middleware: tuple[Middleware, ...] = ()  # both kinds, in the order of registration
        self.middleware_codes: frozenset[CodeType] = frozenset()  # to know their frames by
        self._around_enqueue: tuple[AroundEnqueue, ...] = ()
        self.enqueued = self.cancelled = False  # whether producers have anything to tell
        self._registered: list[Middleware] = []  # those too that the worker of this child process does not have
        self._events: dict[str, tuple[_Hook, ...]] = {}
        self._has_warned = False  # of tasks that it does not go around
        self._here = threading.local()

    @property
    def worker_events(self) -> frozenset[str]:
        """What a worker has to report."""
        return frozenset(self._events)

    def add_middleware(self, function: F) -> F:
        _check_middleware(function)
        self._registered.append(function)
        self._set_middleware((*self.middleware, function))
        return function

    def _set_middleware(self, functions: Sequence[Middleware]) -> None:
        self.middleware = tuple(functions)
        self.around_def = tuple(each for each in functions if not _is_async(each))
        self.around_async = tuple(each for each in functions if _is_async(each))
        self.middleware_codes = frozenset(code for code in map(_code_of, functions) if code is not None)

    def warn_of_unwrapped(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Warns once of tasks that no middleware goes around, because all of it is of the other kind. `functions`: of
        the tasks, by name."""
        own = [each for each in self.middleware if not name_of(each).startswith("dray.integrations.")]
        kinds = {_is_async(each) for each in own}
        if len(kinds) != 1 or self._has_warned:
            return
        (is_async,) = kinds
        left_out = [name for name, function in functions.items() if inspect.iscoroutinefunction(function) != is_async]
        if not left_out:
            return
        self._has_warned = True
        log.warning(
            "middleware %s, %s, does not go around %s: %s; register %s for those too",
            listed([name_of(each) for each in own], _NAMED),
            "an async def" if is_async else "a def",
            "plain functions" if is_async else "coroutine functions",
            listed(sorted(left_out), _NAMED),
            "a def" if is_async else "an async def",
        )

    def remove_middleware(self, function: Middleware) -> None:
        self._registered.remove(function)
        self._set_middleware([each for each in self.middleware if each is not function])

    def arrange(self, names: Sequence[str]) -> None:
        """In a child process: puts the middleware into its worker's order. `LookupError`: some is not there."""
        left, ordered = list(self._registered), list[Middleware]()
        for name in names:
            found = next((each for each in left if name_of(each) == name), None)
            if found is None:
                raise LookupError(
                    f"a child process does not find the middleware {name}; register it when its module is imported, "
                    "not under an if or inside a function"
                )
            left.remove(found)
            ordered.append(found)
        self._set_middleware(ordered)

    def on(self, event: str) -> Callable[[F], F]:
        """What registers a hook for this event."""
        if callable(event):
            raise TypeError(f'an event is missing; write @app.on("completed"); known are {", ".join(EVENTS)}')
        if event not in EVENTS:
            near = close_matches(event, EVENTS) if isinstance(event, str) else []  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"there is no event {shown(event)}; {hint}known are {', '.join(EVENTS)}")
        return lambda function: self._add(event, function)

    def _add(self, event: str, function: F) -> F:
        takes_error = _check_hook(event, function)
        self._events[event] = (*self._events.get(event, ()), _Hook(function, takes_error))
        self._note_events()
        return function

    def _note_events(self) -> None:
        self.enqueued = "enqueued" in self._events or bool(self._around_enqueue)
        self.cancelled = "cancelled" in self._events

    def put_around_enqueues(self, function: AroundEnqueue) -> None:
        """For integrations."""
        self._around_enqueue = (*self._around_enqueue, function)
        self._note_events()

    def remove_around_enqueues(self, function: AroundEnqueue) -> None:
        self._around_enqueue = tuple(each for each in self._around_enqueue if each is not function)
        self._note_events()

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob] | AlikeJobs, *, is_added: bool = False) -> Generator[Enqueuing]:
        """Calls what goes around enqueues. The jobs to write are then those of the `Enqueuing`."""
        enqueuing = Enqueuing(jobs, is_added=is_added)
        with ExitStack() as stack:
            for function in self._around_enqueue:
                stack.enter_context(_Harmless(function, enqueuing))
            yield enqueuing

    def added(self, job: NewJob) -> NewJob:
        """A step that a body adds, as it is to be written."""
        if not self._around_enqueue:
            return job
        with self.enqueuing([job], is_added=True) as enqueuing:
            pass
        return one_by_one(enqueuing.jobs)[0]

    def tell(self, event: str, jobs: Iterable[Job[Any]]) -> None:
        """Calls the hooks of an event in the thread that caused it, a producer's. What they enqueue or cancel
        themselves is not reported: it would be for ever."""
        if event not in self._events or getattr(self._here, "is_telling", False):
            return

        def call_all() -> None:
            self._here.is_telling = True
            for job in jobs:
                for hook in self._events[event]:
                    try:
                        hook.call(job, None)
                    except Exception:  # noqa: BLE001 - whatever a hook raises changes no outcome
                        _complain(event, hook, job)

        def forget() -> None:
            self._here.is_telling = False

        with_cleanup(call_all, forget)  # in a body, which may be stopped at any line

    def report(self, event: str, job: Job[Any], error: AttemptError | None) -> None:
        """Calls the hooks of an event on a worker's thread for them, which must go on whatever they raise."""
        for hook in self._events.get(event, ()):
            try:
                hook.call(job, error)
            except BaseException:  # noqa: BLE001 - as above, a SystemExit too
                _complain(event, hook, job)


class _Harmless:
    """A function around an enqueue, which goes on whatever the function raises."""

    def __init__(self, function: AroundEnqueue, enqueuing: Enqueuing) -> None:
        self._function, self._enqueuing = function, enqueuing
        self._entered: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        try:
            around = self._function(self._enqueuing)
            around.__enter__()
            self._entered = around
        except Exception:  # noqa: BLE001 - whatever it is, the jobs are enqueued
            self._complain()

    def __exit__(self, *raised: Any) -> None:
        if self._entered is not None:
            try:
                self._entered.__exit__(*raised)
            except Exception:  # noqa: BLE001 - as above
                self._complain()

    def _complain(self) -> None:
        log.exception("%s, around an enqueue, failed; the jobs are not affected", name_of(self._function))


def wrapped(
    around: Sequence[Middleware],
    context: Any,
    function: Callable[..., Any],
    call: tuple[Sequence[Any], dict[str, Any]],
) -> Callable[[], Any]:
    """The call of a body with middleware around it. Made of partials, so that no frame of Dray's is in tracebacks."""
    inner = partial(function, *call[0], **call[1])
    for each in reversed(around):
        inner = partial(each, context, inner)
    return inner


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called in messages, and in the child processes of a worker that has it."""
    plain = inspect.unwrap(function)
    module = "__main__" if plain.__module__ == "__mp_main__" else plain.__module__  # the same script, in a child
    return f"{module}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"


def _complain(event: str, hook: _Hook, job: Job[Any]) -> None:
    failed = name_of(hook.function), event, short_id(job.id)
    log.exception("hook %s for %s of job %s failed; the job is not affected", *failed)


def _code_of(function: Middleware) -> CodeType | None:
    plain: Any = inspect.unwrap(function)
    return getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)


def _is_async(function: Any) -> bool:
    own_call = function if inspect.isroutine(function) else function.__call__  # of an object that is called like one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(own_call)


def _check_callable(what: str, function: Any) -> str:
    """Refuses what no call of ours could run; returns what it is called."""
    name = getattr(function, "__qualname__", shown(function))
    if hasattr(function, "enqueue"):
        raise TypeError(f"{name} is a task, and cannot be {what} too; write a function of its own")
    if not callable(function) or inspect.isclass(function):
        raise TypeError(f"{what} is a function, and {name} is none")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} has a yield in it, so that calling it runs nothing; use try and finally instead")
    return name


def _check_middleware(function: Any) -> None:
    name = _check_callable("middleware", function)
    if not _accepts(function, None, None):
        raise TypeError(f"middleware takes two arguments, as in def {name}(ctx, call): return call()")


def _check_hook(event: str, function: Any) -> Literal["by position", "by name", "not"]:
    """How it takes the error."""
    name = _check_callable("a hook", function)
    if _is_async(function):
        raise TypeError(f"hook {name} is an async def, and hooks run on a plain thread; write it as a def")
    if _accepts(function, None, error=None):
        return "by name"
    if _accepts(function, None):
        return "not"  # a second parameter with a default is its own: lambda job, name=name: ...
    if _accepts(function, None, None):
        return "by position"
    raise TypeError(f"a hook takes a job, and an error if it likes: @app.on({event!r}), def {name}(job, error=None)")


def _accepts(function: Any, *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # some functions written in C do not tell
        return True
    return True
