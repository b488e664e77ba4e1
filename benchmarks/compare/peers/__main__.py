"""One process of a measurement: ``python -m benchmarks.compare.peers MODULE ACTION [NUMBER...]``. It prints JSON.

`prepare` makes tables; `each N` and `bulk N` enqueue N jobs and print the seconds; `work` is the worker;
`pickup SAMPLES PAUSE LIMIT` enqueues one job at a time for a worker that is idle. COMPARE_URL names the database,
COMPARE_STAMPS the file of `work.py`.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from benchmarks.compare.peers.work import Enqueue, Producer, started_at

_PATIENCE = 60.0  # seconds until a job that has not started counts as lost
_WARM_UP = 5
_GOLDEN_RATIO = 0.618034
_SHORTEST_PAUSE = 0.005


class Peer(Protocol):
    """The functions of each module."""

    def prepare(self) -> None: ...
    def producer(self) -> AbstractContextManager[Producer]: ...
    def work(self) -> None: ...


def seconds_of(enqueue: Enqueue, jobs: int) -> float:
    """Times jobs 1 to `jobs`. Job 0 is enqueued before, so that connecting does not count."""
    enqueue([0])
    started = time.perf_counter()
    enqueue(range(1, jobs + 1))
    return time.perf_counter() - started


def pickup(enqueue: Enqueue, samples: int, pause: float, limit: float) -> dict[str, list[float]]:
    """Enqueues jobs for an idle worker, with pauses of up to `pause` seconds; milliseconds from call and return."""
    for number in range(_WARM_UP):
        enqueue([number])
        _wait(number)
    from_call: list[float] = []
    from_return: list[float] = []
    pauses = pauses_up_to(pause)
    ends = time.monotonic() + limit
    for number in range(_WARM_UP, _WARM_UP + samples):
        if time.monotonic() > ends and from_call:
            break
        time.sleep(next(pauses))
        called = time.monotonic_ns()
        enqueue([number])
        returned = time.monotonic_ns()
        began = _wait(number)
        from_call.append((began - called) / 1e6)
        from_return.append((began - returned) / 1e6)
    return {"from_call": from_call, "from_return": from_return}


def pauses_up_to(longest: float) -> Iterator[float]:
    """Spreads few pauses evenly, from another start in each round.

    Where a queue polls, the pause decides how long the job waits: with the same pauses every round would measure the
    same, and with a dozen random ones the rounds would differ by chance.
    """
    place = random.random()
    while True:
        yield _SHORTEST_PAUSE + place * (longest - _SHORTEST_PAUSE)
        place = (place + _GOLDEN_RATIO) % 1


def _wait(number: int) -> int:
    deadline = time.monotonic() + _PATIENCE
    while not (began := started_at(number)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {number} did not start within {_PATIENCE:g} s")
        time.sleep(0.001)
    return began


def main(module: str, action: str, *numbers: str) -> None:
    peer: Peer = importlib.import_module(f"benchmarks.compare.peers.{module}")  # pyright: ignore[reportAssignmentType]
    if action == "work":
        peer.work()
    elif action == "prepare":
        if hasattr(peer, "prepare"):
            peer.prepare()
        print("null")
    else:
        with peer.producer() as producer:
            print(json.dumps(_measure(producer, action, [float(number) for number in numbers])))


def _measure(producer: Producer, action: str, numbers: list[float]) -> object:
    if action == "pickup":
        samples, pause, limit = numbers
        return pickup(producer.each, int(samples), pause, limit)
    enqueue = producer.each if action == "each" else producer.bulk
    return None if enqueue is None else seconds_of(enqueue, int(numbers[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
