"""The results and their targets: printed line by line, and as one table at the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One line of the summary."""

    name: str
    measured: str
    bar: str
    verdict: str


class Spread(NamedTuple):
    """The distribution of a measurement."""

    p50: float
    p90: float
    p99: float
    most: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f}  p90 {self.p90:.2f}  p99 {self.p99:.2f}  max {self.most:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Computes percentiles by nearest rank: with few values the high ones are the maximum."""
    ranked = sorted(values)
    p50, p90, p99 = (ranked[math.ceil(len(ranked) * rank) - 1] for rank in (0.5, 0.9, 0.99))
    return Spread(p50, p90, p99, ranked[-1])


class Figures:
    """Collects results that have a target; everything else is only printed."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []

    def heading(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def say(self, what: str, text: str) -> None:
        print(f"  {what:<52} {text}", flush=True)

    def pairs(self, what: str, pairs: Sequence[tuple[float, float]], more: str = "") -> float:
        """Prints the medians of rates, raw and Dray, in jobs a second; returns the median of their ratios."""
        bare, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(ours / bare for bare, ours in pairs)
        self.say(what, f"raw {bare:>8,.0f}/s   Dray {ours:>8,.0f}/s   ratio {ratio:5.0%}{more}")
        return ratio

    def at_least(self, name: str, value: float, bar: float, unit: str) -> None:
        self._add(name, value, f">= {bar:,g}{unit}", unit, is_met=value >= bar)

    def at_most(self, name: str, value: float, bar: float, unit: str) -> None:
        self._add(name, value, f"<= {bar:,g}{unit}", unit, is_met=value <= bar)

    def _add(self, name: str, value: float, bar: str, unit: str, *, is_met: bool) -> None:
        digits = 0 if value >= 1_000 or value == int(value) else 1 if value >= 10 else 2
        self._figures.append(Figure(name, f"{value:,.{digits}f}{unit}", bar, "ok" if is_met else "NOT"))

    def summary(self) -> None:
        if not self._figures:
            return
        rows = [Figure("name", "measured", "bar", ""), *self._figures]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        print()
        for name, measured, bar, verdict in rows:
            print(f"{name:<{widths[0]}}  {measured:>{widths[1]}}  {bar:>{widths[2]}}  {verdict}".rstrip())
