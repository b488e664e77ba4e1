"""PgQueuer, on PostgreSQL."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.compare.peers.work import URL, Producer, body, chunks, encoded

_BATCH = 100  # its default of 10 is slower here


def _payload(number: int) -> bytes:
    return encoded(number).encode()


async def _queries() -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(URL)))


def prepare() -> None:
    async def install() -> None:
        await (await _queries()).install()

    asyncio.run(install())


@contextmanager
def producer() -> Generator[Producer]:
    with asyncio.Runner() as runner:
        queries = runner.run(_queries())

        async def each(numbers: Sequence[int]) -> None:
            for number in numbers:
                await queries.enqueue("noop", _payload(number))

        async def bulk(numbers: Sequence[int]) -> None:
            for chunk in chunks(numbers):
                count = len(chunk)
                await queries.enqueue(["noop"] * count, [_payload(number) for number in chunk], [0] * count)

        yield Producer(lambda numbers: runner.run(each(numbers)), lambda numbers: runner.run(bulk(numbers)))


def work() -> None:
    asyncio.run(_work())


async def _work() -> None:
    async with asyncpg.create_pool(URL) as pool:
        app = PgQueuer.from_asyncpg_pool(pool)

        @app.entrypoint("noop")
        async def noop(job: Job) -> None:
            body(**json.loads(job.payload or b""))

        await app.run(batch_size=_BATCH)
