"""Types that are one text or one number in JSON, what annotations mean, and how errors name both."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from functools import cache
from operator import methodcaller
from pathlib import PurePath
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from dray.codec import refusal
from dray.errors import PayloadError

if sys.version_info >= (3, 14):
    import annotationlib

type_of: Callable[[Any], type[Any]] = type

# ReadOnly came with Python 3.13.
WRAPPERS = (typing.Annotated, typing.Final, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", ...))
MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
COLLECTIONS: dict[Any, type[Any]] = {  # and what is made of a list
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
}


def misfit(path: str, expected: str, value: Any) -> PayloadError:
    """The error for a value of another type. It names the type; the value itself may be a secret."""
    return refusal(path, f"expected {expected}, got {'null' if value is None else name_of(type_of(value))}")


def exactly(kind: type[Any], value: Any, path: str, expected: Any) -> Any:
    """The value, which must be a list, or an object."""
    if type(value) is not kind:
        raise misfit(path, name_of(expected), value)
    return value


def name_of(annotation: Any) -> str:
    """The annotation as people write it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return str(annotation).replace("typing.", "")


def hints(thing: Any) -> dict[str, Any]:
    """The annotations of a function's parameters and its return, or of a class's fields.

    An annotation that cannot be resolved (a name imported for type checkers only, a class inside a function) stays a
    text or a reference. The others are resolved all the same.
    """
    thing = thing if isinstance(thing, type) else inspect.unwrap(thing)
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation is any expression, and may raise anything
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


def kind_of(annotation: Any) -> Any:
    """The annotation without what stands in its brackets."""
    return get_origin(annotation) or annotation


def is_record(kind: Any) -> bool:
    """Whether this is a dataclass, a TypedDict or a NamedTuple."""
    return dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or is_named_tuple(kind)


def is_named_tuple(kind: Any) -> bool:
    return hasattr(kind, "_fields") and hasattr(kind, "_make")


class Field(NamedTuple):
    hint: Any
    is_required: bool


def fields_of(kind: Any) -> dict[str, Field]:
    found = hints(kind)
    fields: dict[str, Field] = {}
    for name, has_default in _defaults(kind, found).items():
        hint = found.get(name, Any)
        # Required and NotRequired are asked for here because a TypedDict does not see them in a text.
        is_bare = not has_default and get_origin(hint) is not typing.NotRequired
        fields[name] = Field(hint, is_bare or get_origin(hint) is typing.Required)
    return fields


def _defaults(kind: Any, found: Iterable[str]) -> dict[str, bool]:
    """The fields, and whether each may be left out."""
    if dataclasses.is_dataclass(kind):
        none = (dataclasses.MISSING, dataclasses.MISSING)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        return {field.name: (field.default, field.default_factory) != none for field in fields}
    if typing.is_typeddict(kind):
        return {name: name not in kind.__required_keys__ for name in found}
    return {name: name in kind._field_defaults for name in kind._fields}


class Form(NamedTuple):
    """How a type is written and read, what it looks like, what its JSON Schema says beside the type, and from which
    JSON types it is read. `write` raises `ValueError` for a value that has no such form."""

    write: Callable[[Any], Any]
    read: Callable[[Any, Any], Any]
    example: str
    schema: dict[str, str]
    sources: tuple[type[Any], ...] = (str,)


@cache
def form_of(kind: type[Any]) -> Form | None:
    """The form of a type, or of its nearest base class that has one."""
    names = ((base, f"{base.__module__}.{base.__qualname__}") for base in kind.__mro__)
    return next((_FORMS[key] for both in names for key in both if key in _FORMS), None)


def is_class(kind: Any, base: type[Any] | tuple[type[Any], ...]) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def is_model(kind: Any) -> bool:
    """Whether this is a pydantic model (version 2); does not import pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_dump") and hasattr(kind, "model_validate_json")


def is_struct(kind: Any) -> bool:
    """Whether this is a msgspec.Struct; does not import msgspec."""
    return hasattr(kind, "__struct_fields__")


def _from_aware(value: datetime) -> str:
    if value.utcoffset() is None:
        raise ValueError("a datetime without a zone names no instant; use datetime.now(UTC), or .astimezone()")
    return value.isoformat()


def _to_aware(kind: type[datetime], text: str) -> datetime:
    found = kind.fromisoformat(text)
    if found.utcoffset() is None:
        raise ValueError("no offset")
    return found


def _from_time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise ValueError("the offset of this time depends on the day; pass a datetime, or the zone's name too")
    return value.isoformat()


def _to_iso(kind: Any, text: str) -> Any:
    return kind.fromisoformat(text)


def _to_timedelta(kind: type[timedelta], seconds: float) -> timedelta:
    return kind(seconds=seconds)


def _from_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _to_bytes(kind: Any, text: str) -> Any:
    return kind(base64.b64decode(text, validate=True))


def _to_any(kind: Any, text: object) -> Any:
    return kind(str(text))  # a float by its digits: 0.1 is Decimal("0.1")


_NOON = "2026-01-31T12:00:00Z"
_FORMS: dict[type[Any] | str, Form] = {
    datetime: Form(_from_aware, _to_aware, f"ISO 8601 with an offset, such as {_NOON}", {"format": "date-time"}),
    date: Form(methodcaller("isoformat"), _to_iso, "2026-01-31", {"format": "date"}),
    time: Form(_from_time, _to_iso, "12:00:00", {}),  # the format "time" would demand an offset
    timedelta: Form(methodcaller("total_seconds"), _to_timedelta, "a number of seconds", {}, (int, float)),
    UUID: Form(str, _to_any, "32 hexadecimal digits", {"format": "uuid"}),
    # By its name: a program that has no Decimal need not load that module, half a megabyte.
    "decimal.Decimal": Form(str, _to_any, "a number, or its text", {}, (str, int, float)),
    PurePath: Form(str, _to_any, "text", {}),
    **dict.fromkeys((bytes, bytearray), Form(_from_bytes, _to_bytes, "base64", {"contentEncoding": "base64"})),
}
