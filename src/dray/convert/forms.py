"""Types that are one text or one number in JSON, and how to tell the models of other libraries."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

from dray.convert.refusals import refusal


class Form(NamedTuple):
    """How a type is written, how it is read, what it looks like and from which JSON types it is read."""

    write: Callable[[Any, str], Any]
    read: Callable[[Any, Any], Any]
    example: str
    sources: tuple[type[Any], ...] = (str,)


@cache
def form_of(kind: type[Any]) -> Form | None:
    """The form of a type or of its nearest base that has one."""
    return next((_FORMS[base] for base in kind.__mro__ if base in _FORMS), None)


def is_model(kind: Any) -> bool:
    """Whether this is a pydantic model, of version 2; found out without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_dump") and hasattr(kind, "model_validate_json")


def is_struct(kind: Any) -> bool:
    """Whether this is a msgspec.Struct; found out without importing msgspec."""
    return hasattr(kind, "__struct_fields__")


def _from_aware(value: datetime, path: str) -> str:
    if value.utcoffset() is None:
        raise refusal(path, "a datetime without a zone names no instant; use datetime.now(UTC), or .astimezone()")
    return value.isoformat()


def _to_aware(kind: type[datetime], text: str) -> datetime:
    found = kind.fromisoformat(text)
    if found.utcoffset() is None:
        raise ValueError("no offset")
    return found


def _from_date(value: date, path: str) -> str:  # noqa: ARG001 - every form is written so
    return value.isoformat()


def _from_time(value: time, path: str) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise refusal(path, "the offset of this time depends on the day; pass a datetime, or the zone's name too")
    return value.isoformat()


def _to_iso(kind: Any, text: str) -> Any:
    return kind.fromisoformat(text)


def _from_timedelta(value: timedelta, path: str) -> float:  # noqa: ARG001
    return value.total_seconds()


def _to_timedelta(kind: type[timedelta], seconds: float) -> timedelta:
    return kind(seconds=seconds)


def _from_bytes(value: bytes, path: str) -> str:  # noqa: ARG001
    return base64.b64encode(value).decode("ascii")


def _to_bytes(kind: Any, text: str) -> Any:
    return kind(base64.b64decode(text, validate=True))


def _from_any(value: object, path: str) -> str:  # noqa: ARG001
    return str(value)


def _to_any(kind: Any, text: object) -> Any:
    return kind(str(text))  # a float by its digits: 0.1 is Decimal("0.1")


_FORMS: dict[type[Any], Form] = {
    datetime: Form(_from_aware, _to_aware, "ISO 8601 with an offset, such as 2026-01-31T12:00:00Z"),
    date: Form(_from_date, _to_iso, "2026-01-31"),
    time: Form(_from_time, _to_iso, "12:00:00"),
    timedelta: Form(_from_timedelta, _to_timedelta, "a number of seconds", (int, float)),
    UUID: Form(_from_any, _to_any, "32 hexadecimal digits"),
    Decimal: Form(_from_any, _to_any, "a number, or its text", (str, int, float)),
    PurePath: Form(_from_any, _to_any, "text"),
    bytes: Form(_from_bytes, _to_bytes, "base64"),
    bytearray: Form(_from_bytes, _to_bytes, "base64"),
}
