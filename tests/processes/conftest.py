"""Yards: databases with worker processes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.harness import Yard

if TYPE_CHECKING:
    from tests.conftest import Schemas


@pytest.fixture
def yard(url: str, tmp_path: Path) -> Generator[Yard]:
    """Each database in turn."""
    made = Yard(url, tmp_path / "yard")
    yield made
    made.close()


@pytest.fixture
def sqlite_yard(tmp_path: Path) -> Generator[Yard]:
    made = Yard(f"sqlite:///{tmp_path / 'side.db'}", tmp_path / "sqlite")
    yield made
    made.close()


@pytest.fixture
def postgres_yard(tmp_path: Path, postgres_server: str, schemas: Schemas) -> Generator[Yard]:
    schema = schemas.take()
    made = Yard(f"{postgres_server}&schema={schema}", tmp_path / "postgres")
    try:
        yield made
    finally:
        made.close()
        schemas.give_back(schema)


@pytest.fixture
def yards(sqlite_yard: Yard, postgres_yard: Yard) -> list[Yard]:
    """Both databases at once, for `side_by_side`."""
    return [sqlite_yard, postgres_yard]
