"""What the tests of faults share."""

from __future__ import annotations

import logging

import pytest

for _module in ("operation", "producing", "working", "tending", "hand", "places", "bench"):
    pytest.register_assert_rewrite(f"tests.faults.{_module}")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each fault may be worth a line, and there are thousands."""
    caplog.set_level(logging.ERROR, "dray")
