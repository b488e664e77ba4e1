"""``dray db``: the list of its commands."""

from __future__ import annotations

import click

from dray.cli.lazy import LazyGroup, Place
from dray.cli.shared import shared

_COMMANDS = {
    name: Place(f"dray.cli.commands.{module}", about)
    for name, module, about in (
        ("init", "db_tables", "make the tables, and the file; upgrade them"),
        ("migrate", "db_tables", "upgrade the tables"),
        ("status", "db_tables", "where they are, and their version"),
        ("sql", "db_sql", "print what makes them"),
        ("check", "db_check", "check that the database is whole, and that the tables hold what they promise"),
        ("backup", "db_backup", "copy the database while others work"),
        ("move", "db_move", "carry everything into another database"),
        ("prune", "db_prune", "clear away jobs that ended long ago"),
    )
}


@click.group(cls=LazyGroup, places=_COMMANDS)
@shared
def db() -> None:
    """Make, upgrade, check, copy and clear the tables."""
