"""How a worker is, as it sees itself: what a probe wants to know, from when its parts last did what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Condition(NamedTuple):
    """At one moment."""

    worker_id: str | None  # None: it has not started yet
    state: str  # starting, active, draining
    running: int  # bodies
    beat_age: float | None  # seconds since its lease was last renewed
    is_healthy: bool  # it can claim, run and write, or could two beats ago
    is_ready: bool  # it claims jobs
    reason: str | None = None  # why it is not healthy, or not ready; None also while it ends in order


class Obstacle(NamedTuple):
    """Something that a worker cannot do, and since when that has been so, by the steady clock."""

    since: int
    reason: str
    stops_claims: bool = False  # at once, and not only once it lasts


def lasting(obstacles: Sequence[Obstacle], now: int, for_us: int) -> str | None:
    """Why it cannot work, by what has been in its way for longest; None: nothing has for so long.

    A transaction that is under way is an obstacle too, until it comes back: most are, for a moment.
    """
    found = min(obstacles, key=lambda each: each.since, default=None)
    return None if found is None or now - found.since <= for_us else found.reason
