"""Tasks for each runner; child processes import them from here."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import dray
from dray.app_interface import core_of

app = dray.App("sqlite:///kinds.db")


@app.task(name="of-thread")
def of_thread() -> None:
    """Returns at once, as do the next two."""


@app.task(name="of-async")
async def of_async() -> None: ...


@app.task(name="of-process", runner="process")
def of_process() -> None: ...


@app.task(name="mostly-short", runner="process", max_attempts=3, retry=0)
def mostly_short(ctx: dray.Context, what: str = "") -> int:
    """Returns its process id at once, unless it is told what to do in its first attempt."""
    if ctx.attempt == 1 and what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.attempt == 1 and what:
        time.sleep(60)
    return os.getpid()


# Bodies that complete their jobs themselves and continue: they write PATH.begun, wait for PATH.go, write PATH.ended


def _go_on(path: str) -> None:
    Path(f"{path}.begun").touch()
    while not Path(f"{path}.go").exists():
        time.sleep(0.005)
    Path(f"{path}.ended").touch()


@app.task(name="written-thread")
def written_thread(path: str, ctx: dray.Context) -> None:
    with ctx.transaction():
        pass
    _go_on(path)


@app.task(name="written-process", runner="process")
def written_process(path: str, ctx: dray.Context) -> None:
    with ctx.transaction():
        pass
    _go_on(path)


@app.task(name="written-async")
async def written_async(path: str, ctx: dray.Context) -> None:
    async with ctx.transaction():
        pass
    Path(f"{path}.begun").touch()
    while not Path(f"{path}.go").exists():
        await asyncio.sleep(0.005)
    Path(f"{path}.ended").touch()


@app.task(name="written-elsewhere")
def written_elsewhere(path: str, ctx: dray.Context) -> None:
    """Completes in the user's own transaction: the worker does not learn when it commits."""
    with core_of(app).backend.transaction() as connection:
        ctx.complete(connection=connection)
    _go_on(path)


@app.task(name="unwritten")
def unwritten(path: str) -> None:
    """Does the same without completing its job."""
    _go_on(path)


# Bodies whose output looks like log records

FORGERY = "harmless\nERROR forged\r\nERROR forged\x1b[2J\u2028ERROR forged"


@app.task(name="forge", max_attempts=1)
def forge() -> None:
    raise ValueError(FORGERY)


@app.task(name="forge-again", max_attempts=2, retry=3600)
def forge_again() -> None:
    raise ValueError(FORGERY)


@app.task(name="forge-written")
def forge_written(ctx: dray.Context) -> None:
    with ctx.transaction():
        pass
    raise ValueError(FORGERY)


@app.task(name="forge-elsewhere")
def forge_elsewhere(ctx: dray.Context) -> None:
    with core_of(app).backend.transaction() as connection:
        ctx.complete(connection=connection)
    raise ValueError(FORGERY)


@app.task(name="forge-process", runner="process")
def forge_process(ctx: dray.Context) -> None:
    """Forges a log line by a line of its own, and by what Dray logs about it in the child."""
    ctx.log.warning(FORGERY)
    with ctx.transaction():
        pass
    raise ValueError(FORGERY)
