"""The results as one SVG: a panel for each measure, sorted from the best. Rates are bars on a linear scale.

Pick-ups differ by a factor of thousands: there a dot is p50 and the line ends at p99, on a logarithmic scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.compare.report import Figure, Report, Row
from benchmarks.compare.table import number

_WIDTH = 760
_LEFT = 216  # where bars start
_SPAN = 420  # the longest bar
_ROW = 22
_HEAD = 58
_TOP = 80
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; } .head { font-size: 14px; font-weight: 600; }
  .dray { font-weight: 700; } .small { font-size: 11px; fill: #59636e; }
  .back { fill: #ffffff; } .grid { stroke: #d1d9e0; } .range { stroke: #1f2328; stroke-width: 1.5; }
  .tail { stroke-width: 3; }
  .SQLite { fill: #2f6fd6; stroke: #2f6fd6; } .PostgreSQL { fill: #1a7f5a; stroke: #1a7f5a; }
  .Redis { fill: #c4572d; stroke: #c4572d; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .back { fill: #0d1117; } .grid { stroke: #3d444d; }
    .range { stroke: #e6edf3; }
    .SQLite { fill: #5b95f5; stroke: #5b95f5; } .PostgreSQL { fill: #3fb68b; stroke: #3fb68b; }
    .Redis { fill: #f0875c; stroke: #f0875c; }
  }
"""
_FOOTNOTES = (
    "\N{DAGGER} at most once: the job of a killed worker is not run again.   "
    "\N{DOUBLE DAGGER} not durable when enqueue returns."
)
_RATES = {
    "drain": "Drain, one worker: jobs a second",
    "enqueue": "Enqueue one by one: jobs a second",
    "bulk": "Bulk enqueue: jobs a second",
}


class Mark(NamedTuple):
    """A row of a panel."""

    row: Row
    figure: Figure
    last: Figure  # where the line ends: for rates the same figure


def plot(report: Report) -> str:
    parts = [_legend(report)]
    top = _TOP
    for measure, title in _RATES.items():
        marks = _sorted_marks(report.rows, measure, measure, lowest_first=False)
        top = _panel(parts, top, f"{title} (more is better)", marks, _bar)
    marks = _sorted_marks(report.rows, "p50", "p99", lowest_first=True)
    top = _panel(parts, top, "Pick-up by an idle worker: ms, logarithmic, p50 to p99 (less is better)", marks, _dot)
    height = top + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="Rates and pick-up times of Dray and its peers">\n<style>{_STYLE}</style>\n'
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _sorted_marks(rows: Sequence[Row], measure: str, last: str, *, lowest_first: bool) -> list[Mark]:
    found = [(row, row.figure(measure), row.figure(last)) for row in rows]
    marks = [Mark(row, first, end) for row, first, end in found if first is not None and end is not None]
    return sorted(marks, key=lambda mark: mark.figure.median, reverse=not lowest_first)


def _legend(report: Report) -> str:
    parts = [_text(20, 28, "Dray beside its peers", "title")]
    for place, store in enumerate(("SQLite", "PostgreSQL", "Redis")):
        parts.append(f'<rect class="{store}" x="{420 + 110 * place}" y="18" width="11" height="11" rx="2"/>')
        parts.append(_text(437 + 110 * place, 28, store))
    rounds = f"{report.rounds} round" + ("s" if report.rounds != 1 else "")
    parts.append(_text(20, 50, f"Medians and the range of {rounds}. {report.machine}", "small"))
    parts.append(_text(20, 68, _FOOTNOTES, "small"))
    return "\n".join(parts)


Draw = Callable[[Mark, float, float, float], str]


def _panel(parts: list[str], top: int, title: str, marks: list[Mark], draw: Draw) -> int:
    """Adds a panel and returns where the next one starts."""
    if not marks:
        return top
    parts.append(f'<line class="grid" x1="20" x2="{_WIDTH - 20}" y1="{top + 8}" y2="{top + 8}"/>')
    parts.append(_text(20, top + 34, title, "head"))
    least = min(mark.figure.median for mark in marks)
    most = max(max(mark.figure.high, mark.last.median) for mark in marks)
    for place, mark in enumerate(marks):
        middle = top + _HEAD + place * _ROW
        parts.append(_text(_LEFT - 8, middle + 4, _label(mark.row), _weight(mark), "end"))
        parts.append(draw(mark, middle, least, most))
    return top + _HEAD + len(marks) * _ROW


def _bar(mark: Mark, middle: float, _: float, most: float) -> str:
    low, median, high = (_SPAN * value / most for value in (mark.figure.low, mark.figure.median, mark.figure.high))
    return (
        f'<rect class="{mark.row.store}" x="{_LEFT}" y="{middle - 7:.0f}" width="{max(1, median):.1f}" height="14"/>'
        f'<line class="range" x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{middle}" y2="{middle}"/>'
        + _text(_LEFT + max(median, high) + 6, middle + 4, number(mark.figure.median), _weight(mark))
    )


def _dot(mark: Mark, middle: float, least: float, most: float) -> str:
    def x(value: float) -> float:
        """Half a decade is kept free to the left of the best."""
        floor = max(least, 0.01) / 3
        return _LEFT + _SPAN * math.log(max(value, floor) / floor) / math.log(max(most / floor, 10))

    start, end = x(mark.figure.median), x(mark.last.median)
    text = f"{number(mark.figure.median)} to {number(mark.last.median)}"
    return (
        f'<line class="{mark.row.store} tail" x1="{start:.1f}" x2="{end:.1f}" y1="{middle}" y2="{middle}"/>'
        f'<circle class="{mark.row.store}" cx="{start:.1f}" cy="{middle}" r="5"/>'
        + _text(end + 8, middle + 4, text, _weight(mark))
    )


def _label(row: Row) -> str:
    given = row.guarantees
    signs = ("\N{DAGGER}" if given.delivery == "at most once" else "") + (
        "" if given.durable == "yes" else "\N{DOUBLE DAGGER}"
    )
    return f"{row.title} {signs}".rstrip()


def _weight(mark: Mark) -> str:
    return "dray" if mark.row.name == "Dray" else ""


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'
