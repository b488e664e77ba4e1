"""``dray actions``: what people did, by the command line, the dashboard or an agent."""

from __future__ import annotations

from typing import Any

import click

from dray.app_interface import core_of
from dray.cli.apps import app_on_tables
from dray.cli.cells import Shape, relative
from dray.cli.options import command, option, wants_json
from dray.cli.output import Column, is_terminal, put_list
from dray.model.values import canonical_id
from dray.ops import listing, shapes
from dray.wording import with_short_ids


def _what(verb: Any, action: Shape) -> str:
    return with_short_ids(f"{verb} {action['kind']} {action['target']}")


def _note(note: Any, _: Shape) -> str:
    return with_short_ids(note or "")


_COLUMNS = (
    Column("when", "at", relative),
    Column("who", "who", is_elastic=True),
    Column("via", "via", rank=2),
    Column("what", "verb", _what, is_elastic=True),
    Column("done", "done", is_number=True),
    Column("refused", "refused", is_number=True, rank=1),
    Column("note", "note", _note, is_elastic=True, rank=3),
)
_KEYS = "id at who via verb kind target done refused note"


@command()
@option("--limit", type=click.IntRange(1, listing.MAX_LIMIT), default=100, show_default=True, help="Maximum number.")
@option("--after", metavar="ID", help="Those that come after this action in the list.")
def actions(limit: int, after: str | None) -> None:
    """List what people did, newest first: retried, cancelled, deleted, paused, enqueued and so on.

    By the command line (cli), the dashboard (web) or an agent (mcp). What programs do is not listed. Actions are kept
    for 90 days. In a pipe: id, at, who, via, verb, kind, target, done, refused, note, separated by tabs.
    """
    before = None if after is None else canonical_id(after)
    if after is not None and before is None:
        raise click.BadParameter(
            f"{after!r} is no action's id; give a whole one, as --json shows it", param_hint="--after"
        )
    found = core_of(app_on_tables()).backend.actions.newest(limit, before)
    put_list([shapes.action(each) for each in found], _COLUMNS, "no actions", _KEYS)
    if len(found) == limit and is_terminal() and not wants_json():
        click.echo(f"there may be more: --limit {limit * 10}, or --after {found[-1].id}", err=True)
