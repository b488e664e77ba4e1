"""``dray config``: every setting, and where it comes from."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dray.cli.exits import Failure, say
from dray.cli.output import Column, Shape, cell, put_list
from dray.cli.shared import app_here, bare_app, shared, told
from dray.cli.times import span

if TYPE_CHECKING:
    from dray.app import App
    from dray.cli.effective import Setting


def _value(value: Any, shape: Shape) -> str:
    if value is None:
        return "-"
    if shape["unit"] == "seconds":
        return span(value)
    if shape["unit"] == "bytes":
        return f"{value // 1024:,} KiB"
    return cell(value)


def _source(value: Any, shape: Shape) -> str:
    return f"{value} {shape['key']}" if shape["key"] else str(value)


_COLUMNS = (
    Column("setting", "name", is_elastic=True),
    Column("value", "value", _value, is_elastic=True),
    Column("from", "source", _source, is_elastic=True),
)
_KEYS = ("name", "value", "source", "key", "unit")


@click.command()
@shared
def config() -> None:
    """Show every setting with its value and where it comes from; a database need not be there.

    In a pipe: name, value, source (default, environment, pyproject, code, command line), key (the variable, or the
    key in pyproject.toml), unit (seconds, bytes). Passwords are not shown.
    """
    from dray.cli.effective import all_settings, complaints  # noqa: PLC0415 - `--help` needs none
    from dray.cli.finding import configured, project_settings  # noqa: PLC0415
    from dray.cli.variables import variables  # noqa: PLC0415

    # Before the app is found by it: what is wrong with pyproject.toml would be said once more for the app.
    keys, spec = list(project_settings()), None if told("app") else configured()
    found = _found()
    app = found or bare_app()
    shapes = [asdict(setting) for setting in all_settings(app, _app_setting(found, spec), _url_source(found))]
    put_list(shapes, _COLUMNS, _KEYS, "")
    for complaint in complaints(variables(), os.environ, keys):
        say(complaint)
    if os.environ.get("DRAY_URL") and found is not None and found.settings.is_url_given and not told("typed_url"):
        say("DRAY_URL is set and does nothing: the app's own code names its database")


def _found() -> App | None:
    try:
        return app_here()
    except Failure as error:  # its settings cannot be known; all others can
        say(error.message)
        return None


def _app_setting(app: App | None, spec: str | None) -> Setting:
    from dray.cli import effective  # noqa: PLC0415
    from dray.cli.finding import name_of  # noqa: PLC0415

    named, variable = told("app"), os.environ.get("DRAY_APP")
    if named:
        is_variable = named == variable
        source = effective.ENVIRONMENT if is_variable else effective.COMMAND_LINE
        return effective.Setting("app", named, source, "DRAY_APP" if is_variable else None)
    if spec is not None:
        return effective.Setting("app", spec, effective.PROJECT, "app")
    return effective.Setting("app", None if app is None else name_of(app))


def _url_source(app: App | None) -> tuple[str, str | None]:
    from dray.cli import effective  # noqa: PLC0415

    if told("typed_url"):
        return effective.COMMAND_LINE, None
    if app is not None and app.settings.is_url_given:
        return effective.CODE, None
    if os.environ.get("DRAY_URL"):
        return effective.ENVIRONMENT, "DRAY_URL"
    return effective.DEFAULT, None
