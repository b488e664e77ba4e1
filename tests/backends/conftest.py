from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import pytest

from dray.backends import Backend, open_backend
from dray.clock import Ids
from tests.backends.world import World
from tests.manual_clock import ManualClock


@pytest.fixture
def world(backend: Backend, clock: ManualClock, ids: Ids) -> World:
    return World(backend, clock, ids)


@pytest.fixture
def server(postgres_url: str, clock: ManualClock, ids: Ids) -> Generator[World]:
    """For what only PostgreSQL can do: concurrent writers, and responses that are lost on the way."""
    with closing(open_backend(postgres_url, clock=clock)) as backend:
        backend.migrate()
        yield World(backend, clock, ids)
