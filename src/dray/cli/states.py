"""Counts of jobs by state, as columns."""

from __future__ import annotations

from collections.abc import Sequence

from dray.cli.output import Column, Shape

STATES = ("waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled")
BESIDE = 3  # the rank of what a table shows beside the counts
_RANKS = {"queued": 1, "running": 2, "failed": 4, "waiting": 5, "scheduled": 6, "cancelled": 7, "completed": 8}
_ALWAYS = {"queued", "running"}


def state_columns(shapes: Sequence[Shape]) -> tuple[Column, ...]:
    """A column for each state that there are jobs in; a narrow terminal keeps what is to be done longest."""
    there = {state for state in STATES if state in _ALWAYS or any(shape[state] for shape in shapes)}
    return tuple(Column(state, state, is_number=True, rank=_RANKS[state]) for state in STATES if state in there)
