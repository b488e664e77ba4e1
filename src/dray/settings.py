"""The settings of an App, checked when it is made; nothing is opened yet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from dray.address import DEFAULT_URL, PostgresAddress, SqliteAddress, parse_address, postgres_url
from dray.clock import Clock, SystemClock
from dray.errors import ConfigError
from dray.instants import SECOND
from dray.log import log
from dray.model.values import duration_us, shown
from dray.sanitize import redact
from dray.task.checks import checks_of, one_of, option, several, switch, timeout

if TYPE_CHECKING:
    from dray.backends import Backend

URL_VARIABLE = "DRAY_URL"


class Durability(StrEnum):
    """What is on disk when a call returns."""

    FULL = "full"  # also every outcome of a job
    DEFAULT = "default"  # what a caller was promised: every enqueue, every operator's action
    NORMAL = "normal"  # a power loss may lose the last enqueues too


def _imports(name: str, value: Any) -> tuple[str, ...]:
    modules = several(name, value, "module names")
    for module in modules:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"{name}: {shown(module)} is no module's name; write it as in an import: shop.jobs")
    return modules


def _locator(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string such as 'shop.jobs:app', not {type(value).__name__}")
    module, colon, path = value.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise ConfigError(
            f"{name}: {shown(value)} names no App; write module:object, such as shop.jobs:app, "
            "or the name of a function that returns the App"
        )
    return value


def _file_mode(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a number such as 0o660, not {type(value).__name__}")
    if not 0 <= value <= 0o777 or value & 0o600 != 0o600:
        raise ConfigError(
            f"{name} must be permissions that let the owner read and write, such as 0o600 or 0o660, not {value:#o}"
        )
    return value


def _listen_url(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be an address, not {type(value).__name__}")
    if not isinstance(parse_address(value), PostgresAddress):
        raise ConfigError(f"{name} must be a PostgreSQL address, not {redact(value)!r}")
    return value


class Source(StrEnum):
    """What names an App's database."""

    CODE = "code"
    ENVIRONMENT = "environment"  # DRAY_URL
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an address comes from; true of this `url`, and not of another that replaces it."""

    url: str
    source: Source
    passed_over: str | None = None  # another database, which DRAY_URL names; fit to be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    durability: Durability = option(one_of(Durability), Durability.DEFAULT)
    default_timeout: float | None = option(timeout)
    imports: tuple[str, ...] = option(_imports, ())
    locator: str | None = option(_locator)
    file_mode: int = option(_file_mode, 0o600)
    migrate: bool | None = option(switch)
    busy_timeout: float = option(lambda name, value: duration_us(name, value) / SECOND, 30.0)
    notify: bool = option(switch, default=True)
    listen_url: str | None = option(_listen_url)
    origin: Origin | None = None  # None: the address was typed, or set by hand

    @classmethod
    def of(cls, url: str | os.PathLike[str] | Mapping[str, Any] | None, **given: Any) -> Settings:
        """The settings as given, or an error that says what they may be."""
        checked = {name: _CHECKS[name](name, value) for name, value in given.items() if value is not None}
        absolute = _url(url)
        settings = cls(url=absolute, origin=_origin(absolute, is_given=url is not None), **checked)
        if settings.listen_url is not None and settings.is_sqlite:
            raise ConfigError("listen_url is for PostgreSQL behind a pooler; a SQLite file needs none: leave it out")
        return settings

    @classmethod
    def typed(cls, url: str | None, **given: Any) -> Settings:
        """As `of`, for an address that a user has just named: there is nothing to tell of another one."""
        return replace(cls.of(url, **given), origin=None)

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite:")

    @property
    def place(self) -> str:
        """The address without its password."""
        address = None if self.is_sqlite else parse_address(self.url)
        return address.place if isinstance(address, PostgresAddress) else redact(self.url)

    @property
    def source(self) -> Source | None:
        """What names the database; None: the address was typed, or set by hand."""
        return None if self.origin is None or self.origin.url != self.url else self.origin.source

    @property
    def passed_over(self) -> str | None:
        """Another database, which DRAY_URL names and this App does not use, because its code names one."""
        return None if self.origin is None or self.origin.url != self.url else self.origin.passed_over

    def open(self, clock: Clock) -> Backend:
        """The database, which connects at its first use. A server uses its own clock unless a clock was given."""
        from dray.backends import open_backend  # noqa: PLC0415 - a module that only defines tasks needs no driver

        if self.passed_over is not None and not _told:
            _told.append(self.url)
            log.warning("%s is used, as the code says: App(…); DRAY_URL names %s", self.place, self.passed_over)
        return open_backend(
            self.url,
            clock=None if isinstance(clock, SystemClock) else clock,
            busy_timeout=self.busy_timeout,
            file_mode=self.file_mode,
            create=self.migrate,
            notify=self.notify,
            listen_url=self.listen_url,
            tell_of_new_file=self.source is Source.DEFAULT,
        )


_told: list[str] = []  # the address whose App has warned of DRAY_URL: one warning a process


def _origin(url: str, *, is_given: bool) -> Origin:
    """An address in the code comes first, so that the App of a test cannot reach another database by accident."""
    variable = os.environ.get(URL_VARIABLE)
    if not is_given:
        return Origin(url, Source.ENVIRONMENT if variable else Source.DEFAULT)
    return Origin(url, Source.CODE, _other(url, variable) if variable else None)


def _other(url: str, variable: str) -> str | None:
    """Where DRAY_URL leads, if that is not here."""
    try:
        theirs = parse_address(variable)
    except ConfigError:
        return "something that is no address"
    if theirs == parse_address(url):
        return None
    return theirs.place if isinstance(theirs, PostgresAddress) else redact(_spelled(theirs))


def _spelled(address: SqliteAddress) -> str:
    return f"sqlite:///{quote(os.fsencode(address.path))}"


def _url(given: object) -> str:
    """The absolute address: a relative path is relative to the current directory now, not at the first use."""
    if isinstance(given, os.PathLike):
        given = os.fspath(cast("os.PathLike[str]", given))
    if isinstance(given, Mapping):
        given = postgres_url(cast("Mapping[str, Any]", given))
    url = given if given is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if not isinstance(url, str):
        raise TypeError(
            "url must be an address such as sqlite:///jobs.db, a path, or libpq's parameters as a mapping, not "
            f"{type(url).__name__}"
        )
    address = parse_address(url)
    return _spelled(address) if isinstance(address, SqliteAddress) else url


_CHECKS = checks_of(Settings)
