"""What every command can be told, before or after its name: which database, which app, and whether to answer in JSON.

``--url`` on the command line wins over the app's own address; ``DRAY_URL`` is what an App without an address goes
by, as everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dray.cli.exits import Code, Failure, say
from dray.sanitize import holds_password

if TYPE_CHECKING:
    from dray.app import App
    from dray.task import Task

C = TypeVar("C", bound=Callable[..., Any])

_NAME_IT = "name it as module:object (--app), or go where a tasks.py with an App in it is"
_KEY = "dray."
_TYPED_URL = "_DRAY_TYPED_URL"
_inherited_url = os.environ.pop(_TYPED_URL, None)  # not for what bodies start


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """An option may stand twice: what is typed counts more than a variable, the last one more than the first."""
    name = str(param.name)
    is_typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if value == "" and is_typed:
        ctx.fail(f"--{name} is empty")  # a variable that is not set is no reason to use some other database
    if not value or not (is_typed or _KEY + name not in ctx.meta):
        return
    ctx.meta[_KEY + name] = value
    if name == "url" and is_typed:
        ctx.meta[_KEY + "typed_url"] = value
        if holds_password(value):
            say("a password on the command line can be seen by every user of this machine; set DRAY_URL instead")


_OPTIONS = (
    click.option(
        "--url",
        metavar="URL",
        envvar="DRAY_URL",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="The database: sqlite:///jobs.db, a path, or postgresql://user@host/db.",
    ),
    click.option(
        "--app",
        metavar="APP",
        envvar="DRAY_APP",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Where the tasks are, as module:object; else [tool.dray] app in pyproject.toml, tasks.py or app.py.",
    ),
    click.option(
        "--json",
        is_flag=True,
        envvar="DRAY_JSON",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Answer in JSON.",
    ),
)


option = partial(click.option, show_envvar=True)  # every option says which variable sets it


def _modules(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if not all(name.split(".")):  # Python's import takes it for a mistake in our code
            raise click.BadParameter(f"{name!r} is no module's name; write it as in an import: shop.jobs", ctx, param)
    return value


import_option = option(
    "-i",
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    callback=_modules,
    help="A module that defines tasks.",
)


def shared(command: C) -> C:
    """Gives a command the options that all have."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


def wants_json() -> bool:
    return bool(told("json"))


def app_here(named: str | None = None) -> App | None:
    """The App that is named here or found, on the database that was asked for; None: there is none."""
    from dray.cli.finding import find  # noqa: PLC0415 - it loads users' code

    app = find(named or told("app"))
    url = told("typed_url")
    if app is not None and url is not None:
        from dray.settings import Settings  # noqa: PLC0415

        app.settings = replace(app.settings, url=Settings.of(url).url, listen_url=None)
    return app


def load_tasks(app: App, more: Iterable[str] = ()) -> None:
    """Imports the modules that define the app's tasks."""
    from dray.cli.finding import imported  # noqa: PLC0415 - it loads users' code

    for module in (*app.settings.imports, *more):
        imported(module)


def known_task(app: App, name: str) -> Task[..., Any]:
    """The task of this name; where there is none, what somebody at a shell can do about it."""
    if name not in app.registry:
        raise Failure(f"{app.registry.missing(name)} `dray tasks` lists those that are known", Code.NOT_FOUND)
    return app.registry.get(name)


def app_with_tasks(named: str | None = None) -> App:
    """The App whose tasks are to be run or enqueued."""
    app = app_here(named)
    if app is None:
        raise Failure(f"no app was found here; {_NAME_IT}", Code.USAGE)
    return _closed_at_the_end(app)


def app_for_enqueueing() -> App:
    """The App that is here; else one that knows no task, on the database that was asked for or is here."""
    return _closed_at_the_end(app_here() or _bare_app_on_something())


def _bare_app_on_something() -> App:
    # In a wrong folder a job would go unchecked into a new file, where nobody ever looks for it.
    app = bare_app()
    if told("url") is None and app.backend.schema_version() is None:
        raise Failure(
            f"no app was found here, and no database is named; {_NAME_IT}, or name the database (--url)", Code.USAGE
        )
    return app


def task_to_fit(app: App, name: str, *, unchecked: bool) -> Task[..., Any] | None:
    """The task that arguments have to fit; None: it is not known here, and need not be."""
    if name in app.registry or (len(app.registry) and not unchecked):
        return known_task(app, name)
    if not unchecked:
        say("no task is known here: neither this one nor its arguments are checked")
    return None


def app_on_tables() -> App:
    """An App to look at what there is and to act on it: nothing is created, and no task needs to be known.

    Whoever names the database needs no code here.
    """
    app = bare_app() if told("typed_url") and not told("app") else app_here() or bare_app()
    app.settings = replace(app.settings, migrate=False)
    return _closed_at_the_end(app)


def app_with_tasks_on_tables() -> App:
    """An App that knows its tasks, where it is here, on tables that are there: nothing is created."""
    app = app_for_enqueueing()
    app.settings = replace(app.settings, migrate=False)
    load_tasks(app)
    return app


def bare_app() -> App:
    """An App that knows no task, on the database that was asked for."""
    from dray.app import App  # noqa: PLC0415 - `--help` needs none

    return App(told("url"))


def _closed_at_the_end(app: App) -> App:
    from dray.cli.logs import say_warnings  # noqa: PLC0415 - the storage loads logging anyway

    say_warnings()
    app.hides_unknown_args = True
    return click.get_current_context().with_resource(app)


def same_command() -> list[str]:
    """This very command, to be run again; a typed address goes by the environment, because it may hold a password and
    everybody can read a command line."""
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


def told(name: str, context: click.Context | None = None) -> Any:
    """What a shared option was given, or its variable; ``typed_url`` is what was given as --url alone."""
    meta = (context or click.get_current_context()).meta
    if _inherited_url is not None and name in {"url", "typed_url"} and _KEY + "typed_url" not in meta:
        return _inherited_url
    return meta.get(_KEY + name)
