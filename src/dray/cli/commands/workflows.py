"""``dray workflows``: graphs of jobs, their progress, and drawings of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

import dray
from dray.app_interface import AppInterface, core_of
from dray.cli.apps import app_on_tables, person
from dray.cli.cells import Shape, relative, short, state
from dray.cli.drawing import ASCII, BOXES, Spot, draw, failures, tally
from dray.cli.exits import Code, say
from dray.cli.live.following import follow, putting
from dray.cli.options import Group, option
from dray.cli.output import Column, is_ascii_only, is_terminal, line, put_either, put_list
from dray.errors import UnknownWorkflow
from dray.handle.run import Run
from dray.model.action import By
from dray.ops import acting, listing, shapes
from dray.ops.acting import Acted
from dray.sanitize import escape_control
from dray.wording import counted

_DONE = "{done:,} of {total:,}"
_COLUMNS = (
    Column("id", "id", short),
    Column("workflow", "name", is_elastic=True),
    Column("state", "state"),
    Column("done", "done", _DONE, is_number=True),
    Column("made", "created_at", relative, rank=1),
)
_KEYS = "id name state done total created_at"


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def workflows(ctx: click.Context) -> None:
    """List, show, cancel and retry workflows.

    In a pipe: id, name, state, done, total, created_at.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@workflows.command(name="list")
@option("--limit", type=click.IntRange(1, listing.MAX_LIMIT), default=100, show_default=True, help="Maximum number.")
def list_(limit: int) -> None:
    """List the newest workflows, as `dray workflows` does."""
    found = [shapes.workflow(*each) for each in listing.workflows(core_of(app_on_tables()).backend, limit)]
    put_list(found, _COLUMNS, "no workflows; create one with app.workflow()", _KEYS)


@workflows.command()
@click.argument("part", metavar="ID")
@option("--graph", is_flag=True, help="Draw it in a pipe, too.")
@option("--watch", is_flag=True, help="Draw it again whenever it changes, until it has ended.")
def show(part: str, *, graph: bool, watch: bool) -> None:
    """Draw a workflow: its steps in order, what waits for what, and their states.

    Failed steps are shown with their errors, of many equal ones the first. In a pipe: id, step, task, state, reason,
    the ids of the jobs that the step waits for, and its error. With --watch: in a pipe
    an empty line after each time, with --json one object per line.
    """
    app = app_on_tables()
    run_id = listing.workflow_named(core_of(app).backend, part)
    shape = _shape(app, run_id)
    values = _drawing if graph or is_terminal() else _rows
    if watch:
        put_one = putting(_drawing, values, dict)
        follow(app, lambda: _shape(app, run_id), put_one, lambda now: now["done"] == now["total"], first=shape)
    else:
        put_either(shape, lambda: _drawing(shape), lambda: values(shape))


def _shape(app: dray.App, run_id: str) -> Shape:
    found = core_of(app).backend.workflows.get(run_id)
    if found is None:
        raise UnknownWorkflow(f"no workflow has the id {run_id}; `dray workflows` lists them")
    return shapes.whole_workflow(found[0], core_of(app).backend.workflows.drawing(run_id))


def _rows(shape: Shape) -> list[str]:
    keys = ("id", "step", "task", "state", "reason", "after", "error")
    return [line(*(step[key] for key in keys)) for step in shape["steps"]]


def _drawing(shape: Shape) -> list[str]:
    steps: Sequence[Shape] = shape["steps"]
    head = f"{escape_control(shape['name'])}  {shape['id']}  {shape['state']}  {_DONE.format_map(shape)} done"
    spots = {
        step["id"]: Spot(_label(step), escape_control(step["task"]), state(step["state"], step), _failure(step))
        for step in steps
    }
    edges = [(parent, step["id"]) for step in steps for parent in step["after"]]
    for outside in dict.fromkeys(parent for parent, _ in edges if parent not in spots):
        spots[outside] = Spot(f"job {short(outside)}, elsewhere", "jobs elsewhere", "")
    # Boxes, unless the locale or the encoding of stdout lacks them.
    drawn = draw(spots, edges, ASCII if is_ascii_only(BOXES.lines + "".join(BOXES.marks.values())) else BOXES)
    if drawn is not None:
        return [head, "", *drawn, *_advice(shape)]
    counts = sorted(Counter((step["task"], state(step["state"], step)) for step in steps).items())
    return [
        head,
        f"It is too large to draw: {tally(step['state'] for step in steps)}.",
        *(f"  {count:>9,}  {escape_control(task)}  {shown}" for (task, shown), count in counts),
        *(f"  {each}" for each in failures(spots.values())),
        *_advice(shape),
    ]


def _failure(step: Shape) -> str:
    """Returns the first line of the error of a failed step."""
    lines = (step["error"] or "").strip().splitlines() if step["state"] == "failed" else []
    return escape_control(lines[0]) if lines else ""


def _advice(shape: Shape) -> list[str]:
    if not shape["failed"]:
        return []
    run, steps = short(shape["id"]), counted(shape["failed"], "failed step")
    text = f"{steps}: `dray workflows retry {run}` retries, `dray jobs --workflow {run} --state failed` lists"
    return ["", text]


def _label(step: Shape) -> str:
    name = escape_control(step["step"] or step["task"])
    task = "" if step["step"] in (None, step["task"]) else f" ({escape_control(step['task'])})"
    return f"{name}{task} {short(step['id'])}"


@workflows.command()
@click.argument("parts", nargs=-1, required=True, metavar="ID...")
def cancel(parts: Sequence[str]) -> int:
    """Cancel all steps that have not started, and ask running ones to stop."""
    return _each(parts, acting.cancel_workflow, "cancelled", lambda _: "had ended already")


@workflows.command()
@click.argument("parts", nargs=-1, required=True, metavar="ID...")
@option("--cancelled", is_flag=True, help="Also steps that were cancelled on request, or expired.")
def retry(parts: Sequence[str], *, cancelled: bool) -> int:
    """Start the failed steps over; steps that were cancelled because of them wait again."""
    return _each(parts, partial(acting.retry_workflow, cancelled=cancelled), "retried", _why_not_retried)


def _why_not_retried(run: Run) -> str:
    if run.counts.get("cancelled", 0):
        return "has no failed steps that can start over; --cancelled also retries steps that were cancelled"
    return "has no failed steps"


def _each(
    parts: Sequence[str],
    act: Callable[[AppInterface, str, By], Acted],
    done: str,
    otherwise: Callable[[Run], str],
) -> int:
    app = app_on_tables()
    ids = dict.fromkeys(listing.workflow_named(core_of(app).backend, part) for part in parts)
    runs = [app.workflow_run(run_id) for run_id in ids]
    found: list[dict[str, Any]] = [
        {"id": run.id, done: len(act(core_of(app), run.id, person()).done)} for run in runs
    ]
    columns = (Column("workflow", "id", short), Column(f"jobs {done}", done, is_number=True))
    put_list(found, columns)
    idle = [run for run, shape in zip(runs, found, strict=True) if not shape[done]]
    for run in idle:
        say(f"workflow {short(run.id)} {otherwise(run)}")
    return Code.FAILED if idle else Code.DONE
