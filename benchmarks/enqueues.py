"""The cost of `enqueue` and `enqueue_many`, from the check of the signature to the commit, next to raw INSERTs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import dray
from benchmarks import raw
from benchmarks.arena import SIX, SIX_JSON, Arena, noop_of
from benchmarks.figures import Figures
from benchmarks.storage import ROUNDS, Pair, PostgresPlace, rate

_THREADS = 8
_CHUNK = 1_000  # jobs in one bulk call
_BARS = {"SQLite": (0.90, 0.65), "PostgreSQL": (0.85, 0.50)}  # of the raw loop: one by one, bulk
_THREADS_BAR = 3.0  # times the rate of one thread

Noop = dray.Task[[int, str, float, str, bool, list[int]], None]
Rows = list[raw.Row]


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    rounds, singles, by_threads, many = (1, 100, 100, 2_000) if quick else (ROUNDS, 1_000, 8_000, 10_000)
    for arena in arenas:
        one_bar, bulk_bar = _BARS[arena.name]
        figures.heading(f"Enqueue, {arena.name}, jobs a second, durable")
        ratio = figures.pairs("one by one", [_singles(arena, singles) for _ in range(rounds)])
        figures.at_least(f"enqueue one, {arena.name}", ratio, one_bar, " of raw")
        if isinstance(arena.place, PostgresPlace):
            alone = [_autocommit(arena.place, singles) for _ in range(rounds)]
            figures.say("raw INSERT in autocommit, one round trip", f"raw {statistics.median(alone):>8,.0f}/s")
        ratio = figures.pairs(f"enqueue_many by {_CHUNK:,}", [_many(arena, many) for _ in range(rounds)])
        figures.at_least(f"bulk, {arena.name}", ratio, bulk_bar, " of raw")
        gain = statistics.median(_threads(arena, by_threads) for _ in range(rounds))
        figures.say(f"{_THREADS} threads, one by one", f"{gain:.1f} times as fast as one thread")
        figures.at_least(f"{_THREADS} threads enqueueing, {arena.name}", gain, _THREADS_BAR, " x one thread")


def _singles(arena: Arena, jobs: int) -> Pair:
    return _pair(arena, jobs, arena.place.raw_insert_each, lambda noop: _enqueue(noop, jobs))


def _autocommit(place: PostgresPlace, jobs: int) -> float:
    place.fresh_raw()
    rows = place.raw_rows(jobs, SIX_JSON)
    return rate(lambda: raw.postgres_insert_autocommit(place.bare, rows), jobs)


def _many(arena: Arena, jobs: int) -> Pair:
    def bare(rows: Rows) -> None:
        for start in range(0, jobs, _CHUNK):
            arena.place.raw_insert(rows[start : start + _CHUNK])

    def by_dray(noop: Noop) -> None:
        for start in range(0, jobs, _CHUNK):
            noop.enqueue_many([(number, *SIX[1:]) for number in range(start, start + _CHUNK)])

    return _pair(arena, jobs, bare, by_dray)


def _pair(arena: Arena, jobs: int, bare: Callable[[Rows], None], by_dray: Callable[[Noop], None]) -> Pair:
    arena.place.fresh_raw()
    rows = arena.place.raw_rows(jobs, SIX_JSON)
    bare_rate = rate(lambda: bare(rows), jobs)
    with arena.fresh() as app:
        noop = noop_of(app)
        noop.enqueue(*SIX)  # connects and makes the queue, as the raw loop has done
        return Pair(bare_rate, rate(lambda: by_dray(noop), jobs))


def _threads(arena: Arena, jobs: int) -> float:
    """How many times as fast threads of one process are that enqueue at the same time."""

    def produce(threads: int) -> float:
        with arena.fresh() as app, ThreadPoolExecutor(threads) as pool:
            noop, share = noop_of(app), jobs // threads
            noop.enqueue(*SIX)
            return rate(lambda: list(pool.map(_enqueue, [noop] * threads, [share] * threads)), share * threads)

    alone = produce(1)
    return produce(_THREADS) / alone


def _enqueue(noop: Noop, jobs: int) -> None:
    for number in range(jobs):
        noop.enqueue(number, *SIX[1:])
