"""`make bench`: what the storage layer costs, as ratios to a raw loop in the same run.

Every figure is the median of five pairs; raw and Dray alternate, so that a noisy neighbour hits both.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import psycopg

from benchmarks import raw
from benchmarks.places import postgres_place, raw_postgres, raw_sqlite, sqlite_place
from dray.backends import Backend, open_backend
from dray.backends.migrate import OLDEST_CODE, latest
from dray.backends.statements import Dialect
from dray.clock import Ids, SystemClock
from dray.instants import HOUR
from dray.model.job import Demand
from dray.model.new_job import NewJob
from dray.model.settlement import completed
from dray.model.worker import NewWorker

CLOCK = SystemClock()
IDS = Ids(CLOCK)
ROUNDS = 5
SIZES = {"117 B": 117, "2 KB": 2_048, "20 KB": 20_480}


def _meta(dialect: Dialect) -> str:
    return f"INSERT INTO dray_meta VALUES ('version', '{latest(dialect)}'), ('oldest_code', '{OLDEST_CODE}')"


class Pair(NamedTuple):
    """Rates of one figure, in jobs a second."""

    raw: float
    dray: float


class Place(Protocol):
    """One database, for the raw loop and for Dray in turn; `fresh_*` start from empty tables."""

    name: str

    def fresh_dray(self) -> Backend: ...
    def fresh_raw(self) -> None: ...
    def raw_rows(self, jobs: int, args: str) -> list[raw.Row]: ...
    def raw_insert(self, rows: list[raw.Row]) -> None: ...
    def raw_insert_each(self, rows: list[raw.Row]) -> None: ...
    def raw_drain(self, batch: int, jobs: int) -> int: ...
    def close(self) -> None: ...


class SqlitePlace:
    name = "SQLite"

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = Path(url.removeprefix("sqlite:///"))
        self._raw: sqlite3.Connection | None = None
        self._backend: Backend | None = None

    @property
    def bare(self) -> sqlite3.Connection:
        assert self._raw is not None
        return self._raw

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def fresh_dray(self) -> Backend:
        self.fresh_raw()
        self.close()
        self._backend = open_backend(self._url)
        self._backend.migrate()
        return self._backend

    def reopen_dray(self) -> Backend:
        self.close()
        self._backend = open_backend(self._url)
        return self._backend

    def fresh_raw(self) -> None:
        self.close()
        self._raw = raw_sqlite(self._path)
        self._raw.execute(_meta("sqlite"))

    def raw_rows(self, jobs: int, args: str) -> list[raw.Row]:
        return raw.sqlite_rows([IDS.new() for _ in range(jobs)], args)

    def raw_insert(self, rows: list[raw.Row]) -> None:
        raw.sqlite_insert(self.bare, rows)

    def raw_insert_each(self, rows: list[raw.Row]) -> None:
        raw.sqlite_insert_each(self.bare, rows)

    def raw_drain(self, batch: int, jobs: int) -> int:
        return raw.sqlite_drain(self.bare, batch, jobs)


class PostgresPlace:
    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self._url = url
        self._raw: psycopg.Connection | None = None
        self._backend: Backend | None = None

    @property
    def bare(self) -> psycopg.Connection:
        assert self._raw is not None
        return self._raw

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def fresh_dray(self) -> Backend:
        self.fresh_raw()
        return self.reopen_dray()

    def reopen_dray(self) -> Backend:
        self.close()
        self._backend = open_backend(self._url)
        return self._backend

    def fresh_raw(self) -> None:
        self.close()
        self._raw = raw_postgres(self._url)
        self._raw.execute(_meta("postgres").encode())

    def raw_rows(self, jobs: int, args: str) -> list[raw.Row]:
        return raw.postgres_rows([IDS.new() for _ in range(jobs)], args)

    def raw_insert(self, rows: list[raw.Row]) -> None:
        raw.postgres_insert(self.bare, rows)

    def raw_insert_each(self, rows: list[raw.Row]) -> None:
        raw.postgres_insert_each(self.bare, rows)

    def raw_drain(self, batch: int, jobs: int) -> int:
        return raw.postgres_drain(self.bare, batch, jobs)


def register(backend: Backend) -> str:
    worker = NewWorker(id=IDS.new(), name="bench", host="here", pid=1, boot=CLOCK.boot)
    backend.workers.register(worker, HOUR)
    return worker.id


def dray_insert(backend: Backend, count: int, args: str) -> None:
    backend.jobs.enqueue([NewJob(id=IDS.new(), task=raw.TASK, args=args) for _ in range(count)])


def dray_drain(backend: Backend, worker: str, batch: int, jobs: int, tasks: tuple[str, ...] = (raw.TASK,)) -> int:
    demand = Demand(("default",), tasks, batch)
    done, held = 0, backend.work.exchange(worker, (), demand).claims
    while done < jobs:
        now = CLOCK.steady()
        exchange = backend.work.exchange(worker, [completed(claim, now, now, "null") for claim in held], demand)
        done += len(held) - len(exchange.settled.stale)
        held = exchange.claims
    return done


def rate(work: Callable[[], object], jobs: int) -> float:
    started = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - started)


def args_of(size: int) -> str:
    return '{"x":"' + "a" * (size - 8) + '"}'


def drain_pair(place: Place, size: int, batch: int, jobs: int) -> Pair:
    args = args_of(size)
    place.fresh_raw()
    place.raw_insert(place.raw_rows(jobs + batch, args))
    bare = rate(lambda: place.raw_drain(batch, jobs), jobs)
    backend = place.fresh_dray()
    dray_insert(backend, jobs + batch, args)
    worker = register(backend)
    return Pair(bare, rate(lambda: dray_drain(backend, worker, batch, jobs), jobs))


def insert_pair(place: Place, size: int, jobs: int) -> Pair:
    args = args_of(size)
    place.fresh_raw()
    rows = place.raw_rows(jobs, args)
    bare = rate(lambda: place.raw_insert(rows), jobs)
    backend = place.fresh_dray()
    new = [NewJob(id=IDS.new(), task=raw.TASK, args=args) for _ in range(jobs)]
    return Pair(bare, rate(lambda: backend.jobs.enqueue(new), jobs))


def single_insert_pair(place: Place, jobs: int) -> Pair:
    args = args_of(117)
    place.fresh_raw()
    rows = place.raw_rows(jobs, args)
    bare = rate(lambda: place.raw_insert_each(rows), jobs)
    backend = place.fresh_dray()
    return Pair(bare, rate(lambda: [dray_insert(backend, 1, args) for _ in range(jobs)], jobs))


def foreign_pair(place: Place, foreign: int, jobs: int) -> Pair:
    """Returns Dray's claim rates without and with `foreign` jobs of an unknown task at the head of the queue."""
    rates: list[float] = []
    for count in (0, foreign):
        backend = place.fresh_dray()
        backend.jobs.enqueue([NewJob(id=IDS.new(), task="foreign", priority=9) for _ in range(count)])
        dray_insert(backend, jobs + 100, args_of(117))
        worker = register(backend)
        rates.append(rate(partial(dray_drain, backend, worker, 100, jobs), jobs))
    return Pair(*rates)


def report(title: str, unit: str, pairs: list[Pair], columns: tuple[str, str] = ("raw", "Dray")) -> None:
    first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(pair.dray / pair.raw for pair in pairs)
    print(
        f"  {title:<42} {columns[0]} {first:>9,.0f}{unit}   {columns[1]} {second:>9,.0f}{unit}   ratio {ratio:5.0%}",
        flush=True,
    )


def measure(place: Place, *, scale: float) -> None:
    print(f"{place.name}, jobs a second:")
    for label, size in SIZES.items():
        for batch, jobs in ((1, 2_000), (10, 8_000), (100, 20_000 if size < 10_000 else 5_000)):
            count = max(batch * 5, int(jobs * scale))
            pairs = [drain_pair(place, size, batch, count) for _ in range(ROUNDS)]
            report(f"settle+claim of {batch}, {label} of arguments", "/s", pairs)
    for label, size in SIZES.items():
        count = int((20_000 if size < 10_000 else 4_000) * scale)
        pairs = [insert_pair(place, size, count) for _ in range(ROUNDS)]
        report(f"bulk enqueue of {count:,}, {label}", "/s", pairs)
    report(
        "enqueue one by one, 117 B",
        "/s",
        [single_insert_pair(place, int(1_000 * scale)) for _ in range(ROUNDS)],
    )
    pairs = [foreign_pair(place, 100_000, int(20_000 * scale)) for _ in range(ROUNDS)]
    report("claims behind 100,000 of an unknown task", "/s", pairs, ("without", "with"))


@contextmanager
def places(which: str) -> Generator[list[SqlitePlace | PostgresPlace]]:
    with sqlite_place() as sqlite_url:
        if which == "sqlite":
            yield [SqlitePlace(sqlite_url)]
            return
        with postgres_place() as postgres_url:
            both = [SqlitePlace(sqlite_url), PostgresPlace(postgres_url)]
            yield both if which == "both" else both[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of jobs")
    given = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, medians of {ROUNDS}")
    with places(given.only) as found:
        for place in found:
            measure(place, scale=given.scale)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
