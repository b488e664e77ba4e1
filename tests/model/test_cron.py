"""Cron lines in time zones: each slot once, searched forwards and backwards, across both clock changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.instants import DAY, HOUR, MINUTE, SECOND, from_datetime, to_datetime
from dray.model import cron as cron_module
from dray.model.cron import parse

ALL_DAY = range(24)

# A line, its minutes, its hours, and whether it follows elapsed time instead of wall time.
LINES = [
    ("*/10 * * * *", range(0, 60, 10), ALL_DAY, True),
    ("30 * * * *", [30], ALL_DAY, True),
    ("0 */2 * * *", [0], range(0, 24, 2), True),
    ("*/15 2 * * *", range(0, 60, 15), [2], True),
    ("*/10 23 * * *", range(0, 60, 10), [23], True),
    ("*/10 0 * * *", range(0, 60, 10), [0], True),
    ("@hourly", [0], ALL_DAY, True),
    ("@daily", [0], [0], False),
    ("30 2 * * *", [30], [2], False),
    ("0 30 2 * * *", [30], [2], False),
    ("30 1 * * *", [30], [1], False),
    ("0,30 0-3 * * *", [0, 30], range(4), False),
    ("45 23 * * *", [45], [23], False),
]

# A zone and the days around its clock changes: by an hour, half an hour, two hours, a day, at midnight.
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("Asia/Beirut", "2026-03-29"),
    ("Asia/Beirut", "2026-10-25"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Pacific/Chatham", "2026-04-05"),
    ("Pacific/Chatham", "2026-09-27"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Africa/Casablanca", "2026-02-15"),
    ("Africa/Casablanca", "2026-03-22"),
    ("Pacific/Apia", "2011-12-30"),
]


def instant(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).astimezone(UTC))


def wall_minutes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[int, list[datetime]]]:
    """Yields each minute with the wall times it represents: its own, and those skipped just before it."""
    before = None
    while start < end:
        wall = start.astimezone(zone).replace(tzinfo=None)
        walls = [wall]
        while before is not None and walls[0] > before + timedelta(minutes=1):
            walls.insert(0, walls[0] - timedelta(minutes=1))
        yield from_datetime(start), walls
        before = wall
        start += timedelta(minutes=1)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_a_change_of_the_clocks_neither_loses_nor_doubles_a_slot(zone: str, day: str) -> None:
    noon = datetime.fromisoformat(f"{day}T12:00+00:00")
    start, end = noon - timedelta(hours=40), noon + timedelta(hours=40)
    minutes = list(wall_minutes(ZoneInfo(zone), start, end))

    for line, at_minutes, at_hours, follows_clock in LINES:
        seen: set[datetime] = set()
        expected: list[int] = []
        for at, walls in minutes:
            counted = walls[-1:] if follows_clock else [wall for wall in walls if wall not in seen]
            if any(wall.minute in at_minutes and wall.hour in at_hours for wall in counted):
                expected.append(at)
            seen.update(walls)

        cron = parse(line, zone)
        forwards = slots_between(line, zone, from_datetime(start), from_datetime(end))
        backwards = [cron.last_until(from_datetime(end) - 1)]
        while backwards[-1] is not None and backwards[-1] >= from_datetime(start):
            backwards.append(cron.last_until(backwards[-1] - 1))

        assert forwards == expected, line
        assert backwards[-2::-1] == expected, line


def slots_between(line: str, zone: str, first_at: int, end_at: int) -> list[int]:
    cron = parse(line, zone)
    slots: list[int] = []
    slot = cron.next_after(first_at - 1)
    while slot is not None and slot < end_at:
        slots.append(slot)
        slot = cron.next_after(slot)
    return slots


@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_is_skipped_runs_when_the_clocks_change(line: str) -> None:
    slots = slots_between(line, "Europe/Berlin", instant("2026-03-28T12:00Z"), instant("2026-03-30T12:00Z"))

    assert slots == [instant("2026-03-29T03:00+02:00"), instant("2026-03-30T02:30+02:00")]


@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_comes_twice_runs_the_first_time(line: str) -> None:
    slots = slots_between(line, "Europe/Berlin", instant("2026-10-24T12:00Z"), instant("2026-10-26T12:00Z"))

    assert slots == [instant("2026-10-25T02:30+02:00"), instant("2026-10-26T02:30+01:00")]


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24)])
def test_every_minute_of_a_day_runs_however_long_the_day_is(day: str, hours: int) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    start, end = from_datetime(midnight), from_datetime(midnight + timedelta(days=1))

    slots = slots_between("* * * * *", "Europe/Berlin", start, end)

    assert len(slots) == hours * 60
    assert {after - before for before, after in pairwise(slots)} == {MINUTE}


def test_midnight_runs_at_one_where_the_clocks_skip_midnight() -> None:
    after = parse("@daily", "America/Havana").next_after(instant("2026-03-07T12:00-05:00"))

    assert after == instant("2026-03-08T01:00-04:00")


def test_the_search_backwards_returns_in_chatham() -> None:
    """cronsim's own reverse search across this change never ends."""
    before = parse("0 */2 * * *", "Pacific/Chatham").last_until(instant("2025-04-06T03:59+12:45"))

    assert before == instant("2025-04-06T02:00+13:45")


lines = st.sampled_from([line for line, *_ in LINES] + ["* * * * * *", "0 12 1 * 1", "59 59 23 L * *", "0 0 29 2 *"])
zones = st.sampled_from(sorted({zone for zone, _ in CHANGES} | {"UTC", "Asia/Kathmandu"}))
days_of_change = st.sampled_from([instant(f"{day}T00:00Z") for _, day in CHANGES])
instants = st.integers(instant("2025-01-01T00:00Z"), instant("2035-01-01T00:00Z")) | days_of_change.flatmap(
    lambda day: st.integers(day - 2 * DAY, day + 2 * DAY)
)


@given(lines, zones, instants)
def test_the_next_slot_is_later_and_none_lies_between(line: str, zone: str, at: int) -> None:
    cron = parse(line, zone)

    after = cron.next_after(at)
    before = cron.last_until(at)

    assert after is not None
    assert before is not None
    assert before <= at < after
    assert cron.next_after(before) == after
    assert cron.last_until(after) == after
    assert cron.last_until(after - 1) == before
    assert before % SECOND == after % SECOND == 0


@pytest.mark.parametrize(
    ("alias", "line"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@DAILY", "0 0 * * *"),
    ],
)
def test_words_stand_for_lines(alias: str, line: str) -> None:
    assert parse(alias, "Europe/Berlin") == parse(line, "Europe/Berlin")


def test_six_fields_begin_with_seconds() -> None:
    start = instant("2026-01-01T00:00Z")

    assert slots_between("*/20 30 8 * * *", "UTC", start, start + DAY) == [
        start + 8 * HOUR + 30 * MINUTE + second * SECOND for second in (0, 20, 40)
    ]


# Lines that cronsim refuses, that it gives up on after searching 50 years, or that match only a skipped hour.
NEVER = [
    ("0 0 31 2 *", "UTC"),
    ("0 0 30 2 *", "UTC"),
    ("0 0 31 4,6,9,11 *", "UTC"),
    ("0 0 */31 * 1#5", "UTC"),
    ("0 0 */20 * 1#2", "UTC"),
    ("0 0 LW * */7", "UTC"),
    ("* 2 * 3 0L", "Europe/Berlin"),
    ("* * 2 * 3 0L", "Europe/Berlin"),
]


@pytest.mark.parametrize(("line", "zone"), NEVER)
def test_a_line_that_never_comes_is_refused_at_once(line: str, zone: str) -> None:
    parse("* * * * *", zone)  # loads the zone
    began = time.thread_time()  # not the time in which others had the processor

    with pytest.raises(ConfigError, match=r"never comes|cannot be used \(bad day-of-month\)"):
        parse(line, zone)

    assert time.thread_time() - began < 0.050


@pytest.mark.parametrize("line", ["0 0 */31 * 1#5", "0 0 */20 * 1#2", "0 0 LW * */7"])
def test_a_day_that_never_comes_is_known_without_a_search(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*args: object, **kwargs: object) -> None:
        pytest.fail("walks through 50 years of days")

    monkeypatch.setattr(cron_module, "_step", search)

    with pytest.raises(ConfigError, match="never comes"):
        parse(line, "UTC")


@pytest.mark.parametrize("weekday", range(7))
def test_the_rarest_day_is_found_over_the_turn_of_a_century_too(weekday: int) -> None:
    """29 February falls on a given weekday every 28 years, but 40 years apart around 2100."""
    cron = parse(f"0 0 */28 2 {weekday}#5", "UTC")

    found = cron.next_after(instant("2072-03-01T00:00Z"))
    again = found and cron.next_after(found)

    assert again
    assert [to_datetime(at).strftime("%d %m %w") for at in (found, again) if at] == [f"29 02 {weekday}"] * 2


def test_a_line_that_sometimes_meets_a_skipped_hour_is_found_years_later() -> None:
    """Sundays from 24 March on: in Berlin this time is skipped on all of them except the 24th."""
    cron = parse("*/30 2 24-31 3 */7", "Europe/Berlin")

    assert cron.next_after(instant("2030-03-25T00:00Z")) == instant("2041-03-24T02:00+01:00")


@pytest.mark.parametrize(
    "line",
    ["", "x", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8",
     "*/0 * * * *", "5-1 * * * *", "1, * * * *", "@reboot", "@", "é * * * *", "1" * 5000,
     "1" * 5000 + " * * * *", "0 0 1 1 *#3"],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        parse(line, "UTC")

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "europe/berlin", "Europe", "../etc/passwd", "/etc/passwd", "a\0b", "x" * 5000],
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match=r"time zone .* is not known here"):
        parse("* * * * *", zone)
