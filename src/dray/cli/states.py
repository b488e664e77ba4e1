"""Counts of jobs by state, as columns."""

from __future__ import annotations

from collections.abc import Sequence

from dray.cli.output import Column, Shape

STATES = ("waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled")
_ALWAYS = {"queued", "running"}


def state_columns(shapes: Sequence[Shape]) -> tuple[Column, ...]:
    """A column for each state that there are jobs in."""
    there = {state for state in STATES if state in _ALWAYS or any(shape[state] for shape in shapes)}
    return tuple(Column(state, state, is_number=True, rank=2) for state in STATES if state in there)
