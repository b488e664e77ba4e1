"""lilota, on SQLite and PostgreSQL. It has no bulk enqueue."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from lilota.scheduler import LilotaScheduler
from lilota.worker import LilotaWorker

from benchmarks.compare.peers.work import URL, Producer, body, named

_ADDRESS = URL.replace("postgresql://", "postgresql+psycopg://")


def prepare() -> None:
    LilotaScheduler(_ADDRESS)  # makes the tables


@contextmanager
def producer() -> Generator[Producer]:
    scheduler = LilotaScheduler(_ADDRESS)
    scheduler.start()

    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            scheduler.schedule("noop", named(number))

    yield Producer(each)
    scheduler.stop()


def work() -> None:
    worker = LilotaWorker(_ADDRESS)

    @worker.task
    def noop(arguments: dict) -> None:
        body(**arguments)

    worker.start()
