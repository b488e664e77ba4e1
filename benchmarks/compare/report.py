"""The results of a comparison, as written to compare.json."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.compare.entrants import Guarantees

MEASURES = {
    "enqueue": "enqueue one, jobs/s",
    "bulk": "bulk enqueue, jobs/s",
    "drain": "drain, jobs/s",
    "p50": "pick-up p50, ms",
    "p99": "pick-up p99, ms",
}


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one queue in one round: rates in jobs/s, pick-ups in ms. None: it does not have this."""

    enqueue: float
    bulk: float | None
    drain: float
    drained: int  # jobs that ran within the time limit
    p50: float
    p99: float
    samples: int
    p50_from_call: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure over all rounds."""

    median: float
    low: float
    high: float


def figure(values: Sequence[float]) -> Figure:
    return Figure(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Row:
    """One queue on one store."""

    name: str
    store: str
    version: str
    settings: str
    guarantees: Guarantees
    rounds: list[Round] = field(default_factory=list[Round])
    failures: list[str] = field(default_factory=list[str])

    @property
    def title(self) -> str:
        return f"{self.name}, {self.store}"

    def figure(self, measure: str) -> Figure | None:
        values = [value for each in self.rounds if (value := getattr(each, measure)) is not None]
        return figure(values) if values else None

    def as_json(self) -> dict[str, Any]:
        figures = {measure: self.figure(measure) for measure in MEASURES}
        return {**asdict(self), "figures": {name: found and asdict(found) for name, found in figures.items()}}


@dataclass(slots=True)
class Report:
    """A whole run."""

    machine: str
    jobs: int
    singles: int
    rows: list[Row] = field(default_factory=list[Row])
    left_out: list[str] = field(default_factory=list[str])  # sentences

    @property
    def rounds(self) -> int:
        return max((len(row.rounds) for row in self.rows), default=0)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [row.as_json() for row in self.rows]}
