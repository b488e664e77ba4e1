"""Workflows: their progress, and one as a graph with its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from dray.backends.store.live import LiveJob
from dray.backends.store.pages import WINDOW, Sketch, Step
from dray.errors import ConfigError
from dray.instants import SECOND, moment
from dray.model.job import FINAL, State
from dray.model.values import canonical_id
from dray.model.workflow import Tally, Workflow
from dray.ops import acting, listing, shapes
from dray.web.access import OPERATORS_BULK
from dray.web.page import Done, Form, Goto, NotFound, Page, Post, Refused, Shown, View
from dray.web.paging import cursor
from dray.web.show import term
from dray.web.svg.folding import MOST, Folded, Node, fold, kind_of
from dray.web.svg.graph import draw
from dray.web.visit import Visit
from dray.wording import counted, short_id, span

_ROWS = 25  # workflows: each has up to thousands of steps to count
_STEPS = 50
_FAILED = 10
_AFTER = 3  # parents of a step that are named
_ELSEWHERE = "elsewhere"
_TOPICS = frozenset({"workflows", "jobs"})


def show(visit: Visit) -> View:
    part = visit.query.get("name", "").strip()[:200]
    found = visit.backend.pages.workflows(limit=_ROWS, before=cursor(visit, "before"), part=part)
    tallies = visit.backend.pages.tallies([each.id for each in found.rows])
    listed = [shape(each, tallies.get(each.id)) for each in found.rows]
    data = {
        "workflows": listed,
        "counts": {each.id: _counts(tallies.get(each.id)) for each in found.rows},
        "next": found.next,
        "part": part,
        "is_cut": found.next is not None and len(found.rows) < _ROWS,
        "window": WINDOW,
        "now": visit.now,
    }
    return View("workflows.html", "Workflows", data, {"workflows": listed, "next": found.next})


def shape(workflow: Workflow, tally: Tally | None) -> dict[str, Any]:
    """As the command line has it; of one that was not counted all numbers and its state are None."""
    made = shapes.workflow(workflow, tally or Tally({}, {}))
    if tally is not None:
        return made
    return {key: value if key in {"id", "name", "created_at"} else None for key, value in made.items()}


def _counts(tally: Tally | None) -> Mapping[str, int]:
    return {} if tally is None else tally.counts


def show_one(visit: Visit) -> Shown:
    whole = canonical_id(visit.params["id"])
    if whole is None:
        is_json = visit.path.endswith(".json")
        return Goto(
            f"/workflows/{listing.workflow_named(visit.backend, visit.params['id'])}{'.json' if is_json else ''}"
        )
    sketch = visit.backend.pages.sketch(whole)
    if sketch is None:
        raise NotFound(f"There is no workflow {whole}: it was never committed, was rolled back, or was pruned.")
    return _view(visit, sketch)


def _view(visit: Visit, sketch: Sketch) -> View:
    state, after = visit.query.get("state"), cursor(visit, "after")
    state = state if state in set(State) else None
    fitting = [step for step in sketch.steps if state is None or step.state == state]
    page = list(islice((step for step in fitting if after is None or step.id > after), _STEPS + 1))
    following = page[_STEPS - 1].id if len(page) > _STEPS else None
    page = page[:_STEPS]
    failed = [step for step in sketch.steps if step.state == State.FAILED]
    wanted = sketch.steps if len(sketch.steps) <= MOST else [*page, *failed[:_FAILED]]
    jobs = visit.backend.pages.jobs(sorted({step.id for step in wanted}))
    nodes, tally = _nodes(sketch, jobs), sketch.tally
    folded = _linked(visit, sketch, fold(nodes, sketch.edges))
    made = shapes.workflow(sketch.workflow, tally)
    parents = _parents(sketch.edges, {step.id for step in page})
    steps = [_step(step, jobs.get(step.id), parents.get(step.id, [])) for step in page]
    above = {parent for found in parents.values() for parent in found[:_AFTER]}
    names = {step.id: step.step or step.task for step in sketch.steps if step.id in above}
    data = {
        "workflow": made,
        "counts": tally.counts,
        "graph": draw(folded, title=f"Workflow {sketch.workflow.name}"),
        "folded": folded.in_words,
        "outside": len(nodes) - len(sketch.steps),
        "is_cut": sketch.is_cut,
        "steps": steps,
        "names": names,
        "named": _AFTER,
        "jobs": jobs,
        "took": {job.id: took(job) for job in jobs.values()},
        "failed": [jobs[step.id] for step in failed[:_FAILED] if step.id in jobs],
        "state": state,
        "after": after,
        "next": following,
        "ended": {job.id: moment(job.finished_at) for job in jobs.values()},
        "fitting": len(fitting),
        "now": visit.now,
        "is_live": any(step.state not in FINAL for step in sketch.steps),
    }
    whole = {**made, "is_cut": sketch.is_cut, "steps": steps, "next": following}
    return View("workflow.html", f"Workflow {sketch.workflow.name}", data, whole)


def _step(step: Step, job: LiveJob | None, after: Sequence[str]) -> dict[str, Any]:
    """As `dray workflows show --json` has it."""
    error, reason = (None, None) if job is None else (job.error, job.reason)
    return {
        "id": step.id,
        "step": step.step,
        "task": step.task,
        "state": step.state,
        "reason": reason,
        "error": error,
        "after": list(after),
    }


def _parents(edges: Sequence[tuple[str, str]], wanted: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parent, child in edges:
        if child in wanted:
            found.setdefault(child, []).append(parent)
    return found


def _nodes(sketch: Sketch, jobs: Mapping[str, LiveJob]) -> list[Node]:
    """The steps, and the jobs outside the workflow that steps run after."""
    nodes = [
        Node(step.id, step.step or step.task, _sub(step, jobs.get(step.id)), step.state, kind=_kind(step))
        for step in sketch.steps
    ]
    known = {node.id for node in nodes}
    outside = dict.fromkeys(parent for parent, _ in sketch.edges if parent not in known)
    return nodes + [
        Node(job_id, f"job {short_id(job_id)}", _ELSEWHERE, _ELSEWHERE, kind="jobs elsewhere") for job_id in outside
    ]


def _kind(step: Step) -> str:
    return kind_of(step.step) if step.step else step.task


def _linked(visit: Visit, sketch: Sketch, folded: Folded) -> Folded:
    """Each node leads to its job; one that stands for several to the list of them, if they are of one kind."""
    first = {step.id: step for step in sketch.steps}

    def href(node: Node) -> str | None:
        if node.steps == 1:
            return visit.url(f"/jobs/{node.id}")
        if node.id not in first or node.kind != _kind(first[node.id]):
            return None
        return visit.url("/jobs", q=f"workflow:{sketch.workflow.id} {term(first[node.id].task, 'task')}")

    return folded._replace(nodes=[node._replace(href=href(node)) for node in folded.nodes])


def _sub(step: Step, job: LiveJob | None) -> str:
    if job is None:
        return step.state
    if job.state == State.RUNNING and job.progress is not None:
        return f"running, {job.progress:.0f} %"
    seconds = took(job)
    word = step.state if job.reason in {None, "error"} else f"{step.state} ({job.reason})"
    return word if seconds is None or job.state not in FINAL else f"{word}, {span(seconds)}"


def took(job: LiveJob) -> float | None:
    """Seconds that the last attempt of an ended job took."""
    if job.started_at is None or job.finished_at is None:
        return None
    return max(0, job.finished_at - job.started_at) / SECOND


# Acting


def cancel(visit: Visit, form: Form) -> Done:  # noqa: ARG001 - nothing is chosen
    acted = _bounded(visit, acting.cancel_workflow)
    if not acted.done:
        raise Refused("All its steps had ended already.")
    return Done(_path(visit), f"{counted(len(acted.done), 'step')} cancelled, or asked to stop.")


def retry(visit: Visit, form: Form) -> Done:
    """All failed steps, or the one that the form names."""
    if "job" in form:
        acted = acting.retry(visit.core, [_step_of(visit, form["job"])], visit.by)
    else:
        acted = _bounded(visit, acting.retry_workflow)
    if not acted.done:
        raise Refused(next((f"Not retried: {why}." for why in acted.refused.values()), "It has no failed steps."))
    refused = f"; {counted(len(acted.refused), 'step')} could not" if acted.refused else ""
    return Done(_path(visit), f"{counted(len(acted.done), 'step')} started over{refused}.")


def _bounded(visit: Visit, act: Callable[..., acting.Acted]) -> acting.Acted:
    """Acts on a whole workflow, if its jobs are not more than the visitor may act on at once."""
    most = None if visit.access.role == "admin" else OPERATORS_BULK
    try:
        return act(visit.core, _id(visit), visit.by, most=most)
    except ConfigError as error:
        raise Refused(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error


def _step_of(visit: Visit, given: str) -> str:
    job_id, workflow_id = canonical_id(given), _id(visit)
    found = [] if job_id is None else visit.backend.jobs.get([job_id])
    if not found or found[0].workflow_id != workflow_id:
        raise NotFound(f"Workflow {workflow_id} has no such step.")
    return found[0].id


def _id(visit: Visit) -> str:
    whole = canonical_id(visit.params["id"])
    if whole is None:
        raise NotFound("This is no workflow's id.")
    return whole


def _path(visit: Visit) -> str:
    return f"/workflows/{_id(visit)}"


PAGES: list[Page] = [
    Page("/workflows", show, "workflows", _TOPICS, is_whole=True),
    Page("/workflows/{id}", show_one, "workflows", _TOPICS, is_whole=True),
]
POSTS: list[Post] = [
    Post("/workflows/{id}/cancel", cancel, "cancel", is_whole=True),
    Post("/workflows/{id}/retry", retry, "retry", is_whole=True),
]
