"""``dray bench``: what this database can do, measured beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dray.app_interface import core_of
from dray.backends.scratch import removed_at_the_end, scratch_url
from dray.cli.apps import settings_here
from dray.cli.exits import Failure, say
from dray.cli.options import command, option
from dray.cli.output import Column, is_terminal, put_either, table
from dray.cli.parsing import time_option
from dray.cli.processes import Interrupts
from dray.errors import StorageError, StorageUnavailable
from dray.wording import counted

_RAW = {"fsync": "fsync of a page", "round_trip": "round trip", "commit": "commit of a row"}


@command()
@time_option("--seconds", default=15.0, help="About how long it takes (15s).")
@option(
    "--jobs",
    type=click.IntRange(1, 1_000_000),
    default=5000,
    show_default=True,
    help="How many jobs are enqueued in batches.",
)
def bench(seconds: float, jobs: int) -> None:
    """Measure how fast empty jobs are enqueued, picked up and run on this kind of database.

    It creates a scratch file in the same folder, or a scratch schema on the same server, and removes it at the end;
    your own tables are not touched. In a pipe: a line for each number, its name first.
    """
    if seconds < 1:
        raise click.UsageError("--seconds must be at least 1: a shorter run says nothing")
    from dray.cli.measuring import app, measure  # noqa: PLC0415 - it starts workers, which `--help` need not load

    settings, core = settings_here(), core_of(app)
    url = scratch_url(settings.url)
    core.change_settings(url=url)
    what = "file" if settings.is_sqlite else "schema"
    say(f"measuring on a scratch {what}, which is removed at the end: {core.settings.place}")
    interrupts = Interrupts()
    with interrupts.caught(), removed_at_the_end(url), app:
        try:
            core.backend.migrate()
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise Failure(f"cannot create a scratch {what}: {error}; dray bench needs the right to do so") from None
        figures = measure(seconds, jobs, interrupts, _tell)
    shape = {"database": settings.place, "scratch": core.settings.place, **figures}
    put_either(shape, lambda: _words(shape))


def _tell(stage: str) -> None:
    if is_terminal():
        click.echo(stage, err=True)


def _words(shape: dict[str, Any]) -> Iterator[str]:
    raw: dict[str, dict[str, Any]] = shape["raw"]
    bound = _RAW["fsync" if "fsync" in raw else "commit"]
    rows = [{"what": f"raw: {_RAW[name]}", "to_raw": None, **rate} for name, rate in raw.items()]
    rows += [
        {"what": "enqueue, one at a time", **shape["enqueue"]},
        {"what": "enqueue, in batches", **shape["enqueue_many"]},
        {"what": "run, one worker process", **shape["drain"]},
    ]
    columns = (
        Column("", "what", is_elastic=True),
        Column("a second", "per_second", "{per_second:,.0f}", is_number=True),
        Column(f"to {bound}", "to_raw", "{to_raw:.2f}", is_number=True, rank=1),
    )
    yield from table(rows, columns)
    found = shape["pick_up"]
    yield (
        f"pick-up by an idle worker, after the commit: p50 {found['p50'] * 1000:.1f} ms, "
        f"p99 {found['p99'] * 1000:.1f} ms ({counted(found['samples'], 'sample')})"
    )
