"""RQ, on Redis."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from redis import Redis
from rq import Queue, Worker

from benchmarks.compare.peers.work import URL, Producer, body, chunks, six

queue = Queue(connection=Redis.from_url(URL))


@contextmanager
def producer() -> Generator[Producer]:
    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            queue.enqueue(body, *six(number))

    def bulk(numbers: Sequence[int]) -> None:
        for chunk in chunks(numbers):
            queue.enqueue_many([Queue.prepare_data(body, six(number)) for number in chunk])

    yield Producer(each, bulk)


def work() -> None:
    Worker([queue], connection=queue.connection).work(logging_level="WARNING")
