"""What ``dray doctor`` and ``dray health`` look at: the database that was named, opened so that nothing changes."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dray.cli.exits import Failure
from dray.cli.shared import app_here, app_on_tables, bare_app, load_tasks, told

if TYPE_CHECKING:
    from dray.app import App
    from dray.ops.doctor import Code, Subject

_PATIENCE = 2.0  # seconds to reach the database


def database_here() -> Subject:
    """The database alone."""
    return _subject(app_on_tables(), None)


def database_and_code_here() -> Subject:
    """The database, and the app with its tasks, or why it cannot be had."""
    app, code = _found()
    click.get_current_context().with_resource(app)
    return _subject(app, code)


def _subject(app: App, code: Code | None) -> Subject:
    from dray.ops.doctor import Code, Subject  # noqa: PLC0415 - `--help` needs none

    # What connections log of a database in a bad state is what the checks say, in better words.
    logging.getLogger("dray").addHandler(logging.NullHandler())
    app.settings = replace(app.settings, migrate=False, busy_timeout=min(_PATIENCE, app.settings.busy_timeout))
    return Subject(app.settings, app.backend, app.clock, code or Code())


def _found() -> tuple[App, Code]:
    """The app, and how it was found; where its code cannot be had, one that knows no task."""
    from dray.cli.finding import name_of  # noqa: PLC0415 - it loads users' code
    from dray.ops.doctor import Code  # noqa: PLC0415

    typed = told("typed_url")
    if typed and not told("app"):
        return bare_app(), Code(address="--url", is_sought=False)
    app, problem = None, None
    try:
        app = app_here()
        if app is not None:
            load_tasks(app)
    except Failure as failure:
        problem = failure.format_message()
    if app is None:
        return bare_app(), Code(problem=problem, address="--url" if typed else _variable_or_default())
    address, unused = ("--url", None) if typed else _source(app)
    return app, Code(name_of(app), tuple(app.registry.names()), problem, address, unused)


def _variable_or_default() -> str:
    return "DRAY_URL" if os.environ.get("DRAY_URL") else "the default"


def _source(app: App) -> tuple[str, str | None]:
    """Where the app's address comes from, and what is not used for that."""
    from dray.settings import Settings  # noqa: PLC0415

    if app.settings.url == Settings.of(None).url:
        return _variable_or_default(), None
    unused = "DRAY_URL is set to another one, and not used" if os.environ.get("DRAY_URL") else None
    return "the app's code", unused
