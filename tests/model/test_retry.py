"""Retry policies: how long to wait. The wait is never shorter than the policy says."""

from __future__ import annotations

import random
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.instants import SECOND
from dray.model.retry import DEFAULT, MAX_SECONDS, delay_us, exponential, fixed, linear

ATTEMPTS = st.integers(1, 10**18)


class Dice:
    """An Rng that always returns the same value."""

    def __init__(self, throw: float) -> None:
        self._throw = throw

    def random(self) -> float:
        return self._throw


def test_fixed_waits_the_same_each_time() -> None:
    assert [fixed(7)(attempt) for attempt in (1, 2, 3)] == [7, 7, 7]


def test_linear_grows_by_a_step_up_to_its_cap() -> None:
    assert [linear(10, cap=25)(attempt) for attempt in (1, 2, 3, 4)] == [10, 20, 25, 25]


def test_exponential_grows_by_a_factor_up_to_its_cap() -> None:
    assert [exponential(base=3, cap=100)(attempt) for attempt in (1, 2, 3, 4, 5)] == [3, 9, 27, 81, 100]


def test_the_default_is_two_to_the_attempt_within_an_hour_with_full_jitter() -> None:
    assert exponential() == DEFAULT
    assert [DEFAULT(attempt) for attempt in (1, 2, 3, 11, 12, 13)] == [2, 4, 8, 2048, 3600, 3600]
    assert DEFAULT.jitter == 1.0


@given(ATTEMPTS, st.floats(1, 100), st.floats(0.001, MAX_SECONDS), st.floats(0, 1), st.floats(0, 0.999))
def test_jitter_only_adds_and_at_most_its_share(
    attempt: int, base: float, cap: float, jitter: float, throw: float
) -> None:
    policy = exponential(base, cap, jitter)
    asked = policy(attempt)

    waited = delay_us(policy, attempt, Dice(throw)) / SECOND

    assert waited >= min(asked, MAX_SECONDS) - 1e-6
    assert waited <= min(asked * (1 + jitter), MAX_SECONDS) + 1e-6


def test_jitter_does_not_reach_beyond_ten_years() -> None:
    assert delay_us(exponential(MAX_SECONDS, cap=MAX_SECONDS), 1, Dice(0.9)) == MAX_SECONDS * SECOND


def test_jitter_spreads_jobs_that_failed_together() -> None:
    rng = random.Random(1)
    waits = {delay_us(exponential(base=2), 5, rng) for _ in range(100)}

    assert len(waits) == 100
    assert max(waits) - min(waits) > 25 * SECOND


def test_without_jitter_the_wait_is_exact() -> None:
    assert delay_us(exponential(2, jitter=0), 3, Dice(0.9)) == 8 * SECOND
    assert delay_us(fixed(1.5), 3, Dice(0.9)) == 1_500_000
    assert delay_us(linear(2), 3, Dice(0.9)) == 6 * SECOND


@given(ATTEMPTS)
def test_no_attempt_is_too_many(attempt: int) -> None:
    assert exponential(1000, cap=60)(attempt) == 60
    assert exponential(1, cap=60)(attempt) == 1
    assert linear(1, cap=60)(attempt) == min(60, attempt)


@given(st.floats(1, 1000), st.floats(0.001, MAX_SECONDS), ATTEMPTS)
def test_a_later_attempt_never_waits_less(base: float, cap: float, attempt: int) -> None:
    policy = exponential(base, cap)

    assert policy(attempt) <= policy(attempt + 1) <= cap


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (5, 5_000_000), (0.25, 250_000), (2.3, 2_300_000)])
def test_a_plain_number_is_seconds(seconds: float, expected: int) -> None:
    assert delay_us(seconds, 1, Dice(0.9)) == expected


def test_any_function_of_the_attempt_is_a_policy() -> None:
    assert delay_us(lambda attempt: attempt * 0.5, 3, Dice(0.9)) == 1_500_000


def backwards(attempt: int) -> float:
    return -attempt


@pytest.mark.parametrize(
    "answer", [-1, float("nan"), float("inf"), pytest.param(10**6000, id="huge"), MAX_SECONDS + 1]
)
def test_a_wait_that_cannot_be_is_refused(answer: float) -> None:
    with pytest.raises(ConfigError, match="must be between 0 and"):
        delay_us(lambda attempt: answer, 1, Dice(0))


@pytest.mark.parametrize("answer", [None, "5", True, 1j])
def test_an_answer_that_is_no_number_is_refused(answer: Any) -> None:
    with pytest.raises(ConfigError, match=f"must be a number, not {type(answer).__name__}"):
        delay_us(lambda attempt: answer, 1, Dice(0))


def test_the_error_names_the_function_and_the_attempt() -> None:
    with pytest.raises(ConfigError) as caught:
        delay_us(backwards, 4, Dice(0))

    assert str(caught.value) == "retry: backwards for attempt 4 must be between 0 and 315619200, not -4"


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (fixed, {"seconds": -1}),
        (fixed, {"seconds": "5"}),
        (linear, {"seconds": float("nan")}),
        (linear, {"seconds": 1, "cap": -1}),
        (exponential, {"base": 0.5}),
        (exponential, {"cap": 0}),
        (exponential, {"cap": 11 * 366 * 86_400}),
        (exponential, {"jitter": 1.5}),
        (exponential, {"jitter": -0.1}),
        (exponential, {"base": True}),
    ],
)
def test_a_policy_that_cannot_work_is_refused_when_it_is_made(build: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{build.__name__}: {list(options)[-1]} must be"):
        build(**options)


def test_a_policy_is_a_value() -> None:
    assert exponential(3) == exponential(3)
    with pytest.raises(FrozenInstanceError):
        fixed(1).seconds = 2  # type: ignore[misc]
