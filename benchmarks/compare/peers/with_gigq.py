"""GigQ, on SQLite. It has no bulk enqueue."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import gigq

from benchmarks.compare.peers.work import THREADS, Producer, body, named, path

noop = gigq.task(body)


def prepare() -> None:
    gigq.JobQueue(path())  # or the producer and the worker both make tables, and one finds the file locked


@contextmanager
def producer() -> Generator[Producer]:
    queue = gigq.JobQueue(path())

    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            noop.submit(queue, **named(number))

    yield Producer(each)


def work() -> None:
    gigq.Worker(path(), concurrency=THREADS).start()
