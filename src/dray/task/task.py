"""A task: a function that can be called as usual, or enqueued for a worker to call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from dray import codec
from dray.app_interface import AppInterface
from dray.convert.write import to_json
from dray.errors import PayloadError
from dray.handle.job import Job
from dray.log import log
from dray.model.bounds import ARGS_BYTES, RESULT_BYTES
from dray.model.new_job import AlikeJobs, NewJob
from dray.model.values import check_name, shown
from dray.task.advice import Verb, misplaced_option, no_options, of_another_queue
from dray.task.job_options import JobKeywords, JobOptions, prepare
from dray.task.keys import KeyOption
from dray.task.options import TaskKeywords, TaskOptions
from dray.task.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    A = TypeVar("A")
    B = TypeVar("B")
    C = TypeVar("C")
    T = TypeVar("T")
    Calls0: TypeAlias = Iterable[tuple[()] | Mapping[str, Any]]
    Calls1: TypeAlias = Iterable[tuple[A] | Mapping[str, Any]]
    Calls2: TypeAlias = Iterable[tuple[A] | tuple[A, B] | Mapping[str, Any]]
    Calls3: TypeAlias = Iterable[tuple[A] | tuple[A, B] | tuple[A, B, C, *tuple[Any, ...]] | Mapping[str, Any]]

    # Tasks by their first parameters. Not `Enqueuer[Concatenate[A, ...], T]`: mypy takes nothing for A there, and
    # refused every list of calls.
    A_contra = TypeVar("A_contra", contravariant=True)
    B_contra = TypeVar("B_contra", contravariant=True)
    C_contra = TypeVar("C_contra", contravariant=True)
    T_co = TypeVar("T_co", covariant=True)

    class Takes1(Protocol[A_contra, T_co]):
        def enqueue(self, first: A_contra, /, *args: Any, **kwargs: Any) -> Job[T_co]: ...

    class Takes2(Protocol[A_contra, B_contra, T_co]):
        def enqueue(self, first: A_contra, second: B_contra, /, *args: Any, **kwargs: Any) -> Job[T_co]: ...

    class Takes3(Protocol[A_contra, B_contra, C_contra, T_co]):
        def enqueue(
            self, first: A_contra, second: B_contra, third: C_contra, /, *args: Any, **kwargs: Any
        ) -> Job[T_co]: ...


class Enqueuer(Generic[P, R]):
    """Enqueues jobs of a task with the options of one `using()`. A `Task` is one with no options set."""

    def __init__(
        self, task: Task[P, R], job_options: JobOptions, given: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.task = task
        self.job_options = job_options
        self._given = given  # as `using()` got them

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={shown(value)}" for name, value in self._given.items())
        return f"<{self.task.name}.using({options})>"

    if not TYPE_CHECKING:  # checkers would take it for a promise that every attribute exists

        def __getattr__(self, name: str) -> NoReturn:
            advice = None
            if not name.startswith("_") and "task" in self.__dict__:
                advice = of_another_queue(name, self.task)
            told = advice or f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(told, name=name, obj=self)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueues a call of the function: ``add.enqueue(1, b=2)``. The job is stored when this returns."""
        return self._submit([self.task.encode(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`, from a coroutine: ``await add.aenqueue(1, 2)``."""
        return (await self._asubmit([self.task.encode(args, kwargs)]))[0]

    # Checkers know the types of up to three arguments by position.
    @overload
    def enqueue_many(self: Takes3[A, B, C, T], calls: Calls3[A, B, C]) -> list[Job[T]]: ...
    @overload
    def enqueue_many(self: Takes2[A, B, T], calls: Calls2[A, B]) -> list[Job[T]]: ...
    @overload
    def enqueue_many(self: Takes1[A, T], calls: Calls1[A]) -> list[Job[T]]: ...
    @overload
    def enqueue_many(self, calls: Calls0) -> list[Job[R]]: ...
    def enqueue_many(self, calls: Iterable[Any]) -> list[Job[Any]]:
        """Enqueues many calls in one transaction: a tuple of arguments each, or a dict of arguments by name.

        ``len(add.enqueue_many([(1, 2), {"a": 3, "b": 4}]))  # 2``
        """
        return self._submit(self._encoded(calls))

    @overload
    async def aenqueue_many(self: Takes3[A, B, C, T], calls: Calls3[A, B, C]) -> list[Job[T]]: ...
    @overload
    async def aenqueue_many(self: Takes2[A, B, T], calls: Calls2[A, B]) -> list[Job[T]]: ...
    @overload
    async def aenqueue_many(self: Takes1[A, T], calls: Calls1[A]) -> list[Job[T]]: ...
    @overload
    async def aenqueue_many(self, calls: Calls0) -> list[Job[R]]: ...
    async def aenqueue_many(self, calls: Iterable[Any]) -> list[Job[Any]]:
        """As `enqueue_many`, from a coroutine: ``await add.aenqueue_many([(1, 2), (3, 4)])``."""
        return await self._asubmit(self._encoded(calls))

    def _submit(self, texts: Sequence[str]) -> list[Job[R]]:
        jobs, app = self._jobs(texts), self.task.app
        if isinstance(jobs, AlikeJobs):
            return app.submit_alike(jobs, self.job_options.connection)
        return app.submit(jobs, self.job_options.connection) if jobs else []

    async def _asubmit(self, texts: Sequence[str]) -> list[Job[R]]:
        jobs, app = self._jobs(texts), self.task.app
        if isinstance(jobs, AlikeJobs):
            return await app.asubmit_alike(jobs, self.job_options.connection)
        return await app.asubmit(jobs, self.job_options.connection) if jobs else []

    @cached_property
    def _pattern(self) -> NewJob | None:
        """What all jobs that are enqueued here have in common; None: each has a unique key of its own."""
        if self.job_options.fields.get("unique_key") is True:
            return None
        return prepare("", replace(self.task.options, key=None), "{}", self.job_options)

    def _encoded(self, calls: Iterable[Any]) -> list[str]:
        texts, encode = list[str](), self.task.signature.encode
        args, kwargs = tuple[Any, ...](), cast("Mapping[str, Any]", {})
        try:
            for call in calls:
                args, kwargs = _arguments(call)
                texts.append(encode(args, kwargs))
        except (TypeError, PayloadError) as error:
            error.add_note(f"{self.task.name}: in item {len(texts)} of enqueue_many; nothing was written")
            if (advice := misplaced_option(self.task, args, kwargs, "enqueue_many")) is not None:
                error.add_note(advice)
            raise
        return texts

    def _jobs(self, texts: Sequence[str]) -> AlikeJobs | list[NewJob]:
        """The jobs with these arguments, which are JSON text."""
        pattern, app = self._pattern, self.task.app
        if pattern is None:
            return [prepare(app.new_id(), self.task.options, text, self.job_options) for text in texts]
        ids = app.ids.many(len(texts))
        key = self._key
        if ids and pattern.is_plain and key is None:
            return AlikeJobs(pattern, ids, texts)
        jobs = [pattern.like(*each) for each in zip(ids, texts, strict=True)]
        return jobs if key is None else [job.with_key(key.of(job.args)) for job in jobs]

    @property
    def _key(self) -> KeyOption | None:
        """What makes the keys of the jobs that are enqueued here; None: they have none, or all the same."""
        return None if "key" in self.job_options.fields else self.task.options.key


class Task(Enqueuer[P, R]):
    """A function registered under a name.

    Example:

        >>> @app.task(queue="mail", max_attempts=5)
        ... def send(to: str) -> str:
        ...     return f"sent to {to}"
        >>> send("ann")  # a plain call runs it here
        'sent to ann'
        >>> send.enqueue("ann").state
        'queued'
        >>> send.using(delay=60, priority=5).enqueue("bob").state
        'scheduled'
        >>> len(send.enqueue_many([("cyd",), {"to": "dan"}]))
        2
    """

    def __init__(self, function: Callable[P, R], options: TaskOptions, app: AppInterface) -> None:
        super().__init__(self, JobOptions())
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.options = options
        self.signature = Signature(function, options.name)
        self.app = app

    @property
    def name(self) -> str:
        """What jobs and workers call it: ``add.name  # 'add'``."""
        return self.options.name

    @property
    def called(self) -> str:
        """The function's own name, as code calls it."""
        return self.function.__name__

    @property
    def place(self) -> str:
        """The file and line where its function is written."""
        code = inspect.unwrap(self.function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here and now."""
        call = cast("Callable[..., R]", self.function)
        context = functools.partial(self.app.local_context, self)
        positional, keywords = self.signature.with_context(args, kwargs, context)
        return call(*positional, **keywords)

    def using(self, **options: Unpack[JobKeywords]) -> Enqueuer[P, R]:
        """The same task with options for the jobs that are enqueued through the returned object.

        ``add.using(delay=60, tags=["sums"]).enqueue(1, 2).state  # 'scheduled'``
        """
        return Enqueuer(self, JobOptions.of(options), options)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any], verb: Verb = "enqueue") -> str:
        """The arguments of a call as a row holds them."""
        try:
            return self.signature.encode(args, kwargs)
        except TypeError:
            advice = misplaced_option(self, args, kwargs, verb)
            if advice is None:
                raise
            raise TypeError(advice) from None

    def prepare(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], job_options: JobOptions, job_id: str | None = None
    ) -> NewJob:
        """The job for a call, checked and encoded, not yet written."""
        text = self.encode(args, kwargs, "add")
        return prepare(job_id or self.app.new_id(), self.options, text, job_options)

    def arguments(
        self, text: str, *, context: Any = None, parent_results: Mapping[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The call that a row stands for; `Misfit` if other code could make it, `PayloadError` if none ever can."""
        args = codec.decode_args(text)
        return self.signature.arrange(args, context=context, parent_results=parent_results)

    def encode_result(self, value: Any) -> str:
        """What the body returned, as it is stored."""
        return codec.encode(to_json(value, "result"), path="result", limit=RESULT_BYTES)

    def decode_result(self, text: str) -> R:
        """A stored result, of the type that the function is annotated with."""
        return self.signature.result(codec.decode(text, path="result"))


class AsyncTask(Task[P, R]):
    """A task whose function is a coroutine function; R is what it returns once it is awaited."""

    if TYPE_CHECKING:

        def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - callers know which kind they have
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]: ...


def _arguments(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, tuple):
        return cast("tuple[Any, ...]", call), {}
    if isinstance(call, Mapping):
        return (), cast("Mapping[str, Any]", call)
    raise TypeError(
        "enqueue_many takes a tuple of arguments for each job, or a dict of arguments by name, "
        f"not {type(call).__name__}; for a single argument write (value,)"
    )


def check_call_by_name(app: AppInterface, name: Any, more: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Refuses `app.enqueue` with a task, or with arguments as in a plain call, and says what to write."""
    if isinstance(name, Task):
        raise TypeError(f"app.enqueue() takes a task's name; with the task at hand write {name.called}.enqueue(...)")
    if more or _takes(app, name, no_options(keywords)):
        raise TypeError(f"{name}: arguments are given by name, as a dict: app.enqueue({shown(name)}, {{...}})")


def _takes(app: AppInterface, name: Any, arguments: Sequence[str]) -> bool:
    """Whether a task of this name is known and takes one of the arguments."""
    if not arguments or not isinstance(name, str) or name not in app.registry:
        return False
    return any(map(app.registry.get(name).signature.takes, arguments))


def prepare_by_name(app: AppInterface, name: Any, args: Any, job_options: JobOptions) -> NewJob:
    """The job of a task by its name: with the task's options if it is known here, else with the App's defaults."""
    check_name("task", name)
    if args is not None and not isinstance(args, Mapping):
        raise TypeError(f"{name}: arguments are given by name, as a dict, not as {type(args).__name__}")
    given = dict(cast("Mapping[str, Any]", args or {}))
    if name in app.registry:
        task = app.registry.get(name)
        text = codec.encode(task.signature.fit(given), limit=ARGS_BYTES)
        return prepare(app.new_id(), task.options, text, job_options)
    if (mistake := app.registry.misspelled(name)) is not None:
        log.warning("%s The job waits until a worker knows its task", mistake)
    # The signature is not known here: a worker that knows it checks the arguments.
    options = TaskOptions(name=name, timeout=app.settings.default_timeout)
    return prepare(app.new_id(), options, codec.encode(to_json(given, "args"), limit=ARGS_BYTES), job_options)


def define(function: Callable[..., Any], app: AppInterface, **options: Unpack[TaskKeywords]) -> Task[..., Any]:
    checked = TaskOptions.of(function, options)
    if inspect.iscoroutinefunction(function):
        return AsyncTask(function, checked, app)
    return Task(function, checked, app)
