"""How many jobs ended, and how long they had waited and run: over an hour, a day or a week.

It comes from rollups, and for what has ended since the last of them, from the newest jobs. So all of it is bounded,
however many jobs there are, and it is there after the jobs are removed. Times are estimated from classes
(`model/rollup.py`). Jobs that ran after others count with how long they ran, and not with how long they waited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from dray.errors import ConfigError
from dray.instants import HOUR, MINUTE, SECOND, to_datetime
from dray.model.rollup import THRESHOLDS, Span, floor, percentile
from dray.model.values import check_name, shown

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.rollups import Recorded


class _Scale(NamedTuple):
    """Which rows a chart is made of, and how many steps it has."""

    span: Span
    step_us: int
    points: int


_CLASSES = range(len(THRESHOLDS) + 1)
# A day by quarters of an hour would be 1,440 minutes of rows, which take 100 ms to add up.
SPANS = {
    "1h": _Scale("minute", MINUTE, 60),
    "24h": _Scale("hour", HOUR, 24),
    "7d": _Scale("hour", HOUR, 168),
}


@dataclass(frozen=True, slots=True)
class Point:
    """What ended in one step of time. Times are in seconds; None: nothing is known."""

    at: datetime  # its beginning
    completed: int
    failed: int
    cancelled: int
    waited_p50: float | None
    waited_p95: float | None
    ran_p50: float | None
    ran_p95: float | None


@dataclass(frozen=True, slots=True)
class Total:
    """All points of a series together."""

    completed: int
    failed: int
    cancelled: int
    per_second: float  # of all three
    waited_p50: float | None
    waited_p95: float | None
    ran_p50: float | None
    ran_p95: float | None
    waited: list[int]  # how many, by the classes of `model/rollup.py`
    ran: list[int]


@dataclass(frozen=True, slots=True)
class Series:
    step_s: int
    points: list[Point]  # oldest first; the last is not over
    total: Total


@dataclass(frozen=True, slots=True)
class Rates:
    """What ended over a span of time."""

    completed: int
    failed: int
    cancelled: int
    per_second: float  # of all three
    waited_p50: float | None
    waited_p95: float | None
    ran_p50: float | None
    ran_p95: float | None
    points: list[int]  # how many ended in each step, oldest first; the last is not over


@dataclass(slots=True)
class _Sum:
    jobs: dict[str, float] = field(default_factory=lambda: {"completed": 0, "failed": 0, "cancelled": 0})
    waited: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    ran: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, found: Recorded) -> None:
        self.jobs[found.part.outcome] += found.jobs * found.share
        for total, counts in ((self.waited, found.waited), (self.ran, found.ran)):
            for place, count in counts.items():
                total[place] += count * found.share

    def counts(self) -> tuple[int, int, int]:
        return round(self.jobs["completed"]), round(self.jobs["failed"]), round(self.jobs["cancelled"])

    def percentiles(self) -> tuple[float | None, float | None, float | None, float | None]:
        waited, ran = self.waited, self.ran
        return percentile(waited, 0.5), percentile(waited, 0.95), percentile(ran, 0.5), percentile(ran, 0.95)

    def total(self, seconds: float) -> Total:
        per_second = sum(self.jobs.values()) / seconds
        waited, ran = ([round(counts.get(str(place), 0)) for place in _CLASSES] for counts in (self.waited, self.ran))
        return Total(*self.counts(), per_second, *self.percentiles(), waited, ran)

    @classmethod
    def of(cls, parts: Iterable[_Sum]) -> _Sum:
        whole = cls()
        for part in parts:
            for total, counts in ((whole.jobs, part.jobs), (whole.waited, part.waited), (whole.ran, part.ran)):
                for name, count in counts.items():
                    total[name] = total.get(name, 0) + count
        return whole


def series(backend: Backend, span: str, *, queue: str | None = None, task: str | None = None) -> Series:
    """What ended over the last hour, day or week, step by step: all of it, or of one queue or task."""
    scale = _scale(span)
    names = {
        "queue": None if queue is None else check_name("queue", queue),
        "task": None if task is None else check_name("task", task),
    }
    now = backend.now()
    since = _since(now, scale)
    sums = [_Sum() for _ in range(scale.points)]
    for step, found in _placed(backend.rollups.one(scale.span, since, **names), since, scale):
        sums[step].add(found)
    points = [
        Point(to_datetime(since + step * scale.step_us), *each.counts(), *each.percentiles())
        for step, each in enumerate(sums)
    ]
    return Series(scale.step_us // SECOND, points, _Sum.of(sums).total((now - since) / SECOND))


def rates(backend: Backend, span: str, by: Literal["queue", "task"]) -> dict[str, Rates]:
    """What ended over the last hour, day or week, by queue or by task; those of which nothing did are not in it."""
    if by not in {"queue", "task"}:
        raise ConfigError(f'rates are by "queue" or by "task", not by {shown(by)}')
    scale = _scale(span)
    now = backend.now()
    since = _since(now, scale)
    sums = defaultdict[str, _Sum](_Sum)
    points = defaultdict[str, list[float]](lambda: [0.0] * scale.points)
    for step, found in _placed(backend.rollups.each(by, scale.span, since), since, scale):
        name = found.part.queue if by == "queue" else found.part.task
        sums[name].add(found)
        points[name][step] += found.jobs * found.share
    seconds = (now - since) / SECOND
    return {
        name: Rates(
            *each.counts(), sum(each.jobs.values()) / seconds, *each.percentiles(), [round(n) for n in points[name]]
        )
        for name, each in sorted(sums.items())
    }


def _scale(span: str) -> _Scale:
    if span not in SPANS:
        raise ConfigError(f"there is no span {shown(span)}; known are {', '.join(SPANS)}")
    return SPANS[span]


def _since(now: int, scale: _Scale) -> int:
    """Where the first step begins: the last is the one that is not over."""
    return floor(now, scale.step_us) - (scale.points - 1) * scale.step_us


def _placed(found: Sequence[Recorded], since: int, scale: _Scale) -> Iterable[tuple[int, Recorded]]:
    """Each with its step. A job may have ended a moment after the chart's last step."""
    for each in found:
        step = (each.at - since) // scale.step_us
        if step >= 0:
            yield min(step, scale.points - 1), each
