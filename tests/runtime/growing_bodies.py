"""Tasks for every runner that add steps to their workflow; child processes import them from here."""

from __future__ import annotations

import asyncio

import dray

app = dray.App("sqlite:///growing-bodies.db")


@app.task(name="double")
def double(n: int) -> int:
    return 2 * n


@app.task(name="in-a-thread")
def in_a_thread(count: int, ctx: dray.Context) -> None:
    _grow(count, ctx)


@app.task(name="on-the-loop")
async def on_the_loop(count: int, ctx: dray.Context) -> None:
    await asyncio.sleep(0)
    _grow(count, ctx)


@app.task(name="in-a-child", runner="process")
def in_a_child(count: int, ctx: dray.Context) -> None:
    _grow(count, ctx)


@app.task(name="in-a-childs-transaction", runner="process")
def in_a_childs_transaction(count: int, ctx: dray.Context) -> None:
    with ctx.transaction():
        _grow(count, ctx)


@app.task(name="dies", runner="process", max_attempts=2, retry=0)
def dies(count: int, ctx: dray.Context) -> None:
    """The first attempt adds all steps and dies before it ends."""
    _grow(count, ctx)
    if ctx.attempt == 1:
        import os

        os._exit(1)


def _grow(count: int, ctx: dray.Context) -> None:
    for n in range(count):
        ctx.add(double.using(tags=["grown"]), n, step=f"grown-{n}", after=[ctx.job_id])
