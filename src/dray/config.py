"""Database addresses: what a user writes, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from dray.errors import ConfigError
from dray.text import redact

DEFAULT_URL = "sqlite:///dray.db"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_POSTGRES = {"postgresql", "postgres", "postgresql+psycopg"}


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    path: Path  # absolute, symbolic links followed: that is where SQLite puts its -wal


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    conninfo: str
    schema: str | None


def parse_address(url: str) -> SqliteAddress | PostgresAddress:
    """The database that an address names; a relative SQLite path is resolved against the current directory, now."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if not scheme or scheme == "file":
        return _sqlite(url.removeprefix("file://"), url)
    if scheme == "sqlite":
        return _sqlite(unquote(url.removeprefix("sqlite://").removeprefix("/")), url)
    if scheme in _POSTGRES:
        return _postgres(url)
    raise ConfigError(
        f"{redact(url)!r} is no database address that Dray knows; use sqlite:///file.db, a plain path, "
        "or postgresql://user@host/db"
    )


def _sqlite(path: str, url: str) -> SqliteAddress:
    if path in {"", ":memory:"} or "?" in path:
        raise ConfigError(
            f"{url!r} names no file; a queue has to outlive its process: use a path such as sqlite:///dray.db"
        )
    if "\0" in path:
        raise ConfigError(f"{url!r} contains a NUL character; use a plain path")
    return SqliteAddress(Path(path).expanduser().resolve())


def _postgres(url: str) -> PostgresAddress:
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(query).get("schema")
    if schema is not None and not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"schema {schema!r} in {redact(url)} cannot be used: lower-case letters, digits and _, at most 63"
        )
    rest = urlencode([(name, value) for name, value in query if name != "schema"])
    conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
    if not parts.netloc:
        # urlunsplit drops the // of an address that leaves host and user to the defaults.
        conninfo = conninfo.replace("postgresql:", "postgresql://", 1)
    return PostgresAddress(conninfo, schema)
