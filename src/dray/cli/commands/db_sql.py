"""``dray db sql``: what makes the tables, for those who apply it by hand."""

from __future__ import annotations

from typing import Any

import click

from dray.cli.exits import say
from dray.cli.output import put, put_json
from dray.cli.shared import app_on_tables, option, shared, wants_json


@click.command()
@option("--kind", type=click.Choice(["sqlite", "postgres"]), help="Of this database; else of the one that is named.")
@option("--from", "after", type=click.IntRange(min=0), default=0, metavar="N", help="For tables of version N.")
@option("--migrations", is_flag=True, help="One transaction for each version, and not one for all.")
@shared
def sql(kind: Any, after: int, *, migrations: bool) -> None:
    """Print the SQL that `dray db migrate` runs, the notes of the version included. No database is opened.

    `dray db sql --kind postgres | psql -v ON_ERROR_STOP=1`, `dray db sql --kind sqlite | sqlite3 -bail jobs.db`
    """
    from dray.backends import migrate  # noqa: PLC0415 - `--help` needs none

    schema = None
    if kind is None:
        kind, schema = _named()
    scripts = migrate.scripts(kind, schema=schema, after=after, one_by_one=migrations)
    if wants_json():
        put_json([{"version": script.version, "sql": script.text} for script in scripts])
    elif scripts:
        put("\n".join(script.text for script in scripts).rstrip())
    else:
        say(f"there is nothing after version {after}")


def _named() -> tuple[str, str | None]:
    """The kind of the database that is meant, and its schema."""
    from dray.address import PostgresAddress, parse_address  # noqa: PLC0415

    address = parse_address(app_on_tables().settings.url)
    return ("postgres", address.schema) if isinstance(address, PostgresAddress) else ("sqlite", None)
