"""Every named statement is valid on its database."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.backends import open_backend, statements
from dray.backends.statements import Catalogue, Dialect, Statement, blocks
from dray.backends.store.transfer import TABLES
from dray.backends.tables import slots

_UTILITIES = ("COPY", "CREATE", "DROP", "TRUNCATE", "ANALYZE")


def named(dialect: Dialect, *, for_any_table: bool) -> list[str]:
    return sorted(name for name, body in blocks(dialect).items() if ("{table}" in body) is for_any_table)


SQLITE = [Catalogue("sqlite")[name] for name in named("sqlite", for_any_table=False)]
POSTGRES = [Catalogue("postgres")[name] for name in named("postgres", for_any_table=False)]


@pytest.fixture(scope="module")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("statements") / "jobs.db"
    backend = open_backend(f"sqlite:///{path}")
    backend.migrate()
    backend.close()
    return path


@pytest.mark.parametrize("statement", SQLITE, ids=lambda s: s.name)
def test_sqlite_can_prepare(statement: Statement, sqlite_file: Path) -> None:
    connection = sqlite3.connect(sqlite_file)
    try:
        connection.execute(f"EXPLAIN {statement.text}", statement.arranged((None,) * len(statement.parameters)))
    finally:
        connection.close()


def test_postgres_can_prepare_every_statement(postgres_url: str) -> None:
    backend = open_backend(postgres_url)
    backend.migrate()
    backend.close()
    schema = postgres_url.partition("schema=")[2]
    server = postgres_url.partition("&schema=")[0]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"'.encode())
        for statement in [*POSTGRES, *for_tables(connection)]:
            if statement.text.startswith(_UTILITIES):
                continue  # it cannot be prepared; the tests of bulk enqueues and of moves run it
            numbered = statement.text
            for number, name in enumerate(statement.parameters, 1):
                numbered = numbered.replace(f"%({name})s", f"${number}")
            connection.execute(f"PREPARE {statement.name} AS {numbered.replace('%%', '%')}".encode())


def for_tables(connection: psycopg.Connection[Any]) -> list[Statement]:
    """Returns the statements for any table, filled in for every table that a move copies."""
    statements: list[Statement] = []
    for table in TABLES:
        columns = [
            column.name
            for column in connection.execute(f"SELECT * FROM dray_{table.name}".encode()).description or ()
        ]
        given = slots(table, columns)
        names = named("postgres", for_any_table=True)
        filled = [Catalogue("postgres").filled(name, given) for name in names]
        statements += [replace(each, name=f"{each.name}_{table.name}") for each in filled]
    return statements


def test_statements_name_their_tables_in_the_schema_that_is_asked_for() -> None:
    for statement in [Catalogue("postgres", "jobs_schema")[each.name] for each in POSTGRES]:
        bare = statement.text.replace('"jobs_schema".dray_', "")
        assert "dray_" not in bare.replace("dray_copy", ""), statement.name


def test_without_numbers_each_placeholder_gets_the_same_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*, numbers_warn: bool) -> list[Statement]:
        monkeypatch.setattr(statements, "_NUMBERS_WARN", numbers_warn)
        return [statements._statement.__wrapped__("sqlite", None, name, body) for name, body in bodies.items()]

    bodies = {name: body for name, body in blocks("sqlite").items() if "{table}" not in body}
    for numbered, plain in zip(made(numbers_warn=False), made(numbers_warn=True), strict=True):
        assert re.sub(r"\?\d+", "?", numbered.text) == plain.text
        given = plain.arranged(tuple(range(1, len(plain.parameters) + 1)))
        assert given == tuple(int(number) for number in re.findall(r"\?(\d+)", numbered.text))
