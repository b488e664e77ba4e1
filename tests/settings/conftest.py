"""Each test here runs with each server setting in turn; at its end `dray audit` must find nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend, open_backend
from dray.clock import Ids
from dray.ops.audit import audit
from tests.backends import test_graph_races, test_limits, test_limits_races
from tests.backends.world import World
from tests.conftest import WarmConnections
from tests.manual_clock import ManualClock
from tests.runtime.watching import until
from tests.settings import places
from tests.settings.places import Place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Uses all settings, unless the test or SETTINGS in its module names some."""
    named = [mark for mark in metafunc.definition.iter_markers("parametrize") if mark.args[0] == "place"]
    if named or "place" not in metafunc.fixturenames:
        return
    names = getattr(metafunc.module, "SETTINGS", {}).get(metafunc.function, places.SETTINGS)
    metafunc.parametrize("place", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest, postgres_server: str, warm: WarmConnections) -> Generator[Place]:
    with places.made(postgres_server, request.param) as found:
        warm.share(found.url)
        yield found


@pytest.fixture
def url(place: Place) -> str:
    """The address as the user gives it, with empty tables."""
    place.empty()
    return place.url


@pytest.fixture
def backend(url: str, clock: ManualClock) -> Generator[Backend]:
    with closing(open_backend(url, clock=clock)) as opened:
        yield opened
        assert audit(opened, patience=0).broken == ()


@pytest.fixture
def world(backend: Backend, clock: ManualClock, ids: Ids) -> World:
    return World(backend, clock, ids)


@pytest.fixture
def worlds(world: World, url: str, clock: ManualClock, ids: Ids) -> Generator[list[World]]:
    """Two programs on one server."""
    with closing(open_backend(url, clock=clock)) as other:
        yield [world, World(other, clock, ids)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rounds where chance decides the order, or where each is like the others: the main suite runs more."""
    monkeypatch.setattr(test_graph_races, "ROUNDS", 20)
    monkeypatch.setattr(test_limits_races, "JOBS", 36)
    monkeypatch.setattr(test_limits, "PERIODS", 2)


@pytest.fixture
def app(url: str, caplog: pytest.LogCaptureFixture) -> Generator[App]:
    """An App whose workers end, log no error and leave tables without audit findings."""
    caplog.set_level(logging.WARNING, "dray")
    before = set(threading.enumerate())
    with App(url) as opened:
        yield opened
        assert audit(core_of(opened).backend).broken == ()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("dray-") and t not in before])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
