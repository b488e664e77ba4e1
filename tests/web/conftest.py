"""The dashboard of an App on either database, asked as a browser asks."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from dray import Access, App, dashboard
from dray.web.access import Role
from tests.web.browsing import Visitor


@pytest.fixture
def app(url: str) -> Generator[App]:
    with App(url) as opened:
        opened.init()
        yield opened


@pytest.fixture
def visitor_as(app: App) -> Callable[..., Visitor]:
    """Makes visitors of one dashboard: `visitor_as("viewer")`, `visitor_as("operator", queues=["mail"])`."""

    def make(role: Role, user: str = "ann", queues: list[str] | None = None) -> Visitor:
        access = Access(role, user, queues)
        return Visitor(dashboard(app, access=lambda _: access), access)

    return make


@pytest.fixture
def visitor(visitor_as: Callable[..., Visitor]) -> Visitor:
    return visitor_as("admin")
