"""An App on each database in turn, and a worker without threads that the test drives by hand."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dray.app import App
from tests.app.hands import Hands
from tests.manual_clock import ManualClock


@pytest.fixture
def app(url: str, clock: ManualClock) -> Generator[App]:
    """An App whose clock the test controls."""
    with App(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def hands(app: App, clock: ManualClock) -> Hands:
    return Hands(app, clock)
