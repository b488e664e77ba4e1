"""A small package with tasks, as users write it: its App is made at import, with an address that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from dataclasses import dataclass
from typing import Any

import pytest

import dray

app = dray.App("sqlite:////nowhere/shop.db")
ran: list[Any] = []
SALES = ["sales"]  # the table that `sell` writes to


@dataclass
class Address:
    street: str
    since: datetime.date


@app.task(queue="mail", priority=5)
def send(to: str, subject: str = "Hello") -> str:
    ran.append(to)
    return f"sent to {to}"


@app.task(max_attempts=5, retry=dray.fixed(60))
def flaky(n: int, ctx: dray.Context) -> int:
    """Fails twice."""
    ran.append((n, ctx.attempt))
    ctx.log.info("attempt %d", ctx.attempt)
    ctx.progress(ctx.attempt * 10, "on the way")
    if ctx.attempt < 3:
        raise ConnectionError("the server is away")
    return n


@app.task(max_attempts=2, retry=0)
def broken(n: int = 1) -> None:
    ran.append(n)
    raise ValueError("never works")


@app.task
def move(to: Address, tags: set[str]) -> str:
    assert isinstance(to, Address)
    assert isinstance(tags, set)
    return to.street


@app.task
def parent(n: int) -> None:
    ran.append("parent")
    for each in range(n):
        send.using(delay=3600).enqueue(f"child {each}")


@app.task
async def fetch(url: str) -> str:
    await asyncio.sleep(0)
    await send.aenqueue(f"about {url}")
    return url.upper()


@app.task(timeout=0.05, max_attempts=1)
async def hang() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await asyncio.sleep(60)


@app.task
def snore() -> None:
    raise dray.Snooze(60)


@app.task(runner="process")
def heavy(n: int) -> int:
    ran.append(n)
    return n * 2


@app.task
def total(parent_results: dict[str, Any]) -> int:
    return sum(parent_results[step] for step in ("a", "b"))


@app.task
def double(n: int) -> int:
    ran.append(n)
    return n * 2


@app.task
def grow(n: int, ctx: dray.Context) -> int:
    for each in range(n):
        ctx.add(double, each)
    return n


@app.task
def nested(n: int) -> int:
    return double.enqueue(n).result(5)


@app.task
def forever(n: int) -> None:
    forever.using(delay=1).enqueue(n + 1)


@app.task
def sell(item: str, ctx: dray.Context) -> None:
    """Exactly once."""
    ran.append(ctx.attempt)
    with ctx.transaction(result=item) as tx:
        tx.execute(f"INSERT INTO {SALES[0]} VALUES ('lamp')")


@app.task
async def asell(item: str, ctx: dray.Context) -> None:
    ran.append(ctx.attempt)
    async with ctx.transaction(result=item) as tx:
        done = tx.execute(f"INSERT INTO {SALES[0]} VALUES ('lamp')")
        if asyncio.iscoroutine(done):
            await done


@app.task(max_attempts=1)
def book(columns: str, ctx: dray.Context) -> None:
    """Makes a table of its own; the result is how many rows it has."""
    with ctx.transaction() as tx:
        tx.execute(f"CREATE TABLE bookings ({columns})")
        tx.result = tx.execute("SELECT count(*) FROM bookings").fetchone()[0]


@app.task(max_attempts=1)
def count(table: str, ctx: dray.Context) -> None:
    with ctx.transaction() as tx:
        tx.result = tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@app.task
def interrupted() -> None:
    raise KeyboardInterrupt


@app.task
def must_not_run() -> None:
    pytest.fail("this must not run")


scheduled = dray.App("sqlite:////nowhere/scheduled.db")


@scheduled.task
def poll() -> None:
    ran.append("poll")
    follow_up.using(delay=7200).enqueue()


@scheduled.task
def follow_up() -> None:
    ran.append("follow-up")


scheduled.schedule("hourly", poll, cron="0 * * * *")
