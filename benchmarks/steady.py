"""A database under constant load: one worker, a producer, and a pruner that is always at work.

``python -m benchmarks.steady --minutes 30 --rate 100 --on sqlite`` prints one line a minute, and at the end whether
size and speed of the first third and the last third differ. A worker keeps completed jobs for 7 days, so the pruning
of a week is done here by `app.prune(older_than=...)`, which takes the same steps. At the end it extrapolates what a
month costs.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

import dray
from benchmarks.arena import SIX, Arena, arenas, noop_of
from benchmarks.figures import Figures, spread
from benchmarks.fill import bytes_per_job, fill
from benchmarks.processes import run_until_stopped, workers
from dray.instants import SECOND

_MONTH = 30 * 86_400  # seconds
_MONTH_RATE = 100  # jobs a second, of the extrapolation
_KEPT = 7 * 86_400  # seconds, a worker's retention of completed jobs
_MB = 1024 * 1024
_PRUNES = 10  # in the time that a job is kept
_SERVED_BAR = 0.95  # of the first third
_BARS = {  # the last third may be this many times the first; what swings by itself may be more
    "p50 ms": 1.5,
    "p95 ms": 1.5,
    "file MB": 1.1,
    "WAL MB": 1.1,
    "table MB": 1.1,
    "index MB": 1.1,
    "dead rows": 1.5,
}
MODEL_ROWS = 100_000  # finished jobs in a database, for their size

Sample = dict[str, float]

_TAKEN_SQLITE = """
SELECT (started_at - created_at) / 1e3 FROM dray_jobs WHERE state = 'completed' AND finished_at >= ?"""
_TAKEN_POSTGRES = """
SELECT extract(epoch FROM started_at - created_at)::float8 * 1e3 FROM dray_jobs
WHERE state = 'completed' AND finished_at >= now() - %s * interval '1 second'"""
_SIZES_POSTGRES = """
SELECT pg_table_size('dray_jobs'), pg_indexes_size('dray_jobs'), n_dead_tup, n_tup_upd, n_tup_hot_upd,
    (SELECT count(*) FROM dray_jobs), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')
FROM pg_stat_user_tables WHERE relid = 'dray_jobs'::regclass"""


class SqliteProbe:
    """Reads a file's state from outside."""

    def __init__(self, arena: Arena, worker: int) -> None:
        self._path = Path(arena.url.removeprefix("sqlite:///"))
        self._worker = worker

    def read(self, seconds: float) -> tuple[list[float], Sample]:
        """The pick-up times of the last seconds in ms, and how large the database is."""
        with closing(sqlite3.connect(self._path)) as connection:
            since = time.time_ns() // 1_000 - int(seconds * SECOND)
            taken = [row[0] for row in connection.execute(_TAKEN_SQLITE, (since,))]
            (rows,) = connection.execute("SELECT count(*) FROM dray_jobs").fetchone()
        log = self._path.with_name(self._path.name + "-wal")
        sizes = {"file MB": self._path.stat().st_size / _MB, "WAL MB": log.stat().st_size / _MB}
        return taken, {"rows": rows, **sizes}

    def written(self) -> float:
        """The bytes that the worker and this process have passed to the kernel."""
        return sum(_wchar(pid) for pid in (str(self._worker), "self"))


class PostgresProbe:
    """Reads a server's state, through a connection of its own."""

    def __init__(self, arena: Arena) -> None:
        self._url = arena.url
        self._updated = self._hot = 0

    def read(self, seconds: float) -> tuple[list[float], Sample]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            taken = [row[0] for row in connection.execute(_TAKEN_POSTGRES, (seconds,))]
            table, indexes, dead, updated, hot, rows, _ = self._row(connection)
        share = 100 * (hot - self._hot) / max(1, updated - self._updated)
        self._updated, self._hot = updated, hot
        sizes = {"table MB": table / _MB, "index MB": indexes / _MB}
        return taken, {"rows": rows, **sizes, "dead rows": dead, "HOT %": share}

    def written(self) -> float:
        """The bytes of the write-ahead log so far."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            return float(self._row(connection)[-1])

    def _row(self, connection: psycopg.Connection) -> Any:
        return connection.execute(_SIZES_POSTGRES).fetchone()


def _wchar(pid: str) -> int:
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["wchar"])


@contextmanager
def load(app: dray.App, rate: float, keep: float) -> Generator[list[int]]:
    """Enqueues jobs at a rate and prunes all the time, until the block ends; yields the number of jobs so far."""
    noop, is_over, made = noop_of(app), threading.Event(), [0]

    def produce() -> None:
        starts = time.monotonic()
        while not is_over.wait(max(0.0, starts + made[0] / rate - time.monotonic())):
            noop.enqueue(*SIX)
            made[0] += 1

    def prune() -> None:
        while not is_over.wait(keep / _PRUNES):
            app.prune(older_than=keep)

    threads = [threading.Thread(target=each, daemon=True) for each in (produce, prune)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def measure(
    arena: Arena, figures: Figures, *, minutes: float, rate: float, every: float, keep: float, model_rows: int
) -> None:
    figures.heading(f"Constant load, {arena.name}: {rate:g} jobs/s for {minutes:g} minutes, kept for {keep:g} s")
    series: list[Sample] = []
    with arena.fresh() as app, workers(arena, app, ()) as (pid,), load(app, rate, keep) as made:
        probe = SqliteProbe(arena, pid) if arena.is_sqlite else PostgresProbe(arena)
        starts, before, at_first, written = time.monotonic(), made[0], made[0], probe.written()
        for number in range(1, max(1, round(minutes * 60 / every)) + 1):
            time.sleep(max(0.0, starts + number * every - time.monotonic()))
            now_made = made[0]
            taken, state = probe.read(every)
            found = spread(taken or [0.0])
            p95 = sorted(taken)[int(len(taken) * 0.95)] if taken else 0.0
            sample = {"minute": number * every / 60, "made/s": (now_made - before) / every}
            sample |= {"served/s": len(taken) / every, "p50 ms": found.p50, "p95 ms": p95, **state}
            before = now_made
            _print(sample, is_first=not series)
            series.append(sample)
        each_written = (probe.written() - written) / max(1, made[0] - at_first)
    _judge(figures, arena, series, keep)
    _extrapolate(figures, arena, each_written, model_rows)


def _print(sample: Sample, *, is_first: bool) -> None:
    if is_first:
        print("  " + "".join(f"{name:>11}" for name in sample))
    print("  " + "".join(f"{value:>11,.2f}" for value in sample.values()), flush=True)


def _judge(figures: Figures, arena: Arena, series: list[Sample], keep: float) -> None:
    """Compares the first third with the last, from the moment on at which as much is pruned as is made."""
    settled = [sample for sample in series if sample["minute"] * 60 > keep * (1 + 2 / _PRUNES)]
    third = len(settled) // 3
    if not third:
        figures.say("first and last third", f"left out: it takes longer than {keep * 1.2:g} s and three samples more")
        return
    for what in ("served/s", *(name for name in _BARS if name in settled[0])):
        first, last = (statistics.median(each[what] for each in part) for part in (settled[:third], settled[-third:]))
        ratio = last / first if first else 1.0
        figures.say(f"{what}, first and last third", f"{first:,.2f} and {last:,.2f}: {ratio:.2f} times")
        name = f"constant load, {arena.name}, {what}, last third"
        if what == "served/s":
            figures.at_least(name, ratio, _SERVED_BAR, " x first")
        else:
            figures.at_most(name, ratio, _BARS[what], " x first")


def _extrapolate(figures: Figures, arena: Arena, each_written: float, model_rows: int) -> None:
    """The size is that of finished jobs in a database that holds nothing else: dead rows do not grow with it."""
    with arena.fresh() as app:
        app.stats()  # makes the tables
    fill(arena.url, "finished", model_rows)
    each = sum(bytes_per_job(arena.url).values())
    kept, jobs = _MONTH_RATE * _KEPT, _MONTH_RATE * _MONTH
    figures.heading(f"EXTRAPOLATED, not measured: a month at {_MONTH_RATE} jobs/s, {arena.name}, kept for 7 days")
    figures.say("jobs", f"{jobs:,}")
    figures.say("rows at any time", f"{kept:,}")
    figures.say("bytes at any time", f"{kept * each / 1e9:,.1f} GB ({each:,.0f} bytes a job)")
    what = "bytes written, log and file" if arena.is_sqlite else "bytes of write-ahead log"
    figures.say(what, f"{jobs * each_written / 1e9:,.0f} GB ({each_written:,.0f} bytes a job, as measured above)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.steady")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=100, help="jobs a second")
    parser.add_argument("--every", type=float, default=60, help="seconds between two samples")
    parser.add_argument("--keep", type=float, help="seconds until an ended job is pruned; else two samples")
    parser.add_argument("--model-rows", type=int, default=MODEL_ROWS, help="finished jobs, to tell the size of one")
    parser.add_argument("--on", choices=["sqlite", "postgres", "both"], default="both", help="databases, in turn")
    given = parser.parse_args()
    keep = given.keep or 2 * given.every
    figures = Figures()
    try:
        with arenas(given.on) as found:
            for arena in found:
                measure(
                    arena,
                    figures,
                    minutes=given.minutes,
                    rate=given.rate,
                    every=given.every,
                    keep=keep,
                    model_rows=given.model_rows,
                )
    finally:
        figures.summary()


if __name__ == "__main__":
    run_until_stopped(main)
