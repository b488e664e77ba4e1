"""Writing: any value that an annotation can read again, in JSON's types."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from dray.codec import MAX_DEPTH, refusal, step, too_deep
from dray.convert.forms import form_of, is_model, is_struct, name_of, type_of

AS_IS = frozenset((str, int, float, bool, type(None)))  # what needs no conversion
_TEXT = frozenset((str,))


def to_json(value: Any, path: str) -> Any:
    """The value in JSON's types, or a `PayloadError` that names the path of what cannot be written.

    `codec.encode` checks numbers, strings and the size of it all.
    """
    return value if type(value) in AS_IS or _is_flat(value) else _Writer().write(value, path)


def _is_flat(value: Any) -> bool:
    """Whether it is a list or a dict of numbers and strings, as most that come here."""
    kind = type_of(value)
    if kind is list:
        return AS_IS.issuperset(map(type_of, value))
    return kind is dict and AS_IS.issuperset(map(type_of, value.values())) and _TEXT.issuperset(map(type_of, value))


class _Writer:
    """Writes one value. It writes an object that it meets twice only once: a web of lists could take for ever."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._done: dict[int, tuple[Any, Any]] = {}  # with the value: an id is unique only while its object lives

    def write(self, value: Any, path: str) -> Any:
        if isinstance(value, Enum):
            return to_json(value.value, path)
        form = form_of(type_of(value))
        if form is not None:
            try:
                return form.write(value)
            except ValueError as error:
                raise refusal(path, str(error)) from None
        for base, plain in _PLAIN.items():
            if isinstance(value, base):
                return plain(value)
        return self._composite(value, path)

    def _composite(self, value: Any, path: str) -> Any:
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open:
            raise refusal(path, f"this {name_of(type_of(value))} contains itself; pass ids instead of links")
        if len(self._open) == MAX_DEPTH:
            raise too_deep(path)
        self._open.add(id(value))
        written = self._parts(value, path)
        self._open.remove(id(value))
        self._done[id(value)] = value, written
        return written

    def _parts(self, value: Any, path: str) -> Any:
        kind = type_of(value)
        if issubclass(kind, dict):
            return self._dict(dict[Any, Any].items(value), path)
        for base, items in _ITEMS.items():
            if issubclass(kind, base):
                written = self._list(items(value), path)
                return _in_order(written) if base is set or base is frozenset else written
        if is_model(kind) or is_struct(kind):
            return _dumped(value, path)
        if dataclasses.is_dataclass(kind):
            fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(kind) if field.init)
            return self._dict(fields, path)
        full_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise refusal(path, f"{full_name} is not JSON; {_advice(kind)}")

    def _list(self, items: Iterable[Any], path: str) -> list[Any]:
        return [
            item if type(item) in AS_IS else self.write(item, f"{path}[{index}]") for index, item in enumerate(items)
        ]

    def _dict(self, items: Iterable[tuple[Any, Any]], path: str) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, item in items:
            name = key if type(key) is str else self._key(key, path)
            if name in written:
                raise refusal(path, "two keys would be written alike")
            written[name] = item if type(item) in AS_IS else self.write(item, f"{path}{step(name)}")
        return written

    def _key(self, key: Any, path: str) -> str:
        name = key if type(key) in AS_IS else self.write(key, path)
        if type(name) is not str:
            raise refusal(path, f"a key is {name_of(type_of(key))}, and JSON keys are strings; use str(key)")
        return name


# How to read the plain value out of a subclass, past anything that it overrides.
_PLAIN: dict[type[Any], Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
_ITEMS: dict[type[Any], Callable[[Any], Iterable[Any]]] = {
    list: list[Any].__iter__,
    tuple: tuple[Any, ...].__iter__,
    set: set[Any].__iter__,
    frozenset: frozenset[Any].__iter__,
}


def _in_order(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:  # numbers beside text, or objects: any order will do, if it is always the same
        return sorted(items, key=repr)


def _dumped(value: Any, path: str) -> Any:
    try:
        if is_model(type_of(value)):
            # By alias and without computed fields: that is what validation takes.
            return value.model_dump(mode="json", by_alias=True, round_trip=True)
        return sys.modules["msgspec"].to_builtins(value, str_keys=True)
    except (TypeError, ValueError) as error:
        raise refusal(path, f"cannot be written as JSON by its own class: {error}") from None


# By package and name, so that nothing is imported only to be refused.
_ADVICE = {
    "builtins.generator": "pass list(value)",
    "builtins.coroutine": "await it first",
    "numpy.generic": "pass value.item()",
    "numpy.ndarray": "pass value.tolist()",
}


def _advice(kind: type[Any]) -> str:
    names = (f"{str(base.__module__).partition('.')[0]}.{base.__name__}" for base in kind.__mro__)
    usual = "pass numbers, strings, lists and dicts, or an id by which the task finds it"
    return next((_ADVICE[name] for name in names if name in _ADVICE), usual)
