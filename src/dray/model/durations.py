"""How long things take, as people write it: seconds or a timedelta. Inside they are whole microseconds."""

from __future__ import annotations

from datetime import timedelta

from dray.errors import ConfigError
from dray.instants import SECOND
from dray.model.limits import DELAY_US
from dray.model.names import shown

_MICROSECOND = timedelta(microseconds=1)


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
