"""Reading objects: dataclasses, typed dicts, named tuples, and the models of pydantic and msgspec."""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, TypeAlias, get_origin

from dray.convert.hints import hints
from dray.convert.refusals import dict_of, list_of, refusal, shorten, step
from dray.wording import counted

_Reader: TypeAlias = Callable[[Any, str], Any]
_Compile: TypeAlias = Callable[[Any], _Reader | None]

_SHOWN = 5  # problems in one message


def is_record(kind: Any) -> bool:
    """Whether this is a class whose fields are annotated in a way that the standard library knows."""
    return dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or _is_named_tuple(kind)


@cache
def record(kind: Any, compile: _Compile) -> _Reader:  # noqa: A002 - that is what it does
    """The reader of a class with named fields; one for each class, so that a class can hold itself."""
    if _is_named_tuple(kind):
        return _NamedTuple(kind, _Record(kind, compile))
    return _Record(kind, compile)


class _Record:
    """The fields are looked at when the first value comes: they may name classes that did not exist before."""

    def __init__(self, kind: Any, compile: _Compile) -> None:  # noqa: A002
        self._kind = kind
        self._compile = compile
        # A typed dict says what it looks at, and other keys may be there; a dataclass could not hold them.
        self._is_open = typing.is_typeddict(kind)

    def __call__(self, value: Any, path: str) -> Any:
        given = dict_of(value, path, self._kind)
        problems = [f"{name!r} is missing" for name in self._required if name not in given]
        if not self._is_open:
            problems += [f"{shorten(name)!r} is not known" for name in given if name not in self._fields]
        if problems:
            raise refusal(path, f"not a {self._kind.__name__}: {', '.join(problems[:_SHOWN])}")
        fields = {name: self._read(name, item, path) for name, item in given.items()}
        try:
            return self._kind(**fields)
        except (TypeError, ValueError) as error:
            raise refusal(path, f"{self._kind.__name__} refused it: {error}") from None

    def _read(self, name: str, item: Any, path: str) -> Any:
        read = self._fields.get(name)
        return item if read is None else read(item, f"{path}{step(name)}")

    @cached_property
    def _fields(self) -> dict[str, _Reader | None]:
        return {name: self._compile(hint) for name, hint in self._hints.items()}

    @cached_property
    def _hints(self) -> dict[str, Any]:
        found = hints(self._kind)
        return {name: found.get(name, Any) for name in _defaults(self._kind)}

    @cached_property
    def _required(self) -> list[str]:
        # Required and NotRequired are asked for here because a TypedDict does not see them in a text.
        marks = {name: get_origin(hint) for name, hint in self._hints.items()}
        return [
            name
            for name, has_default in _defaults(self._kind).items()
            if marks[name] is typing.Required or (not has_default and marks[name] is not typing.NotRequired)
        ]


class _NamedTuple:
    """A list of its fields, of which the last may be left to their defaults."""

    def __init__(self, kind: Any, fields: _Reader) -> None:
        self._kind = kind
        self._fields = fields

    def __call__(self, value: Any, path: str) -> Any:
        items = list_of(value, path, self._kind)
        names = self._kind._fields
        if len(items) > len(names):
            raise refusal(path, f"expected {counted(len(names), 'item')}, got {len(items)}")
        return self._fields(dict(zip(names, items, strict=False)), path)


def _is_named_tuple(kind: Any) -> bool:
    return hasattr(kind, "_fields") and hasattr(kind, "_make")


def _defaults(kind: Any) -> dict[str, bool]:
    """The fields, and whether each may be left out."""
    if dataclasses.is_dataclass(kind):
        return {field.name: _has_default(field) for field in dataclasses.fields(kind) if field.init}
    if typing.is_typeddict(kind):
        return {name: name not in kind.__required_keys__ for name in hints(kind)}
    return {name: name in kind._field_defaults for name in kind._fields}


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def model(kind: Any) -> _Reader:
    """The reader of a pydantic model."""

    def read(value: Any, path: str) -> Any:
        try:
            # From JSON, not from Python's values: a strict model reads a date from the one and not from the other.
            return kind.model_validate_json(json.dumps(value))
        except ValueError as error:
            raise refusal(path, f"not a {kind.__name__}: {_what_failed(error)}") from None

    return read


def _what_failed(error: Any) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    # Its own text would show the values.
    found: list[dict[str, Any]] = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:_SHOWN])


def struct(annotation: Any) -> _Reader:
    """The reader of a msgspec.Struct."""
    msgspec: Any = sys.modules["msgspec"]

    def read(value: Any, path: str) -> Any:
        try:
            return msgspec.convert(value, annotation, str_keys=True)
        except msgspec.ValidationError as error:
            raise refusal(path, f"not a {annotation.__name__}: {error}") from None

    return read
