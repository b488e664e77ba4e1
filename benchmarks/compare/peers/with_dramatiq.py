"""Dramatiq, on Redis. It has no bulk enqueue: a group sends one by one."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.compare.peers.work import THREADS, URL, Producer, become, body, six

dramatiq.set_broker(RedisBroker(url=URL))
noop = dramatiq.actor(body, actor_name="noop")


@contextmanager
def producer() -> Generator[Producer]:
    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            noop.send(*six(number))

    yield Producer(each)


def work() -> None:
    become("dramatiq", "benchmarks.compare.peers.with_dramatiq", "--processes", "1", "--threads", str(THREADS))
