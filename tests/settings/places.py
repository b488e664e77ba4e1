"""Databases with users' settings: each setting belongs to its own role, as after `ALTER ROLE … SET`.

A `Place` is the address that such a user has. Its tables are created once and emptied between tests by the owner of
the server, who has none of these settings.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from dray.address import PostgresAddress, parse_address
from dray.backends import open_backend
from tests.processes.bouncer import bouncer
from tests.schemas import TABLES

POOLER = "behind PgBouncer"
POOLER_AND_LIMITS = "behind PgBouncer, with all of it"
LIMITED = "role that may not create"
SEARCH_PATH = "search_path alone"
OTHER_DEFAULTS = "durability, formats, search_path and idle timeout of its own"
SERIALIZABLE = "serializable"
SHORT_TIMEOUTS = "statement_timeout 200 ms, lock_timeout 100 ms"
REPEATABLE_READ = "repeatable read"

# The settings of the role, by name. Settings that have nothing to do with each other share a role: whichever of them
# Dray does not cope with, a test fails.
SETTINGS: dict[str, dict[str, str]] = {
    OTHER_DEFAULTS: {
        "synchronous_commit": "off",
        "idle_in_transaction_session_timeout": "1s",
        "search_path": "nowhere",
        "TimeZone": "Asia/Kathmandu",
        "DateStyle": "German",
        "IntervalStyle": "sql_standard",
        "bytea_output": "escape",
        "extra_float_digits": "0",
    },
    REPEATABLE_READ: {"default_transaction_isolation": "repeatable read"},
    SERIALIZABLE: {"default_transaction_isolation": "serializable"},
    SHORT_TIMEOUTS: {"statement_timeout": "200ms", "lock_timeout": "100ms"},
    LIMITED: {},
    SEARCH_PATH: {},  # the schema of the tables, which the address does not name
    POOLER: {},
    # Session settings do not last behind a pooler: they have to be sent in each transaction.
    POOLER_AND_LIMITS: {
        "default_transaction_isolation": "repeatable read",
        "statement_timeout": "200ms",
        "lock_timeout": "100ms",
    },
}
POOLED = (POOLER, POOLER_AND_LIMITS)
# Settings that matter when transactions are concurrent or long.
CONTENDED = (REPEATABLE_READ, SERIALIZABLE, SHORT_TIMEOUTS)

ORDERS = "orders"  # the user's own table, next to Dray's


@dataclass(frozen=True)
class Place:
    name: str
    url: str  # as the user gives it
    owner: str  # the same database, without these settings
    schema: str
    prompt: psycopg.Connection[Any]  # the owner's, kept: a new one for each question costs the server 4 ms

    @property
    def orders(self) -> str:
        return f'"{self.schema}".{ORDERS}'

    @contextmanager
    def connect(self) -> Generator[psycopg.Connection[Any]]:
        """Opens the user's own connection with the driver's defaults."""
        address = parse_address(self.url)
        assert isinstance(address, PostgresAddress)
        with psycopg.connect(address.conninfo) as connection:
            yield connection

    @contextmanager
    def connect_as_owner(self) -> Generator[psycopg.Connection[Any]]:
        with psycopg.connect(self.owner, autocommit=True, options=f"-c search_path={self.schema}") as connection:
            yield connection

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Runs and commits a statement as the owner."""
        cursor = self.prompt.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        self.ask("; ".join(f"DELETE FROM {table}" for table in (*TABLES, ORDERS)))


@contextmanager
def made(server: str, name: str) -> Generator[Place]:
    """Creates a role with the setting and a schema with the tables; drops them afterwards."""
    with psycopg.connect(server, autocommit=True) as owner:
        database = owner.info.dbname
        role = schema = f"{database}_set_{list(SETTINGS).index(name)}"
        owner.execute(f"SET search_path TO {schema}".encode())
        owner.execute(f"CREATE ROLE {role} LOGIN".encode())
        for setting, value in SETTINGS[name].items():
            owner.execute(f"ALTER ROLE {role} SET {setting} = '{value}'".encode())
        if name == SEARCH_PATH:
            owner.execute(f"ALTER ROLE {role} SET search_path = {schema}, public".encode())
        if name != LIMITED:
            owner.execute(f"GRANT CREATE ON DATABASE {database} TO {role}".encode())
        try:
            with _way(server, name, role) as url:
                yield _with_tables(Place(name, _address(url, name, schema), server, schema, owner), role)
        finally:
            owner.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
            owner.execute(f"DROP OWNED BY {role}".encode())
            owner.execute(f"DROP ROLE {role}".encode())


@contextmanager
def _way(server: str, name: str, role: str) -> Generator[str]:
    if name not in POOLED:
        yield server.replace("postgres:@", f"{role}:@", 1)
        return
    with bouncer(server, role) as pooled:
        yield pooled


def _address(url: str, name: str, schema: str) -> str:
    if name == SEARCH_PATH:
        return url
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def _with_tables(place: Place, role: str) -> Place:
    """Creates the tables, as the user if permitted, and one table of the user's own."""
    if place.name == LIMITED:
        _migrate(f"{place.owner}&schema={place.schema}")
    elif place.name == SEARCH_PATH:
        place.ask(f"CREATE SCHEMA {place.schema} AUTHORIZATION {role}")
        _migrate(place.url)
    else:
        _migrate(place.url)
    place.ask(f"CREATE TABLE {ORDERS} (n integer)")
    for grant in ("USAGE ON SCHEMA {0}", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {0}"):
        place.ask(f"GRANT {grant.format(place.schema)} TO {role}")
    return place


def _migrate(url: str) -> None:
    backend = open_backend(url)
    try:
        backend.migrate()
    finally:
        backend.close()
