"""The tasks of the demo, as an app of yours would have them. Workers get the database's address by DRAY_URL.

Their bodies also write to a ledger: a file outside the database, to compare it with.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import dray

LEDGER = "DRAY_DEMO_LEDGER"  # the variable with its path
CHARGES = "CREATE TABLE demo_charges (job_id TEXT NOT NULL, amount INTEGER NOT NULL)"

app = dray.App()


@contextmanager
def noted(ctx: dray.Context) -> Generator[None]:
    """Notes in the ledger that a body has begun, and that it is done, unless it raises."""
    _note(ctx.job_id, "begun")
    yield
    _note(ctx.job_id, "done")


def _note(job_id: str, event: str) -> None:
    # A line is one write with O_APPEND: concurrent lines do not mix, and it stays when its writer is killed.
    os.write(_descriptor(os.environ[LEDGER], os.getpid()), f"{job_id} {event}\n".encode())


@cache
def _descriptor(path: str, pid: int) -> int:  # noqa: ARG001 - a forked child opens the file itself
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def read_ledger(path: Path) -> Counter[tuple[str, str]]:
    """Returns how often each event of each job was noted."""
    if not path.exists():
        return Counter()
    lines = path.read_text(encoding="ascii").splitlines()
    return Counter((job_id, event) for job_id, _, event in (line.partition(" ") for line in lines))


def _share(job_id: str, of: int) -> int:
    """Returns a number below `of`, the same at every attempt of a job."""
    return zlib.crc32(job_id.encode()) % of


@app.task(name="resize")
def resize(ctx: dray.Context, number: int) -> int:
    """Short work in a thread."""
    with noted(ctx):
        time.sleep(0.03 + _share(ctx.job_id, 60) / 1000)
    return number * number


@app.task(name="fetch")
async def fetch(ctx: dray.Context, number: int) -> str:
    """Waits for a server, without a thread of its own."""
    with noted(ctx):
        await asyncio.sleep(0.05 + _share(ctx.job_id, 100) / 1000)
    return f"page {number}"


@app.task(name="mail", max_attempts=6, retry=dray.fixed(0.3))
def mail(ctx: dray.Context, to: str) -> None:
    """Fails once or twice before it works."""
    with noted(ctx):
        time.sleep(0.02)
        if ctx.attempt <= 1 + _share(ctx.job_id, 2):
            raise ConnectionError(f"the mail server refuses {to}")


@app.task(name="render", runner="process")
def render(ctx: dray.Context, pixels: int) -> int:
    """Keeps a processor busy, in a child process."""
    with noted(ctx):
        return sum(zlib.crc32(bytes([number % 256])) & 1 for number in range(pixels))


@app.task(name="charge")
def charge(ctx: dray.Context, amount: int) -> None:
    """Writes its effect and its completion in one transaction: exactly once, whatever happens."""
    with noted(ctx), ctx.transaction() as tx:
        tx.execute("INSERT INTO demo_charges VALUES (?, ?)", (ctx.job_id, amount))


@app.task(name="report")
def report(ctx: dray.Context, pages: int) -> str:
    """Reports its progress, and logs."""
    with noted(ctx):
        for page in range(1, pages + 1):
            time.sleep(0.4)
            ctx.progress(100 * page / pages, f"page {page} of {pages}")
            ctx.log.info("page %d is written", page)
    return f"{pages} pages"


@app.task(name="picture", priority=5)
def picture(ctx: dray.Context, number: int) -> int:
    """A step of a workflow."""
    with noted(ctx):
        time.sleep(0.05)
    return number


@app.task(name="album", priority=5)
def album(ctx: dray.Context) -> int:
    """Runs after other steps, sees their results, and adds one more to its workflow."""
    with noted(ctx):
        pictures = [name for name in ctx.parent_results if name.startswith("picture-")]
        ctx.add(picture, len(pictures), step="cover")
    return len(pictures)


@app.task(name="tick", queue="clock", priority=20)
def tick(ctx: dray.Context) -> None:
    """Has a schedule that enqueues its jobs."""
    with noted(ctx):
        pass


@app.task(name="nap")
async def nap(ctx: dray.Context, seconds: float) -> None:
    """Takes much too long; the demo cancels it."""
    with noted(ctx):
        await asyncio.sleep(seconds)


@app.task(name="greet")
def greet(ctx: dray.Context, whom: str) -> str:
    """Runs later, or only once."""
    with noted(ctx):
        return f"hello {whom}"
