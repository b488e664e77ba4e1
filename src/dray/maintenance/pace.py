"""Intervals that do not march in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.clock import Rng


def jittered(seconds: float, rng: Rng) -> float:
    """Up to a fifth less: workers that were started together drift apart, and nobody comes later than promised."""
    return seconds * (1 - rng.random() / 5)
