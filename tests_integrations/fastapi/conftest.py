"""Databases as examples have them: one address for Dray and for SQLAlchemy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from tests.server import in_database

_numbers = itertools.count(1)


@pytest.fixture
def postgres_database(postgres_server: str) -> Generator[str]:
    """A database without tables: SQLAlchemy knows nothing of the schema in Dray's addresses."""
    name = f"shop_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield in_database(postgres_server, name).replace("postgresql:", "postgresql+psycopg:")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=["sqlite", "postgres"])
def shop_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    return request.getfixturevalue("postgres_database")
