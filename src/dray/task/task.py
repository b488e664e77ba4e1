"""A task: a function that is called as ever, or enqueued to be called by a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from dray import codec
from dray.convert import to_json
from dray.errors import PayloadError
from dray.handle import Job
from dray.model.limits import RESULT_BYTES
from dray.model.new_job import NewJob
from dray.task.naming import is_coroutine, place_of
from dray.task.options import TaskKeywords, TaskOptions
from dray.task.signature import Signature
from dray.task.using import Using, UsingKeywords, prepare

P = ParamSpec("P")
R = TypeVar("R")


class Submitter(Protocol):
    """What writes a task's jobs: the App."""

    def new_id(self) -> str:
        """The id of the next job."""
        ...

    def submit(self, task: Task[..., Any], new: Sequence[NewJob], connection: Any) -> list[Any]:
        """Writes the jobs, all or none, and answers their handles; on the user's connection, if there is one."""
        ...

    async def asubmit(self, task: Task[..., Any], new: Sequence[NewJob], connection: Any) -> list[Any]:
        """The same from a coroutine."""
        ...


class Task(Generic[P, R]):
    """A function registered under a name."""

    def __init__(
        self,
        function: Callable[P, R],
        options: TaskOptions,
        submitter: Submitter,
        context_factory: Callable[[Task[..., Any]], Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.options = options
        self.signature = Signature(function, options.name)
        self.submitter = submitter
        self._context_factory = context_factory
        self._as_usual: Bound[P, R] = Bound(self, Using())

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def place(self) -> str:
        """The file and line where its function is written."""
        return place_of(self.function)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here and now."""
        call = cast("Callable[..., R]", self.function)
        positional, keywords = self.signature.with_context(args, kwargs, self._local_context)
        return call(*positional, **keywords)

    def _local_context(self) -> Any:
        return None if self._context_factory is None else self._context_factory(self)

    # As a producer sees it

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Has the function called by a worker; the job is stored when this returns."""
        return self._as_usual.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`, from a coroutine."""
        return await self._as_usual.aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Job[R]]:
        """Enqueues many calls in one transaction: a tuple of arguments each, or a dict of arguments by name."""
        return self._as_usual.enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Job[R]]:
        """As `enqueue_many`, from a coroutine."""
        return await self._as_usual.aenqueue_many(calls)

    def using(self, **options: Unpack[UsingKeywords]) -> Bound[P, R]:
        """The same task with other options for the jobs that are enqueued through what this returns."""
        return Bound(self, Using.of(options))

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any], using: Using, job_id: str) -> NewJob:
        """The job for a call, checked and encoded, not yet written."""
        return prepare(job_id, self.options, self.signature.bind(args, kwargs), using)

    # As a worker sees it

    def arguments(
        self, text: str, *, context: Any = None, parent_results: Mapping[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The call that a row stands for; `Misfit` if other code could make it, `PayloadError` if none ever can."""
        args = codec.decode(text)
        if not isinstance(args, dict):
            raise PayloadError("args", f"expected an object of arguments by name, got {type(args).__name__}")
        return self.signature.arrange(cast("dict[str, Any]", args), context=context, parent_results=parent_results)

    def encode_result(self, value: Any) -> str:
        """What the body returned, as it is stored."""
        return codec.encode(to_json(value, "result"), path="result", limit=RESULT_BYTES)

    def decode_result(self, text: str) -> R:
        """A stored result, of the type that the function is annotated with."""
        return self.signature.result(codec.decode(text, path="result"))


class AsyncTask(Task[P, R]):
    """A task whose function is a coroutine function; R is what it returns once it is awaited."""

    if TYPE_CHECKING:

        def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - nobody calls a task without knowing which
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]: ...


class Bound(Generic[P, R]):
    """A task with options for its next jobs."""

    def __init__(self, task: Task[P, R], using: Using) -> None:
        self.task = task
        self.options = using

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Has the function called by a worker; the job is stored when this returns."""
        return self._submit([self._prepared(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`, from a coroutine."""
        return (await self._asubmit([self._prepared(args, kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Job[R]]:
        """Enqueues many calls in one transaction: a tuple of arguments each, or a dict of arguments by name."""
        jobs = self._prepared_all(calls)
        return self._submit(jobs) if jobs else []

    async def aenqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Job[R]]:
        """As `enqueue_many`, from a coroutine."""
        jobs = self._prepared_all(calls)
        return await self._asubmit(jobs) if jobs else []

    def _submit(self, jobs: Sequence[NewJob]) -> list[Job[R]]:
        return self.task.submitter.submit(self.task, jobs, self.options.connection)

    async def _asubmit(self, jobs: Sequence[NewJob]) -> list[Job[R]]:
        return await self.task.submitter.asubmit(self.task, jobs, self.options.connection)

    def _prepared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        return self.task.prepare(args, kwargs, self.options, self.task.submitter.new_id())

    def _prepared_all(self, calls: Iterable[Any]) -> list[NewJob]:
        return [self._prepared_one(index, call) for index, call in enumerate(calls)]

    def _prepared_one(self, index: int, call: Any) -> NewJob:
        try:
            return self._prepared(*_arguments(call))
        except (TypeError, PayloadError) as error:
            error.add_note(f"{self.task.name}: in item {index} of enqueue_many; nothing was written")
            raise


def _arguments(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, tuple):
        return cast("tuple[Any, ...]", call), {}
    if isinstance(call, Mapping):
        return (), cast("Mapping[str, Any]", call)
    raise TypeError(
        "enqueue_many takes a tuple of arguments for each job, or a dict of arguments by name, "
        f"not {type(call).__name__}; for a single argument write (value,)"
    )


@overload
def define(
    function: Callable[P, Coroutine[Any, Any, R]],
    submitter: Submitter,
    context_factory: Callable[[Task[..., Any]], Any] | None = None,
    **options: Unpack[TaskKeywords],
) -> AsyncTask[P, R]: ...
@overload
def define(
    function: Callable[P, R],
    submitter: Submitter,
    context_factory: Callable[[Task[..., Any]], Any] | None = None,
    **options: Unpack[TaskKeywords],
) -> Task[P, R]: ...
def define(
    function: Callable[..., Any],
    submitter: Submitter,
    context_factory: Callable[[Task[..., Any]], Any] | None = None,
    **options: Unpack[TaskKeywords],
) -> Task[..., Any]:
    """The task of a function, with its options checked."""
    checked = TaskOptions.of(function, options)
    if is_coroutine(function):
        return AsyncTask(function, checked, submitter, context_factory)
    return Task(function, checked, submitter, context_factory)
