"""The tasks of the demo, as an app of yours would have them. DRAY_URL tells the workers where the database is."""

from __future__ import annotations

import asyncio
import time
import zlib

import dray
from dray.cli.demo import ledger

app = dray.App()

CHARGES = "CREATE TABLE demo_charges (job_id TEXT NOT NULL, amount INTEGER NOT NULL)"


def _share(job_id: str, of: int) -> int:
    """A number below `of`, the same at every attempt of a job."""
    return zlib.crc32(job_id.encode()) % of


@app.task(name="resize")
def resize(number: int, ctx: dray.Context) -> int:
    """Short work in a thread."""
    ledger.note(ctx.job_id, "begun")
    time.sleep(0.03 + _share(ctx.job_id, 60) / 1000)
    ledger.note(ctx.job_id, "done")
    return number * number


@app.task(name="fetch")
async def fetch(number: int, ctx: dray.Context) -> str:
    """Waits for somebody else, without a thread of its own."""
    ledger.note(ctx.job_id, "begun")
    await asyncio.sleep(0.05 + _share(ctx.job_id, 100) / 1000)
    ledger.note(ctx.job_id, "done")
    return f"page {number}"


@app.task(name="mail", max_attempts=6, retry=dray.fixed(0.3))
def mail(to: str, ctx: dray.Context) -> None:
    """Fails once or twice before it works."""
    ledger.note(ctx.job_id, "begun")
    time.sleep(0.02)
    if ctx.attempt <= 1 + _share(ctx.job_id, 2):
        raise ConnectionError(f"the mail server refuses {to}")
    ledger.note(ctx.job_id, "done")


@app.task(name="render", runner="process")
def render(pixels: int, ctx: dray.Context) -> int:
    """Works a processor, in a child process."""
    ledger.note(ctx.job_id, "begun")
    found = sum(zlib.crc32(bytes([number % 256])) & 1 for number in range(pixels))
    ledger.note(ctx.job_id, "done")
    return found


@app.task(name="charge")
def charge(amount: int, ctx: dray.Context) -> None:
    """Writes its effect and its completion in one transaction: exactly once, whatever happens."""
    ledger.note(ctx.job_id, "begun")
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO demo_charges VALUES (?, ?)", (ctx.job_id, amount))
    ledger.note(ctx.job_id, "done")


@app.task(name="report")
def report(pages: int, ctx: dray.Context) -> str:
    """Says how far it is, and keeps a log."""
    ledger.note(ctx.job_id, "begun")
    for page in range(1, pages + 1):
        time.sleep(0.4)
        ctx.progress(100 * page / pages, f"page {page} of {pages}")
        ctx.log.info("page %d is written", page)
    ledger.note(ctx.job_id, "done")
    return f"{pages} pages"


@app.task(name="picture", priority=5)
def picture(number: int, ctx: dray.Context) -> int:
    """A step of a workflow."""
    ledger.note(ctx.job_id, "begun")
    time.sleep(0.05)
    ledger.note(ctx.job_id, "done")
    return number


@app.task(name="album", priority=5)
def album(ctx: dray.Context) -> int:
    """Runs after other steps, sees their results, and adds one more to its workflow."""
    ledger.note(ctx.job_id, "begun")
    pictures = [name for name in ctx.parent_results if name.startswith("picture-")]
    ctx.add(picture, len(pictures), step="cover")
    ledger.note(ctx.job_id, "done")
    return len(pictures)


@app.task(name="tick", queue="clock", priority=20)
def tick(ctx: dray.Context) -> None:
    """Comes by the clock: a schedule makes its jobs."""
    ledger.note(ctx.job_id, "begun")
    ledger.note(ctx.job_id, "done")


@app.task(name="nap")
async def nap(seconds: float, ctx: dray.Context) -> None:
    """Would take much too long; the demo cancels it."""
    ledger.note(ctx.job_id, "begun")
    await asyncio.sleep(seconds)
    ledger.note(ctx.job_id, "done")


@app.task(name="greet")
def greet(whom: str, ctx: dray.Context) -> str:
    """Runs later, or once only."""
    ledger.note(ctx.job_id, "begun")
    ledger.note(ctx.job_id, "done")
    return f"hello {whom}"
