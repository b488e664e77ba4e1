"""One browser a file, and two dashboards: of a busy database and of an empty one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from dray import App
from tests.web.browser.chrome import Served, Visitor, launched, served
from tests.web.seeded import Seeded, filled, seeded


@dataclass
class Shown:
    """A dashboard, and what there is on it."""

    served: Served
    app: App
    paths: list[str]
    seed: Seeded | None = None


# A module's, not a session's: while playwright runs, no test in this process could run an event loop.
@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with launched() as made:
        yield made


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shown]:
    path: Path = tmp_path_factory.mktemp("full") / "jobs.db"
    with seeded(path) as seed, served(seed.app) as site:
        yield Shown(site, seed.app, seed.paths(), seed)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shown]:
    path: Path = tmp_path_factory.mktemp("empty") / "jobs.db"
    with App(f"sqlite:///{path}") as app:
        app.init()
        with served(app) as site:
            yield Shown(site, app, filled({}))


@pytest.fixture
def visitor_with(browser: Browser, full: Shown) -> Generator[Callable[..., Visitor]]:
    """Makes visitors of the busy one, whose windows are closed in the end."""
    made = list[Visitor]()

    def make(**options: Any) -> Visitor:
        made.append(Visitor(browser, full.served, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def visitor(visitor_with: Callable[..., Visitor]) -> Generator[Visitor]:
    """One, to whom nothing wrong may have happened in the end."""
    made = visitor_with()
    yield made
    assert made.wrong == []
