from __future__ import annotations

import pytest

from dray.backends import Backend
from dray.clock import Ids, ManualClock
from tests.backends.world import World


@pytest.fixture
def world(backend: Backend, clock: ManualClock, ids: Ids) -> World:
    return World(backend, clock, ids)
