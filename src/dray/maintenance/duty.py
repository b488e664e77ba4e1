"""What a duty is, and how its intervals are spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dray.clock import Rng


class Duty(Protocol):
    """One thing that somebody has to do over and over. Safe to do twice, anywhere, at once."""

    @property
    def name(self) -> str:
        """By which its lease is known."""
        ...

    @property
    def is_exclusive(self) -> bool:
        """Whether one worker is enough: only the one that has its lease does it. That saves work and nothing else."""
        ...

    def tick(self) -> float:
        """Does one bounded step; seconds until the next."""
        ...


def jittered(seconds: float, rng: Rng) -> float:
    """Up to a fifth less, so that workers that were started together drift apart. Never later than promised."""
    return seconds * (1 - rng.random() / 5)
