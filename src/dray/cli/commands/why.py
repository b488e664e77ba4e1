"""``dray why``: why a job waits or failed, or what it is doing now, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from dray.cli.apps import app_on_tables, load_tasks
from dray.cli.cells import short, state
from dray.cli.options import command, option
from dray.cli.output import line, one_or_all, put_either
from dray.ops import listing
from dray.ops.why import Why
from dray.ops.why import why as explain
from dray.sanitize import escape_control

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@option("--no-stack", is_flag=True, help="Do not ask the worker of a running job where its function is.")
def why(ids: Sequence[str], *, no_stack: bool) -> None:
    """Explain jobs: why they wait or failed, or what they are doing now.

    The first sentence is the most important one. The worker of a running job is asked, through the database, where
    its function is now. With --json one job is an object, several are an array. In a pipe: kind, sentence and, of
    several jobs, id, separated by tabs.
    """
    app = load_tasks(app_on_tables())
    wanted = dict.fromkeys(listing.job_named(app.backend, part) for part in ids)
    new_id = None if no_stack else app.new_id
    found = [explain(app.backend, job_id, registry=app.registry, new_id=new_id) for job_id in wanted]
    is_one = len(found) == 1
    put_either(
        one_or_all([_shape(each) for each in found]),
        lambda: (text for each in found for text in _words(each, is_one=is_one)),
        lambda: (text for each in found for text in _values(each, is_one=is_one)),
    )


def _shape(found: Why) -> dict[str, Any]:
    causes = [{"kind": each.kind.value, "text": each.text, **each.facts} for each in found.causes]
    return {**listing.values_of(found.job, "id task queue state reason"), "causes": causes, "stack": found.stack}


def _words(found: Why, *, is_one: bool) -> Iterator[str]:
    job = found.job
    if not is_one:
        yield f"{short(job.id)} {escape_control(job.task)} {state(job.state, {'reason': job.reason})}"
    for each in found.causes:
        yield escape_control(_ID.sub(lambda match: short(match[0]), each.text))
    for each in (found.stack or "").splitlines():
        yield f"    {escape_control(each)}"


def _values(found: Why, *, is_one: bool) -> Iterator[str]:
    end = () if is_one else (found.job.id,)
    for each in found.causes:
        yield line(each.kind.value, each.text, *end)
    if found.stack is not None:
        yield line("stack", found.stack, *end)
