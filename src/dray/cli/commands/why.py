"""``dray why``: why jobs are where they are, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dray import ops
from dray.cli.output import is_terminal, put, put_json, put_line, short
from dray.cli.shared import app_on_tables, load_tasks, option, shared, wants_json
from dray.sanitize import escape_control

if TYPE_CHECKING:
    from dray.ops.why import Why

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@option("--no-stack", is_flag=True, help="Do not ask the worker of a running job where its body is.")
@shared
def why(ids: Sequence[str], *, no_stack: bool) -> None:
    """Say why jobs are where they are: what they wait for, where they run, what ended them.

    The first sentence is the most decisive. The worker of a running job is asked, through the database, where its
    body is at the moment. With --json one job is an object, several are an array. In a pipe: kind, sentence and, of
    several jobs, id, separated by tabs.
    """
    from dray.ops.why import why as explained  # noqa: PLC0415 - `--help` needs none

    app = app_on_tables()
    load_tasks(app)
    wanted = dict.fromkeys(ops.job_named(app.backend, part) for part in ids)
    new_id = None if no_stack else app.new_id
    found = [explained(app.backend, job_id, registry=app.registry, new_id=new_id) for job_id in wanted]
    if wants_json():
        shapes = [_shape(each) for each in found]
        put_json(shapes[0] if len(shapes) == 1 else shapes)
        return
    for each in found:
        if is_terminal():
            _tell(each, is_one=len(found) == 1)
        else:
            _list(each, is_one=len(found) == 1)


def _shape(found: Why) -> dict[str, Any]:
    job = found.job
    causes = [{"kind": each.kind.value, "text": each.text, **each.facts} for each in found.causes]
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.state,
        "reason": job.reason,
        "causes": causes,
        "stack": found.stack,
    }


def _tell(found: Why, *, is_one: bool) -> None:
    """For people: ids are shown by their ends."""
    job = found.job
    if not is_one:
        put(f"{short(job.id)} {escape_control(job.task)} {job.state}{f'({job.reason})' if job.reason else ''}")
    for each in found.causes:
        put(escape_control(_ID.sub(lambda match: short(match[0]), each.text)))
    for line in (found.stack or "").splitlines():
        put(f"    {escape_control(line)}")


def _list(found: Why, *, is_one: bool) -> None:
    end = () if is_one else (found.job.id,)
    for each in found.causes:
        put_line(each.kind.value, each.text, *end)
    if found.stack is not None:
        put_line("stack", found.stack, *end)
