"""Counts by class of time: added up, with sums over queues and tasks, and percentiles from them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.instants import DAY, SECOND
from dray.model.rollup import ALL, THRESHOLDS, Part, Tally, larger, percentile, with_sums, without_sums

PARTS = st.builds(Part, st.sampled_from("ab"), st.sampled_from("tuv"), st.sampled_from(["completed", "failed"]))
COUNTS = st.dictionaries(st.integers(0, 24).map(str), st.integers(1, 9), max_size=4).map(Counter)
TALLIES = st.dictionaries(PARTS, st.builds(Tally, st.integers(1, 100), COUNTS, COUNTS), max_size=6)


def test_the_classes_reach_from_a_millisecond_to_a_day() -> None:
    assert (THRESHOLDS[0], THRESHOLDS[-1], len(THRESHOLDS)) == (1_000, DAY, 24)
    assert list(THRESHOLDS) == sorted(set(THRESHOLDS))


@given(TALLIES)
def test_sums_are_those_of_the_parts(parts: dict[Part, Tally]) -> None:
    whole = with_sums(parts)

    assert without_sums(whole) == parts
    for outcome in ("completed", "failed"):
        total = sum(tally.jobs for part, tally in parts.items() if part.outcome == outcome)
        assert whole.get(Part(ALL, ALL, outcome), Tally()).jobs == total
        assert sum(tally.jobs for part, tally in whole.items() if part[1:] == (ALL, outcome) and part.queue) == total


@given(TALLIES, TALLIES)
def test_of_two_counts_the_larger_stays(old: dict[Part, Tally], new: dict[Part, Tally]) -> None:
    both = larger(old, new)

    assert {part: tally.jobs for part, tally in both.items()} == {
        part: max(given[part].jobs for given in (old, new) if part in given) for part in {*old, *new}
    }
    assert larger(both, new) == larger(both, old) == both


@given(st.lists(st.integers(0, DAY - 1), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_percentile_is_in_the_class_of_the_time_it_stands_for(times: list[int], share: float) -> None:
    counts = Counter(str(bisect_right(THRESHOLDS, us)) for us in times)
    true = sorted(times)[math.ceil(len(times) * share) - 1]
    place = bisect_right(THRESHOLDS, true)

    found = percentile(counts, share)

    assert found is not None
    low = THRESHOLDS[place - 1] if place else 0
    assert low / SECOND <= found <= THRESHOLDS[place] / SECOND


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [({}, 0.5, None), ({"10": 100}, 0.5, 1.5), ({"24": 3}, 0.95, 86_400.0), ({"0": 1, "9": 1}, 0.5, 0.001)],
)
def test_percentiles(counts: dict[str, int], share: float, expected: float | None) -> None:
    assert percentile(counts, share) == expected
