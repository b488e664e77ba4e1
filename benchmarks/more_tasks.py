"""No-ops for the other two runners; apart, because a worker that knows them loads more than one that does not."""

from __future__ import annotations

from benchmarks.tasks import app


@app.task
async def async_noop() -> None:
    """Nothing, in the event loop."""


@app.task(runner="process")
def process_noop() -> None:
    """Nothing, in a child process."""
