"""The testing kit on both databases, with an App whose own address leads nowhere."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.settings import Settings
from dray.testing.binding import Rebound
from dray.testing.movable import MovableClock
from tests.testing import shop


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `database` uses: a file, or a schema on the server of the tests."""
    if request.param == "postgres":
        monkeypatch.setenv("DRAY_TEST_URL", request.getfixturevalue("postgres_server"))
    else:
        monkeypatch.delenv("DRAY_TEST_URL", raising=False)
    return request.param


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[App]:
    """The App of `shop` as `database` leaves it, on tables that are there already: to make them takes longer."""
    monkeypatch.delenv("DRAY_TEST_URL", raising=False)
    shop.ran.clear()
    settings = replace(core_of(shop.app).settings, url=Settings.of(url).url)
    with Rebound(shop.app, settings, MovableClock()) as rebound:
        yield rebound
