"""``dray audit``: whether the tables hold what they promise."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dray.cli.exits import Code, say
from dray.cli.output import is_terminal, put, put_json, put_line, short
from dray.cli.progress import progress
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.times import Duration, span
from dray.sanitize import escape_control
from dray.wording import counted

if TYPE_CHECKING:
    from dray.app import App
    from dray.ops.audit import Audit, Broken

_NAMED = {"schedule", "duty"}  # rules of things that have names, and no ids


@click.command()
@option(
    "--patience",
    type=Duration(),
    default=10.0,
    metavar="TIME",
    help="How long jobs whose worker has ended may take to be taken back (10s).",
)
@shared
def audit(patience: float) -> int:
    """Check that the tables hold what they promise; nothing is changed, and nobody has to wait.

    Exit code 1: something does not hold. In a pipe, a line a rule that is broken: rule, how often, the ids of the
    first 20, and what should hold, separated by tabs.
    """
    app = app_on_tables()
    found = audited(app, patience)
    if wants_json():
        put_json(shape(app.settings.place, found))
    else:
        put_broken(found)
    return Code.DONE if found.holds else Code.FAILED


def audited(app: App, patience: float) -> Audit:
    """What an audit finds, with its progress shown."""
    from dray.ops.audit import audit as run  # noqa: PLC0415 - `--help` needs none

    with progress("jobs looked at:") as report:
        return run(app.backend, patience=patience, progress=lambda jobs: report(jobs, None))


def shape(place: str, found: Audit) -> dict[str, Any]:
    """An audit as --json answers it."""
    broken = [{**asdict(each), "ids": list(each.ids)} for each in found.broken]
    return {"database": place, "holds": found.holds, **asdict(found), "broken": broken}


def put_broken(found: Audit) -> None:
    """What does not hold: in words for people, as values for programs."""
    for each in found.broken:
        if is_terminal():
            put(escape_control(f"{each.rule}: {counted(each.count, 'time')} not so: {each.says} ({_ids(each)})"))
        else:
            put_line(each.rule, each.count, each.ids, each.says)
    looked = f"{counted(found.rules, 'rule')}, {counted(found.jobs, 'job')}, {span(found.seconds)}"
    if found.holds and is_terminal():
        put(f"all holds: {looked}")
    elif not found.holds:
        say(f"{len(found.broken)} of {looked}: please report this as a defect, with what `dray job show ID` says")


def _ids(each: Broken) -> str:
    shown = each.ids if each.rule in _NAMED else [short(each_id) for each_id in each.ids]
    return " ".join(shown) + (" ..." if each.count > len(each.ids) else "")
