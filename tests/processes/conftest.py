"""Yards: databases with worker processes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.harness import Fleet
from tests.processes.places import Places, Together

if TYPE_CHECKING:
    from tests.schemas import Schemas


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Generator[Fleet]:
    """Each database in turn."""
    made = Fleet(url, tmp_path / "fleet")
    yield made
    made.close()


@pytest.fixture(scope="session")
def places(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, postgres_server: str, schemas: Schemas
) -> Places:
    return Places(tmp_path_factory.mktemp("places"), sqlite_template, postgres_server, schemas)


@pytest.fixture
def sqlite_yard(places: Places) -> Generator[Fleet]:
    with places.sqlite() as made:
        yield made


@pytest.fixture
def postgres_yard(places: Places) -> Generator[Fleet]:
    with places.postgres() as made:
        yield made


@pytest.fixture
def fleets(sqlite_yard: Fleet, postgres_yard: Fleet) -> list[Fleet]:
    """Both databases at once, for `side_by_side`."""
    return [sqlite_yard, postgres_yard]


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, places: Places) -> Generator[Together]:
    """The scenarios in the file's TOGETHER, begun if all its tests are to be run, else each when waited for."""
    made = Together(places)
    tests = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    wanted = {name for name in vars(request.module) if name.startswith("test_")}
    if wanted <= {getattr(item, "originalname", item.name) for item in tests}:
        for scenario in getattr(request.module, "TOGETHER", ()):
            made.begin(scenario)
    yield made
    made.close()
