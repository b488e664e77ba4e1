"""Database addresses: what a user writes, and what it means.

An address may hold a password, so no message here repeats a PostgreSQL address that cannot be parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from dray.errors import ConfigError
from dray.sanitize import redact

DEFAULT_URL = "sqlite:///dray.db"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_POSTGRES = {"postgresql", "postgres", "postgresql+psycopg"}
_DRIVERS = {"sqlite": "sqlite3", "postgresql": "psycopg 3", "postgres": "psycopg 3"}
_WITH_DRIVER = re.compile(r"(sqlite|postgresql|postgres)\+\w{1,30}")
_OTHERS = {"mysql", "mariadb", "mssql", "oracle", "redis", "rediss", "amqp", "amqps", "mongodb", "cockroachdb"}
# What other libraries call parameters of a connection.
_NOT_LIBPQS = {
    **dict.fromkeys(("database", "name", "db"), "dbname"),
    **dict.fromkeys(("dsn", "conninfo", "url"), "the address itself: App(address)"),
    "username": "user",
    "passwd": "password",
}
_PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What RFC 3986 allows in the part before the host; all else must be percent-encoded.
_CREDENTIALS = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*")
_NO_PORT = re.compile(r":[^,]*[^\d,]")
_MALFORMED = (
    "this PostgreSQL address cannot be taken apart: write postgresql://user:password@host:port/database, and "
    "percent-encode special characters in user and password (@ as %40, / as %2F, # as %23, ? as %3F, % as %25)"
)
# Mistyped addresses of servers. Each would otherwise be the path of a file, with the password in its name.
_MISTYPED = re.compile(
    r"""\s*["']?(?: (?:postgres|sqlite|file)\w*(?:\+\w+)?: | postgres\w*(?:\+\w+)?//   # a scheme without its ://
        | (?://)?[^/:]*:.*@ )                                                     # user:password@host
      | .*(?:^|[\s;"'])(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=   # libpq's other form
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_NO_ADDRESS = (
    "this is no database address: write postgresql://user:password@host:port/database, sqlite:///file.db or a plain "
    "path (sqlite:/// also goes before a file's name that looks like a server's address)"
)

_MEMORY = re.compile(
    r"sqlite:/{0,3}|(?:sqlite:/{0,3})?(?:file:/{0,3})?(?::memory:(?:\?.*)?|.*[?&]mode=memory(?:&.*)?)"
)
_IN_MEMORY = (
    "a database in memory names no file, and a queue has to outlive its process; use a path such as "
    "sqlite:///dray.db. Tests get a scratch database from `with dray.testing.database(app):`"
)


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    path: Path  # absolute, symbolic links followed: that is where SQLite puts its -wal


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    conninfo: str
    schema: str | None

    @property
    def place(self) -> str:
        """The address as it may be shown: the same however it was written."""
        shown = redact(self.conninfo)
        return f"{shown}{'&' if '?' in shown else '?'}schema={self.schema}" if self.schema else shown


def parse_address(url: str) -> SqliteAddress | PostgresAddress:
    """The database that an address names. A relative SQLite path is resolved now, against the current directory."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in _POSTGRES:
        return _postgres(url)
    if scheme:
        _refuse_others(scheme.lower())
    if _MEMORY.fullmatch(url):
        raise ConfigError(_IN_MEMORY)
    if not scheme.isidentifier() and _MISTYPED.match(url):
        raise ConfigError(_NO_ADDRESS)
    if not scheme:
        return _sqlite(url, url)
    if scheme in {"sqlite", "file"}:
        path = url.removeprefix("sqlite:///").removeprefix("file://").removeprefix("sqlite://")
        if "?" in path:
            raise ConfigError(f"{url!r} has options that Dray does not know; use sqlite:///file.db")
        return _sqlite(unquote(path, errors="surrogateescape"), url)
    raise ConfigError(
        f"{redact(url)!r} is no database address that Dray knows; use sqlite:///file.db, a plain path, "
        "or postgresql://user@host/db"
    )


def postgres_url(parameters: Mapping[str, Any]) -> str:
    """The address that libpq's parameters make: host, port, user, password, dbname, options, sslmode …

    A parameter that is None or empty is left to its default. `schema` is Dray's own, as in an address.
    """
    given = {_parameter(name): _text(name, value) for name, value in parameters.items() if value not in (None, "")}
    user, password, dbname = (given.pop(name, "") for name in ("user", "password", "dbname"))
    credentials = f"{user}:{password}@" if password else f"{user}@" if user else ""
    server = ""
    if _HOST.fullmatch(given.get("host", "")) and given.get("port", "0").isdigit():  # no socket, not several
        server, port = given.pop("host"), given.pop("port", None)
        server += f":{port}" if port else ""
    query = "&".join(f"{name}={value}" for name, value in given.items())
    url = f"postgresql://{credentials}{server}/{dbname}" + (f"?{query}" if query else "")
    parse_address(url)
    return url


def _parameter(name: object) -> str:
    if isinstance(name, str) and _PARAMETER.fullmatch(name) and name not in _NOT_LIBPQS:
        return name
    meant = _NOT_LIBPQS.get(str(name).lower(), "it as libpq does: host, port, user, password, dbname, options …")
    raise ConfigError(f"{str(name)[:80]!r} is no parameter of a PostgreSQL connection; write {meant}")


def _text(name: str, value: object) -> str:
    """A value as it stands in an address. No message shows it: it may be the password."""
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(
            f"the parameter {name} of a PostgreSQL connection must be text or a number, not {type(value).__name__}"
        )
    text = str(value)
    if _CONTROL.search(text):
        raise ConfigError(f"the parameter {name} of a PostgreSQL connection has a control character in it; remove it")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ConfigError(
            f"the parameter {name} of a PostgreSQL connection is not text in UTF-8; write it again"
        ) from None


def _refuse_others(scheme: str) -> None:
    """What other libraries call a database. Only the scheme is repeated: what follows may be a password."""
    driver = _WITH_DRIVER.fullmatch(scheme)
    if driver is not None:
        raise ConfigError(
            f"{scheme}:// names a driver, and Dray connects with its own ({_DRIVERS[driver[1]]}); write "
            f"{'sqlite:///file.db' if driver[1] == 'sqlite' else driver[1] + '://'} for the same database"
        )
    if scheme.partition("+")[0] in _OTHERS:
        raise ConfigError(
            f"{scheme[:40]}:// is no database address that Dray knows; use SQLite (sqlite:///file.db) or "
            "PostgreSQL (postgresql://user@host/db)"
        )


def _sqlite(path: str, url: str) -> SqliteAddress:
    if not path.strip():
        raise ConfigError(f"{url!r} names no file; use a path such as sqlite:///dray.db")
    if "\0" in path:
        raise ConfigError(f"{url!r} contains a NUL character; use a plain path")
    try:
        return SqliteAddress(Path(path).expanduser().resolve())
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{url!r} leads nowhere ({error}); use a plain path") from None


def _postgres(url: str) -> PostgresAddress:
    parts = _take_apart(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(query).get("schema")
    if schema is not None and not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"schema {schema[:80]!r} cannot be used: lower-case letters, digits and _, not a digit first, at most 63"
        )
    rest = urlencode([(name, value) for name, value in query if name != "schema"], safe="/", quote_via=quote)
    conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
    if not parts.netloc:
        # urlunsplit drops the // of an address that leaves host and user to the defaults.
        conninfo = conninfo.replace("postgresql:", "postgresql://", 1)
    return PostgresAddress(conninfo, schema)


def _take_apart(url: str) -> SplitResult:
    """The parts of an address. A password with a bare @, /, ? or # would end up in another part, and in messages."""
    try:
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        ports = [int(port) for port in re.findall(r":(\d*)(?:,|$)", hosts) if port]
    except ValueError:
        raise ConfigError(_MALFORMED) from None
    strange = (
        _CONTROL.search(url)
        or parts.fragment
        or "@" in parts.path + parts.query
        or not _CREDENTIALS.fullmatch(credentials)
        or any(not 0 < port < 65_536 for port in ports)
        or _NO_PORT.search(re.sub(r"\[[^\]]*\]", "", hosts))
        or (not credentials and ":" in re.sub(r"\[[^\]]*\]|:\d*(?=,|$)", "", parts.netloc))
    )
    if strange:
        raise ConfigError(_MALFORMED)
    return parts
