"""Schedules: which slots fire after a gap of any length, each once, with bounded work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND, from_datetime
from dray.model import cron
from dray.model.schedule import Due, Misfire, Overlap, Rule, Schedule, blocking_states, due, preview, same_rule

ANCHOR = from_datetime(datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC))
HOURLY = Rule.from_cron("0 * * * *")
EVERY_30 = Rule.from_every(30)


def at(text: str) -> int:
    return from_datetime(datetime.fromisoformat(f"2026-03-{text}+00:00"))


# The slots of an interval


def test_every_counts_from_the_creation_of_the_schedule() -> None:
    assert EVERY_30.next_after(ANCHOR, ANCHOR) == ANCHOR + 30 * SECOND
    assert EVERY_30.next_after(ANCHOR + 30 * SECOND - 1, ANCHOR) == ANCHOR + 30 * SECOND
    assert EVERY_30.next_after(ANCHOR + 30 * SECOND, ANCHOR) == ANCHOR + 60 * SECOND


def test_no_slot_lies_before_the_first_interval_is_over() -> None:
    assert EVERY_30.next_after(ANCHOR - 10 * DAY, ANCHOR) == ANCHOR + 30 * SECOND


@pytest.mark.parametrize(
    ("every", "every_us"),
    [(30, 30 * SECOND), (0.5, 500 * MILLISECOND), (0.001, MILLISECOND), (timedelta(hours=2), 2 * HOUR)],
)
def test_an_interval_is_seconds_or_a_timedelta(every: float | timedelta, every_us: int) -> None:
    assert Rule.from_every(every) == Rule(every_us=every_us)


@pytest.mark.parametrize(
    "every",
    [
        0,
        -1,
        0.0009,
        float("nan"),
        float("inf"),
        pytest.param(10**6000, id="huge"),
        timedelta(0),
        timedelta(days=4000),
    ],
)
def test_an_interval_out_of_bounds_is_refused(every: float | timedelta) -> None:
    with pytest.raises(ConfigError, match=r"every must be between 0\.001 seconds and ten years"):
        Rule.from_every(every)


@pytest.mark.parametrize("every", ["30", None, True])
def test_an_interval_of_another_type_is_refused(every: Any) -> None:
    with pytest.raises(ConfigError, match="every must be a number of seconds or a timedelta"):
        Rule.from_every(every)


# The slots of a cron line (what a line means is in test_cron.py)


def test_a_line_is_kept_as_written_but_for_its_spaces() -> None:
    assert Rule.from_cron("  0 3 \t* * *\n", "Europe/Berlin") == Rule(cron="0 3 * * *", tz="Europe/Berlin")


def test_a_line_that_cannot_work_is_refused() -> None:
    for line, zone in [("0 0 31 2 *", "UTC"), ("0 3 * * *", "Mars/Olympus"), ("nightly", "UTC")]:
        with pytest.raises(ConfigError):
            Rule.from_cron(line, zone)


@pytest.mark.parametrize(("line", "zone"), [(5, "UTC"), ("* * * * *", None)])
def test_a_line_of_another_type_is_refused(line: Any, zone: Any) -> None:
    with pytest.raises(ConfigError, match="cron and tz must be strings"):
        Rule.from_cron(line, zone)


def test_a_rule_is_either_a_line_or_an_interval() -> None:
    for wrong in (Rule, lambda: Rule(cron="* * * * *", every_us=SECOND)):
        with pytest.raises(ConfigError, match="either cron or every"):
            wrong()


def test_preview_lists_the_next_slots() -> None:
    assert preview(HOURLY, at("05T10:30"), ANCHOR, 3) == [at("05T11:00"), at("05T12:00"), at("05T13:00")]
    assert preview(EVERY_30, ANCHOR, ANCHOR, 2) == [ANCHOR + 30 * SECOND, ANCHOR + 60 * SECOND]
    assert preview(HOURLY, at("05T10:30"), ANCHOR, 0) == []


# What is due


@pytest.mark.parametrize("misfire", Misfire)
def test_nothing_is_due_before_its_time(misfire: Misfire) -> None:
    owed = due(HOURLY, at("05T11:00"), at("05T11:00") - 1, ANCHOR, misfire=misfire, limit=10)

    assert owed == Due((), at("05T11:00"))


@pytest.mark.parametrize("misfire", Misfire)
def test_a_slot_is_due_at_its_very_time(misfire: Misfire) -> None:
    owed = due(HOURLY, at("05T11:00"), at("05T11:00"), ANCHOR, misfire=misfire, limit=10)

    assert owed == Due((at("05T11:00"),), at("05T12:00"))


def test_skip_drops_what_is_a_minute_old() -> None:
    slot = at("05T11:00")

    just_in_time = due(HOURLY, slot, slot + MINUTE - 1, ANCHOR, misfire="skip", limit=10)
    too_late = due(HOURLY, slot, slot + MINUTE, ANCHOR, misfire="skip", limit=10)

    assert just_in_time == Due((slot,), at("05T12:00"))
    assert too_late == Due((), at("05T12:00"))


def test_skip_fires_only_the_newest_of_several_fresh_slots() -> None:
    owed = due(Rule.from_every(10), ANCHOR + 10 * SECOND, ANCHOR + 35 * SECOND, ANCHOR, misfire="skip", limit=10)

    assert owed == Due((ANCHOR + 30 * SECOND,), ANCHOR + 40 * SECOND)


def test_skip_drops_a_fresh_slot_too_if_nobody_was_there_for_the_ones_before() -> None:
    """Otherwise a schedule that fires every minute would never skip a slot."""
    owed = due(Rule.from_every(60), ANCHOR + MINUTE, ANCHOR + 7 * DAY, ANCHOR, misfire="skip", limit=10)

    assert owed == Due((), ANCHOR + 7 * DAY + MINUTE)


def test_last_fires_the_newest_however_old() -> None:
    owed = due(HOURLY, at("05T11:00"), at("08T17:59"), ANCHOR, misfire="last", limit=10)

    assert owed == Due((at("08T17:00"),), at("08T18:00"))


def test_all_fires_the_newest_up_to_the_limit_oldest_first() -> None:
    owed = due(HOURLY, at("05T11:00"), at("05T15:30"), ANCHOR, misfire="all", limit=3)

    assert owed == Due((at("05T13:00"), at("05T14:00"), at("05T15:00")), at("05T16:00"))


def test_all_fires_everything_within_the_limit() -> None:
    owed = due(EVERY_30, ANCHOR + 30 * SECOND, ANCHOR + 95 * SECOND, ANCHOR, misfire="all", limit=10)

    assert owed == Due(tuple(ANCHOR + k * 30 * SECOND for k in (1, 2, 3)), ANCHOR + 120 * SECOND)


def test_nothing_is_due_before_the_first_interval_is_over() -> None:
    owed = due(EVERY_30, ANCHOR - HOUR, ANCHOR + SECOND, ANCHOR, misfire="all", limit=10)

    assert owed == Due((), ANCHOR + 30 * SECOND)


def test_a_stored_time_that_the_rule_does_not_name_fires_nothing() -> None:
    """The time zone's rules changed, or the row was edited by hand: the schedule continues with its next slot."""
    owed = due(HOURLY, at("05T11:07"), at("05T11:30"), ANCHOR, misfire="last", limit=10)

    assert owed == Due((), at("05T12:00"))


@pytest.mark.parametrize("misfire", Misfire)
@pytest.mark.parametrize("stop_us", [7 * DAY, 5 * 365 * DAY])
def test_work_after_a_stop_does_not_grow_with_the_stop(
    misfire: Misfire, stop_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule.from_cron("* * * * * *", "Europe/Berlin")
    steps = count_calls(monkeypatch)
    slot = at("05T11:00")

    owed = due(rule, slot, slot + stop_us, ANCHOR, misfire=misfire, limit=20)

    assert owed.slots[-1:] == (() if misfire is Misfire.SKIP else (slot + stop_us,))
    assert len(owed.slots) == {Misfire.SKIP: 0, Misfire.LAST: 1, Misfire.ALL: 20}[misfire]
    assert owed.next_at == slot + stop_us + SECOND
    assert steps() <= 25


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the calls to cronsim."""
    calls: list[object] = []
    ask: Any = vars(cron)["_step"]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return ask(*args, **kwargs)

    monkeypatch.setattr(cron, "_step", counted)
    return lambda: len(calls)


def test_an_interval_of_a_millisecond_owes_a_limited_number_after_years() -> None:
    rule = Rule.from_every(0.001)

    owed = due(rule, ANCHOR + MILLISECOND, ANCHOR + 5 * 365 * DAY, ANCHOR, misfire="all", limit=1_000)

    assert len(owed.slots) == 1_000
    assert owed.slots[-1] == ANCHOR + 5 * 365 * DAY


rules = st.sampled_from(
    [
        Rule.from_every(0.25),
        Rule.from_every(7),
        Rule.from_every(timedelta(hours=1)),
        Rule.from_cron("*/10 * * * * *"),
        Rule.from_cron("*/5 * * * *", "Europe/Berlin"),
        Rule.from_cron("30 2 * * *", "Europe/Berlin"),
        Rule.from_cron("*/20 2 * * *", "Australia/Lord_Howe"),
        Rule.from_cron("@daily", "America/Havana"),
        Rule.from_cron("0 9 * * MON-FRI", "Asia/Tokyo"),
    ]
)
pauses = st.lists(st.integers(0, 3 * MINUTE) | st.integers(0, 2 * DAY), min_size=1, max_size=30)
starts = st.integers(ANCHOR, ANCHOR + 300 * DAY)


@given(rules, starts, pauses, st.sampled_from(Misfire), st.integers(1, 5))
def test_no_slot_is_fired_twice_or_out_of_order(
    rule: Rule, start: int, pauses: list[int], misfire: Misfire, limit: int
) -> None:
    now, next_at = start, rule.next_after(start, ANCHOR)
    fired: list[int] = []
    for pause_us in pauses:
        now += pause_us
        assert next_at is not None
        owed = due(rule, next_at, now, ANCHOR, misfire=misfire, limit=limit)
        assert all(slot <= now for slot in owed.slots)
        assert owed.next_at is not None
        assert owed.next_at > now or (owed.slots == () and owed.next_at == next_at)
        fired += owed.slots
        next_at = owed.next_at

    assert fired == sorted(set(fired))


@given(rules, starts, st.integers(1, 40))
def test_asked_often_enough_every_slot_is_fired(rule: Rule, start: int, n: int) -> None:
    expected = preview(rule, start, ANCHOR, n)
    next_at = expected[0]
    fired: list[int] = []
    for now in expected:
        owed = due(rule, next_at, now + 1, ANCHOR, misfire="last", limit=1)
        fired += owed.slots
        assert owed.next_at is not None
        next_at = owed.next_at

    assert fired == expected


@given(rules, starts)
def test_slots_only_ever_go_forward(rule: Rule, start: int) -> None:
    slots = [start, *preview(rule, start, ANCHOR, 20)]

    assert slots == sorted(set(slots))
    assert len(slots) == 21


# Overlap and the row


def test_overlap_says_which_jobs_block_a_new_one() -> None:
    assert blocking_states(Overlap.ALLOW) == set()
    assert blocking_states(Overlap.SKIP) == {"waiting", "scheduled", "queued", "running"}
    assert blocking_states(Overlap.QUEUE) == {"waiting", "scheduled", "queued"}


NIGHTLY = Schedule(
    name="nightly",
    task="report",
    queue=None,
    args="{}",
    cron="0 3 * * *",
    every_us=None,
    tz="Europe/Berlin",
    misfire="last",
    misfire_limit=1,
    overlap="skip",
    priority=None,
    next_at=at("05T02:00"),
    last_at=None,
    created_at=ANCHOR,
    updated_at=ANCHOR,
    paused_at=None,
)


def test_a_row_knows_its_rule() -> None:
    assert NIGHTLY.rule == Rule.from_cron("0 3 * * *", "Europe/Berlin")
    assert replace(NIGHTLY, cron=None, every_us=30 * SECOND, tz="UTC").rule == EVERY_30


def test_a_schedule_is_the_same_whatever_dray_has_noted_on_it() -> None:
    noted = replace(NIGHTLY, next_at=None, last_at=1, created_at=2, updated_at=3, paused_at=4)

    assert same_rule(noted, NIGHTLY)


@pytest.mark.parametrize(
    "change",
    [{"task": "other"}, {"queue": "slow"}, {"args": '{"a":1}'}, {"cron": "0 4 * * *"}, {"tz": "UTC"},
     {"cron": None, "every_us": SECOND}, {"misfire": "all"}, {"misfire_limit": 2}, {"overlap": "allow"}],
)  # fmt: skip
def test_a_schedule_differs_in_anything_that_people_set(change: dict[str, Any]) -> None:
    assert not same_rule(NIGHTLY, replace(NIGHTLY, **change))


def test_the_model_loads_no_third_party_module() -> None:
    code = (
        "import sys, dray.model.schedule as s; s.due(s.Rule.from_every(1), 0, 0, 0, misfire='last', limit=1);"
        "sys.exit('cronsim' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
