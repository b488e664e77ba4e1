"""``dray config``: every setting with its value, and where that comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import click

import dray
from dray.app_interface import core_of
from dray.cli.apps import app_here, bare_app, name_of
from dray.cli.cells import Shape, cell
from dray.cli.exits import Failure, did_you_mean, say
from dray.cli.options import command, told
from dray.cli.output import Column, put_list
from dray.cli.source import configured_app, project_settings
from dray.instants import SECOND
from dray.model import bounds
from dray.model.retention import Retention
from dray.sanitize import redact
from dray.settings import Source
from dray.wording import span

_DEFAULT, _ENVIRONMENT, _PROJECT, _CODE, _TYPED = "default", "environment", "pyproject", "code", "command line"
_INTERNAL = frozenset(
    {"DRAY_SUPERVISED", "DRAY_REPORT_FD", "DRAY_DEMO_LEDGER", "DRAY_RELOADED"}
)  # between processes of one command
_SECONDS = {"default_timeout", "busy_timeout"}
_HIDDEN = {"origin"}


class Setting(NamedTuple):
    """One setting. ``key``: the variable, or the key in pyproject.toml, that set it."""

    name: str
    value: Any
    source: str = _DEFAULT
    key: str | None = None
    unit: str | None = None  # seconds or bytes


Variables = Mapping[str, tuple[str, click.Option]]  # DRAY_WORKER_GRACE -> ``worker.grace`` and its option


def _value(value: Any, shape: Shape) -> str:
    if value is None:
        return "-"
    if shape["unit"] == "seconds":
        return span(value)
    if shape["unit"] == "bytes":
        return f"{value // 1024:,} KiB"
    return cell(value)


_COLUMNS = (
    Column("setting", "name", is_elastic=True),
    Column("value", "value", _value, is_elastic=True),
    Column("from", "source", lambda value, each: f"{value} {each['key']}" if each["key"] else value, is_elastic=True),
)


@command()
def config() -> None:
    """Show every setting with its value and where it comes from; no database is needed.

    In a pipe: name, value, source (default, environment, pyproject, code, command line), key (the variable, or the
    key in pyproject.toml), unit (seconds, bytes). Passwords are not shown.
    """
    # Before the app is loaded: it would report the errors of pyproject.toml once more.
    keys, spec = list(project_settings()), None if told("app") else configured_app()
    try:
        found = app_here()
    except Failure as error:  # the app's own settings are unknown then; all others are not
        say(error.message)
        found = None
    root = click.get_current_context().find_root().command
    variables = dict(_variables(click.Context(root, info_name="dray", auto_envvar_prefix="DRAY")))
    url_source, kept = _url_source(found), Retention().by_state()
    settings = [
        _app_setting(found, spec),
        *_of_app(found or bare_app(), url_source),
        *_of_commands(variables),
        *(Setting(f"retention.{state}", us and us / SECOND, unit="seconds") for state, us in kept.items()),
        *_of_bounds(),
    ]
    put_list([setting._asdict() for setting in settings], _COLUMNS)
    for complaint in _complaints(variables, keys):
        say(complaint)
    unused = None if found is None else core_of(found).settings.passed_over
    if unused is not None:
        say(f"DRAY_URL names {unused}, which is not used: the app's own code names its database")


def _app_setting(app: dray.App | None, spec: str | None) -> Setting:
    named, variable = told("app"), os.environ.get("DRAY_APP")
    if named:
        return Setting("app", named, *((_ENVIRONMENT, "DRAY_APP") if named == variable else (_TYPED,)))
    if spec is not None:
        return Setting("app", spec, _PROJECT, "app")
    return Setting("app", None if app is None else name_of(app))


def _url_source(app: dray.App | None) -> tuple[str, str | None]:
    if told("typed_url"):
        return _TYPED, None
    if app is not None and core_of(app).settings.source is Source.CODE:
        return _CODE, None
    if os.environ.get("DRAY_URL"):
        return _ENVIRONMENT, "DRAY_URL"
    return _DEFAULT, None


def _of_app(app: dray.App, url_source: tuple[str, str | None]) -> Iterator[Setting]:
    settings = core_of(app).settings
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name == "url":
            yield Setting("url", settings.place, *url_source)
        elif field.name not in _HIDDEN:
            default = None if field.default is MISSING else field.default
            source = _DEFAULT if value == default else _CODE
            unit = "seconds" if field.name in _SECONDS else None
            yield Setting(field.name, _plain(field.name, value), source, unit=unit)


def _plain(name: str, value: Any) -> Any:
    if name == "file_mode":
        return f"{value:#o}"
    if isinstance(value, tuple):
        return [*value]  # pyright: ignore[reportUnknownVariableType] - modules' names
    return redact(value) if isinstance(value, str) else value


def _of_commands(variables: Variables) -> Iterator[Setting]:
    """Yields the settings of a worker that is started here without options, and all options that a variable sets."""
    from dray.runtime import claiming, heartbeat, worker  # noqa: PLC0415 - `--help` needs no worker

    lease = heartbeat.LEASE / SECOND
    defaults = {"concurrency": claiming.default_concurrency(), "grace": worker.GRACE, "lease": lease}
    for name, (setting, option) in sorted(variables.items(), key=lambda each: not each[1][0].startswith("worker.")):
        command, _, word = setting.rpartition(".")
        if setting in {"url", "app"} or (command == "worker" and word in {"url", "app", "json"}):
            continue
        unit = "seconds" if command == "worker" and word in {"grace", "lease"} else None
        if os.environ.get(name):
            yield Setting(setting, _read(option, os.environ[name]), _ENVIRONMENT, name, unit)
        elif command == "worker":
            default = None if option.multiple else option.to_info_dict()["default"]
            yield Setting(setting, defaults.get(word, default), unit=unit)


def _of_bounds() -> Iterator[Setting]:
    for name, value in vars(bounds).items():
        if name.isupper() and name not in {"KIB", "MIB", "DAY"}:
            word, _, unit = name.lower().rpartition("_")
            if unit == "bytes":
                yield Setting(f"limits.{word}", value, unit="bytes")
            elif unit == "us":
                yield Setting(f"limits.{word}", value / SECOND, unit="seconds")
            else:
                yield Setting(f"limits.{name.lower()}", value)


def _variables(context: click.Context) -> Iterator[tuple[str, tuple[str, click.Option]]]:
    """Yields the variable of every option of every command, by the name that click gives it. Loads all commands."""
    command, path = context.command, context.command_path.split()[1:]
    for option in command.params:
        if isinstance(option, click.Option) and option.name and option.name != "version":
            longest = max(option.opts, key=len).lstrip("-").replace("-", "_")
            yield f"{context.auto_envvar_prefix}_{option.name.upper()}", (".".join([*path, longest]), option)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _variables(click.Context(child, context, name))


def _read(option: click.Option, text: str) -> Any:
    """Returns a variable's value as its option converts it, or the text if that fails."""
    try:
        value = option.type.convert(text, option, None)
    except click.BadParameter:
        value = text
    return value if isinstance(value, bool | int | float) else redact(text)


def _complaints(variables: Variables, keys: Sequence[str]) -> Iterator[str]:
    """Yields what is set but unknown or invalid."""
    for name in sorted(os.environ):
        if not name.startswith("DRAY_") or name in _INTERNAL:
            continue
        if name not in variables:
            yield f"{name} is no variable that Dray knows{did_you_mean(name, variables)}"
            continue
        option = variables[name][1]
        try:
            for word in option.type.split_envvar_value(os.environ[name]) if option.multiple else [os.environ[name]]:
                option.type.convert(word, option, None)
        except click.BadParameter as error:
            yield f"{name}: {redact(error.message)}"
    for key in keys:
        if key != "app":
            yield f"pyproject.toml: [tool.dray] has a key {key!r} that Dray does not know{did_you_mean(key, ['app'])}"
