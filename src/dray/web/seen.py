"""Jobs as one visitor may see them: those of their queues, with redacted arguments hidden."""

from __future__ import annotations

import re
from typing import Any

from dray.errors import PayloadError
from dray.handle.job import Job
from dray.model.search import Search, Term
from dray.model.values import shown
from dray.ops.search import Found, search
from dray.sanitize import HIDDEN
from dray.waiter import unknown_job
from dray.web.page import NotFound
from dray.web.visit import Visit

_PART = re.compile(r"[0-9a-fA-F-]{1,36}")
BUDGET = 0.045  # seconds that a page looks for jobs: all of it has 100 ms
_SHORT = 8  # characters of an id in lists


def job_of(visit: Visit, job_id: str) -> Job[Any]:
    """The job of a whole id. One of a queue that the visitor may not see is as good as none."""
    found = Job[Any](visit.core, job_id).refresh()
    if not visit.access.sees(found.queue):
        raise unknown_job(job_id)
    return found


def whole_id(visit: Visit, part: str) -> str | None:
    """The id of the job that a part of it names; None: several have it, or it is not among the newest jobs, which is
    how far is looked here."""
    if _PART.fullmatch(part) is None:
        raise NotFound(f"No job's id contains {shown(part)}.")
    found = search(
        visit.core, Search((Term("id", part.lower()),)), limit=2, budget=BUDGET, queues=visit.access.queues
    )
    if not found.jobs and found.next is None:
        raise NotFound(f"No job's id contains {shown(part)}.")
    return only(found, part.lower())


def only(found: Found, part: str) -> str | None:
    """The one job that a part of an id means. The end that lists show is enough, as no two jobs have the same."""
    if len(found.jobs) != 1 or part not in found.jobs[0].id:
        return None
    is_known = found.next is None or (found.jobs[0].id.endswith(part) and len(part) >= _SHORT)
    return found.jobs[0].id if is_known else None


def args_of(job: Job[Any]) -> dict[str, Any] | None:
    """The arguments, secret ones hidden; None: they were not kept, or are no JSON: a row that was written by hand."""
    try:
        return job.args
    except PayloadError:
        return None


def hides_args(job: Job[Any]) -> bool:
    """Whether there is something to reveal."""
    return HIDDEN in (args_of(job) or {}).values()
