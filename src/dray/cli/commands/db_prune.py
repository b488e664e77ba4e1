"""``dray db prune``: clears away jobs that ended long ago."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from dray.cli.exits import Failure
from dray.cli.filters import State
from dray.cli.output import is_terminal, put, put_flat, put_json
from dray.cli.progress import progress
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.times import Duration
from dray.model.job import FINAL, states_named
from dray.wording import counted

_PAGES = 1_000  # given back to the disk in one transaction


@click.command()
@option("--older-than", type=Duration(), metavar="TIME", help="Ended longer ago than this; else as long as usual.")
@option("--state", type=State(), multiple=True, help="Only completed, failed or cancelled ones (repeat for several).")
@option("--vacuum", is_flag=True, help="Give what is unused of a SQLite file back to the disk.")
@option("--yes", is_flag=True, help="Do not ask.")
@option("--dry-run", is_flag=True, help="Only say how many it would be.")
@shared
def prune(older_than: float | None, state: Sequence[str], *, vacuum: bool, yes: bool, dry_run: bool) -> None:
    """Remove jobs that ended long ago, with their attempts and logs.

    By default those that a worker would remove by itself: completed and cancelled ones after 7 days, failed ones
    after 30. What a live job needs stays, and so does a workflow that has not ended.
    """
    from dray.ops import pruning  # noqa: PLC0415 - `--help` needs none

    kept = pruning.retention(older_than, _states(state))
    app = app_on_tables()
    found = pruning.prunable(app.backend, kept)
    total, removed = sum(found.values()), 0
    if not dry_run:
        if total and not yes:
            _confirm(total)
        with progress("removing") as report:
            removed = pruning.remove(app.backend, kept, lambda done: report(done, max(done, total)))
        while vacuum and app.backend.file_vacuum(_PAGES):
            continue
    _put({"database": app.settings.place, "found": found, "removed": removed}, dry_run=dry_run)


def _states(words: Sequence[str]) -> frozenset[str]:
    named = [states_named(word) for word in words]
    if any(reason is not None or not states <= FINAL for states, reason in named):
        raise click.UsageError("--state may be completed, failed or cancelled: only jobs that have ended are removed")
    return frozenset(state for states, _ in named for state in states) if named else FINAL


def _confirm(total: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"this would remove {counted(total, 'job')}; give --yes where nobody can be asked")
    if not click.confirm(f"Remove {counted(total, 'job')}?", err=True):
        raise Failure("nothing was removed")


def _put(shape: dict[str, Any], *, dry_run: bool) -> None:
    if wants_json():
        put_json(shape)
    elif not is_terminal():
        put_flat(shape)
    elif dry_run:
        words = ", ".join(f"{jobs:,} {state}" for state, jobs in shape["found"].items())
        put(f"would remove {counted(sum(shape['found'].values()), 'job')}: {words}")
    else:
        put(f"removed {counted(shape['removed'], 'job')}")
