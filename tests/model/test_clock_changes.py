"""Schedules across the daylight saving changes of 2026, checked by an oracle that asks the zone each minute.

The oracle does not use the cron code: it walks through the minutes as they pass, converts each to wall time, and
decides whether the cron line matches. The rules are Debian's: a fixed time fires once for each wall time, a skipped
time fires at the change, and a field that starts with a star follows the clock.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.instants import DAY, MINUTE, from_datetime, to_datetime
from dray.model.schedule import Rule, due, preview
from tests.model.test_cron import wall_minutes

# The days of both changes in 2026: forward and back, by an hour, half an hour or two, at midnight, in Ramadan.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "Europe/Lisbon": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "America/Santiago": ("2026-04-05", "2026-09-06"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "Australia/Sydney": ("2026-04-05", "2026-10-04"),
    "Pacific/Chatham": ("2026-04-05", "2026-09-27"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),
    "Antarctica/Troll": ("2026-03-29", "2026-10-25"),
}
AROUND = timedelta(hours=40)
YEAR = [date(2026, 1, 1) + timedelta(days=number) for number in range(365)]

changes = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])
minutes = st.lists(st.integers(0, 59), min_size=1, max_size=4, unique=True)
hours = st.lists(st.integers(0, 23) | st.integers(0, 4), min_size=1, max_size=4, unique=True)
steps = st.sampled_from([1, 2, 5, 10, 15, 20, 30])


@cache
def around(zone: str, day: str) -> list[tuple[int, list[datetime]]]:
    noon = datetime.fromisoformat(f"{day}T12:00+00:00")
    return list(wall_minutes(ZoneInfo(zone), noon - AROUND, noon + AROUND))


def meant(zone: str, day: str, at_minutes: list[int], at_hours: list[int], *, follows_clock: bool) -> list[int]:
    """Returns the slots that the oracle expects."""
    seen: set[datetime] = set()
    found: list[int] = []
    for at, walls in around(zone, day):
        counted = walls[-1:] if follows_clock else [wall for wall in walls if wall not in seen]
        if any(wall.minute in at_minutes and wall.hour in at_hours for wall in counted):
            found.append(at)
        seen.update(walls)
    return found


def fired(rule: Rule, zone: str, day: str, pause_us: int) -> list[int]:
    """Returns the slots that are fired when the schedule is checked at this interval."""
    first, end = around(zone, day)[0][0], around(zone, day)[-1][0]
    next_at = rule.next_after(first - 1, 0)
    found: list[int] = []
    now = first
    while now < end and next_at is not None:
        now = min(now + pause_us, end)
        owed = due(rule, next_at, now, 0, misfire="all", limit=1_000)
        found += owed.slots
        next_at = owed.next_at
    return found


def line(words: list[int]) -> str:
    return ",".join(map(str, words))


def test_the_clocks_change_on_these_days() -> None:
    for zone, days in CHANGES.items():
        for day in days:
            offsets = {
                to_datetime(at).astimezone(ZoneInfo(zone)).utcoffset() for at, _ in around(zone, day)[:: 24 * 60]
            }
            assert len(offsets) == 2, (zone, day)


@settings(deadline=None)
@given(changes, minutes, hours, st.integers(1, 300))
def test_fixed_times_come_once_for_each_time_on_the_wall(
    change: tuple[str, str], at_minutes: list[int], at_hours: list[int], pause: int
) -> None:
    rule = Rule.from_cron(f"{line(at_minutes)} {line(at_hours)} * * *", change[0])

    assert fired(rule, *change, pause * MINUTE) == meant(*change, at_minutes, at_hours, follows_clock=False)


@settings(deadline=None)
@given(changes, steps, hours, st.integers(1, 300))
def test_stars_follow_the_clock(change: tuple[str, str], step: int, at_hours: list[int], pause: int) -> None:
    rule = Rule.from_cron(f"*/{step} {line(at_hours)} * * *", change[0])

    expected = meant(*change, list(range(0, 60, step)), at_hours, follows_clock=True)
    assert fired(rule, *change, pause * MINUTE) == expected


@settings(deadline=None)
@given(st.sampled_from(sorted(CHANGES)), st.integers(0, 23) | st.integers(0, 4), st.integers(0, 59))
def test_a_schedule_of_a_fixed_hour_fires_once_on_every_local_day(zone: str, hour: int, minute: int) -> None:
    rule = Rule.from_cron(f"{minute} {hour} * * *", zone)
    start = from_datetime(datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC))

    slots = preview(rule, start - 1, start, 365)

    assert Counter(to_datetime(slot).astimezone(ZoneInfo(zone)).date() for slot in slots) == Counter(YEAR)


@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone, days in CHANGES.items() for day in days])
def test_a_schedule_of_every_quarter_of_an_hour_never_stops_for_longer(zone: str, day: str) -> None:
    start = around(zone, day)[0][0]

    slots = preview(Rule.from_cron("*/15 * * * *", zone), start, start, 3 * 96)

    assert slots[-1] - start >= 2 * DAY
    assert {after - before for before, after in pairwise(slots)} == {15 * MINUTE}
