"""What ``dray doctor`` and ``dray health`` look at: the database, opened so that nothing changes, and the code."""

from __future__ import annotations

import logging
from typing import Any

import click

from dray.app import App
from dray.app_interface import core_of
from dray.cli.apps import app_here, app_on_tables, bare_app, code_facts, load_tasks
from dray.cli.exits import Failure
from dray.cli.options import told
from dray.ops.doctor.check import Code, Subject
from dray.ops.health import Health, health

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
    return _subject(app, Code(*code_facts(app, problem)))


def _subject(app: App, code: Code) -> Subject:
    # Connections log what is wrong with the database. The checks say the same in better words.
    logging.getLogger("dray").addHandler(logging.NullHandler())
    core = core_of(app)
    core.change_settings(migrate=False, busy_timeout=min(_PATIENCE, core.settings.busy_timeout))
    return Subject(core.settings, core.backend, core.clock, code)
