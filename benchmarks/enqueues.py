"""The cost of `enqueue` and `enqueue_many`, from the check of the signature to the commit, next to raw INSERTs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import dray
from benchmarks.arena import SIX, SIX_JSON, Arena
from benchmarks.figures import Figures
from benchmarks.storage import IDS, ROUNDS, Pair, rate

_THREADS = 8


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    rounds, singles, many = (1, 100, 2_000) if quick else (ROUNDS, 1_000, 10_000)
    for arena in arenas:
        figures.heading(f"Enqueue, {arena.name}, jobs a second, durable")
        _report(figures, "one by one", [_singles(arena, singles) for _ in range(rounds)])
        _report(figures, f"enqueue_many of {many:,}", [_many(arena, many) for _ in range(rounds)])
        gains = [_threads(arena, singles) for _ in range(rounds)]
        figures.say(f"{_THREADS} threads, one by one", f"{statistics.median(gains):.1f} times as fast as one thread")


def _report(figures: Figures, what: str, pairs: list[Pair]) -> None:
    bare, dray_rate = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(pair.dray / pair.raw for pair in pairs)
    figures.say(what, f"raw {bare:>8,.0f}/s   Dray {dray_rate:>8,.0f}/s   ratio {ratio:5.0%}")


def _singles(arena: Arena, jobs: int) -> Pair:
    def bare() -> None:
        for number in range(jobs):
            arena.place.raw_insert([IDS.new()], _args(number))

    def by_dray(app: dray.App) -> None:
        _enqueue(_task(app), jobs)

    return _pair(arena, jobs, bare, by_dray)


def _many(arena: Arena, jobs: int) -> Pair:
    def bare() -> None:
        arena.place.raw_insert([IDS.new() for _ in range(jobs)], _args(0))

    def by_dray(app: dray.App) -> None:
        _task(app).enqueue_many([(number, *SIX[1:]) for number in range(jobs)])

    return _pair(arena, jobs, bare, by_dray)


def _threads(arena: Arena, jobs: int) -> float:
    """How many times as fast threads of one process are that enqueue at the same time."""

    def produce(app: dray.App, threads: int) -> float:
        task, share = _task(app), jobs // threads
        with ThreadPoolExecutor(threads) as pool:
            return rate(lambda: list(pool.map(_enqueue, [task] * threads, [share] * threads)), share * threads)

    with arena.fresh() as app:
        app.stats()
        alone = produce(app, 1)
    with arena.fresh() as app:
        app.stats()
        return produce(app, _THREADS) / alone


def _enqueue(task: dray.Task[[int, str, float, str, bool, list[int]], None], jobs: int) -> None:
    for number in range(jobs):
        task.enqueue(number, *SIX[1:])


def _pair(arena: Arena, jobs: int, bare: Callable[[], None], by_dray: Callable[[dray.App], None]) -> Pair:
    arena.place.fresh_raw()
    bare_rate = rate(bare, jobs)
    with arena.fresh() as app:
        app.stats()  # connects, as the raw loop does
        return Pair(bare_rate, rate(lambda: by_dray(app), jobs))


def _args(number: int) -> str:
    return SIX_JSON.replace(str(SIX[0]), str(number))


def _task(app: dray.App) -> dray.Task[[int, str, float, str, bool, list[int]], None]:
    @app.task(name="mail")
    def mail(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None:
        """Never runs."""

    return mail
