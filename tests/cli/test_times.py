"""Durations and moments as people type and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from dray.cli.cells import ago
from dray.cli.parsing import duration, instant
from dray.instants import iso
from dray.wording import span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("7d", 604800),
        ("1W", 604800),
    ],
)
def test_a_duration_is_seconds_or_has_units(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 minutes", "1h x", "m", "1e3", "nan", "\u0665m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration(text)


def test_a_moment_without_a_zone_is_local_and_with_one_it_is_that() -> None:
    assert instant("2026-11-15T08:00Z") == datetime(2026, 11, 15, 8, tzinfo=UTC)
    assert instant("2026-11-15T08:00") == datetime(2026, 11, 15, 8).astimezone()


@pytest.mark.parametrize("text", ["00:00", "12:34:56", "23:59"])
def test_a_time_of_day_is_the_next_one(text: str) -> None:
    found = instant(text)

    ahead = found - datetime.now(UTC)
    assert timedelta(0) < ahead <= timedelta(hours=25)
    assert f"{found.astimezone():%H:%M:%S}".startswith(text)


@pytest.mark.parametrize("text", ["", "tomorrow", "25:00", "2026-02-30", "12:60"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        instant(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "<1ms"),
        (0.25, "250ms"),
        (2.04, "2.0s"),
        (59.0, "59s"),
        (61, "1m01s"),
        (3000, "50m"),
        (3600, "1h00m"),
        (40_000, "11h"),
        (1_000_000, "11d"),
    ],
)
def test_a_span_has_one_or_two_units(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_moments_are_told_from_now_and_written_in_utc() -> None:
    now = datetime(2026, 11, 15, 8, tzinfo=UTC)

    assert ago(now - timedelta(seconds=61), now) == "1m01s ago"
    assert ago(now + timedelta(seconds=61), now) == "in 1m01s"
    assert ago(now, now) == "now"
    assert ago(None, now) == ""
    assert iso(now) == "2026-11-15T08:00:00.000000Z"
