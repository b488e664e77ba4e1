"""Rates and times from the rollups: of everything, by queue and by task, over an hour, a day or a week."""

from __future__ import annotations

from typing import Any

from dray.ops.metrics import Rates
from dray.web import figures
from dray.web.page import Page, Post, View
from dray.web.visit import Visit

_ROWS = 100  # queues or tasks that are shown: those of which the most ended


def show_metrics(visit: Visit) -> View:
    span = figures.span_of(visit)
    found = figures.series(visit, span)
    queues, tasks = figures.rates(visit, span, "queue"), figures.rates(visit, span, "task")
    total = found.total
    ended = total.completed + total.failed + total.cancelled
    data: dict[str, Any] = {
        "span": span,
        "words": figures.WORDS[span],
        "windows": figures.windows(visit, span),
        "chart": figures.ended_chart(found),
        "waits": figures.times_chart(found),
        "total": total,
        "ended_count": ended,
        "rate": figures.per(total.per_second),
        "waited": figures.histogram(total.waited, "Jobs by how long they waited"),
        "ran": figures.histogram(total.ran, "Jobs by how long they ran"),
        "queues": _rows(queues),
        "tasks": _rows(tasks),
        "most": _ROWS,
    }
    shape = {
        "span": span,
        **figures.series_shape(found),
        "queues": {row["name"]: figures.rates_shape(queues[row["name"]]) for row in data["queues"]},
        "tasks": {row["name"]: figures.rates_shape(tasks[row["name"]]) for row in data["tasks"]},
        "more_queues": len(queues) - len(data["queues"]),
        "more_tasks": len(tasks) - len(data["tasks"]),
    }
    return View("metrics.html", "Metrics", data, shape)


def _rows(found: dict[str, Rates]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"name": name, **figures.rated(rates)} for name, rates in found.items()]
    return sorted(rows, key=lambda row: (-row["ended"], row["name"]))[:_ROWS]


PAGES: list[Page] = [Page("/metrics", show_metrics, "metrics", frozenset({"jobs"}), is_whole=True)]
POSTS: list[Post] = []
