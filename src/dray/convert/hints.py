"""The annotations of functions and classes, as far as they can be resolved."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib


def hints(thing: Any) -> dict[str, Any]:
    """What a function's parameters and its return, or a class's fields, are annotated with.

    An annotation that cannot be resolved (a name that is imported for type checkers only, a class inside a
    function) stays what it is, a text or a reference, and spoils none of the others.
    """
    thing = thing if isinstance(thing, type) else inspect.unwrap(thing)
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation is any expression, and raises what it likes
        holders = reversed(thing.__mro__) if isinstance(thing, type) else [thing]
        return {name: hint for holder in holders for name, hint in _one_by_one(holder)}


def _one_by_one(holder: Any) -> Iterator[tuple[str, Any]]:
    scope = sys.modules.get(holder.__module__) if isinstance(holder, type) else None
    names = vars(scope) if scope is not None else getattr(holder, "__globals__", {})
    for name, raw in _raw(holder).items():
        alone = types.SimpleNamespace(__annotations__={name: raw})
        try:
            yield name, typing.get_type_hints(alone, names, include_extras=True)[name]
        except Exception:  # noqa: BLE001 - as above
            yield name, raw


def _raw(holder: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(holder, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(holder)
