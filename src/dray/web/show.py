"""Values as pages show them: numbers, durations, instants and hostile text. Filters of the templates."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from dray.model.search import exact
from dray.sanitize import escape_control
from dray.wording import short_id, span

NONE = "\u2013"  # where there is no value
SHOWN = 16 * 1024  # characters of a value on a page; the rest is in its attachment


def plain(value: object) -> str:
    """Text on one line, its control and bidi characters as escapes, cut where it is very long."""
    return escape_control(str(value)[:SHOWN])


def lines(value: object) -> str:
    """As `plain`, with its lines kept, for a <pre>."""
    return "\n".join(escape_control(line) for line in str(value)[:SHOWN].split("\n"))


def visible(value: object) -> object:
    """What every expression of a template goes through: text that no filter has made safe shows its control and bidi
    characters too. Markup was made of safe text."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return escape_control(value) if "\n" not in value else "\n".join(map(escape_control, value.split("\n")))


# What percent-encoding does not keep: servers decode %2F before a path is divided, some proxies decode twice,
# browsers remove . and .. from a path, and .json at the end means the page as JSON.
_IN_PATH = {"~": "~0", "/": "~1", ".": "~2", "%": "~3"}
_FROM_PATH = {written: part for part, written in _IN_PATH.items()}


def in_path(name: str) -> str:
    """A name as one part of an address; `from_path` reads it."""
    part = re.sub("[~/%]", lambda found: _IN_PATH[found[0]], name)
    if part in {".", ".."} or part.endswith(".json"):
        before, _, after = part.rpartition(".")
        part = f"{before}{_IN_PATH['.']}{after}"
    return quote(part, safe=":")


def from_path(part: str) -> str:
    """The name in a part of an address that the server has decoded."""
    return re.sub("~[0-3]", lambda found: _FROM_PATH[found[0]], part)


def term(name: str, key: str) -> str:
    """The filter of a search that finds this name and no other."""
    return exact(key, name).text()


def short(value: object) -> str:
    return short_id(str(value))


def number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def about(value: int, cap: int | None = None) -> str:
    """A count as a tile shows it: exact up to 99,999; from its cap on, "10k+"."""
    if cap is not None and value >= cap:
        return f"{_thousands(cap)}+"
    return f"{value:,}" if value < 100_000 else f"≈ {_thousands(value)}"


def _thousands(value: int) -> str:
    return f"{value / 1_000_000:.1f}m" if value >= 1_000_000 else f"{value // 1000}k"


def duration(seconds: float | None) -> str:
    return NONE if seconds is None else span(max(0.0, seconds))


def percent(part: float, whole: float) -> str:
    return NONE if not whole else f"{100 * part / whole:.1f} %"


def iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(when: datetime | None) -> str:
    """The time of day in UTC; a script makes it local."""
    return NONE if when is None else f"{when.astimezone(UTC):%H:%M:%S}"


def as_json(value: Any) -> str:
    """One line of JSON, as a list shows arguments. Whole numbers keep all their digits."""
    return plain(json.dumps(value, ensure_ascii=False, default=str))


FILTERS: dict[str, Callable[..., str]] = {
    "plain": plain,
    "lines": lines,
    "number": number,
    "about": about,
    "duration": duration,
    "iso": iso,
    "clock": clock,
    "as_json": as_json,
    "short": short,
    "in_path": in_path,
    "in_shell": shlex.quote,
    "term": term,
}
