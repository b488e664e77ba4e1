"""Where the database of an alias of DATABASES is, read at each use: tests change NAME after Django is set up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from dray.address import postgres_url
from dray.errors import ConfigError

MEMORY = "sqlite:///:memory:"  # stands for a database in memory, which only Django's own connection reaches
# What Django passes to its driver, beside libpq's parameters.
_DRIVERS = {"cursor_factory", "context", "prepare_threshold", "client_encoding"}


def connection_of(alias: str) -> Any:
    """Django's connection for this alias, in this thread."""
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(connections)
        raise ConfigError(
            f"DATABASES has no alias {alias!r}, which OPTIONS['database'] of Dray's backend names; it has {known}"
        ) from None


def is_in_memory(connection: Any) -> bool:
    """Whether this is a SQLite without a file, as in most tests."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def address_of(alias: str, schema: str | None = None) -> str:
    """The address of an alias, as an App takes it; `MEMORY` for a database in memory."""
    connection = connection_of(alias)
    if is_in_memory(connection):
        return MEMORY
    if connection.vendor == "sqlite":
        return _file(alias, connection.settings_dict["NAME"])
    if connection.vendor == "postgresql":
        try:
            given = connection.get_connection_params()
        except ImproperlyConfigured as error:
            raise ConfigError(f"DATABASES[{alias!r}]: {error}") from error
        parameters = {name: value for name, value in given.items() if name not in _DRIVERS}
        role = connection.settings_dict["OPTIONS"].get("assume_role")
        if role:
            written = role.replace("\\", "\\\\").replace(" ", "\\ ")  # as libpq splits options
            parameters["options"] = f"{parameters.get('options', '')} -c role={written}".strip()
        return postgres_url({**parameters, "schema": schema})
    raise ConfigError(
        f"DATABASES[{alias!r}] is a {connection.display_name} database, and Dray runs on SQLite and PostgreSQL; "
        "name another alias in OPTIONS['database']"
    )


def _file(alias: str, name: str | os.PathLike[str]) -> str:
    text = os.fspath(name)
    if not text:
        raise ConfigError(f"DATABASES[{alias!r}] has no NAME; set it to the path of the SQLite file")
    if isinstance(name, str) and text.startswith("file:"):  # Django opens it as an address
        text = unquote(urlsplit(text).path)
    return f"sqlite:///{quote(os.fsencode(Path(text).resolve()))}"
