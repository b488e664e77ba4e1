from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.fakes import FakeApp


@pytest.fixture
def app() -> Any:
    return FakeApp()
