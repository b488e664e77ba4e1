"""Searches for jobs, for the command line, the dashboard and exports: a page at a time, or counted, each bounded.

Arguments are searched as they are shown: what a task redacts is ``***`` here too, and is not found by its value, not
even by people who may reveal it. The same holds for all arguments of unknown tasks where these are hidden.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Literal, NamedTuple

from dray import codec
from dray.app_interface import AppInterface
from dray.backends.store.search import Fits, Place, by_end
from dray.errors import ConfigError, PayloadError
from dray.handle.job import Job
from dray.instants import FIRST_INSTANT, LAST_INSTANT, SECOND
from dray.model.search import Search, parse
from dray.model.sought import Sought, fits_args, sought
from dray.model.values import canonical_id, shown
from dray.ops.listing import check_limit

BUDGET = 0.06  # seconds that a page looks for jobs
COUNTED = 10_000  # jobs; beyond that a count says "more than"
_ENDED = re.compile(r"(-?[0-9]{1,18})\.([0-9a-f-]{36})")


class Found(NamedTuple):
    """A page of a search."""

    jobs: list[Job[Any]]
    next: str | None  # where the next page begins, for `before`; None: there are no more
    looked: int  # jobs that were looked at, at least
    is_complete: bool  # all were looked at, or the page is full; False: there may be more where `next` is
    newest_first_by: Literal["ended", "enqueued"]


class Count(NamedTuple):
    jobs: int
    is_capped: bool  # there are more, or may be


def search(
    core: AppInterface,
    text: str | Search,
    *,
    limit: int = 50,
    before: str | None = None,
    budget: float = BUDGET,
    queues: frozenset[str] | None = None,
) -> Found:
    """Jobs that fit, newest first, found within `budget` seconds; `queues`: only jobs of these."""
    meant = _meant(core, text, queues)
    place = None if before is None else _place(meant, before)
    page = core.backend.search.page(
        meant, limit=check_limit(limit), before=place, budget_us=round(budget * SECOND), fits=fits(core, meant)
    )
    return Found(
        [Job(core, row.id, row=row) for row in page.jobs],
        None if page.next is None else _cursor(page.next),
        page.looked,
        page.next is None or len(page.jobs) == limit,
        "ended" if by_end(meant) else "enqueued",
    )


def after(core: AppInterface, text: str | Search, job: Job[Any]) -> str:
    """Where the jobs begin that come after this one in the list, for `before`."""
    ended = by_end(_meant(core, text, None))
    if ended and job.row.finished_at is None:
        raise ConfigError(f"job {job.id} has not ended, so it is not in this list; name one that is")
    return _cursor(Place(job.row.finished_at if ended else None, job.id))


def count(
    core: AppInterface,
    text: str | Search,
    cap: int = COUNTED,
    budget: float = BUDGET,
    *,
    queues: frozenset[str] | None = None,
) -> Count:
    """How many jobs fit; no further than `cap`, and than `budget` seconds allow."""
    meant = _meant(core, text, queues)
    found = core.backend.search.places(
        meant, limit=cap, before=None, budget_us=round(budget * SECOND), fits=fits(core, meant)
    )
    return Count(len(found.places), found.next is not None)


def fits(core: AppInterface, meant: Sought) -> Fits | None:
    """What decides about arguments, by what is shown of them; None: the database decides alone."""
    return partial(_fits, core, meant) if meant.args else None


def _fits(core: AppInterface, meant: Sought, task: str, stored: str | None) -> bool:
    try:
        args = codec.decode_args(stored or "{}")
    except PayloadError:
        return False  # a row that was written by hand
    return fits_args(meant.args, core.shown_args(task, args))


def _meant(core: AppInterface, text: str | Search, queues: frozenset[str] | None) -> Sought:
    asked = parse(text) if isinstance(text, str) else text
    # PostgreSQL is asked for its time, so only where it matters.
    now = core.backend.now() if any(map(asked.has, ("since", "until", "enqueued"))) else 0
    return sought(asked, now, queues=queues)


def _cursor(place: Place) -> str:
    return place.id if place.at is None else f"{place.at}.{place.id}"


def _place(meant: Sought, cursor: str) -> Place:
    """Where a page begins. The order of the list decides what is one."""
    if by_end(meant):
        found = _ENDED.fullmatch(cursor)
        at, job_id = (int(found[1]), canonical_id(found[2])) if found else (0, None)
        is_one = job_id is not None and FIRST_INSTANT <= at <= LAST_INSTANT
    else:
        at, job_id = None, canonical_id(cursor)
        is_one = job_id is not None
    if not is_one:
        raise ConfigError(f"before={shown(cursor)} is no place in this list; begin at its first page")
    return Place(at, str(job_id))
