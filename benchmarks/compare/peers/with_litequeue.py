"""litequeue, on SQLite. It has messages and no worker, so this is the loop that its documentation suggests."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import litequeue

from benchmarks.compare.peers.work import Producer, body, chunks, encoded, path

_IDLE = 0.01  # seconds between looks at an empty queue


def prepare() -> None:
    litequeue.LiteQueue(path()).close()


@contextmanager
def producer() -> Generator[Producer]:
    queue = litequeue.LiteQueue(path())

    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            queue.put(encoded(number))

    def bulk(numbers: Sequence[int]) -> None:
        for chunk in chunks(numbers):
            with queue.transaction(mode="IMMEDIATE"):
                each(chunk)

    yield Producer(each, bulk)
    queue.close()


def work() -> None:
    queue = litequeue.LiteQueue(path())
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(_IDLE)
            continue
        body(**json.loads(message.data))
        queue.done(message.message_id, claim_id=message.claim_id)
