"""The options that every command has, before or after its name: which database, which app, and JSON.

``--url`` on the command line overrides the app's own address; ``DRAY_URL`` is only for an App without an address.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dray.cli.exits import say
from dray.sanitize import holds_password

C = TypeVar("C", bound=Callable[..., Any])

_KEY = "dray."
_TYPED_URL = "_DRAY_TYPED_URL"
_inherited_url = os.environ.pop(_TYPED_URL, None)  # removed: processes that tasks start must not see it


def warn_of_password(param: str, value: str, variable: str) -> None:
    """Warns of an address with a password that was typed, and not set by its variable."""
    if holds_password(value) and is_typed(param):
        say(f"a password on the command line can be seen by every user of this machine; set {variable} instead")


def is_typed(param: str) -> bool:
    """Whether a parameter of the command stands on the command line itself."""
    return click.get_current_context().get_parameter_source(param) is ParameterSource.COMMANDLINE


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keeps the value that counts: a typed one before a variable, the last one before the first."""
    name = str(param.name)
    if value == "" and is_typed(name):
        ctx.fail(f"--{name} is empty")  # `--url "$UNSET"` must not use another database
    if not value or not (is_typed(name) or _KEY + name not in ctx.meta):
        return
    ctx.meta[_KEY + name] = value
    if name == "url" and is_typed(name):
        ctx.meta[_KEY + "typed_url"] = value
        warn_of_password("url", value, "DRAY_URL")


def all_of(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    """Returns a decorator that adds several options."""

    def add_all(command: C) -> C:
        for add in reversed(options):
            command = add(command)
        return command

    return add_all


option = partial(click.option, show_envvar=True)  # the help of every option names its variable
_shared = partial(click.Option, expose_value=False, callback=_keep, show_envvar=True)
_SHARED = (
    _shared(
        ["--url"],
        metavar="URL",
        envvar="DRAY_URL",
        help="The database: sqlite:///jobs.db, a path, or postgresql://user@host/db.",
    ),
    _shared(
        ["--app"],
        metavar="APP",
        envvar="DRAY_APP",
        help="The app with the tasks, as module:object; else [tool.dray] app in pyproject.toml, tasks.py or app.py.",
    ),
    _shared(["--json"], is_flag=True, envvar="DRAY_JSON", help="Print JSON."),
)


class Command(click.Command):
    """A command with the options that every command has, after its own."""

    def __init__(self, *args: Any, params: Sequence[click.Parameter] = (), **kwargs: Any) -> None:
        super().__init__(*args, params=[*params, *_SHARED], **kwargs)


class Group(Command, click.Group):
    command_class = Command


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    return click.command(name, cls=Command, **settings)


def _check_modules(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if not all(name.split(".")):  # Python's import would raise a ValueError of ours
            raise click.BadParameter(f"{name!r} is no module's name; write it as in an import: shop.jobs", ctx, param)
    return value


import_option = option(
    "-i",
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    callback=_check_modules,
    help="A module that defines tasks.",
)


def told(name: str, context: click.Context | None = None) -> Any:
    """Returns the value of a shared option; ``typed_url`` is --url without its variable."""
    meta = (context or click.get_current_context()).meta
    if _inherited_url is not None and name in {"url", "typed_url"} and _KEY + "typed_url" not in meta:
        return _inherited_url
    return meta.get(_KEY + name)


def wants_json() -> bool:
    return bool(told("json"))


def same_command() -> list[str]:
    """Returns this very command, to be run again.

    A typed address is passed on by the environment: it may hold a password, and command lines are public.
    """
    typed, words = told("typed_url"), iter(sys.orig_argv[1:])
    if typed is not None:
        os.environ[_TYPED_URL] = typed
    command = [sys.executable]
    for word in words:
        if word == "--url":
            next(words, None)
        elif not word.startswith("--url="):
            command.append(word)
    return command
