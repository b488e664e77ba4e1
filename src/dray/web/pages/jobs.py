"""The list of jobs: search, chips, tabs by state, a page at a time, exports."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dray.errors import ConfigError
from dray.handle.job import Job
from dray.model.job import FINAL, LIVE, UNSTARTED, State
from dray.model.search import KEYS, Search, Term, parse
from dray.model.values import canonical_id
from dray.ops import export, shapes
from dray.ops.search import Found, search
from dray.web import seen
from dray.web.page import Download, Goto, Page, Post, Shown, View
from dray.web.show import about, as_json
from dray.web.visit import Visit

ROWS = 50
_ARGS = 4_096  # bytes of arguments that a list reads; larger ones are said to be large
_ARGS_SHOWN = 300  # characters
_ID = re.compile(r"[0-9a-f]{6,}(?:-[0-9a-f-]*)?")  # what may be meant as an id
_CHARACTER = re.compile(r"at character (\d+)")
VERBS = {  # what can be done to many jobs, and to jobs of which states
    "retry": FINAL,
    "cancel": LIVE,
    "delete": FINAL | UNSTARTED,
}
_HINTS = {
    "state": "failed",
    "queue": "mail",
    "task": "mail.*",
    "tag": "nightly",
    "key": "account-7",
    "worker": "app-1",
    "workflow": "quarterly",
    "schedule": "digest",
    "reason": "timeout",
    "error": "Timeout",
    "attempt": ">1",
    "since": "1h",
    "until": "30m",
    "ran": ">30s",
    "id": "51721fc6",
    "args": "user_id:42",
}


class Tab(NamedTuple):
    word: str
    query: str
    shown: str | None  # how many
    is_current: bool


class Chip(NamedTuple):
    """A term of the search, and the search without it."""

    name: str
    value: str
    without: str


class Row(NamedTuple):
    job: Job[Any]
    args: str
    ran: float | None
    at: Any  # when it ended or was enqueued


def show(visit: Visit) -> Shown:
    text = visit.query.get("q", "")
    try:
        asked = parse(text)
        if visit.query.get("key") and visit.query.get("value"):
            added = _plus(asked, visit.query["key"], visit.query["value"])
            return Goto(f"/jobs?{urlencode({'q': added.text()})}")
        if (whole := _whole(visit, text)) is not None:
            return Goto(f"/jobs/{whole}")
        began = time.perf_counter()
        found = search(
            visit.core,
            asked,
            limit=ROWS,
            before=visit.query.get("before"),
            budget=seen.BUDGET,
            queues=visit.access.queues,
        )
        took = time.perf_counter() - began
    except ConfigError as error:
        return _refused(visit, text, str(error))
    if (only := _only(visit, asked, found)) is not None:
        return Goto(f"/jobs/{only}")
    data = {**_around(visit, text, asked), **_listed(visit, found, took), "wrong": None}
    jobs = shapes.jobs(visit.core, found.jobs)
    shape = {"jobs": jobs, "next": found.next, "looked": found.looked, "is_complete": found.is_complete}
    return View("jobs.html", "Jobs", data, shape)


def _plus(asked: Search, key: str, value: str) -> Search:
    """The search with the filter of the form below it: `args` with a path, others with a value."""
    word = f"args.{value}" if key == "args" else f"{key}:{value}" if _is_bare(key, value) else Term(key, value).text()
    return parse(f"{asked.text()} {word}".strip())


def _is_bare(key: str, value: str) -> bool:
    return key in {"attempt", "ran"} and value[:1] in "<>"


def _whole(visit: Visit, text: str) -> str | None:
    """The job whose whole id was written into the box, which is read by it."""
    whole = canonical_id(text.strip().lower().removeprefix("id:"))
    if whole is None or visit.path.endswith(".json") or visit.is_fragment:
        return None
    found = visit.backend.jobs.get([whole])
    return whole if found and visit.access.sees(found[0].queue) else None


def _only(visit: Visit, asked: Search, found: Found) -> str | None:
    """The job of whose id a part was written into the box."""
    is_page = not visit.path.endswith(".json") and not visit.is_fragment and "before" not in visit.query
    if not is_page or len(asked.terms) != 1 or asked.terms[0].key not in {"text", "id"} or asked.terms[0].negated:
        return None
    part = asked.terms[0].value.lower()
    return seen.only(found, part) if _ID.fullmatch(part) else None


def _refused(visit: Visit, text: str, problem: str) -> View:
    """The error beside the box, with a mark below the character that it is about."""
    place = _CHARACTER.search(problem)
    data: dict[str, Any] = {
        **_around(visit, text, Search()),
        "rows": [],
        "found": None,
        "wrong": {"text": problem, "at": int(place[1]) - 1 if place else None},
    }
    return View("jobs.html", "Jobs", data, {"error": problem}, status=400)


def _around(visit: Visit, text: str, asked: Search) -> dict[str, Any]:
    return {
        "text": text,
        "now": visit.now,
        "tabs": list(_tabs(visit, asked)),
        "chips": list(_chips(asked)),
        "hints": {key: _HINTS[key] for key in KEYS if key in _HINTS},
        "state": _state(asked),
        "verbs": [verb for verb, states in VERBS.items() if _state(asked) in {None, *states} and visit.may(verb)],
    }


def _state(asked: Search) -> str | None:
    """The state whose tab is open; None: all, or several."""
    states = [term for term in asked.terms if term.key == "state"]
    is_one = len(states) == 1 and not states[0].negated and states[0].value in set(State)
    return states[0].value if is_one else None


def _tabs(visit: Visit, asked: Search) -> Iterator[Tab]:
    """Counts are of all jobs of a state, whatever else is asked; those who may see some queues alone get none."""
    seen = visit.site.snapshot()
    counts: Mapping[str, int] = seen.counts if visit.access.queues is None else {}
    rest, current = asked.without("state"), _state(asked)
    total = sum(counts.values())
    every = None if not counts else f"{about(total, None)}+" if seen.is_cut else about(total)
    yield Tab("All", rest.text(), every, not asked.has("state"))
    for state in State:
        query = f"state:{state} {rest.text()}".strip()
        count = about(counts[state], seen.cap(state)) if state in counts else None
        yield Tab(state.capitalize(), query, count, state == current)


def _chips(asked: Search) -> Iterator[Chip]:
    tab = _state(asked)
    for number, term in enumerate(asked.terms):
        if term.key == "state" and tab is not None:
            continue
        rest = Search(asked.terms[:number] + asked.terms[number + 1 :]).text()
        sign, op = "-" if term.negated else "", "" if term.op == ":" else term.op
        name = f"{sign}{'' if term.key == 'text' else f'{term.key}:'}"
        yield Chip(name, f"{op}{term.value}", rest)


def _listed(visit: Visit, found: Found, took: float) -> dict[str, Any]:
    is_by_end = found.newest_first_by == "ended"
    rows = [
        Row(job, _args(job), _ran(visit, job), job.finished_at if is_by_end else job.created_at) for job in found.jobs
    ]
    return {
        "rows": rows,
        "found": found,
        "took": took,
        "is_by_end": is_by_end,
        "next": found.next,
        "before": visit.query.get("before"),
        "is_empty": not rows and not visit.query.get("q") and found.is_complete,
    }


def _args(job: Job[Any]) -> str:
    stored = job.row.args
    if stored is None:
        return ""
    if len(stored) > _ARGS:
        return f"{{… {len(stored) // 1024:,} KiB of arguments}}"
    shown = as_json(seen.args_of(job))
    return shown if len(shown) <= _ARGS_SHOWN else f"{shown[:_ARGS_SHOWN]}…"


def _ran(visit: Visit, job: Job[Any]) -> float | None:
    if job.started_at is None or (job.state not in FINAL and job.state != State.RUNNING):
        return None
    return max(0.0, ((job.finished_at or visit.now) - job.started_at).total_seconds())


# Exports


def as_csv(visit: Visit) -> Shown:
    return _exported(visit, "csv", "text/csv; charset=utf-8")


def as_lines(visit: Visit) -> Shown:
    return _exported(visit, "jsonl", "application/x-ndjson")


def _exported(visit: Visit, kind: export.Form, media_type: str) -> Download:
    parts = export.export(visit.core, parse(visit.query.get("q", "")), kind, queues=visit.access.queues)
    first = next(parts, "")  # now: what fails here is told as on a page, and does not end a file
    return Download(f"jobs.{kind}", media_type, chain([first], parts))


PAGES: list[Page] = [
    Page("/jobs", show, "jobs", frozenset({"jobs"})),
    Page("/jobs/export.csv", as_csv, "jobs"),
    Page("/jobs/export.jsonl", as_lines, "jobs"),
]
POSTS: list[Post] = []
