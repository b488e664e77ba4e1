"""What ``dray doctor`` and ``dray health`` look at: the database, opened so that nothing changes, and the code."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

import click

from dray.app import App
from dray.cli.apps import app_here, app_on_tables, bare_app, load_tasks, name_of
from dray.cli.exits import Failure
from dray.cli.options import told
from dray.ops.doctor.check import Code, Subject
from dray.ops.health import Health, health
from dray.settings import Settings

_PATIENCE = 2.0  # seconds to reach the database


def health_here(**demands: Any) -> Health:
    """Examines the database alone, for `dray health`."""
    return health(_subject(app_on_tables(), Code()), **demands)


def database_and_code_here() -> Subject:
    """Returns the database, and the app with its tasks or the reason why it cannot be loaded."""
    app, problem, looks_for_code = None, None, not told("typed_url") or told("app")
    try:
        app = app_here() if looks_for_code else None
        if app is not None:
            load_tasks(app)
    except Failure as failure:
        problem = failure.format_message()
    app = app or bare_app()
    click.get_current_context().with_resource(app)
    if not looks_for_code:
        return _subject(app, Code(address="--url", is_sought=False))
    return _subject(app, Code(name_of(app), tuple(app.registry.names()), problem, *_source(app)))


def _subject(app: App, code: Code) -> Subject:
    # Connections log what is wrong with the database. The checks say the same in better words.
    logging.getLogger("dray").addHandler(logging.NullHandler())
    app.settings = replace(app.settings, migrate=False, busy_timeout=min(_PATIENCE, app.settings.busy_timeout))
    return Subject(app.settings, app.backend, app.clock, code)


def _source(app: App) -> tuple[str, str | None]:
    """Returns where the app's address comes from, and what else names a database without effect."""
    variable = os.environ.get("DRAY_URL")
    if told("typed_url"):
        return "--url", None
    if app.settings.url == Settings.of(None).url:
        return "DRAY_URL" if variable else "the default", None
    return "the app's code", "DRAY_URL is set to another one, and not used" if variable else None
