"""``dray db``: the tables, created, upgraded, checked, copied and pruned. `db_move` moves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import dray
from dray.address import PostgresAddress, parse_address
from dray.app_interface import core_of
from dray.backends.migrate import command as how
from dray.backends.migrate import latest, scripts
from dray.cli.apps import app_on_tables, person, settings_here
from dray.cli.cells import Shape, seconds
from dray.cli.exits import Code, Failure, say
from dray.cli.options import command, option, wants_json
from dray.cli.output import Column, fields, progress, put, put_either, put_json
from dray.cli.parsing import confirm, state_option, time_option
from dray.cli.root import LazyGroup
from dray.model.circumstances import Closed
from dray.model.job import FINAL, states_named
from dray.ops import acting, pruning
from dray.ops.backup import backup as run_backup
from dray.wording import counted

_COMMANDS = {
    "init": ("commands.db", "create the tables, and the file; upgrade them"),
    "migrate": ("commands.db", "upgrade the tables"),
    "status": ("commands.db", "show where the tables are, and their version"),
    "sql": ("commands.db", "print the SQL that creates the tables"),
    "check": ("commands.audit", "check the database for damage, and that the tables keep their invariants"),
    "backup": ("commands.db", "copy the database while workers run"),
    "move": ("commands.db_move", "move everything into another database"),
    "prune": ("commands.db", "remove jobs that ended long ago"),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def db() -> None:
    """Create, upgrade, check, copy and prune the tables."""


@command()
def init() -> None:
    """Create the tables, and the file, if they do not exist. Also upgrades them.

    The database is that of --url, or of the app that is named or found here.
    """
    app = app_on_tables(if_there_are_none=Code.USAGE)
    core_of(app).backend.migrate()
    _put_version(app)


@command()
def migrate() -> None:
    """Upgrade the tables to the version that this Dray needs; on PostgreSQL it also creates them."""
    app = app_on_tables(if_there_are_none=Code.USAGE)
    if core_of(app).settings.is_sqlite:
        _version(app)  # a mistyped path must not create a file
    core_of(app).backend.migrate()
    _put_version(app)


@command()
def status() -> None:
    """Show where the tables are, and which version they have.

    Exit code 6: there are none, they need an upgrade, they are too new for this Dray, or a move has closed them.
    """
    app = app_on_tables()
    version, newest = _version(app), _newest(app)
    _put_version(app)
    if version < newest:
        what = f"the tables need an upgrade; run {how('migrate', core_of(app).settings.place)}"
        raise Failure(f"{core_of(app).settings.place}: {what}", Code.NO_DATABASE)
    core_of(app).backend.queues.all()  # raises if they are too new
    closed = Closed.of(core_of(app).backend.examine().known())
    if closed is not None:
        raise Failure(f"{core_of(app).settings.place}: {closed.text}; {closed.fix}", Code.NO_DATABASE)


def _version(app: dray.App) -> int:
    version = core_of(app).backend.schema_version()
    if version is None:
        what = f"there are no tables; run {how('init', core_of(app).settings.place)}"
        raise Failure(f"{core_of(app).settings.place}: {what}", Code.NO_DATABASE)
    return version


def _newest(app: dray.App) -> int:
    return latest("sqlite" if core_of(app).settings.is_sqlite else "postgres")


def _put_version(app: dray.App) -> None:
    shape = {
        "database": core_of(app).settings.place,
        "version": core_of(app).backend.schema_version(),
        "newest_version": _newest(app),
    }
    put_either(shape, lambda: fields(shape, [Column(name.replace("_", " "), name) for name in shape]))


@command()
@option("--kind", type=click.Choice(["sqlite", "postgres"]), help="For this kind; else for that of the database.")
@option("--from", "after", type=click.IntRange(min=0), default=0, metavar="N", help="Upgrade tables of version N.")
@option("--migrations", is_flag=True, help="One transaction for each version instead of one for all.")
def sql(kind: Any, after: int, *, migrations: bool) -> None:
    """Print the SQL that `dray db migrate` runs, including the rows that record the version. Opens no database.

    `dray db sql --kind postgres | psql -v ON_ERROR_STOP=1`, `dray db sql --kind sqlite | sqlite3 -bail jobs.db`
    """
    schema = None
    if kind is None:
        address = parse_address(settings_here().url)
        kind, schema = ("postgres", address.schema) if isinstance(address, PostgresAddress) else ("sqlite", None)
    found = scripts(kind, schema=schema, after=after, one_by_one=migrations)
    if wants_json():
        put_json([{"version": version, "sql": text} for version, text in found.items()])
    elif found:
        put("\n".join(found.values()).rstrip())
    else:
        say(f"there is nothing after version {after}")


_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def _size(value: Any, _: Shape) -> str:
    unit = 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


_BACKUP_FIELDS = (
    Column("backup", "backup"),
    Column("size", "bytes", _size),
    Column("jobs", "jobs", "{jobs:,}"),
    Column("took", "seconds", seconds),
)


@command()
@click.argument("target", required=False, type=click.Path(path_type=Path))
@option("--force", is_flag=True, help="Replace an existing file, once the copy is complete.")
def backup(target: Path | None, *, force: bool) -> None:
    """Copy the database as it is now into a file, while workers and clients go on.

    TARGET is a file or a folder. By default the copy is written here, named after the database and the time (UTC). A
    SQLite copy is a database like any other. A PostgreSQL copy has Dray's tables only; pg_dump makes it, and
    pg_restore reads it. The copy is checked before it gets its name.
    """
    app = app_on_tables()
    with progress("copying") as report:
        made = run_backup(core_of(app).backend, target, force=force, progress=report)
    shape = {"database": core_of(app).settings.place, **made}
    put_either(shape, lambda: fields(shape, _BACKUP_FIELDS))


_PAGES = 1_000  # given back to the disk in one transaction


@command()
@time_option("--older-than", help="Ended longer ago than this; else as above.")
@state_option(help="Only completed, failed or cancelled ones (repeat for several).")
@option("--vacuum", is_flag=True, help="Return unused space of a SQLite file to the disk.")
@option("--yes", is_flag=True, help="Do not ask.")
@option("--dry-run", is_flag=True, help="Only say how many jobs it would remove.")
def prune(older_than: float | None, state: Sequence[str], *, vacuum: bool, yes: bool, dry_run: bool) -> None:
    """Remove jobs that ended long ago, with their attempts and logs.

    By default those that a worker would remove by itself: completed and cancelled ones after 7 days, failed ones
    after 30. A job stays while one that runs after it is live, failed or cancelled, and so does a workflow that has
    not ended.
    """
    named = [states_named(word) for word in state]
    if any(reason is not None or not states <= FINAL for states, reason in named):
        raise click.UsageError("--state may be completed, failed or cancelled: only jobs that have ended are removed")
    chosen = frozenset(each for states, _ in named for each in states) if named else FINAL
    kept = pruning.retention(older_than, chosen)
    app = app_on_tables()
    found = core_of(app).backend.history.prunable(kept)
    total, removed = sum(found.values()), 0
    if not dry_run:
        if total and not yes:
            confirm("remove", total, "nothing was removed")
        with progress("removing") as report:
            if total:
                removed = acting.prune(
                    core_of(app), older_than, chosen, person(), lambda done: report(done, max(done, total))
                )
            else:  # no action: a database that may only be read does not refuse this
                removed = pruning.remove(core_of(app).backend, kept)
        upkeep = core_of(app).backend.upkeep if vacuum else None
        while upkeep is not None and upkeep.vacuum(_PAGES):
            continue
    counts = ", ".join(f"{jobs:,} {state}" for state, jobs in found.items())
    words = f"would remove {counted(total, 'job')}: {counts}" if dry_run else f"removed {counted(removed, 'job')}"
    put_either({"database": core_of(app).settings.place, "found": found, "removed": removed}, lambda: [words])
