"""A queue: a named line of jobs with a default priority, which can be paused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    priority: int
    paused_at: int | None
    created_at: int


class Demand(NamedTuple):
    """What a worker would take: `limit` jobs to start now and `ahead` more to have at hand, of tasks it knows.

    All that one queue has comes before the next queue's. A job taken ahead may die with its worker before it
    started, so only jobs that can lose an attempt harmlessly are: more than one left, and no crash so far.
    """

    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    limit: int
    ahead: int = 0
