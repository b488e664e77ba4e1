"""Names people give to queues, tasks, schedules, steps and tags.

They end up in logs, URLs, file names and shells, so only characters harmless in all of these are taken.
"""

from __future__ import annotations

import re
from reprlib import Repr

from dray.errors import InvalidName
from dray.model.limits import NAME_CHARS

_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{NAME_CHARS}}}")
_SHOWN_CHARS = 60

_repr = Repr()
_repr.maxstring = _repr.maxother = _SHOWN_CHARS


def check_name(kind: str, value: object) -> str:
    """The name as given; `InvalidName` says which kind of name it is and what is allowed."""
    if not isinstance(value, str):
        raise InvalidName(f"a {kind} name must be a string, not {type(value).__name__}")
    if _NAME.fullmatch(value) is None:
        raise InvalidName(
            f"{kind} name {shown(value)} cannot be used: "
            f"a name is 1 to {NAME_CHARS} of the characters A-Z a-z 0-9 _ . : -"
        )
    return value


def shown(value: object) -> str:
    """The value as an error message may show it: short, on one line, control characters escaped."""
    try:
        return _repr.repr(value)
    except ValueError:  # an integer of more digits than Python agrees to print
        return f"a huge {type(value).__name__}"
