"""Dray, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import dray
from benchmarks.compare.peers.work import THREADS, URL, Producer, become, body, chunks, six

app = dray.App(URL)
noop = app.task(name="noop")(body)


def prepare() -> None:
    with dray.App(URL, migrate=True) as made:
        made.stats()  # connects


@contextmanager
def producer() -> Generator[Producer]:
    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            noop.enqueue(*six(number))

    def bulk(numbers: Sequence[int]) -> None:
        for chunk in chunks(numbers):
            noop.enqueue_many([six(number) for number in chunk])

    with app:
        yield Producer(each, bulk)


def work() -> None:
    app_name = "benchmarks.compare.peers.with_dray:app"
    become("dray", "worker", app_name, "--concurrency", str(THREADS), "--log-level", "warning")
