"""``dray db backup``: a copy of the database, made while others work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dray.cli.output import Column, Shape, is_terminal, put_fields, put_flat, put_json
from dray.cli.progress import progress
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.cli.times import span

_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def _size(value: Any, _: Shape) -> str:
    unit = 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def _jobs(value: Any, _: Shape) -> str:
    return f"{value:,}"


def _took(value: Any, _: Shape) -> str:
    return span(value)


_COLUMNS = (
    Column("backup", "backup"),
    Column("size", "bytes", _size),
    Column("jobs", "jobs", _jobs),
    Column("took", "seconds", _took),
)


@click.command()
@click.argument("target", required=False, type=click.Path(path_type=Path))
@option("--force", is_flag=True, help="Replace what is there, once the copy is whole.")
@shared
def backup(target: Path | None, *, force: bool) -> None:
    """Copy the database as it is now into a file, while others go on working.

    TARGET is a file or a folder; without it the copy is made here, named after the database and the time (UTC). A
    SQLite copy is a database like any other; a PostgreSQL copy has Dray's tables, and is made by pg_dump for
    pg_restore. It is checked before it gets its name.
    """
    from dray.ops.backup import backup as run  # noqa: PLC0415 - `--help` needs none

    app = app_on_tables()
    with progress("copying") as report:
        made = run(app.backend, target, force=force, progress=report)
    shape = {
        "database": app.settings.place,
        "backup": str(made.path),
        "bytes": made.bytes,
        "jobs": made.jobs,
        "seconds": made.seconds,
    }
    if wants_json():
        put_json(shape)
    elif is_terminal():
        put_fields(shape, _COLUMNS)
    else:
        put_flat(shape)
