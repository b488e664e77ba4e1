"""Times and durations as people type them, and as they are shown to people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from dray.wording import span

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # before click 8.2 it had no parameter

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


class Duration(_Type):
    """Seconds (``90``), or with units: ``1h30m``, ``500ms``, ``7d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return float(text)
        if not _DURATION.fullmatch(text):
            self.fail(f"{value!r} is no duration: write seconds, or 500ms, 30s, 5m, 1h30m, 7d", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


class Instant(_Type):
    """A time such as ``2026-11-15T08:00``, here and now where it names no zone, or ``08:00``: the next one."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
                return _next(text)
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: write 2026-11-15T08:00, 2026-11-15T08:00Z, or 08:00", param, ctx)


class Since(_Type):
    """How long ago (``1h``), or a time."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return Duration().convert(value, param, ctx)
        except click.BadParameter:
            pass
        try:
            return Instant().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither a duration such as 1h nor a time such as 2026-11-15T08:00", param, ctx)


def _next(clock_time: str) -> datetime:
    now = datetime.now().astimezone()
    hour, minute, *second = (int(part) for part in clock_time.split(":"))
    today = now.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
    return today if today > now else (today.replace(tzinfo=None) + timedelta(days=1)).astimezone()


def iso(when: datetime) -> str:
    """An instant as programs read it."""
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(when: datetime | None, now: datetime) -> str:
    """An instant as people say it."""
    if when is None:
        return ""
    seconds = (now - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"
