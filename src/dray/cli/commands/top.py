"""``dray top``: a full-screen view of what goes on, with keys to act."""

from __future__ import annotations

import sys

import click

from dray.cli.apps import app_on_tables
from dray.cli.options import option, shared, wants_json
from dray.cli.output import is_dumb


@click.command()
@option("--read-only", is_flag=True, help="Only look: no key changes anything.")
@shared
def top(*, read_only: bool) -> None:
    """A live view: queues, running jobs with their progress, failures, workers and rates. `?` shows the keys."""
    if wants_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top is for a terminal; programs use `dray stats --json` or `dray tail --jsonl`")
    if is_dumb():
        raise click.UsageError("top needs a terminal that can move its cursor; try `dray stats --watch`")
    from dray.cli.live.top import run  # noqa: PLC0415 - rich and termios, for terminals only

    run(app_on_tables(), read_only=read_only)
