"""Retention: when ended jobs may be deleted."""

from __future__ import annotations

from typing import Any

import pytest

from dray.errors import ConfigError
from dray.instants import DAY, HOUR
from dray.model.retention import Retention

NOW = 1_800_000_000_000_000


def test_by_default_completed_and_cancelled_jobs_stay_a_week_and_failed_ones_a_month() -> None:
    assert Retention().cutoffs(NOW) == {
        "completed": NOW - 7 * DAY,
        "cancelled": NOW - 7 * DAY,
        "failed": NOW - 30 * DAY,
    }


def test_none_keeps_a_state_for_ever() -> None:
    assert Retention(completed_us=HOUR, cancelled_us=None, failed_us=None).cutoffs(NOW) == {"completed": NOW - HOUR}


def test_zero_keeps_nothing() -> None:
    assert Retention(completed_us=0).cutoffs(NOW)["completed"] == NOW


@pytest.mark.parametrize("kept_us", [-1, 1.5, "7d", True, float("nan")])
def test_anything_but_microseconds_is_refused_with_the_state_it_was_for(kept_us: Any) -> None:
    with pytest.raises(ConfigError, match="retention of failed jobs must be microseconds"):
        Retention(failed_us=kept_us)
