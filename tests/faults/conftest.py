"""What the tests of faults share."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.faults.places import Place

for _module in ("operation", "producing", "working", "tending", "hand", "places", "bench"):
    pytest.register_assert_rewrite(f"tests.faults.{_module}")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each fault may be worth a line, and there are thousands."""
    caplog.set_level(logging.ERROR, "dray")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Generator[Place]:
    """Each database in turn, with a driver that fails when it is told to."""
    from tests.faults.places import PostgresPlace, SqlitePlace, in_memory

    if request.param == "sqlite":
        with in_memory() as folder:
            made: Place = SqlitePlace(folder)
            yield made
            made.close()
        return
    schemas = request.getfixturevalue("schemas")
    schema = schemas.take()
    made = PostgresPlace(request.getfixturevalue("postgres_server"), schema)
    yield made
    made.close()
    schemas.give_back(schema)
