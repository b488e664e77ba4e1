"""Checks of what people pass as options: `TypeError` for the wrong kind of thing, `ConfigError` for a wrong one.

Each returns the value as it is used from there on: microseconds, an instant, a plain string.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar, cast

from dray.errors import ConfigError
from dray.instants import SECOND, from_datetime
from dray.model.bounds import PRIORITY_MAX, PRIORITY_MIN
from dray.model.values import check_name, duration_us, shown
from dray.wording import close_matches

MAX_COUNT = 2_147_483_647  # as the databases store a count

Check: TypeAlias = Callable[[str, Any], Any]
_Choice = TypeVar("_Choice", bound=StrEnum)

# What the same thing is called elsewhere.
_SYNONYMS = {
    "countdown": "delay",
    "eta": "run_at",
    "schedule_in": "delay",
    "schedule_at": "run_at",
    "expires": "expires_in",
    "job_id": "unique",
    "depends_on": "after",
    "max_retries": "max_attempts",
    "retries": "max_attempts",
    "retry_backoff": "retry",
    "autoretry_for": "retry_on",
    "throws": "fail_on",
    "time_limit": "timeout",
    "job_timeout": "timeout",
}


def option(check: Check, default: Any = None) -> Any:
    """A field of a dataclass: what people give for it goes through `check`."""
    return field(default=default, metadata={"check": check})


def checks_of(options: type) -> dict[str, Check]:
    """The checks of a dataclass by the names of its options."""
    return {each.name: each.metadata["check"] for each in fields(options) if each.metadata}


def known_options(given: Iterable[str], known: Collection[str], of: str) -> None:
    """Refuses an option that does not exist, with the one that was probably meant."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return
    near = close_matches(unknown, sorted(known))
    meant = _SYNONYMS[unknown] if _SYNONYMS.get(unknown) in known else next(iter(near), None)
    hint = f" did you mean {meant}?" if meant else ""
    raise TypeError(f"{of} has no option {shown(unknown)};{hint} known are {', '.join(sorted(known))}")


def meant_option(name: str, known: Collection[str]) -> str:
    """The option of this name, or the one that is called so elsewhere."""
    return name if name in known else _SYNONYMS.get(name, name)


def whole(name: str, value: Any, low: int, high: int = MAX_COUNT) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low:,} and {high:,}, not {shown(value)}")
    return int(value)


def instant(name: str, value: Any) -> int:
    """An aware datetime as an instant."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ConfigError(f"{name} has no time zone, so it names no instant; use datetime.now(UTC), or .astimezone()")
    return from_datetime(value)


def choice(name: str, value: Any, among: type[_Choice]) -> _Choice:
    if value not in list(among):
        raise ConfigError(f"{name} must be one of {', '.join(among)}, not {shown(value)}")
    return among(value)


def one_of(among: type[StrEnum]) -> Check:
    return lambda name, value: choice(name, value, among)


def label(name: str, value: Any, chars: int) -> str:
    """A line of text for people to read, that any terminal can show and any database can store."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if not 1 <= len(value) <= chars:
        raise ConfigError(f"{name} must have 1 to {chars} characters, not {len(value):,}")
    if not value.isprintable():
        raise ConfigError(f"{name} {shown(value)} must be one line of printable text")
    return str(value)


def switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def several(name: str, value: Any, of: str) -> tuple[Any, ...]:
    """The items of a list; a string is not taken for the list of its letters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {of}, not {type(value).__name__}")
    return tuple(cast("Iterable[Any]", value))


def queue_name(name: str, value: Any) -> str:  # noqa: ARG001 - every check is called so
    return check_name("queue", value)


def priority(name: str, value: Any) -> int:
    return whole(name, value, PRIORITY_MIN, PRIORITY_MAX)


def at_least_once(name: str, value: Any) -> int:
    return whole(name, value, 1)


def timeout(name: str, value: Any) -> float:
    return duration_us(name, value, low_us=1) / SECOND
