"""What the tests of faults share."""

from __future__ import annotations

import pytest

for _module in ("operation", "producing", "working", "tending", "hand", "places"):
    pytest.register_assert_rewrite(f"tests.faults.{_module}")
