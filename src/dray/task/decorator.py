"""``@app.task``, bare or with options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from dray.task.options import TaskKeywords
from dray.task.task import AsyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class Define(Protocol):
    """What makes a task of a function and its options, and registers it."""

    def __call__(self, function: Callable[..., Any], options: TaskKeywords, /) -> Task[..., Any]: ...


class Decorator:
    """Makes tasks of functions: ``@app.task``, or ``@app.task(queue="mail")``."""

    def __init__(self, define: Define, options: TaskKeywords | None = None) -> None:
        self._define = define
        self._options: TaskKeywords = options or {}

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[TaskKeywords]) -> Decorator: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskKeywords]) -> Any:
        if function is None:
            return Decorator(self._define, {**self._options, **options})
        return self._define(function, {**self._options, **options})
