"""Schedules: when a task is due, what happens to missed slots, and when one run may not follow another.

A slot is an instant the rule names. `due` decides from a row's `next_at` and the time which slots to fire now
and what `next_at` becomes; all slots it returns lie between the two, so a row that is moved on by comparing
`next_at` fires each slot at most once. Its cost does not grow with the time since the last call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from dray.errors import ConfigError
from dray.instants import MILLISECOND, MINUTE, SECOND
from dray.model.bounds import DELAY_US
from dray.model.job import LIVE, UNSTARTED, State
from dray.model.values import shown

if TYPE_CHECKING:
    from dray.model.cron import Cron

# `misfire=skip` skips if the slot that the schedule waits for is older than this: no worker was there.
MISFIRE_GRACE_US = 1 * MINUTE

EVERY_MIN_US = 1 * MILLISECOND

# Missed slots that `misfire=all` fires: the default, and the maximum, as all go in one transaction.
MISFIRE_LIMIT, MISFIRE_LIMIT_MAX = 100, 1_000


class Misfire(StrEnum):
    """Which of the slots that passed since the last look are fired."""

    SKIP = "skip"  # none, if the oldest is MISFIRE_GRACE_US old; else the newest
    LAST = "last"  # the newest, however old
    ALL = "all"  # the newest `misfire_limit`, oldest first


class Overlap(StrEnum):
    """Whether a slot fires while an earlier job of the schedule is there."""

    ALLOW = "allow"
    SKIP = "skip"  # not while one is live
    QUEUE = "queue"  # at most one behind the one that runs


_BLOCKING: dict[str, frozenset[State]] = {Overlap.ALLOW: frozenset(), Overlap.SKIP: LIVE, Overlap.QUEUE: UNSTARTED}


def blocking_states(overlap: str) -> frozenset[State]:
    """A job of the schedule in one of these states keeps a new one from being made.

    A word that only a newer release knows counts as `skip`, which never doubles.
    """
    return _BLOCKING.get(overlap, LIVE)


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule fires: a cron line in a zone, or an interval counted from the schedule's creation."""

    cron: str | None = None
    every_us: int | None = None
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_us is None):
            raise ConfigError("a schedule needs either cron or every, and not both")

    @classmethod
    def from_cron(cls, text: str, tz: str = "UTC") -> Rule:
        """A checked cron line: five fields, six with seconds first, or a word such as @daily."""
        if not isinstance(text, str) or not isinstance(tz, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"cron and tz must be strings, not {shown(text)} and {shown(tz)}")
        line = " ".join(text.split())
        _parsed(line, tz)
        return cls(cron=line, tz=tz)

    @classmethod
    def from_every(cls, every: float | timedelta) -> Rule:
        """A checked interval: a number of seconds or a timedelta, from a millisecond to ten years."""
        every_us = _microseconds(every)
        if not EVERY_MIN_US <= every_us <= DELAY_US:
            raise ConfigError(f"every must be between 0.001 seconds and ten years, not {shown(every)}")
        return cls(every_us=round(every_us))

    def next_after(self, at: int, anchor_at: int) -> int | None:
        """The first slot strictly after `at`, if any; `anchor_at` is when the schedule was made."""
        if self.every_us is not None:
            return anchor_at + max(1, (at - anchor_at) // self.every_us + 1) * self.every_us
        return self._cron().next_after(at)

    def newest(self, first_at: int, until_at: int, anchor_at: int, limit: int) -> tuple[int, ...]:
        """The newest `limit` slots from `first_at` up to and including `until_at`, oldest first."""
        slots: list[int] = []
        slot = self._last_until(until_at, anchor_at)
        while slot is not None and slot >= first_at and len(slots) < limit:
            slots.append(slot)
            slot = self._last_until(slot - 1, anchor_at)
        return tuple(reversed(slots))

    def _last_until(self, at: int, anchor_at: int) -> int | None:
        if self.every_us is None:
            return self._cron().last_until(at)
        count = (at - anchor_at) // self.every_us
        return anchor_at + count * self.every_us if count >= 1 else None

    def _cron(self) -> Cron:
        assert self.cron is not None
        return _parsed(self.cron, self.tz)


def _parsed(line: str, tz: str) -> Cron:
    from dray.model import cron  # noqa: PLC0415 - it loads cronsim and time zones: 1 MB, only for cron lines

    return cron.parse(line, tz)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One row of the table. A newer release may have written a misfire or overlap not known here."""

    name: str
    task: str
    queue: str | None = None  # None: the task's
    args: str = "{}"
    cron: str | None = None
    every_us: int | None = None
    tz: str = "UTC"
    misfire: str = Misfire.LAST.value
    misfire_limit: int = MISFIRE_LIMIT
    overlap: str = Overlap.ALLOW.value
    priority: int | None = None  # None: the task's
    # Written by Dray
    next_at: int | None = None
    last_at: int | None = None
    created_at: int = 0
    updated_at: int = 0
    paused_at: int | None = None

    @property
    def rule(self) -> Rule:
        return Rule(self.cron, self.every_us, self.tz)


def same_rule(stored: Schedule, wanted: Schedule) -> bool:
    """Whether the stored row is already what is wanted, in all that people set."""
    return all(getattr(stored, field) == getattr(wanted, field) for field in _SET_BY_PEOPLE)


_SET_BY_PEOPLE = (
    *("task", "queue", "args", "priority"),
    *("cron", "every_us", "tz", "misfire", "misfire_limit", "overlap"),
)


def placed(wanted: Schedule, stored: Schedule | None, now: int) -> Schedule:
    """The row to write for what people want: a new rule begins now, and never at a slot that was fired already.

    While the rule stays, so does the slot that the row waits for: a slot that was missed is still owed when the
    arguments change.
    """
    if stored is None:
        return replace(wanted, created_at=now, updated_at=now, next_at=wanted.rule.next_after(now, now))
    next_at = stored.next_at
    if stored.rule != wanted.rule:
        next_at = wanted.rule.next_after(max(now, stored.last_at or 0), stored.created_at)
    noted = {name: getattr(stored, name) for name in ("created_at", "last_at", "paused_at")}
    return replace(wanted, next_at=next_at, updated_at=now, **noted)


@dataclass(frozen=True, slots=True)
class Due:
    """The slots to fire now, oldest first, and the `next_at` to store with them."""

    slots: tuple[int, ...]
    next_at: int | None


def due(rule: Rule, next_at: int, now: int, anchor_at: int, *, misfire: str, limit: int) -> Due:
    """What a schedule owes at `now`, given the slot it waits for; `limit` counts for `all` only."""
    if now < next_at:
        return Due((), next_at)
    # By the oldest slot and not the newest, which a schedule of every minute always has fresh, after any stop.
    if misfire == Misfire.SKIP and now - next_at >= MISFIRE_GRACE_US:
        slots = ()
    else:
        slots = rule.newest(next_at, now, anchor_at, limit if misfire == Misfire.ALL else 1)
    return Due(slots, rule.next_after(now, anchor_at))


def preview(rule: Rule, at: int, anchor_at: int, n: int) -> list[int]:
    """The next `n` slots after `at`; fewer if the rule ends before."""
    slots: list[int] = []
    slot = rule.next_after(at, anchor_at)
    while slot is not None and len(slots) < n:
        slots.append(slot)
        slot = rule.next_after(slot, anchor_at)
    return slots


def _microseconds(every: object) -> float:
    if isinstance(every, timedelta):
        return every / timedelta(microseconds=1)
    if isinstance(every, bool) or not isinstance(every, int | float):
        raise ConfigError(f"every must be a number of seconds or a timedelta, not {type(every).__name__}")
    return every * SECOND
