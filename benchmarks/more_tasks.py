"""No-ops for the other two runners. In their own module, because a worker that knows them loads more modules."""

from __future__ import annotations

from benchmarks.tasks import app


@app.task
async def async_noop(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None:
    """Does nothing, in the event loop."""


@app.task(runner="process")
def process_noop(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None:
    """Does nothing, in a child process."""
