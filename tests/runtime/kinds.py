"""Bodies that take no time, one for each kind of runner; a child process finds them here."""

from __future__ import annotations

import dray

app = dray.App("sqlite:///kinds.db")


@app.task(name="of-thread")
def of_thread() -> None: ...


@app.task(name="of-async")
async def of_async() -> None: ...


@app.task(name="of-process", runner="process")
def of_process() -> None: ...
