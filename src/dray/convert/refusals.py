"""How a value that does not fit is named: the path to it, what was expected, what kind of thing it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast, get_args

from dray.errors import PayloadError

_PATH_CHARS = 200
_KEY_CHARS = 40

type_of: Callable[[Any], type[Any]] = type


def refusal(path: str, problem: str) -> PayloadError:
    """The error, with a path that a line can hold."""
    shown = path if len(path) <= _PATH_CHARS else f"{path[:100]}…{path[-99:]}"
    return PayloadError(shown, problem)


def misfit(path: str, expected: str, value: Any) -> PayloadError:
    """Something of another type, which is named; the value itself may be a secret."""
    return refusal(path, f"expected {expected}, got {'null' if value is None else name_of(type_of(value))}")


def list_of(value: Any, path: str, expected: Any) -> list[Any]:
    """The value, which must be a list."""
    if type(value) is not list:
        raise misfit(path, name_of(expected), value)
    return cast("list[Any]", value)


def dict_of(value: Any, path: str, expected: Any) -> dict[str, Any]:
    """The value, which must be an object."""
    if type(value) is not dict:
        raise misfit(path, name_of(expected), value)
    return cast("dict[str, Any]", value)


def step(key: str) -> str:
    """The way from an object to what it holds under this key: ``.key``, or ``["any key"]``."""
    shown = shorten(key)
    if shown.isidentifier():
        return f".{shown}"
    return f"[{json.dumps(shown, ensure_ascii=not shown.isprintable())}]"


def shorten(key: str) -> str:
    """A key as far as a message shows it."""
    return key if len(key) <= _KEY_CHARS else f"{key[: _KEY_CHARS - 1]}…"


def name_of(annotation: Any) -> str:
    """The annotation as people write it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return str(annotation).replace("typing.", "")
