"""``dray bench``: what this database can do, measured beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dray.cli.exits import Failure, say
from dray.cli.output import Column, Shape, is_terminal, put, put_flat, put_json, put_table
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.times import Duration
from dray.wording import counted

if TYPE_CHECKING:
    from dray.ops.bench import Figures, Rate
    from dray.settings import Settings

_RAW = {"fsync": "fsync of a page", "round_trip": "round trip", "commit": "commit of a row"}


@click.command()
@option("--seconds", type=Duration(), default=15.0, metavar="TIME", help="About how long it takes (15s).")
@option(
    "--jobs",
    type=click.IntRange(1, 1_000_000),
    default=5000,
    show_default=True,
    help="How many are enqueued together.",
)
@shared
def bench(seconds: float, jobs: int) -> None:
    """Measure how fast jobs that do nothing are enqueued, picked up and run on this kind of database.

    It works on a scratch file in the same folder, or in a scratch schema on the same server, which it makes and
    removes again; your own tables are not touched. In a pipe: a line each, the name of the number first.
    """
    if seconds < 1:
        raise click.UsageError("--seconds must be at least 1: less says nothing")
    shape = _measured(app_on_tables().settings, seconds, jobs)
    if wants_json():
        put_json(shape)
    elif is_terminal():
        _show(shape)
    else:
        put_flat(shape)


def _measured(settings: Settings, seconds: float, jobs: int) -> dict[str, Any]:
    from dray.backends.scratch import removed_at_the_end, scratch_url  # noqa: PLC0415 - `--help` needs none
    from dray.cli.bench.interrupts import Interrupts  # noqa: PLC0415
    from dray.cli.bench.measuring import measure  # noqa: PLC0415
    from dray.cli.bench.tasks import app  # noqa: PLC0415
    from dray.errors import StorageError, StorageUnavailable  # noqa: PLC0415

    url = scratch_url(settings.url)
    app.settings = replace(app.settings, url=url)
    what = "file" if app.settings.is_sqlite else "schema"
    say(f"measuring on a scratch {what}, which is removed at the end: {app.settings.place}")
    with Interrupts() as interrupts, removed_at_the_end(url), app:
        try:
            app.backend.migrate()
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise Failure(
                f"a scratch {what} cannot be made: {error}; dray bench needs the right to make one"
            ) from None
        figures = measure(seconds, jobs, interrupts, _tell)
    return {
        "database": settings.place,
        "scratch": app.settings.place,
        **_shape(figures),
    }


def _tell(stage: str) -> None:
    if is_terminal():
        click.echo(stage, err=True)


def _shape(figures: Figures) -> dict[str, Any]:
    # What an enqueue waits for: the disk, or the server's answer after it has reached the disk.
    bound = figures.raw.get("fsync") or figures.raw["commit"]
    return {
        "raw": {name: _rate(rate) for name, rate in figures.raw.items()},
        "enqueue": _rate(figures.enqueue, bound),
        "enqueue_many": _rate(figures.enqueue_many, bound),
        "drain": _rate(figures.drain, bound),
        "pick_up": {
            "p50": figures.pick_up.p50,
            "p99": figures.pick_up.p99,
            "samples": figures.pick_up.samples,
        },
    }


def _rate(rate: Rate, raw: Rate | None = None) -> dict[str, Any]:
    made = {"per_second": rate.per_second, "count": rate.count, "seconds": rate.seconds}
    return made if raw is None else {**made, "to_raw": rate.per_second / raw.per_second}


def _per_second(value: Any, _: Shape) -> str:
    return f"{value:,.0f}"


def _to_raw(value: Any, _: Shape) -> str:
    return "" if value is None else f"{value:.2f}"


def _show(shape: dict[str, Any]) -> None:
    raw: dict[str, dict[str, Any]] = shape["raw"]
    bound = _RAW["fsync" if "fsync" in raw else "commit"]
    rows = [{"what": f"raw: {_RAW[name]}", "to_raw": None, **rate} for name, rate in raw.items()]
    rows += [
        {"what": words, **shape[name]}
        for name, words in {
            "enqueue": "enqueue, one at a time",
            "enqueue_many": "enqueue, many at a time",
            "drain": "run, one worker process",
        }.items()
    ]
    columns = (
        Column("", "what", is_elastic=True),
        Column("a second", "per_second", _per_second, is_number=True),
        Column(f"to {bound}", "to_raw", _to_raw, is_number=True, rank=1),
    )
    put_table(rows, columns)
    found = shape["pick_up"]
    put(
        f"pick-up by an idle worker: half within {found['p50'] * 1000:.1f} ms, 99 of 100 within "
        f"{found['p99'] * 1000:.1f} ms of the commit ({counted(found['samples'], 'sample')})"
    )
