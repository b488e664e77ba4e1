"""Both directions of a move: from a SQLite file to a PostgreSQL schema, and back."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def shell(local: Shell) -> Shell:
    """A project whose queue is in a SQLite file; the tests name the other database themselves."""
    return local


@pytest.fixture(params=["sqlite-postgres", "postgres-sqlite"])
def direction(request: pytest.FixtureRequest) -> list[str]:
    return request.param.split("-")


@pytest.fixture
def source(direction: list[str], request: pytest.FixtureRequest, shell: Shell) -> str:
    return shell.url if direction[0] == "sqlite" else request.getfixturevalue("url_of_postgres")


@pytest.fixture
def url_of_postgres(schemas: Any, postgres_server: str) -> Generator[str]:
    """A schema whose tables are made."""
    schema = schemas.take()
    yield f"{postgres_server}&schema={schema}"
    schemas.give_back(schema)


@pytest.fixture
def target(direction: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address where nothing is yet."""
    return (
        f"sqlite:///{tmp_path / 'target.db'}" if direction[1] == "sqlite" else request.getfixturevalue("postgres_url")
    )
