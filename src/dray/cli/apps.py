"""The App that a command works with.

It is named as module:object, set in pyproject.toml, or found in tasks.py or app.py of the current directory. Commands
that only look need no code: an App without tasks serves them.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import dray
from dray.cli.exits import Code, Failure, say
from dray.cli.logs import say_warnings
from dray.cli.options import told
from dray.cli.source import APP_FILES, configured_app, mentions_dray
from dray.model.values import shown

_NAME_IT = "name it as module:object (--app), or run this in a directory with a tasks.py that has an App"


def app_with_tasks(named: str | None = None, modules: Iterable[str] = ()) -> dray.App:
    """Returns the App whose tasks are to be run; more of them are in ``modules``."""
    app = app_here(named)
    if app is None:
        raise Failure(f"no app was found here; {_NAME_IT}", Code.USAGE)
    return load_tasks(_closed_at_the_end(app), modules)


def app_for_enqueueing() -> dray.App:
    """Returns the App of this directory; else one without tasks, on the database that is named or exists here."""
    app = app_here()
    if app is None:
        app = bare_app()
        # In a wrong directory a job would go unchecked into a new file, where no worker looks for it.
        if told("url") is None and app.backend.schema_version() is None:
            what = f"no app was found here, and no database is named; {_NAME_IT}, or name the database (--url)"
            raise Failure(what, Code.USAGE)
    return load_tasks(_closed_at_the_end(app))


def app_on_tables() -> dray.App:
    """Returns an App to look at existing tables and to act on them. It creates nothing and needs no tasks.

    With --url and without --app no code is loaded.
    """
    app = bare_app() if told("typed_url") and not told("app") else app_here() or bare_app()
    app.settings = replace(app.settings, migrate=False)
    return _closed_at_the_end(app)


def app_with_tasks_on_tables() -> dray.App:
    """Returns an App on existing tables, with the tasks of this directory if it has any. It creates nothing."""
    app = app_for_enqueueing()
    app.settings = replace(app.settings, migrate=False)
    return app


def app_here(named: str | None = None) -> dray.App | None:
    """Returns the App that is named or found here, on the database that --url names; None if there is none."""
    app = _find(named or told("app"))
    url = told("typed_url")
    if app is not None and url is not None:
        app.settings = replace(app.settings, url=app.settings.of(url).url, listen_url=None)
    return app


def bare_app() -> dray.App:
    """Returns an App without tasks, on the database that --url or DRAY_URL names."""
    return dray.App(told("url"))


def _closed_at_the_end(app: dray.App) -> dray.App:
    say_warnings()
    app.hides_unknown_args = True
    return click.get_current_context().with_resource(app)


def load_tasks(app: dray.App, more: Iterable[str] = ()) -> dray.App:
    """Imports the modules that an App names, and ``more``; returns the App."""
    for module in (*app.settings.imports, *more):
        _imported(module)
    return app


def known_task(app: dray.App, name: str) -> dray.Task[..., Any]:
    """Returns the task of this name, or fails with a hint."""
    if name not in app.registry:
        raise Failure(f"{app.registry.missing(name)} `dray tasks` lists the known ones", Code.NOT_FOUND)
    return app.registry.get(name)


def task_to_fit(app: dray.App, name: str, *, unchecked: bool) -> dray.Task[..., Any] | None:
    """Returns the task that the arguments must fit; None if it is unknown here and need not be known."""
    if name in app.registry or (len(app.registry) and not unchecked):
        return known_task(app, name)
    if not unchecked:
        say("no task is known here: neither this one nor its arguments are checked")
    return None


def name_of(app: dray.App) -> str | None:
    """Returns a loaded App as module:object."""
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{module_name}:{name}"
    return None


def _find(named: str | None) -> dray.App | None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    spec = named or configured_app()
    if spec is not None:
        return _load(spec)
    for file in APP_FILES:
        if mentions_dray(Path(file)):
            found = _apps_in(_imported(file.removesuffix(".py")))
            if found:
                return _only(file, found)
    return None


def _load(spec: str) -> dray.App:
    module_name, _, path = spec.partition(":")
    module_name = module_name.removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise Failure(f"{shown(spec)} names no app; write module:object, such as shop.jobs:app", Code.USAGE)
    module = _imported(module_name)
    if not path:
        return _only(module_name, _apps_in(module))
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, dray.App):
        what = "is not there" if found is None else f"is not an App but a {type(found).__name__}"
        raise Failure(f"{spec}: {path} {what}", Code.USAGE)
    return found


def _imported(name: str) -> ModuleType:
    """Imports a module of the user; a failure says why in one sentence."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            where = f"looked in {Path.cwd()} and on Python's path"
            raise Failure(f"there is no module {error.name} ({where})", Code.USAGE) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Failure:
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        where = f"{theirs[-1].filename}:{theirs[-1].lineno}"
    what = "".join(traceback.format_exception_only(error)[-1:]).strip()
    return Failure(f"{name} cannot be imported: {what} ({where}); commands that only look work with --url alone")


def _apps_in(module: ModuleType) -> dict[str, dray.App]:
    return {name: value for name, value in vars(module).items() if isinstance(value, dray.App)}


def _only(where: str, found: dict[str, dray.App]) -> dray.App:
    if not found:
        raise Failure(f"{where} has no App in it; write app = dray.App() there", Code.USAGE)
    if len({id(app) for app in found.values()}) == 1 or "app" in found:
        return found.get("app") or next(iter(found.values()))
    raise Failure(f"{where} has several apps: {', '.join(found)}; name one as module:object", Code.USAGE)
