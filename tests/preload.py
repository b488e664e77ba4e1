"""Loads in the server of forks all that a command or a worker may need: a process would take 0.2 s to load it."""

from __future__ import annotations

import gc
import pkgutil
import re
from importlib import import_module

import click

import dray

gc.disable()
# An App, whose address is that of the process; and what needs packages that are not installed for these tests.
_LEFT_OUT = re.compile(r".*(__main__|\.demo\.tasks)|dray\.integrations\.(django|fastapi|flask|mcp|otel).*")
for _module in pkgutil.walk_packages(dray.__path__, "dray."):
    if not _LEFT_OUT.fullmatch(_module.name):
        import_module(_module.name)
for _name in (
    *("asyncio", "psycopg", "cronsim", "difflib", "click._textwrap", "encodings.ascii"),
    *("rich.console", "rich.table", "rich.progress", "rich.markup", "rich._emoji_codes"),
):
    import_module(_name)
for _path, _command in import_module("tests.cli.walk").COMMANDS.items():  # click prepares options at their first use
    _command.get_help(click.Context(_command, info_name=" ".join(_path)))
gc.freeze()  # or each process would look through it all, and copy its memory
gc.enable()
