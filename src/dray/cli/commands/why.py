"""``dray why``: why a job waits or failed, or what it is doing now, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from dray.app_interface import core_of
from dray.cli.apps import app_on_tables, load_tasks
from dray.cli.cells import short, state
from dray.cli.options import command, option
from dray.cli.output import line, one_or_all, put_either
from dray.ops import listing, shapes
from dray.ops.why import Why
from dray.ops.why import why as explain
from dray.sanitize import escape_control
from dray.wording import with_short_ids


@command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@option("--no-stack", is_flag=True, help="Do not ask the worker of a running job where its function is.")
def why(ids: Sequence[str], *, no_stack: bool) -> None:
    """Explain jobs: why they wait or failed, or what they are doing now.

    The first sentence is the most important one. The worker of a running job is asked, through the database, where
    its function is now. With --json one job is an object, several are an array. In a pipe: kind, sentence and, of
    several jobs, id, separated by tabs.
    """
    core = core_of(load_tasks(app_on_tables()))
    wanted = dict.fromkeys(listing.job_named(core.backend, part) for part in ids)
    new_id = None if no_stack else core.new_id
    found = [explain(core.backend, job_id, registry=core.registry, new_id=new_id) for job_id in wanted]
    is_one = len(found) == 1
    put_either(
        one_or_all([shapes.why(each) for each in found]),
        lambda: (text for each in found for text in _words(each, is_one=is_one)),
        lambda: (text for each in found for text in _values(each, is_one=is_one)),
    )


def _words(found: Why, *, is_one: bool) -> Iterator[str]:
    job = found.job
    if not is_one:
        yield f"{short(job.id)} {escape_control(job.task)} {state(job.state, {'reason': job.reason})}"
    for each in found.causes:
        yield escape_control(with_short_ids(each.text))
    for each in (found.stack or "").splitlines():
        yield f"    {escape_control(each)}"


def _values(found: Why, *, is_one: bool) -> Iterator[str]:
    end = () if is_one else (found.job.id,)
    for each in found.causes:
        yield line(each.kind.value, each.text, *end)
    if found.stack is not None:
        yield line("stack", found.stack, *end)
