"""``dray db check``: whether the database is whole, and whether the tables hold what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dray.cli.commands import audit as auditing
from dray.cli.exits import Code, say
from dray.cli.output import is_terminal, put, put_flat, put_json, put_line
from dray.cli.progress import progress
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.times import Duration
from dray.sanitize import escape_control

if TYPE_CHECKING:
    from dray.ops.audit import Check


@click.command()
@option("--full", is_flag=True, help="Read everything: compare indexes with their tables, too.")
@option("--patience", type=Duration(), default=10.0, metavar="TIME", help="As of `dray audit` (10s).")
@shared
def check(*, full: bool, patience: float) -> int:
    """Check that the database is whole, by its own means, and then what `dray audit` checks. Changes nothing.

    Exit code 1: something is wrong. In a pipe, a line each: `damage`, 1, nothing, what it is; then the lines of
    `dray audit`. Where all holds, lines of a name and a value instead.
    """
    from dray.ops.audit import check as run  # noqa: PLC0415 - `--help` needs none

    app = app_on_tables()
    with progress("checking") as report:
        found = run(app.backend, full=full, patience=patience, progress=lambda jobs: report(jobs, None))
    if wants_json():
        put_json(_shape(app.settings.place, found))
    elif found.holds and not is_terminal():
        put_flat(_shape(app.settings.place, found))
    else:
        _put(found)
    return Code.DONE if found.holds else Code.FAILED


def _shape(place: str, found: Check) -> dict[str, Any]:
    audit = None if found.audit is None else auditing.shape(place, found.audit)
    return {"database": place, "holds": found.holds, "damage": list(found.damage), "audit": audit}


def _put(found: Check) -> None:
    for each in found.damage:
        if is_terminal():
            put(escape_control(f"damage: {each}"))
        else:
            put_line("damage", 1, None, each)
    if found.audit is None:
        say("what the tables hold was not looked at, because of the damage; keep a copy before you repair anything")
    elif not found.damage or not found.audit.holds:
        auditing.put_broken(found.audit)
