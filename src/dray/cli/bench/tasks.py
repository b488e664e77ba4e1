"""The tasks of the bench: one that does nothing, and one that says when it was started."""

from __future__ import annotations

import time

from dray import App

app = App()


@app.task(name="bench.nothing", max_attempts=1)
def nothing() -> None:
    """Do nothing."""


@app.task(name="bench.moment", max_attempts=1)
def moment() -> int:
    """Nanoseconds of a clock that all processes of a machine share."""
    return time.monotonic_ns()
