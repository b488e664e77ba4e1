"""Limits: how many jobs of a task or a queue run at the same time, and how many start in a while.

A rule counts for all jobs of its scope together, or for those of each key. Nothing is counted here: what runs and
what has started is read from the tables when a job is claimed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from dray.errors import ConfigError
from dray.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from dray.model.bounds import LIMIT_MAX, RATES
from dray.model.values import shown

RateGiven: TypeAlias = str | Sequence[str]
Scope: TypeAlias = Literal["task", "queue"]

# For so long after its claim a job that was claimed ahead under a limit may start. A change of limits takes longer: a
# thread may be slow between its look at the clock and the start of the body.
STANDBY_US, STANDBYS_GONE_US = 100 * MILLISECOND, 250 * MILLISECOND


class Kind(StrEnum):
    """What a rule bounds. The names are those of the options."""

    LIMIT = "limit"
    RATE = "rate"
    KEY_LIMIT = "key_limit"
    KEY_RATE = "key_rate"


KEY_KINDS = frozenset({Kind.KEY_LIMIT, Kind.KEY_RATE})
RATE_KINDS = frozenset({Kind.RATE, Kind.KEY_RATE})


class Source(StrEnum):
    DECLARED = "declared"  # by code
    OVERRIDE = "override"  # by an operator; it wins


class Bound(NamedTuple):
    """A maximum: of attempts that run at the same time, or of starts in any period."""

    most: int
    period_us: int = 0  # 0: at the same time

    def __str__(self) -> str:
        return str(self.most) if not self.period_us else f"{self.most}/{_period(self.period_us)}"


Bounds: TypeAlias = Mapping[Kind, tuple[Bound, ...]]  # an empty tuple: no bound, said so


class Rule(NamedTuple):
    """A rule that is in force, as a claim reads it."""

    scope: str
    name: str
    kind: str
    most: int
    period_us: int


class StoredRule(NamedTuple):
    """A row of dray_limits."""

    scope: str
    name: str
    kind: str
    source: str
    period_us: int
    most: int | None  # None: an override that lifts what code declares
    in_force: bool
    changed_at: int | None  # None: now

    @property
    def bound(self) -> Bound:
        return Bound(self.most or 0, self.period_us)


def bounds_of(of: str, given: Mapping[str, Any]) -> dict[Kind, tuple[Bound, ...]]:
    """The bounds that options name, checked; those that are None or not there are left out."""
    return {kind: _bounds(f"{of}: {kind}", kind, given[kind]) for kind in Kind if given.get(kind) is not None}


def _bounds(name: str, kind: Kind, value: object) -> tuple[Bound, ...]:
    if kind not in RATE_KINDS:
        return (Bound(_whole(name, value, low=0)),)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise TypeError(f'{name} must be text such as "10/s", or a list of such, not {type(value).__name__}')
    rates = [_rate(name, text) for text in cast("Sequence[object]", texts)]
    if not 1 <= len(rates) <= RATES:
        raise ConfigError(f"{name} must hold between 1 and {RATES} rates, not {len(rates)}")
    if len({rate.period_us for rate in rates}) < len(rates):
        raise ConfigError(f"{name} has two rates for the same period; keep the lower one")
    return tuple(sorted(rates, key=lambda rate: rate.period_us))


def _whole(name: str, value: object, *, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not low <= value <= LIMIT_MAX:
        raise ConfigError(f"{name} must be between {low} and {LIMIT_MAX:,}, not {shown(value)}")
    return value


_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), SECOND),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), MINUTE),
    **dict.fromkeys(("h", "hour", "hours"), HOUR),
    **dict.fromkeys(("d", "day", "days"), DAY),
}
_SPELLED = ((DAY, "day"), (HOUR, "hour"), (MINUTE, "min"), (SECOND, "s"))
_RATE = re.compile(r"\s*([0-9]{1,12})\s*/\s*([0-9]{1,6})?\s*([a-z]{1,10})\s*")
_LONGEST = 366 * DAY


def _rate(name: str, text: object) -> Bound:
    if not isinstance(text, str):
        raise TypeError(f'{name} must be text such as "10/s", not {type(text).__name__}')
    found = _RATE.fullmatch(text)
    unit = None if found is None else _UNITS.get(found[3])
    if found is None or unit is None:
        raise ConfigError(
            f"{name}: {shown(text)} is no rate; write a number, a slash and a period, such as "
            '"10/s", "100/min", "1000/hour", "5000/day" or "30/15min"'
        )
    period_us = int(found[2] or 1) * unit
    if not SECOND <= period_us <= _LONGEST:
        raise ConfigError(f"{name}: the period of {shown(text)} must be between a second and 366 days")
    return Bound(_whole(f"{name}: the number of {shown(text)}", int(found[1]), low=1), period_us)


def _period(period_us: int) -> str:
    for size, word in _SPELLED:
        if period_us % size == 0:
            number = period_us // size
            return word if number == 1 else f"{number}{word}"
    return f"{period_us / SECOND:g}s"


def merged(stored: Iterable[StoredRule], scope: str, name: str, source: Source, bounds: Bounds) -> list[StoredRule]:
    """The rules of one task or queue once `source` says `bounds`, and nothing else any more."""
    kept = [rule for rule in stored if rule.source != source]
    said = [*kept, *_stored(scope, name, source, bounds)]
    overridden = {rule.kind for rule in said if rule.source == Source.OVERRIDE}
    return [
        rule._replace(
            in_force=rule.most is not None and (rule.source == Source.OVERRIDE or rule.kind not in overridden)
        )
        for rule in said
    ]


def _stored(scope: str, name: str, source: Source, bounds: Bounds) -> Iterator[StoredRule]:
    for kind, some in bounds.items():
        for most, period_us in some or ((None, 0),):
            yield StoredRule(scope, name, kind, source, period_us, most, in_force=False, changed_at=None)


def said_by(stored: Iterable[StoredRule], source: Source) -> dict[Kind, tuple[Bound, ...]]:
    """What code, or an operator, has said of one task or queue."""
    return _gathered(rule for rule in stored if rule.source == source)


def in_force(stored: Iterable[StoredRule]) -> dict[Kind, tuple[Bound, ...]]:
    """What counts of the rules of one task or queue."""
    return _gathered(rule for rule in stored if rule.in_force)


def _gathered(rules: Iterable[StoredRule]) -> dict[Kind, tuple[Bound, ...]]:
    bounds: dict[Kind, tuple[Bound, ...]] = {}
    for rule in rules:
        more = () if rule.most is None else (Bound(rule.most, rule.period_us),)
        bounds[Kind(rule.kind)] = bounds.get(Kind(rule.kind), ()) + more
    return bounds


def opens_at(starts: Sequence[tuple[int, int]], most: int, period_us: int) -> int | None:
    """When one more may start: `starts` are (end of a slice, how many started in it), oldest first. None: now."""
    left = sum(n for _, n in starts)
    for at, n in starts:
        if left < most:
            return None
        left -= n
        if left < most:
            return at + period_us
    return None
