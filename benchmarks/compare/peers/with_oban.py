"""oban, on PostgreSQL."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from oban import Oban, job
from oban.schema import install

from benchmarks.compare.peers.work import URL, Producer, body, chunks, six

_LIMIT = 100  # jobs that run at a time, which is also the most that it claims at once


@job(queue="default")
async def noop(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None:
    body(order, to, amount, currency, express, items)


def prepare() -> None:
    async def make_tables() -> None:
        async with await Oban.create_pool(URL) as pool:
            await install(pool)

    asyncio.run(make_tables())


@contextmanager
def producer() -> Generator[Producer]:
    with asyncio.Runner() as runner:
        pool = runner.run(Oban.create_pool(URL))
        app = Oban(pool=pool)
        runner.run(app.start())

        async def each(numbers: Sequence[int]) -> None:
            for number in numbers:
                await app.enqueue(noop.new(*six(number)))

        async def bulk(numbers: Sequence[int]) -> None:
            for chunk in chunks(numbers):
                await app.enqueue_many([noop.new(*six(number)) for number in chunk])

        yield Producer(lambda numbers: runner.run(each(numbers)), lambda numbers: runner.run(bulk(numbers)))
        runner.run(app.stop())
        runner.run(pool.close())


def work() -> None:
    asyncio.run(_work())


async def _work() -> None:
    pool = await Oban.create_pool(URL)
    async with Oban(pool=pool, queues={"default": _LIMIT}):
        await asyncio.Event().wait()
