"""Huey, on SQLite, PostgreSQL and Redis. Its `map` enqueues one by one, so it has no bulk enqueue."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import huey

from benchmarks.compare.peers.work import THREADS, URL, Producer, become, body, path, six


def _app() -> huey.Huey:
    if URL.startswith("sqlite"):
        return huey.SqliteHuey(filename=path())
    return huey.PostgresHuey(dsn=URL) if URL.startswith("postgres") else huey.RedisHuey(url=URL)


app = _app()
noop = app.task()(body)


@contextmanager
def producer() -> Generator[Producer]:
    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            noop(*six(number))

    yield Producer(each)


def work() -> None:
    become("huey.bin.huey_consumer", "benchmarks.compare.peers.with_huey.app", "--workers", str(THREADS), "--quiet")
