"""Every setting with the value that counts and where it comes from, for `dray config`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from dray.cli.variables import OURS, Variable, variables
from dray.instants import SECOND
from dray.sanitize import redact
from dray.wording import close_matches

if TYPE_CHECKING:
    from dray.app import App

DEFAULT, ENVIRONMENT, PROJECT, CODE, COMMAND_LINE = "default", "environment", "pyproject", "code", "command line"

_SECONDS = {"default_timeout", "busy_timeout"}
_HIDDEN = {"is_url_given"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. ``key``: the variable, or the key in pyproject.toml, that set it."""

    name: str
    value: Any
    source: str = DEFAULT
    key: str | None = None
    unit: str | None = None  # seconds or bytes


def of_app(app: App, url_source: tuple[str, str | None]) -> Iterator[Setting]:
    """What the App was made with."""
    settings = app.settings
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name == "url":
            yield Setting("url", settings.place, *url_source)
        elif field.name not in _HIDDEN:
            default = None if field.default is MISSING else field.default
            source = DEFAULT if value == default else CODE
            unit = "seconds" if field.name in _SECONDS else None
            yield Setting(field.name, _plain(field.name, value), source, unit=unit)


def _plain(name: str, value: Any) -> Any:
    if name == "file_mode":
        return f"{value:#o}"
    if isinstance(value, tuple):
        return [*value]  # pyright: ignore[reportUnknownVariableType] - modules' names
    return redact(value) if isinstance(value, str) else value


def of_workers(found: Mapping[str, Variable], environment: Mapping[str, str]) -> Iterator[Setting]:
    """What a worker goes by that is started here and told nothing else."""
    from dray.runtime.worker import GRACE, LEASE, default_concurrency  # noqa: PLC0415 - for those who ask

    usual = {"concurrency": default_concurrency(), "grace": GRACE, "lease": LEASE}
    for name, (setting, option) in found.items():
        command, _, word = setting.rpartition(".")
        if command != "worker" or word in {"url", "app", "json"}:
            continue
        unit = "seconds" if word in {"grace", "lease"} else None
        if environment.get(name):
            yield Setting(setting, read(option, environment[name]), ENVIRONMENT, name, unit)
        else:
            default = None if option.multiple else option.to_info_dict()["default"]
            yield Setting(setting, usual.get(word, default), unit=unit)


def of_other_commands(found: Mapping[str, Variable], environment: Mapping[str, str]) -> Iterator[Setting]:
    """Options of other commands, where a variable sets them."""
    for name, (setting, option) in found.items():
        is_seen = setting.startswith("worker.") or setting in {"url", "app"}
        if environment.get(name) and not is_seen:
            yield Setting(setting, read(option, environment[name]), ENVIRONMENT, name)


def of_retention() -> Iterator[Setting]:
    """How long jobs that have ended are kept."""
    from dray.model.retention import Retention  # noqa: PLC0415

    for field in fields(Retention):
        kept_us: int | None = getattr(Retention(), field.name)
        name = f"retention.{field.name.removesuffix('_us')}"
        yield Setting(name, None if kept_us is None else kept_us / SECOND, unit="seconds")


def of_limits() -> Iterator[Setting]:
    """How large things may be."""
    from dray.model import limits  # noqa: PLC0415

    for name, value in vars(limits).items():
        if name.isupper() and name not in {"KIB", "MIB", "DAY"}:
            word, _, unit = name.lower().rpartition("_")
            if unit == "bytes":
                yield Setting(f"limits.{word}", value, unit="bytes")
            elif unit == "us":
                yield Setting(f"limits.{word}", value / SECOND, unit="seconds")
            else:
                yield Setting(f"limits.{name.lower()}", value)


def read(option: click.Option, text: str) -> Any:
    """A variable's value as its option takes it; as it is, where it cannot be taken."""
    try:
        value = option.type.convert(text, option, None)
    except click.BadParameter:
        value = text
    return value if isinstance(value, bool | int | float) else redact(text)


def complaints(found: Mapping[str, Variable], environment: Mapping[str, str], keys: Sequence[str]) -> Iterator[str]:
    """What is set and does nothing, or cannot be taken."""
    for name in sorted(environment):
        if not name.startswith("DRAY_") or name in OURS:
            continue
        if name not in found:
            yield f"{name} is no variable that Dray knows{_near(name, found)}"
            continue
        option = found[name].option
        try:
            for word in option.type.split_envvar_value(environment[name]) if option.multiple else [environment[name]]:
                option.type.convert(word, option, None)
        except click.BadParameter as error:
            yield f"{name}: {redact(error.message)}"
    for key in keys:
        if key != "app":
            yield f"pyproject.toml: [tool.dray] has a key {key!r} that Dray does not know{_near(key, ['app'])}"


def _near(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    near = close_matches(word, known)
    return f"; did you mean {near[0]}?" if near else ""


def all_settings(app: App, app_setting: Setting, url_source: tuple[str, str | None]) -> list[Setting]:
    """Every one of them, what is most asked for first."""
    found = variables()
    return [
        app_setting,
        *of_app(app, url_source),
        *of_workers(found, os.environ),
        *of_other_commands(found, os.environ),
        *of_retention(),
        *of_limits(),
    ]
