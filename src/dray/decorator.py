"""``@app.task``, bare or with options, and what type checkers make of it.

A task is enqueued with the parameters of its function, less the Context that the worker fills in. Checkers can take
a Context off the front of a signature, and there they check every call. They cannot take it from anywhere else:
then, rather than miss it in each call, they are told that any arguments will do (they are checked when the job is
enqueued, as ever), and know the result. The same goes for functions whose first parameter could be a Context,
because it may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, overload

from dray.task.options import TaskKeywords
from dray.task.task import AsyncTask, Task

if TYPE_CHECKING:
    from dray.runtime.context import Context

    P = ParamSpec("P")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)

    class _Anything: ...

    class _Ctx(Protocol[R_co]):
        def __call__(self, *args: Any, ctx: Context, **kwargs: Any) -> R_co: ...

    class _Context(Protocol[R_co]):
        def __call__(self, *args: Any, context: Context, **kwargs: Any) -> R_co: ...

    class _ContextTask(Task[P, R]):
        """A plain call may bring a Context along, as `dray.testing.context` makes it."""

        @overload
        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    class _AsyncContextTask(AsyncTask[P, R], _ContextTask[P, R]):
        @overload
        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
        def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - callers know which kind they have
            self, *args: Any, **kwargs: Any
        ) -> Any: ...

    _TakesAnything: TypeAlias = Callable[Concatenate[_Anything, ...], R]
    _ContextFirst: TypeAlias = Callable[Concatenate[Context, P], R]
    _ContextElsewhere: TypeAlias = (
        Callable[[Any, Context], R]
        | Callable[[Any, Any, Context], R]
        | Callable[[Any, Any, Any, Context], R]
        | Callable[[Any, Any, Any, Any, Context], R]
        | Callable[[Any, Any, Any, Any, Any, Context], R]
        | _Ctx[R]
        | _Context[R]
    )


Define: TypeAlias = Callable[[Callable[..., Any], TaskKeywords], Task[..., Any]]  # and register it


class Decorator:
    """Makes tasks of functions: ``@app.task``, or ``@app.task(queue="mail")``."""

    def __init__(self, define: Define, options: TaskKeywords | None = None) -> None:
        self._define = define
        self._options: TaskKeywords = options or {}

    @overload
    def __call__(self, function: _TakesAnything[Coroutine[Any, Any, R]], /) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: _TakesAnything[R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: _ContextFirst[P, Coroutine[Any, Any, R]], /) -> _AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: _ContextFirst[P, R], /) -> _ContextTask[P, R]: ...
    @overload
    def __call__(self, function: _ContextElsewhere[Coroutine[Any, Any, R]], /) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: _ContextElsewhere[R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[TaskKeywords]) -> Decorator: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskKeywords]) -> Any:
        if function is not None and not callable(function):
            raise TypeError(f"@app.task is for functions, and its options are given by name: not {function!r}")
        if function is None:
            return Decorator(self._define, {**self._options, **options})
        return self._define(function, {**self._options, **options})
