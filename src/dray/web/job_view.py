"""A job as its page shows it: what is read, and the pieces that its template puts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dray.backends.store.graph import Neighbour, Neighbours
from dray.handle.job import Job
from dray.instants import SECOND
from dray.model import job as model
from dray.model.cause import Cause, Kind
from dray.model.causes import progress_words
from dray.model.error_group import error_key
from dray.model.job import FINAL, State
from dray.ops import failures, shapes
from dray.ops.why import Why, why
from dray.sanitize import escape_control
from dray.web import seen, traces
from dray.web.page import View
from dray.web.sentences import words
from dray.web.svg.graph import Node, graph
from dray.web.svg.ribbon import ribbon
from dray.web.timeline import left_out, timeline
from dray.web.values import Value, shown_value
from dray.web.visit import Visit
from dray.wording import attempt_name, counted, listed, span

if TYPE_CHECKING:
    from markupsafe import Markup

_LINES = 200  # of the log, the newest
_ATTEMPTS = 20  # with their tracebacks, the newest
_NEIGHBOURS = 12  # on each side
_ALIKE = 1_000  # jobs that failed like it, counted
_LEVELS = {"warnings": {"warning", "error", "critical"}, "errors": {"error", "critical"}}
_CLOCKS = 5  # times below the timeline

LIVE = frozenset({"jobs", "logs"})  # what the page of a job that runs is about
STILL = frozenset({"jobs"})


def view_of(visit: Visit, found: Why, revealed: Mapping[str, Any] | None = None) -> View:
    row = found.job
    job = Job[Any](visit.core, row.id, row=row)
    around = _seen(visit, visit.backend.graph.neighbours(row.id, _NEIGHBOURS))
    names = visit.backend.workflows.names([row.workflow_id]) if row.workflow_id else {}
    shape = shapes.whole_job(job, names.get(row.workflow_id or ""), is_lenient=True)  # reads the job again
    if (job.row.state, job.row.claim) != (row.state, row.claim):
        found, row = why(visit.backend, row.id, registry=visit.core.registry), job.row  # it went on meanwhile
    lines = [shapes.log_line(each) for each in job.logs()]
    attempts = shape["attempts"]
    workers = {each.id: each.name for each in visit.backend.workers.all()} if attempts else {}
    drawn = timeline(shape, attempts, lines, visit.now)
    asked = visit.site.asker.last(row.id, row.claim) if row.state == State.RUNNING else None
    jobs = {each.id for each in (*around.parents, *around.children)}
    linked = jobs | _holders(visit, found)
    is_following = visit.query.get("follow") == "1"
    level = visit.query.get("level", "")
    known = [line for line in lines if level not in _LEVELS or line["level"].lower() in _LEVELS[level]]
    args = shape["args"] if revealed is None else revealed
    data: dict[str, Any] = {
        "job": shape,
        "row": row,
        "now": visit.now,
        "causes": [words(_without_progress(_text(visit, each), found.job), linked) for each in found.causes],
        "also": [words(text, jobs) for text in _also(shape, around, visit.now)],
        "asked": asked,
        "stack": traces.stack(asked.stack) if asked else None,
        "left": _left(shape, visit.now),
        "ribbon": ribbon(drawn) if drawn.segments else None,
        "clocks": _clocks(drawn.start, drawn.seconds),
        "drawn": drawn,
        "not_drawn": left_out(len(attempts)),
        "attempts": _attempts(attempts, workers),
        "workers": workers,
        "is_final": row.state in FINAL,
        "log": _log(known[-_LINES:], attempts, newest_first=is_following),
        "lines": len(lines),
        "lines_known": len(known),
        "level": level,
        "is_following": is_following,
        "args": _value(args),
        "is_revealed": revealed is not None,
        "hides_args": revealed is None and seen.hides_args(job),
        "is_known": row.task in visit.core.registry,
        "result": _value(shape["result"]) if row.result is not None else None,
        "around": around,
        "graph": _graph(visit, shape, around) if jobs else None,
        "group": _group(visit, row),
    }
    causes = [{"kind": each.kind.value, "text": _text(visit, each), **_facts(visit, each)} for each in found.causes]
    beside = {
        "parents": [_beside(each) for each in around.parents],
        "children": [_beside(each) for each in around.children],
    }
    whole = {**shape, "causes": causes, "stack": found.stack or (asked.stack if asked else None), **beside}
    topics = LIVE if row.state == State.RUNNING or is_following else STILL
    if revealed is not None:
        topics = frozenset[str]()  # it is shown this once
    return View("job.html", f"{row.task} {row.id[-8:]}", data, whole, topics=topics)


def _seen(visit: Visit, around: Neighbours) -> Neighbours:
    return Neighbours(*([each for each in side if visit.access.sees(each.queue)] for side in around))


def _beside(each: Neighbour) -> dict[str, Any]:
    return {"id": each.id, "task": each.task, "step": each.step, "queue": each.queue, "state": each.state}


def _graph(visit: Visit, job: Mapping[str, Any], around: Neighbours) -> Markup:
    """The job between those that it runs after and those that run after it."""
    progress = "" if job["progress"] is None or job["state"] != State.RUNNING else f", {job['progress']:.0f} %"
    own = Node(job["id"], job["step"] or job["task"], f"{job['state']}{progress}", job["state"], None)
    nodes = [
        Node(each.id, each.step or each.task, _took(each), each.state, visit.url(f"/jobs/{each.id}"))
        for side in around
        for each in side
    ]
    edges = [(each.id, own.id) for each in around.parents] + [(own.id, each.id) for each in around.children]
    name = job["workflow_name"]
    return graph([own, *nodes], edges, marked=own.id, title=f"Workflow {name}" if name else "Jobs beside it")


def _took(each: Neighbour) -> str:
    if each.started_at is None or each.finished_at is None:
        return each.state
    return f"{each.state}, {span(max(0, each.finished_at - each.started_at) / SECOND)}"


def _group(visit: Visit, row: model.Job) -> failures.ErrorGroup | None:
    """Those that failed like it. The count is of all queues."""
    if row.state != State.FAILED or row.error is None or visit.access.queues is not None:
        return None
    return failures.group(visit.backend, error_key(row.task, row.error), _ALIKE)


def _text(visit: Visit, cause: Cause) -> str:
    """A cause in words. What it says of other jobs and queues is not for a visitor who may see some queues alone."""
    if visit.access.queues is None:
        return cause.text
    if _names_jobs(cause):
        return "It depends on other jobs, of which you may see none here."
    if cause.kind == Kind.NO_WORKER:
        return f"No live worker serves queue {cause.facts['queue']}."
    if cause.kind == Kind.UNKNOWN_TASK:
        return f"No live worker of its queue knows the task {cause.facts['task']}."
    if cause.kind == Kind.LIMIT:
        used, most, option, scope, name = (cause.facts[each] for each in ("used", "most", "option", "scope", "name"))
        return f"{used:,} of {most:,} running, the {option} of {scope} {name}."
    return cause.text


def _without_progress(text: str, job: model.Job) -> str:
    """A bar below the sentence shows it."""
    progress = progress_words(job.progress, job.progress_message)
    end = f", {progress}."
    return f"{text.removesuffix(end)}." if progress and text.endswith(end) else text


def _facts(visit: Visit, cause: Cause) -> dict[str, Any]:
    is_wider = _names_jobs(cause) or cause.kind in {Kind.NO_WORKER, Kind.UNKNOWN_TASK, Kind.LIMIT}
    return {} if visit.access.queues is not None and is_wider else cause.facts


def _holders(visit: Visit, found: Why) -> set[str]:
    """The running jobs that a limit counts, for visitors who may see all queues."""
    if visit.access.queues is not None:
        return set()
    return {each["id"] for cause in found.causes if cause.kind == Kind.LIMIT for each in cause.facts["running"]}


def _names_jobs(cause: Cause) -> bool:
    return bool(cause.facts.get("parent") or cause.facts.get("parents"))


def _also(job: Mapping[str, Any], around: Neighbours, now: datetime) -> Iterator[str]:
    """What else a reader wants to know at once, beside the causes."""
    ended = [each for each in job["attempts"] if each["error"] is not None and each["finished_at"] is not None]
    if job["state"] not in FINAL and ended:
        last = ended[-1]
        error = escape_control(f"{last['error']['type']}: {last['error']['message']}")
        yield f"Attempt {last['number']} {_outcome(last)} {_ago(last['finished_at'], now)}: {error}"
    if job["state"] == State.RUNNING and job["timeout"] is not None and job["started_at"] is not None:
        left = job["timeout"] - (now - job["started_at"]).total_seconds()
        if left > 0:
            yield f"It is stopped in {span(left)}, when its timeout of {span(job['timeout'])} is over."
    waiting = [each for each in around.children if each.state == State.WAITING]
    if waiting:
        names = listed([f"{each.step or each.task} {each.id}" for each in waiting])
        more = " or more" if len(around.children) == _NEIGHBOURS else ""
        yield (
            f"{counted(len(waiting), 'job')}{more} wait for it: {names}."
            if len(waiting) > 1
            else f"One job waits for it: {names}."
        )


def _ago(when: datetime, now: datetime) -> str:
    return f"{span(max(0.0, (now - when).total_seconds()))} ago ({when:%Y-%m-%dT%H:%M:%SZ})"


def _outcome(attempt: Mapping[str, Any]) -> str:
    outcome: str = attempt["outcome"]
    named = {"error": "failed", "retry": "failed", "timeout": "timed out", "crashed": "crashed"}
    return named.get(outcome, outcome)


def _left(job: Mapping[str, Any], now: datetime) -> float | None:
    """How long it has to go, if it goes on as it went so far."""
    done, began = job["progress"], job["started_at"]
    if job["state"] != State.RUNNING or not done or began is None or not 0 < done < 100:
        return None
    return max(0.0, (now - began).total_seconds()) * (100 - done) / done


def _clocks(start: datetime, seconds: float) -> list[datetime]:
    """They are shown to the second, so of a short time its ends alone."""
    parts = _CLOCKS - 1 if seconds >= _CLOCKS - 1 else 1
    return [start + timedelta(seconds=seconds * number / parts) for number in range(parts + 1)]


def _attempts(attempts: Sequence[Mapping[str, Any]], workers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Newest first, with the traceback of each."""
    has_started_over = any(each["start"] > 1 for each in attempts)
    last_failed = next((each["claim"] for each in reversed(attempts) if each["error"] is not None), None)
    made: list[dict[str, Any]] = []
    for each in reversed(attempts[-_ATTEMPTS:]):
        traceback = each["error"]["traceback"] if each["error"] is not None else None
        began, ended = each["started_at"], each["finished_at"]
        made.append(
            {
                **each,
                "name": attempt_name(each["number"], each["start"] if has_started_over else None).capitalize(),
                "word": _outcome(each),
                "is_open": each["claim"] == last_failed,
                "took": max(0.0, (ended - began).total_seconds()) if began and ended else None,
                "trace": traces.trace(traceback) if traceback else None,
                "worker_name": workers.get(each["worker"] or ""),
            }
        )
    return made


def _log(
    lines: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]], *, newest_first: bool
) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The lines by attempt, the newest attempt first."""
    numbers = {each["claim"]: f"Attempt {each['number']}" for each in attempts}
    parts = [
        (numbers.get(claim, "An attempt that was not counted"), list(found))
        for claim, found in groupby(lines, lambda line: line["claim"])
    ]
    return [(name, found[::-1] if newest_first else found) for name, found in reversed(parts)]


def _value(value: Any) -> Value | None:
    return None if value is None else shown_value(value)
