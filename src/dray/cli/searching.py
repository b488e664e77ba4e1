"""Searches as people type them: words, with the options beside them as further filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import dray
from dray.app_interface import core_of
from dray.cli.output import progress
from dray.model.search import Search, parse
from dray.model.values import check_name
from dray.ops import listing
from dray.ops import search as ops

_BUDGET = 0.5  # seconds until it is told how far a search is


def searched(words: Sequence[str]) -> Search:
    """Returns the search of what was typed. It needs no database: its mistakes are told before one is opened."""
    return parse(" ".join(words))


def narrowed(search: Search, fit: Mapping[str, Any]) -> Search:
    """Returns the search with the options beside it; --since is since when a job is enqueued."""
    for name, value in fit.items():
        if name in {"queue", "task", "tag", "schedule"}:
            check_name(name, value)  # an option takes no *
        values = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
        search = search.plus("enqueued" if name == "since" else name, *map(_spelled, values))
    return search


def _spelled(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def found(app: dray.App, search: Search, limit: int, after: str | None) -> list[dray.Job[Any]]:
    """Returns the jobs that a search finds, however far it has to be looked for them."""
    core = core_of(app)
    place = None if after is None else ops.after(core, search, app.job(listing.job_named(core.backend, after)))
    jobs, looked = list[dray.Job[Any]](), 0
    with progress("looked at") as report:
        while True:
            page = ops.search(core, search, limit=limit - len(jobs), before=place, budget=_BUDGET)
            jobs += page.jobs
            place, looked = page.next, looked + page.looked
            if place is None or len(jobs) == limit:
                return jobs
            report(looked, None)
