"""Celery, on Redis, with its default pool of processes. It has no bulk enqueue: a group sends one by one."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from celery import Celery

from benchmarks.compare.peers.work import URL, Producer, become, body, six

app = Celery("compare", broker=URL)
noop = app.task(name="noop")(body)


@contextmanager
def producer() -> Generator[Producer]:
    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            noop.delay(*six(number))

    yield Producer(each)


def work() -> None:
    become("celery", "-A", "benchmarks.compare.peers.with_celery", "worker", "--loglevel", "WARNING")
