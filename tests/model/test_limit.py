"""Limits and rates as they are written: what they mean, what is refused, and when a rate lets the next one start."""

from __future__ import annotations

from typing import Any

import pytest

from dray.errors import ConfigError
from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.model.bounds import LIMIT_MAX, RATES
from dray.model.limit import Bound, Kind, Source, bounds_of, in_force, merged, opens_at, said_by

_HUGE = 10**5000  # more digits than Python agrees to print


def rates(value: Any) -> tuple[Bound, ...]:
    return bounds_of("task t", {"rate": value})[Kind.RATE]


@pytest.mark.parametrize(
    ("text", "most", "period_us"),
    [
        ("10/s", 10, SECOND),
        ("1/sec", 1, SECOND),
        ("7/seconds", 7, SECOND),
        ("100/min", 100, MINUTE),
        ("100/m", 100, MINUTE),
        ("1000/hour", 1000, HOUR),
        ("5000/day", 5000, DAY),
        ("30/15min", 30, 15 * MINUTE),
        (" 10 / 2 s ", 10, 2 * SECOND),
        ("1/366days", 1, 366 * DAY),
        (f"{LIMIT_MAX}/s", LIMIT_MAX, SECOND),
    ],
)
def test_a_rate_is_a_number_and_a_period(text: str, most: int, period_us: int) -> None:
    assert rates(text) == (Bound(most, period_us),)


@pytest.mark.parametrize(
    "text",
    [
        "10/fortnight", "10/week", "10/ms", "10/S", "10", "/s", "", "s", "-1/s", "+1/s", "1.5/s", "10/-1s", "10/1.5s",
        "10/s/s", "10 per s", "1e3/s", "\uff11/s", "10/s\n10/s", "9" * 13 + "/s",
    ],
)  # fmt: skip
def test_what_is_no_rate_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^task t: rate: .* is no rate; write a number, a slash and a period, such"
    ) as caught:
        rates(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("kind", "value", "error", "message"),
    [
        ("rate", "0/s", ConfigError, r"the number of '0/s' must be between 1 and"),
        ("rate", f"{LIMIT_MAX + 1}/s", ConfigError, "must be between 1 and"),
        ("rate", "10/0s", ConfigError, "the period of '10/0s' must be between a second and 366 days"),
        ("rate", "10/367days", ConfigError, "must be between a second and 366 days"),
        ("rate", 10, TypeError, 'rate must be text such as "10/s", or a list of such, not int'),
        ("rate", b"10/s", TypeError, "not bytes"),
        ("rate", {"10/s": 1}, TypeError, "not dict"),
        ("rate", ["10/s", 5], TypeError, 'rate must be text such as "10/s", not int'),
        ("rate", [], ConfigError, f"must hold between 1 and {RATES} rates, not 0"),
        ("rate", [f"1/{n}s" for n in range(1, RATES + 2)], ConfigError, f"rates, not {RATES + 1}"),
        ("rate", ["1/60s", "2/min"], ConfigError, "two rates for the same period; keep the lower one"),
        ("key_rate", "10/fortnight", ConfigError, "^task t: key_rate: '10/fortnight' is no rate"),
        *[
            (kind, value, error, message)
            for kind in ("limit", "key_limit")
            for value, error, message in (
                (-1, ConfigError, f"^task t: {kind} must be between 0 and .*, not -1"),
                (LIMIT_MAX + 1, ConfigError, "must be between 0 and"),
                (_HUGE, ConfigError, "must be between 0 and .*, not a huge int"),
                (1.5, TypeError, f"^task t: {kind} must be a whole number, not float"),
                ("5", TypeError, "must be a whole number, not str"),
                (True, TypeError, "must be a whole number, not bool"),
                ([1], TypeError, "must be a whole number, not list"),
            )
        ],
    ],
    ids=lambda each: ascii(each)[:40] if each != _HUGE else "huge",
)
def test_a_bound_that_cannot_be_is_refused(kind: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bounds_of("task t", {kind: value})


def test_what_is_not_given_is_left_out_and_a_limit_of_nothing_is_one() -> None:
    assert bounds_of("task t", {"limit": 0, "rate": None, "queue": "x"}) == {Kind.LIMIT: (Bound(0),)}


def test_several_rates_are_kept_by_their_periods_and_read_as_they_are_written() -> None:
    found = rates(["5000/day", "10/s", "30/15min"])

    assert [*map(str, found)] == ["10/s", "30/15min", "5000/day"]
    assert rates([*map(str, found)]) == found


def test_an_override_wins_over_what_code_says_of_that_kind_and_of_no_other() -> None:
    declared = merged([], "task", "t", Source.DECLARED, bounds_of("t", {"limit": 5, "rate": ["1/s", "9/min"]}))

    stored = merged(declared, "task", "t", Source.OVERRIDE, {Kind.RATE: (Bound(2, SECOND),)})

    assert in_force(stored) == {Kind.LIMIT: (Bound(5),), Kind.RATE: (Bound(2, SECOND),)}
    assert said_by(stored, Source.DECLARED) == said_by(declared, Source.DECLARED)
    lifted = merged(stored, "task", "t", Source.OVERRIDE, {Kind.RATE: ()})
    assert in_force(lifted) == {Kind.LIMIT: (Bound(5),)}
    assert said_by(lifted, Source.OVERRIDE) == {Kind.RATE: ()}
    assert in_force(merged(lifted, "task", "t", Source.OVERRIDE, {})) == in_force(declared)


@pytest.mark.parametrize(
    ("starts", "most", "opens"),
    [
        ([], 1, None),
        ([(100, 1)], 2, None),
        ([(100, 2)], 2, 100 + SECOND),
        ([(100, 1), (200, 1)], 2, 100 + SECOND),
        ([(100, 1), (200, 1), (300, 1)], 2, 200 + SECOND),  # the rate was lowered: the first is not enough
        ([(100, 5), (200, 1)], 2, 100 + SECOND),
    ],
)
def test_a_rate_opens_when_enough_of_its_starts_are_a_period_ago(
    starts: list[tuple[int, int]], most: int, opens: int | None
) -> None:
    assert opens_at(starts, most, SECOND) == opens
