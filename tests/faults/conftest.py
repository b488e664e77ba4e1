"""What the tests of faults share."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.faults.databases import FaultyDatabase

for _module in (
    *("operation", "producer_operations", "worker_operations", "duty_operations"),
    *("verb_worker", "databases", "worker"),
):
    pytest.register_assert_rewrite(f"tests.faults.{_module}")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each fault may be worth a line, and there are thousands."""
    caplog.set_level(logging.ERROR, "dray")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Generator[FaultyDatabase]:
    """Each database in turn, with a driver that fails when it is told to."""
    from tests.faults.databases import FaultyPostgres, FaultySqlite, in_memory

    if request.param == "sqlite":
        with in_memory() as folder:
            made: FaultyDatabase = FaultySqlite(folder)
            yield made
            made.close()
        return
    schemas = request.getfixturevalue("schemas")
    schema = schemas.take()
    made = FaultyPostgres(request.getfixturevalue("postgres_server"), schema)
    yield made
    made.close()
    schemas.give_back(schema)
