"""The environment variables that set options: every command's, as click makes their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

PREFIX = "DRAY"
OURS = frozenset({"DRAY_SUPERVISED", "DRAY_DEMO_LEDGER", "DRAY_RELOADED"})  # between our own processes


class Variable(NamedTuple):
    """One option of one command."""

    setting: str  # ``worker.concurrency``
    option: click.Option


def variables() -> dict[str, Variable]:
    """All of them by name; loads every command."""
    from dray.cli.root import root  # noqa: PLC0415 - it lists the command that asks

    return dict(_of(root, PREFIX, ""))


def _of(command: click.Command, prefix: str, path: str) -> Iterator[tuple[str, Variable]]:
    context = click.Context(command, info_name=path or "dray")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name and parameter.name != "version":
            yield f"{prefix}_{parameter.name.upper()}", Variable(_setting(path, parameter), parameter)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                inner = f"{prefix}_{name.upper().replace('-', '_')}"
                yield from _of(child, inner, f"{path} {name}".strip())


def _setting(path: str, option: click.Option) -> str:
    longest = max(option.opts, key=len).lstrip("-").replace("-", "_")
    return f"{path.replace(' ', '.')}.{longest}" if path else longest
