"""How a worker is, as it sees itself: what a probe wants to know."""

from __future__ import annotations

from typing import NamedTuple


class Condition(NamedTuple):
    """At one moment."""

    worker_id: str | None  # None: it has not started yet
    state: str  # starting, active, draining
    running: int  # bodies
    beat_age: float | None  # seconds since its lease was last renewed
    is_healthy: bool  # its lease holds
    is_ready: bool  # it claims jobs
    reason: str | None = None  # why it is not healthy or not ready, if that is not because it ends
