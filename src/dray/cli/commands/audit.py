"""``dray audit`` and ``dray db check``: whether the tables keep their invariants, and the database is undamaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dray.app_interface import core_of
from dray.cli.apps import app_on_tables
from dray.cli.cells import short
from dray.cli.exits import Code, say
from dray.cli.options import command, option, wants_json
from dray.cli.output import flat, line, progress, put_either
from dray.cli.parsing import time_option
from dray.ops.audit import Audit
from dray.ops.audit import audit as run_audit
from dray.ops.audit import check as run_check
from dray.sanitize import escape_control
from dray.wording import counted, span

_NAMED = {"schedule", "duty"}  # rules about things that have names instead of ids


@command()
@time_option("--patience", default=10.0, help="How long the jobs of a dead worker may take to be rescued (10s).")
def audit(patience: float) -> int:
    """Check that the tables keep their invariants. Changes nothing and blocks no worker.

    Exit code 1: a rule is broken. In a pipe, a line for each broken rule: rule, how often, the ids of the first 20,
    and what should hold, separated by tabs.
    """
    core = core_of(app_on_tables())
    with progress("jobs checked:") as report:
        found = run_audit(core.backend, patience=patience, progress=lambda jobs: report(jobs, None))
    put_either(_audit_shape(core.settings.place, found), lambda: _words((), found), lambda: _values((), found))
    _advise(found)
    return Code.DONE if found.holds else Code.FAILED


@command()
@option("--full", is_flag=True, help="Read everything: compare indexes with their tables, too.")
@time_option("--patience", default=10.0, help="As of `dray audit` (10s).")
def check(*, full: bool, patience: float) -> int:
    """Check the database for damage, by its own means, and then what `dray audit` checks. Changes nothing.

    Exit code 1: something is wrong. In a pipe, a line each: `damage`, 1, nothing, what it is; then the lines of
    `dray audit`. If all is well, lines of a name and a value instead.
    """
    core = core_of(app_on_tables())
    with progress("checking") as report:
        found = run_check(core.backend, full=full, patience=patience, progress=lambda jobs: report(jobs, None))
    place = core.settings.place
    shape = {
        "database": place,
        "holds": found.holds,
        "damage": list(found.damage),
        "audit": None if found.audit is None else _audit_shape(place, found.audit),
    }
    put_either(
        shape,
        lambda: _words(found.damage, found.audit),
        lambda: flat(shape) if found.holds else _values(found.damage, found.audit),
    )
    _advise(found.audit)
    return Code.DONE if found.holds else Code.FAILED


def _audit_shape(place: str, found: Audit) -> dict[str, Any]:
    broken = [{**asdict(each), "ids": list(each.ids)} for each in found.broken]
    return {"database": place, "holds": found.holds, **asdict(found), "broken": broken}


def _words(damage: Sequence[str], found: Audit | None) -> Iterator[str]:
    for each in damage:
        yield escape_control(f"damage: {each}")
    for each in found.broken if found else ():
        ids = " ".join(each.ids if each.rule in _NAMED else map(short, each.ids))
        more = " ..." if each.count > len(each.ids) else ""
        yield escape_control(f"{each.rule}: broken {counted(each.count, 'time')}: {each.says} ({ids}{more})")
    if found and found.holds and not damage:
        yield f"all holds: {_scope(found)}"


def _values(damage: Sequence[str], found: Audit | None) -> Iterator[str]:
    for each in damage:
        yield line("damage", 1, None, each)
    for each in found.broken if found else ():
        yield line(each.rule, each.count, each.ids, each.says)


def _advise(found: Audit | None) -> None:
    if found is None and not wants_json():
        say("the tables were not audited, because of the damage; keep a copy before you repair anything")
    if found is not None and not found.holds and not wants_json():
        broken = f"{len(found.broken)} of {_scope(found)}"
        say(f"{broken}: please report this as a defect, with the output of `dray job show ID`")


def _scope(found: Audit) -> str:
    return f"{counted(found.rules, 'rule')}, {counted(found.jobs, 'job')}, {span(found.seconds)}"
