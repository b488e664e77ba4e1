"""Rates, times and failures as several pages show them: read once for all visits, and kept for a moment.

What a visitor who may see some queues alone gets is made of these queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import quote

from markupsafe import Markup

from dray.errors import ConfigError
from dray.model.limit import Scope
from dray.model.rollup import THRESHOLDS
from dray.model.values import shown
from dray.ops import limits, metrics
from dray.ops.failures import ErrorGroup
from dray.ops.metrics import Point, Rates, Series, Total
from dray.web import menu, show
from dray.web.failing import Asked
from dray.web.svg import charts
from dray.web.visit import Visit

# Seconds that figures are kept: the longer the time that they are of, the less they change.
_KEPT = {"1h": 2.0, "24h": 15.0, "7d": 60.0}
SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
WORDS = {"1h": "this hour", "24h": "in 24 h", "7d": "in 7 days"}
_STEPS = {60: "a minute", 3600: "an hour"}
_GROUPS = 10  # of failures that are read for a list
_QUEUES = 10  # queues of a visitor's that a chart is made of
_LIMITS = 5.0  # seconds that limits are kept
_BAD_SHARE, _BAD_JOBS = 0.01, 10  # failed jobs of a queue or task, from which they are marked


def span_of(visit: Visit) -> str:
    """The window that a page is asked for."""
    span = visit.query.get("span", "1h")
    if span not in SPANS:
        raise ConfigError(f"there is no window {shown(span)}; known are {', '.join(SPANS)}")
    return span


def windows(visit: Visit, span: str) -> list[dict[str, Any]]:
    """The links that change the window."""
    path = quote(visit.path.removesuffix(".json"), safe="/:")
    words = {"1h": "1 h", "24h": "24 h", "7d": "7 d"}
    return [{"word": words[each], "href": visit.url(path, span=each), "is_on": each == span} for each in SPANS]


def series(visit: Visit, span: str, *, queue: str | None = None, task: str | None = None) -> Series:
    key = ("series", span, queue, task)
    return visit.site.shared.get(
        key, _KEPT[span], lambda: metrics.series(visit.backend, span, queue=queue, task=task)
    )


def series_seen(visit: Visit, span: str) -> Series:
    """Of all that a visitor may see. Of several queues the counts alone: times of two queues cannot be added up."""
    queues = visit.access.queues
    if queues is None:
        return series(visit, span)
    if len(queues) == 1:
        return series(visit, span, queue=next(iter(queues)))
    none = {"waited_p50": None, "waited_p95": None, "ran_p50": None, "ran_p95": None}
    each = [series(visit, span, queue=queue) for queue in sorted(queues)[:_QUEUES]]
    base = series(visit, span)
    points = [
        replace(point, **_sums([other.points[place] for other in each if place < len(other.points)]), **none)
        for place, point in enumerate(base.points)
    ]
    rate = sum(other.total.per_second for other in each)
    total = replace(base.total, **_sums([other.total for other in each]), **none, per_second=rate, waited=[], ran=[])
    return Series(base.step_s, points, total)


def _sums(parts: Sequence[Any]) -> dict[str, int]:
    return {outcome: sum(getattr(part, outcome) for part in parts) for outcome in charts.OUTCOMES}


def rates(visit: Visit, span: str, by: Literal["queue", "task"]) -> dict[str, Rates]:
    return visit.site.shared.get(("rates", span, by), _KEPT[span], lambda: metrics.rates(visit.backend, span, by))


def groups(visit: Visit, span: str) -> list[ErrorGroup]:
    """Failures of the whole database by error, those with the most jobs first."""

    asked = Asked(SPANS[span].total_seconds(), _GROUPS, _KEPT[span])
    return sorted(visit.site.failing.groups(asked), key=lambda group: -group.count)


def ended_chart(found: Series) -> dict[str, Any]:
    """The chart of what ended, with the same as a table."""
    word = f"Ended, {_STEPS.get(found.step_s, f'each {found.step_s} s')}"
    points = [charts.Bar(point.at, point.completed, point.failed, point.cancelled) for point in found.points]
    return {"word": word, "drawing": charts.bars(points, title=word, step=found.step_s), **_table(found)}


def times_chart(found: Series) -> Markup:
    """How long jobs waited and ran."""
    wait = charts.Line("wait", "l-b", [point.waited_p95 for point in found.points])
    run = charts.Line("run", "l-a", [point.ran_p95 for point in found.points])
    ats = [point.at for point in found.points]
    return charts.lines([wait, run], ats, title="p95 of wait and run time", step=found.step_s)


def _table(found: Series) -> dict[str, Any]:
    """Newest first; steps in which nothing ended are left out."""
    ended = [point for point in reversed(found.points) if point.completed or point.failed or point.cancelled]
    return {"points": ended, "is_daily": found.step_s >= 3600}


def histogram(counts: Sequence[int], title: str) -> dict[str, Any]:
    """Times by class, from the first class that has any to the last."""
    words = [f"under {charts.seconds(at / 1_000_000)}" for at in THRESHOLDS] + ["a day and more"]
    named = list(zip(words, counts, strict=False))
    used = [place for place, (_, count) in enumerate(named) if count]
    part = named[used[0] : used[-1] + 1] if used else []
    return {"drawing": charts.columns(part, title=title), "classes": part}


def per(rate: float) -> str:
    """How often, short: 14.2 /s, 3.5 /min, 2 /h."""
    if rate <= 0:
        return "0 /s"
    units = (("s", 1), ("min", 60), ("h", 3600), ("day", 86400))
    unit, seconds = next((each for each in units if rate * each[1] >= 0.95), units[-1])
    number = rate * seconds
    return f"{number:,.0f} /{unit}" if number >= 100 else f"{number:.1f} /{unit}"


def rated(found: Rates | None) -> dict[str, Any]:
    """What ended of a queue or a task, as a row shows it."""
    if found is None:
        nothing = dict.fromkeys(("waited_p50", "waited_p95", "ran_p50", "ran_p95"))
        return {"ended": 0, "failed": 0, "rate": "0 /s", "share": show.NONE, "is_bad": False, "points": [], **nothing}
    ended = found.completed + found.failed + found.cancelled
    return {
        "ended": ended,
        "failed": found.failed,
        "rate": per(found.per_second),
        "share": show.percent(found.failed, ended),
        "is_bad": found.failed >= _BAD_JOBS and found.failed >= _BAD_SHARE * ended,
        "points": found.points,
        "waited_p50": found.waited_p50,
        "waited_p95": found.waited_p95,
        "ran_p50": found.ran_p50,
        "ran_p95": found.ran_p95,
    }


def live_workers(visit: Visit) -> list[dict[str, Any]]:
    """Those that live, with their duties."""
    leases = menu.around(visit.site).leases
    return [
        {**worker, "duties": [lease.duty for lease in leases if lease.holder == worker["id"]]}
        for worker in visit.site.snapshot().workers
    ]


def limited(visit: Visit, scope: Scope) -> dict[str, dict[str, Any]]:
    """The limits in force of queues or of tasks, by name."""
    return visit.site.shared.get(("limits", scope), _LIMITS, lambda: limits.in_force(visit.backend, scope))


def rates_shape(found: Rates) -> dict[str, Any]:
    return _values(found, but="points")


def series_shape(found: Series) -> dict[str, Any]:
    points = [_values(point) for point in found.points]
    return {"step": found.step_s, "total": _values(found.total), "points": points}


def group_shape(group: ErrorGroup) -> dict[str, Any]:
    return _values(group, but="points")


def _values(record: Point | Total | Rates | ErrorGroup, but: str = "") -> dict[str, Any]:
    """`asdict` copies each value, which took a fifth of a page with a week's points."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != but}
