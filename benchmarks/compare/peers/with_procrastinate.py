"""Procrastinate, on PostgreSQL."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import procrastinate

from benchmarks.compare.peers.work import THREADS, URL, Producer, body, chunks, named

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))


@app.task(name="noop")
async def noop(**arguments: object) -> None:
    body(**arguments)  # pyright: ignore[reportArgumentType]


def prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()


@contextmanager
def producer() -> Generator[Producer]:
    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            noop.defer(**named(number))

    def bulk(numbers: Sequence[int]) -> None:
        for chunk in chunks(numbers):
            noop.batch_defer(*[named(number) for number in chunk])

    with app.open():
        yield Producer(each, bulk)


def work() -> None:
    app.run_worker(concurrency=THREADS)
