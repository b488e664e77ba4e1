"""The App that a command works with.

It is named as module:object, set in pyproject.toml, or found in tasks.py or app.py of the current directory. Commands
that only look need no code: an App without tasks serves them.
"""

from __future__ import annotations

import getpass
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import dray
from dray.app_interface import core_of
from dray.cli.exits import TABLES_HINT, Code, Failure, say
from dray.cli.logs import say_warnings
from dray.cli.options import told
from dray.cli.source import APP_FILES, configured_app, mentions_dray, modules_with_an_app
from dray.model.action import By
from dray.model.values import shown
from dray.settings import Settings

_TAKEN = "dray.taken"


def app_with_tasks(named: str | None = None, modules: Iterable[str] = ()) -> dray.App:
    """Returns the App whose tasks are to be run; more of them are in ``modules``."""
    app = app_here(named)
    if app is None:
        raise Failure(f"no app was found here; {_name_it()}", Code.USAGE)
    return load_tasks(_closed_at_the_end(app), modules)


def app_for_enqueueing() -> dray.App:
    """Returns the App of this directory; else one without tasks, on the database that is named or exists here."""
    # In a wrong directory a job would go unchecked into a new file, where no worker looks for it.
    app = app_here() or _bare_app_that_exists(Code.USAGE)
    return load_tasks(_closed_at_the_end(app))


def app_on_tables(if_there_are_none: Code = Code.NO_DATABASE) -> dray.App:
    """Returns an App to look at existing tables and to act on them. It creates nothing and needs no tasks.

    With --url and without --app no code is loaded. Where neither an app nor a database is named and there is none
    here, this fails with the code ``if_there_are_none``.
    """
    has_address = told("typed_url") and not told("app")
    app = bare_app() if has_address else app_here() or _bare_app_that_exists(if_there_are_none)
    core_of(app).change_settings(migrate=False)
    return _closed_at_the_end(app)


def settings_here() -> Settings:
    """Returns the settings that commands here would use; nothing need be there."""
    app = bare_app() if told("typed_url") and not told("app") else app_here() or bare_app()
    return core_of(app).settings


def _bare_app_that_exists(if_there_is_none: Code) -> dray.App:
    """Returns an App on the database that is named; if none is, on the default file if it has tables."""
    app = bare_app()
    if told("url") is None and core_of(app).backend.schema_version() is None:
        what = f"no app was found here, and no database is named; {_name_it()}, or name the database (--url)"
        raise Failure(what, if_there_is_none)
    return app


def app_with_tasks_on_tables() -> dray.App:
    """Returns an App on existing tables, with the tasks of this directory if it has any. It creates nothing."""
    app = app_for_enqueueing()
    core_of(app).change_settings(migrate=False)
    return app


def app_here(named: str | None = None) -> dray.App | None:
    """Returns the App that is named or found here, on the database that --url names; None if there is none."""
    app = _find(named or told("app"))
    url = told("typed_url")
    if app is not None and url is not None:
        core_of(app).change_settings(url=Settings.typed(url).url, origin=None, listen_url=None)
    return app


def bare_app() -> dray.App:
    """Returns an App without tasks, on the database that --url or DRAY_URL names."""
    app = dray.App(told("url"))
    if told("typed_url"):
        core_of(app).change_settings(origin=None)
    return app


def _name_it() -> str:
    """Returns what to do where no app is found, and which module here seems to have one."""
    found = modules_with_an_app()
    example = f"--app {found[0]}: {found[0]}.py makes an App" if found else "--app"
    return f"name it as module:object ({example}), or run this in a directory with a tasks.py that has an App"


def _closed_at_the_end(app: dray.App) -> dray.App:
    say_warnings()
    core_of(app).hides_unknown_args = True
    click.get_current_context().meta[TABLES_HINT] = core_of(app).tables_hint
    return click.get_current_context().with_resource(app)


def load_tasks(app: dray.App, more: Iterable[str] = ()) -> dray.App:
    """Imports the modules that an App names, and ``more``; returns the App."""
    for module in (*core_of(app).settings.imports, *more):
        _imported(module)
    return app


def person() -> By:
    """Returns who types this, for the row of what they do; below sudo the user who called it."""
    try:
        return By(os.environ.get("SUDO_USER") or getpass.getuser(), "cli")
    except (OSError, KeyError):  # a container whose user has no name
        return By(f"uid {os.getuid()}", "cli")


def known_task(app: dray.App, name: str) -> dray.Task[..., Any]:
    """Returns the task of this name, or fails with a hint."""
    if name not in core_of(app).registry:
        raise Failure(f"{core_of(app).registry.missing(name)} `dray tasks` lists the known ones", Code.NOT_FOUND)
    return core_of(app).registry.get(name)


def task_to_fit(app: dray.App, name: str, *, unchecked: bool) -> dray.Task[..., Any] | None:
    """Returns the task that the arguments must fit; None if it is unknown here and need not be known."""
    if name in core_of(app).registry or (len(core_of(app).registry) and not unchecked):
        return known_task(app, name)
    if not unchecked:
        say("no task is known here: neither this one nor its arguments are checked")
    return None


def name_of(app: dray.App) -> str | None:
    """Returns a loaded App as module:object."""
    if core_of(app).settings.locator is not None:
        return core_of(app).settings.locator
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{module_name}:{name}"
    return None


def code_facts(app: dray.App, problem: str | None = None) -> tuple[Any, ...]:
    """Returns the fields of the doctor's `Code`, which loads the database's drivers: where an app is, its tasks, what
    keeps it from being loaded, where its address comes from, and what else names a database without effect."""
    return (name_of(app), core_of(app).registry.names(), problem, *_source(app))


def _source(app: dray.App) -> tuple[str, str | None]:
    if told("typed_url"):
        return "--url", None
    unused = core_of(app).settings.passed_over
    if core_of(app).settings.url == Settings.of(None).url:
        return "DRAY_URL" if os.environ.get("DRAY_URL") else "the default", None
    return "the app's code", f"DRAY_URL names {unused}, which is not used" if unused else None


def _find(named: str | None) -> dray.App | None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    spec = named or configured_app()
    if spec is not None:
        return _load(spec)
    for file in APP_FILES:
        if mentions_dray(Path(file)):
            module_name = file.removesuffix(".py")
            found = _apps_in(_imported(module_name))
            if found:
                return _only(module_name, found)
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
        there = ", ".join(f"{module_name}:{name}" for name in _apps_in(module))
        raise Failure(f"{spec}: {path} {what}" + (f"; did you mean {there}?" if there else ""), Code.USAGE)
    return found


def _imported(name: str) -> ModuleType:
    """Imports a module of the user; a failure says why in one sentence."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            where = f"looked in {Path.cwd()} and on Python's path"
            what = f"there is no module {error.name} ({where}); check its name, or run this in its folder"
            raise Failure(what, Code.USAGE) from None
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
    name = "app" if "app" in found else next(iter(found))
    others = [other for other, app in found.items() if app is not found[name]]
    if others and name != "app":
        raise Failure(f"{where} has several apps: {', '.join(found)}; name one as module:object", Code.USAGE)
    if others:
        also = ", ".join(f"{where}:{other}" for other in others)
        click.get_current_context().meta[_TAKEN] = f"{where}:{name} (to take another, name it: {also})"
    return found[name]


def choice() -> str | None:
    """Returns which App of a module with several was taken, in words; None: there was no choice to be made."""
    return click.get_current_context().meta.get(_TAKEN)
