"""Charts: bars, lines, a spark in a table, a gauge, a worker's slots.

A plot is stretched to its box and its labels are text beside it, so that they stay readable on a phone. Each has a
name for those who cannot see it; the same numbers stand in a table beside it (`templates/charts.html`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup

from dray.web.show import iso
from dray.web.svg.tags import decimal, tag

_W, _H = 600, 180  # units of a plot, which is stretched
_LABELS = 5  # below a plot, beside "now"
_GAUGE = 92
_SLOTS = 64  # slots that are drawn; a worker may have thousands
OUTCOMES = ("completed", "failed", "cancelled")


class Bar(NamedTuple):
    at: datetime
    completed: int
    failed: int
    cancelled: int


def bars(points: Sequence[Bar], *, title: str, step: float) -> Markup:
    """How many jobs ended, a bar for each step of `step` seconds, one part for each outcome."""
    most = max((sum(point[1:]) for point in points), default=0)
    ticks = _ticks(most, whole=True)
    width = _W / max(1, len(points))
    drawn = _grid(len(ticks) - 1)
    for place, point in enumerate(points):
        base, parts = 0, list[Markup]()
        for outcome, count in zip(OUTCOMES, point[1:], strict=True):
            if count:
                top, bottom = _y(base + count, ticks[-1]), _y(base, ticks[-1])
                gap = min(1.0, width / 8)
                parts.append(
                    tag(
                        "rect",
                        class_=f"c-{outcome}",
                        x=decimal(place * width + gap),
                        y=decimal(top),
                        width=decimal(width - 2 * gap),
                        height=decimal(bottom - top),
                    )
                )
            base += count
        if parts:
            drawn.append(tag("g", tag("title", f"{_time(point.at, step)} UTC: {_counts(*point[1:])}"), *parts))
    sums = [sum(counts) for counts in zip(*(point[1:] for point in points), strict=True)] or [0, 0, 0]
    name = f"{title}. {_counts(*sums)} altogether; at most {most:,} at a time."
    return _plot(drawn, [_count(tick) for tick in ticks], [point.at for point in points], step, "tall", name)


class Line(NamedTuple):
    name: str
    class_: str  # l-a or l-b
    values: Sequence[float | None]  # None: nothing to show there


def lines(series: Sequence[Line], ats: Sequence[datetime], *, title: str, step: float) -> Markup:
    """Seconds over time, a line for each series. A value between two that are missing is a dot."""
    known = [value for line in series for value in line.values if value is not None]
    ticks = _time_ticks(max(known, default=0.0))
    drawn = _grid(len(ticks) - 1)
    across = _W / max(1, len(ats) - 1)
    for line in series:
        path, alone = list[str](), list[str]()
        for place, value in enumerate(line.values):
            if value is not None:
                starts = place == 0 or line.values[place - 1] is None
                at = f"{decimal(place * across)} {decimal(_y(value, ticks[-1]))}"
                if starts and (place + 1 >= len(line.values) or line.values[place + 1] is None):
                    alone.append(f"M{at}h.01")
                else:
                    path.append(f"M{at}" if starts else f"L{at}")
        if path:
            drawn.append(tag("path", class_=line.class_, d="".join(path)))
        if alone:
            drawn.append(tag("path", class_=f"{line.class_} alone", d="".join(alone)))
    last = ", ".join(f"{line.name} {_last(line.values)}" for line in series)
    return _plot(drawn, [seconds(tick) for tick in ticks], ats, step, "low", f"{title}. Last: {last}.")


def spark(values: Sequence[float], width: int = 112, height: int = 24) -> Markup:
    """The course of one number. It stands beside that number, so it has no name of its own."""
    shown = [*values, *values] if len(values) == 1 else values or (0, 0)
    most = max(shown) or 1
    across = width / (len(shown) - 1)
    points = [
        f"{decimal(i * across)} {decimal(height - 2 - (height - 5) * value / most)}" for i, value in enumerate(shown)
    ]
    path = "M" + "L".join(points)
    return tag(
        "svg",
        tag("path", class_="f", d=f"{path}L{width} {height}L0 {height}Z"),
        tag("path", class_="s", d=path),
        class_="spark",
        viewBox=f"0 0 {width} {height}",
        aria_hidden="true",
    )


def gauge(on: int, of: int) -> Markup:
    """How much of something is used. The numbers stand beside it."""
    part = min(1.0, on / of) if of > 0 else 0.0
    return tag(
        "svg",
        tag("rect", class_="bg", width=_GAUGE, height=8, rx=4),
        tag("rect", class_="on", width=decimal(_GAUGE * part), height=8, rx=4),
        class_="gauge",
        viewBox=f"0 0 {_GAUGE} 8",
        aria_hidden="true",
    )


def slots(on: int, of: int) -> Markup:
    """A worker's slots, those in use first. Of many, as many are drawn as fit, in proportion."""
    drawn = min(max(of, 1), _SLOTS)
    lit = on if of <= _SLOTS else math.ceil(min(on, of) * drawn / of)
    squares = [
        tag("rect", class_="on" if place < lit else "off", x=13 * place, y=1, width=10, height=10, rx=2)
        for place in range(drawn)
    ]
    width = 13 * drawn
    return tag(
        "svg",
        *squares,
        class_="slots",
        width=width,
        height=14,
        viewBox=f"0 0 {width} 14",
        preserveAspectRatio="xMinYMid meet",
        aria_hidden="true",
    )


def columns(counts: Sequence[tuple[str, int]], *, title: str) -> Markup:
    """A histogram: how many are in each class, the classes in order and named."""
    most = max((count for _, count in counts), default=0)
    ticks = _ticks(most, whole=True)
    width = _W / max(1, len(counts))
    drawn = _grid(len(ticks) - 1)
    for place, (name, count) in enumerate(counts):
        if count:
            top = _y(count, ticks[-1])
            box = {"x": decimal(place * width + 1), "y": decimal(top), "width": decimal(width - 2)}
            bar = tag("rect", class_="c-running", height=decimal(_H - top), **box)
            drawn.append(tag("g", tag("title", f"{name}: {count:,}"), bar))
    names = [name for name, _ in counts]
    shown = [tag("span", name) for name in (*names[:: max(1, math.ceil(len(names) / _LABELS))],)]
    return _boxed(drawn, [_count(tick) for tick in ticks], shown, "low", f"{title}. Most: {_most(counts)}.")


def _most(counts: Sequence[tuple[str, int]]) -> str:
    name, count = max(counts, key=lambda each: each[1], default=("", 0))
    return f"{name}, {count:,}" if count else "none"


def _plot(
    drawn: Sequence[Markup], up: Sequence[str], ats: Sequence[datetime], step: float, kind: str, name: str
) -> Markup:
    every = max(1, math.ceil(len(ats) / _LABELS))
    along = [
        tag("time", _time(at, step), datetime=iso(at), data_show="day" if step >= 3600 else "minute")
        for at in ats[::every]
    ]
    return _boxed(drawn, up, [*along, tag("span", "now")], kind, name)


def _boxed(drawn: Sequence[Markup], up: Sequence[str], along: Sequence[Markup], kind: str, name: str) -> Markup:
    picture = tag(
        "svg",
        *drawn,
        viewBox=f"0 0 {_W} {_H}",
        preserveAspectRatio="none",
        role="img",
        aria_label=name,
    )
    return tag(
        "div",
        tag("div", *(tag("span", word) for word in up), class_="y", aria_hidden="true"),
        picture,
        tag("div", *along, class_="x", aria_hidden="true"),
        class_=f"plot {kind}",
    )


def _grid(parts: int) -> list[Markup]:
    return [
        tag("path", class_="base" if place == parts else "ax", d=f"M0 {decimal(_H * place / parts)}H{_W}")
        for place in range(parts + 1)
    ]


def _y(value: float, top: float) -> float:
    return _H * (1 - value / top)


def _ticks(most: float, *, whole: bool = False) -> list[float]:
    """From 0 in round steps to no less than the most: three to five of them where that is possible."""
    if most <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(most))
    steps = [power * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 2.5)]
    if whole:
        steps = [max(1.0, step) for step in steps if step >= 1 and step == int(step)] or [1.0]
    step = next((step for step in steps if most / step <= 4), steps[-1])
    return [step * place for place in range(math.ceil(most / step - 1e-9) + 1)]


# Steps of seconds that make round labels.
_STEPS = (
    *(part * power for power in (0.001, 0.01, 0.1, 1) for part in (1, 2, 5)),
    *(10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 6, 12)),
)


def _time_ticks(most: float) -> list[float]:
    step = next((step for step in _STEPS if most / step <= 4), 86400 * max(1, math.ceil(most / 4 / 86400)))
    return [step * place for place in range(max(1, math.ceil(most / step - 1e-9)) + 1)]


def _count(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}m"
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def seconds(value: float) -> str:
    """A round number of seconds, in the unit that fits it."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if value >= length:
            return f"{value / length:.3g} {unit}"
    return "0" if value == 0 else f"{value * 1000:.3g} ms"


def _last(values: Sequence[float | None]) -> str:
    value = next((value for value in reversed(values) if value is not None), None)
    return "nothing" if value is None else seconds(value)


def _counts(completed: int, failed: int, cancelled: int) -> str:
    return f"{completed:,} completed, {failed:,} failed, {cancelled:,} cancelled"


def _time(at: datetime, step: float) -> str:
    return f"{at.astimezone(UTC):%a %H:%M}" if step >= 3600 else f"{at.astimezone(UTC):%H:%M}"
