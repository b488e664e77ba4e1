"""Dray in Flask: `init_app` puts an application context around each body, and adds ``flask dray``.

A context is pushed and popped where the body runs: in its thread, on the event loop, in the child process. So
``current_app``, ``g`` and extensions work as in a request, and functions of ``teardown_appcontext`` run after each
body, with its error. A plain call of a task uses the context of the caller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import click

from dray.app import App
from dray.app_interface import core_of
from dray.cli import main
from dray.core import AppCore
from dray.errors import ConfigError

try:
    import flask
    from flask.cli import ScriptInfo, with_appcontext
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dray.integrations.flask needs Flask: pip install 'dray[flask]'", name=error.name
    ) from None

_NAME = "dray"
_HERE = f"{__name__}:app"


class _Owner:
    """The Flask application whose context an App's bodies have: the one that was made last."""

    def __init__(self, flask_app: flask.Flask) -> None:
        self.flask_app = flask_app


_owners: WeakKeyDictionary[AppCore, _Owner] = WeakKeyDictionary()


def init_app(flask_app: flask.Flask, app: App) -> None:
    """Makes `app` the App of a Flask application, before a worker of it starts. To be called in a factory too.

    Bodies of its tasks run in an application context. ``flask dray …`` is `dray …` with this App.
    ``flask_app.extensions["dray"]`` is the App.
    """
    if not isinstance(flask_app, flask.Flask) or not isinstance(app, App):
        given = f"a {type(flask_app).__name__} and a {type(app).__name__}"
        raise TypeError(f"init_app(flask_app, app) takes a Flask application and a dray.App, not {given}")
    if flask_app.extensions.get(_NAME, app) is not app:
        raise ConfigError(
            f"the Flask application {flask_app.name} has another dray.App already; call init_app once, with one App"
        )
    owner = _owners.get(core_of(app))
    if owner is None:
        owner = _Owner(flask_app)
        for middleware in _contexts(owner):
            app.middleware(middleware)
        _owners[core_of(app)] = owner
    owner.flask_app = flask_app  # a factory may make several, one after the other
    flask_app.extensions[_NAME] = app
    flask_app.cli.add_command(_command)


def _contexts(owner: _Owner) -> tuple[Callable[..., Any], Callable[..., Awaitable[Any]]]:
    """Middleware for both kinds of bodies. A child process imports the module that is named in them."""

    def in_app_context(_: Any, call: Callable[[], Any]) -> Any:
        with owner.flask_app.app_context():
            return call()

    async def in_app_context_async(_: Any, call: Callable[[], Awaitable[Any]]) -> Any:
        with owner.flask_app.app_context():
            return await call()

    for each in (in_app_context, in_app_context_async):
        if owner.flask_app.import_name in sys.modules:
            each.__module__ = owner.flask_app.import_name
        each.__qualname__ = each.__name__
    return in_app_context, in_app_context_async


@click.command(
    _NAME,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Jobs of this application: worker, jobs, why …, as `dray` has them.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def _command(words: tuple[str, ...]) -> None:
    info = click.get_current_context().ensure_object(ScriptInfo)
    if info.create_app is None:  # it was found by its name, not made by a command line of the user's own
        if info.app_import_path is not None:
            os.environ["FLASK_APP"] = info.app_import_path
        _find_again(_app_of(flask.current_app))
    os.environ["DRAY_APP"] = _HERE
    main(words or ("--help",))


def __getattr__(name: str) -> App:
    """``dray.integrations.flask:app`` is the App of the Flask application that ``flask`` would find here."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _app_of(flask.current_app) if flask.has_app_context() else _find_again(_app_of(_load()))


def _app_of(flask_app: flask.Flask) -> App:
    if _NAME not in flask_app.extensions:
        raise ConfigError(
            f"the Flask application {flask_app.name} has no dray.App; where it is made, call "
            "dray.integrations.flask.init_app(flask_app, app)"
        )
    return flask_app.extensions[_NAME]


def _find_again(app: App) -> App:
    """Lets child processes find the application as it was found here: a factory is called there too."""
    core = core_of(app)
    if core.settings.locator is None:
        core.change_settings(locator=_HERE)
    return app


@cache
def _load() -> flask.Flask:
    return ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
