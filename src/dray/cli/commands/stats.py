"""``dray stats``: the numbers of a database."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dray.cli.exits import Code, say
from dray.cli.live.ink import is_dumb
from dray.cli.output import Column, Shape, is_terminal, json_line, put, put_flat, put_json, table
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.states import BESIDE, STATES, state_columns
from dray.cli.times import Duration, iso, span
from dray.errors import StorageError

if TYPE_CHECKING:
    from dray.app import App
    from dray.ops import Stats

_EVERY = 2
_SHORTEST = 0.1


def _age(value: Any, _: Shape) -> str:
    return "" if value is None else span(value)


@click.command()
@option("--window", type=Duration(), default=3600.0, metavar="TIME", help="What rates and run times are of (1h).")
@option(
    "--watch",
    type=Duration(),
    is_flag=False,
    flag_value=f"{_EVERY}s",
    metavar="[TIME]",
    help=f"Again and again, each {_EVERY} seconds or as often as this says, until Ctrl-C.",
)
@shared
def stats(window: float, watch: float | None) -> int:
    """Jobs by state and queue, how long the oldest waits, rates and run times.

    In a pipe: a line each, the name of the number first. With --watch: in a pipe an empty line after each look, with
    --json an object a line.
    """
    app = app_on_tables()
    if watch is not None:
        return _watch(app, window, max(watch, _SHORTEST))
    found = app.stats(window)
    if wants_json():
        put_json(_shape(app, found))
    elif is_terminal():
        put("\n".join(_lines(app.settings.place, found)))
    else:
        put_flat(_shape(app, found))
    return Code.DONE


def _shape(app: App, found: Stats) -> dict[str, Any]:
    return {"database": app.settings.place, **found.as_dict()}


def _watch(app: App, window: float, every: float) -> int:
    from dray.cli.live.region import Region  # noqa: PLC0415 - for those who watch
    from dray.cli.live.stopping import Stopping  # noqa: PLC0415

    region = Region(sys.stdout) if is_terminal() and not wants_json() and not is_dumb() else None
    found = app.stats(window)  # what is wrong from the beginning ends it
    with Stopping() as stopping:
        try:
            while True:
                with stopping.writing():
                    if region is None:
                        _put_one(app, found)
                    else:
                        region.draw(_lines(app.settings.place, found))
                if stopping.wait(every):
                    return Code.DONE
                found = _again(app, window) or found
        except KeyboardInterrupt:
            return Code.DONE  # told to end while it wrote to somebody who does not read


def _again(app: App, window: float) -> Stats | None:
    """The numbers; None while the database does not answer."""
    try:
        return app.stats(window)
    except StorageError as error:
        say(f"the database does not answer: {error}; trying again")
        return None


def _put_one(app: App, found: Stats) -> None:
    shape = {"at": iso(datetime.now(UTC)), **_shape(app, found)}
    if wants_json():
        put(json_line(shape))
        return
    put_flat(shape)
    put("")


def _lines(place: str, found: Stats) -> list[str]:
    rows = [
        {"queue": name, "oldest": found.oldest_queued.get(name), **{state: jobs.get(state, 0) for state in STATES}}
        for name, jobs in found.queues.items()
    ]
    rows.append({"queue": "all", "oldest": found.oldest_queued_age, **found.states})
    columns = (
        Column("queue", "queue", is_elastic=True),
        *state_columns(rows),
        Column("oldest", "oldest", _age, rank=BESIDE),
    )
    ended = ", ".join(f"{count:,} {state}" for state, count in found.finished.items())
    lines = [
        place,
        *table(rows, columns).splitlines(),
        f"in the last {span(found.window)}: {ended}; {found.throughput:.3g} a second",
    ]
    if found.p50 is not None and found.p95 is not None:
        lines.append(f"run time: half at most {span(found.p50)}, 95 of 100 at most {span(found.p95)}")
    return lines
