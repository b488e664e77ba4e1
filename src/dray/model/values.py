"""Names, ids and durations as people write them, checked.

A name is printable text on one line, so that it is safe in logs and on terminals; addresses, searches and shell
commands quote it. A duration is given in seconds or as a timedelta; inside Dray it is whole microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from reprlib import Repr

from dray.errors import ConfigError, InvalidName
from dray.instants import SECOND
from dray.model.bounds import DELAY_US, NAME_CHARS, TAG_CHARS

_TAG = re.compile(rf"[A-Za-z0-9_.:-]{{1,{TAG_CHARS}}}")
_SHOWN_CHARS = 60
_MICROSECOND = timedelta(microseconds=1)

_repr = Repr()
_repr.maxstring = _repr.maxother = _SHOWN_CHARS


def check_name(kind: str, value: object) -> str:
    """The name as given; `InvalidName` says which kind of name it is and what is allowed."""
    if not isinstance(value, str):
        raise InvalidName(f"a {kind} name must be a string, not {type(value).__name__}")
    why_not = _tag_problem(value) if kind == "tag" else _name_problem(kind, value)
    if why_not is not None:
        raise InvalidName(f"{kind} name {shown(value)} cannot be used: {why_not}")
    return value


def _name_problem(kind: str, name: str) -> str | None:
    if not 0 < len(name) <= NAME_CHARS or not name.isprintable() or name[0] == " " or name[-1] == " ":
        return f"a name is 1 to {NAME_CHARS} printable characters, with no space at either end"
    if kind == "queue" and "," in name:
        return "a queue's name has no comma, which separates queues in a list: dray worker -q mail,default"
    return None


def _tag_problem(tag: str) -> str | None:
    """Searches look for a tag within the stored JSON, so it has no character that JSON escapes."""
    if _TAG.fullmatch(tag):
        return None
    return f"a tag is 1 to {TAG_CHARS} of the characters A-Z a-z 0-9 _ . : -"


def shown(value: object) -> str:
    """The value as an error message may show it: short, on one line, control characters escaped."""
    try:
        return _repr.repr(value)
    except ValueError:  # an integer of more digits than Python agrees to print
        return f"a huge {type(value).__name__}"


def duration_us(name: str, value: object, *, low_us: int = 0) -> int:
    """Seconds, or a timedelta, in microseconds; the error says by `name` what was wrong."""
    if isinstance(value, timedelta):
        us: float = value // _MICROSECOND
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {type(value).__name__}")
    else:
        us = value * SECOND
    if not low_us <= us <= DELAY_US:  # also false for nan
        low = f"at least {low_us / SECOND:g}" if low_us > 1 else "more than 0"
        bounds = "between 0 and" if low_us == 0 else f"{low} and at most"
        raise ConfigError(f"{name} must be {bounds} {DELAY_US // SECOND:,} seconds (ten years), not {shown(value)}")
    return round(us)


def canonical_id(text: str) -> str | None:
    """An id in its usual form; None: the text is no id."""
    from uuid import UUID  # noqa: PLC0415 - lists need none

    try:
        return str(UUID(text))
    except ValueError:
        return None


def parse_id(given: object, takes: str, refusal: Callable[[str], Exception]) -> str:
    """The id in its usual form, from text, a UUID or anything with an `id`.

    Anything else is a `TypeError` that begins with `takes`. `refusal` makes the error for text that is no id.
    """
    from uuid import UUID  # noqa: PLC0415 - lists need none

    text = given if isinstance(given, str | UUID) else getattr(given, "id", None)
    if not isinstance(text, str | UUID):
        raise TypeError(f"{takes}, not {type(given).__name__}")
    found = canonical_id(str(text))
    if found is None:
        raise refusal(shown(text))
    return found
