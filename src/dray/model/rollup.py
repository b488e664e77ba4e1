"""Rollups: how many jobs ended in a minute or an hour, and how long they had waited and run.

Times are counted by class, so that those of many minutes, queues and tasks can be added up, and percentiles
estimated from the sum. Beside each queue and task there are sums over all tasks of a queue, all queues of a task, and
over everything, under the name `ALL`, which no queue or task has: a chart of one thing reads one row a minute and
outcome, however many queues and tasks there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dray.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND

ALL = ""
Span: TypeAlias = Literal["minute", "hour"]
LENGTHS: dict[Span, int] = {"minute": MINUTE, "hour": HOUR}
RECOUNTED_US = 10 * MINUTE  # then a minute is counted again, for what an outage or a long transaction has kept back
KEPT: dict[Span, int] = {"minute": 2 * DAY, "hour": 90 * DAY}

# Class n holds the times below threshold n that are in no class before it; the last class, those of a day and more.
# They must not change: rows that are there were counted by them.
THRESHOLDS = (
    *(n * MILLISECOND for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * SECOND for n in (1, 2, 5, 10, 20, 30, 60)),
    *(n * MINUTE for n in (2, 5, 10, 30, 60)),
    *(n * HOUR for n in (6, 12, 24)),
)


class Part(NamedTuple):
    """Which jobs a tally is of."""

    queue: str
    task: str
    outcome: str


Counts: TypeAlias = Mapping[str, int]  # by class, as JSON has it: its number as text


@dataclass(slots=True)
class Tally:
    """How many jobs, and of those whose times are known, how many by class."""

    jobs: int = 0
    waited: Counter[str] = field(default_factory=Counter[str])
    ran: Counter[str] = field(default_factory=Counter[str])

    def add(self, jobs: int, waited: Counts, ran: Counts) -> None:
        self.jobs += jobs
        for total, counts in ((self.waited, waited), (self.ran, ran)):
            for place, count in counts.items():
                total[place] += count


Tallies = dict[Part, Tally]


def add_up(tallies: Iterable[tuple[Part, Tally]]) -> Tallies:
    """The sum of each part."""
    found = defaultdict[Part, Tally](Tally)
    for part, tally in tallies:
        found[part].add(tally.jobs, tally.waited, tally.ran)
    return dict(found)


def with_sums(parts: Mapping[Part, Tally]) -> Tallies:
    """The parts, and the sums over all tasks of a queue, all queues of a task and everything."""
    sums = add_up(
        (Part(queue, task, part.outcome), tally)
        for part, tally in parts.items()
        for queue, task in ((part.queue, ALL), (ALL, part.task), (ALL, ALL))
    )
    return {**parts, **sums}


def without_sums(tallies: Mapping[Part, Tally]) -> Tallies:
    return {part: tally for part, tally in tallies.items() if ALL not in {part.queue, part.task}}


def larger(old: Mapping[Part, Tally], new: Mapping[Part, Tally]) -> Tallies:
    """Of each part the tally with more jobs: a count that is taken again may miss jobs that were removed or retried
    since, and may find some that were written late."""
    return {**old, **{part: tally for part, tally in new.items() if part not in old or tally.jobs > old[part].jobs}}


def floor(at: int, length: int) -> int:
    """The beginning of the minute or hour that an instant is in."""
    return at - at % length


def percentile(counts: Mapping[str, float], share: float) -> float | None:
    """The time in seconds below which this share of the counted times lies, about: as if the times of a class were
    spread evenly over it. None: there are none."""
    if not counts:
        return None
    wanted, before = share * sum(counts.values()), 0.0
    for place in range(len(THRESHOLDS) + 1):
        count = counts.get(str(place), 0)
        if count and before + count >= wanted:
            low, high = _bounds(place)
            return (low + (high - low) * max(0.0, wanted - before) / count) / SECOND
        before += count
    return None


def _bounds(place: int) -> tuple[int, int]:
    low = THRESHOLDS[place - 1] if place else 0
    return low, THRESHOLDS[place] if place < len(THRESHOLDS) else low
