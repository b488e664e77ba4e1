"""A group of commands whose code is loaded when one of them is run; its help needs only the table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dray.wording import close_matches

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Place(NamedTuple):
    """Where a command is written, and what it does in a few words."""

    module: str
    about: str


class LazyGroup(click.Group):
    """``places``: commands by name. In each module the command has the name it is called by."""

    def __init__(self, *args: Any, places: Mapping[str, Place], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(import_module(place.module), cmd_name)
        if ctx.resilient_parsing:
            from dray.cli.completing import equip  # noqa: PLC0415 - only a shell that completes a word asks so

            equip(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells alone

        found = [
            CompletionItem(name, help=place.about)
            for name, place in self._places.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)  # not Group's: it would load them all

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._places and not args[0].startswith("-"):
            near = close_matches(args[0], self._places)
            hint = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.about) for name, place in self._places.items()])
