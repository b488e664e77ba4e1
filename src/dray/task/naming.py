"""Which functions can be tasks, and what each is called.

A name must mean the same function in every process, so it is made of what is the same everywhere: the module and
the place in it. What a worker could not find, or could not call with JSON alone, is refused when it is decorated.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dray.errors import InvalidName
from dray.model.values import check_name, shown

_NAME_IT = "or give it a name: @app.task(name=...)"


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


def is_coroutine(function: Any) -> bool:
    """Whether it is an ``async def``."""
    return inspect.iscoroutinefunction(function)


def place_of(function: Any) -> str:
    """The file and line where the function is written."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


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
