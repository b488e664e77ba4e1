"""A queue on PostgreSQL beside a program's own table."""

from __future__ import annotations

from collections.abc import Callable, Generator

import psycopg
import pytest

import dray
from dray.address import PostgresAddress, parse_address
from tests_integrations.connections import kinds


@pytest.fixture
def app(made_postgres_url: str) -> Generator[dray.App]:
    with dray.App(made_postgres_url) as made:
        query(made_postgres_url, "CREATE TABLE orders (n integer)")
        yield made


def query(url: str, sql: str, *, autocommit: bool = False) -> list[tuple[object, ...]]:
    """Runs a statement beside all else, and commits."""
    address = parse_address(url)
    assert isinstance(address, PostgresAddress)
    path = f"-c search_path={address.schema}"
    with psycopg.connect(address.conninfo, options=path, autocommit=autocommit) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description is not None else []


@pytest.fixture
def orders(app: dray.App) -> Callable[[], list[object]]:
    """The rows of the program's own table."""
    return lambda: [row[0] for row in query(app.url, "SELECT n FROM orders ORDER BY n")]


@pytest.fixture(params=kinds.ALL)
def opens(request: pytest.FixtureRequest) -> kinds.Opens:
    """Each kind of connection in turn."""
    return kinds.ALL[request.param]
