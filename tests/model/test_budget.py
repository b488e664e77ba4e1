"""How many rows a transaction may change: adapted to the time of earlier ones, within a limit of rows and time."""

from __future__ import annotations

import pytest

from dray.instants import MILLISECOND
from dray.model.retention import Budget


def _spend(budget: Budget, us_per_row: int) -> list[int]:
    """Returns the statements of a transaction in which each row takes the given time."""
    statements: list[int] = []
    now = 0
    while rows := budget.allowed():
        statements.append(rows)
        now += rows * us_per_row
        budget.spend(rows, now)
    return statements


def test_statements_double_until_the_rows_are_used_up() -> None:
    assert _spend(Budget(0, rows=1_000, us=50 * MILLISECOND), 0) == [25, 50, 100, 200, 400, 225]


@pytest.mark.parametrize("us_per_row", [10, 100, 1_000, 1_999])
def test_rows_that_take_time_end_the_transaction_in_time(us_per_row: int) -> None:
    budget = Budget(0, rows=10_000, us=50 * MILLISECOND)

    statements = _spend(budget, us_per_row)

    assert 40 * MILLISECOND < budget.took_us <= 50 * MILLISECOND
    assert budget.spent == sum(statements) == budget.took_us // us_per_row


def test_the_first_statement_is_small_because_nothing_is_known_yet() -> None:
    budget = Budget(0, rows=10_000, us=50 * MILLISECOND)
    first = budget.allowed()
    budget.spend(first, 400 * MILLISECOND)

    assert (first, budget.allowed()) == (25, 0)


def test_time_counts_that_passes_without_a_row() -> None:
    budget = Budget(1_000, rows=100, us=50 * MILLISECOND)
    budget.spend(0, 1_000 + 49 * MILLISECOND)
    late = budget.allowed()
    budget.spend(0, 1_000 + 50 * MILLISECOND)

    assert (late, budget.allowed(), budget.took_us) == (25, 0, 50 * MILLISECOND)


def test_fitting_are_those_from_the_first_on_that_go_together() -> None:
    budget = Budget(0)

    assert budget.fitting([10, 10, 5, 1]) == 3
    assert budget.fitting([26, 1]) == 0
    assert budget.fitting([]) == 0
