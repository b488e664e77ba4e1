"""How soon an idle worker is gone: by itself, so that the figure means something."""

from __future__ import annotations

import signal
import time

import pytest

from tests.processes.harness import Fleet

STOP = "tests.processes.apps_stop"
AT_ONCE = 3.0  # seconds; ten times what is promised on a quiet machine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_is_gone_in_a_moment(fleets: list[Fleet], number: signal.Signals) -> None:
    """All of its runners have worked before; `pytest -s` shows the figures."""
    for fleet in fleets:
        worker = fleet.start(STOP)
        ran = [fleet.enqueue(f"{STOP}.{task}", label="warm") for task in ("in_thread", "on_loop", "in_child")]
        fleet.ended(ran)
        began = time.monotonic()
        worker.send(number)
        assert worker.wait() == 0
        took = time.monotonic() - began
        print(f"{'SQLite' if fleet.is_sqlite else 'PostgreSQL'}: gone {took * 1000:.0f} ms after {number.name}")
        assert took < AT_ONCE
