"""What many jobs in a database cost: each figure with that many jobs, next to a database with 1,000 queued.

``python -m benchmarks.depth --sizes 1000,100000,1000000,10000000 --on sqlite``: the first size is what the others
are compared with. Both databases are there at the same time and take turns, so that a noisy neighbour hits both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg

import dray
from benchmarks.arena import SIX, SIX_JSON, Arena, arenas, noop_of
from benchmarks.figures import Figures
from benchmarks.fill import bytes_per_job, fill
from benchmarks.places import sqlite_place
from benchmarks.processes import run_until_stopped
from benchmarks.raw import TASK
from benchmarks.storage import CLOCK, ROUNDS, PostgresPlace, SqlitePlace, dray_drain, dray_insert, register
from dray.app_interface import core_of
from dray.model.job import Demand
from dray.model.retention import Retention
from dray.model.settlement import completed
from dray.task.task import Task

SIZES = (1_000, 100_000, 1_000_000)
OTHERS = 1_000_000
_OTHER_KINDS = ("scheduled", "waiting", "of an unknown task", "finished")
_BATCH = 100
_DEEP = 1_000_000
_BARS = {_DEEP: 0.85, 10_000_000: 0.80}  # of the rate at the first size
_BARRED = ("settle+claim of 100", "enqueue one", "pick-up: look and claim of one")
_NOTHING = Demand((), (), 0)


class Case(NamedTuple):
    """A number of jobs of one kind."""

    kind: str
    jobs: int

    def __str__(self) -> str:
        return f"{self.jobs:,} {self.kind}"


@dataclass
class Size:
    """How much is measured."""

    rounds: int
    jobs: int  # in each round
    calls: int
    pruned: int  # jobs that are there to be pruned


FULL = Size(ROUNDS, 5_000, 100, 20_000)
QUICK = Size(1, 300, 5, 500)


class Side:
    """One database, with what is measured in it: each method returns seconds for one job or one call."""

    def __init__(self, url: str, size: Size) -> None:
        self.url = url
        self._size = size
        self.app = dray.App(url)
        self._noop: Task[[int, str, float, str, bool, list[int]], None] = noop_of(self.app)

    def open(self) -> None:
        self._noop.enqueue(*SIX)  # makes the queue
        self._worker = register(core_of(self.app).backend)

    def settle_and_claim(self) -> float:
        jobs = self._size.jobs
        return self._timed(partial(dray_drain, core_of(self.app).backend, self._worker, _BATCH, jobs), jobs)

    def bulk(self) -> float:
        jobs = self._size.jobs + _BATCH  # a batch is left over by `settle_and_claim`
        return self._timed(partial(dray_insert, core_of(self.app).backend, jobs, SIX_JSON), jobs)

    def enqueue(self) -> float:
        return self._each(lambda: self._noop.enqueue(*SIX))

    def pick_up(self) -> float:
        work, demand, times = core_of(self.app).backend.work, Demand(("default",), (TASK,), 1), list[float]()
        for _ in range(self._size.calls):
            started = time.perf_counter()
            seen = work.look(self._worker, demand)
            (claim,) = work.exchange(self._worker, (), demand).claims
            times.append(time.perf_counter() - started)
            assert seen.is_ready
            now = CLOCK.steady()
            work.exchange(self._worker, [completed(claim, now, now, "null")], _NOTHING)
        return statistics.median(times)

    def list_jobs(self) -> float:
        return self._each(lambda: self.app.jobs(limit=100), 10)

    def prune(self) -> float:
        started = time.perf_counter()
        step = next(iter(core_of(self.app).backend.history.prune_steps(Retention())), None)
        assert step is not None, "nothing is left to be pruned"
        return (time.perf_counter() - started) / step.jobs

    def stats(self) -> float:
        return self._timed(self.app.stats, 1)

    def _each(self, work: Callable[[], object], share: int = 1) -> float:
        calls = max(1, self._size.calls // share)
        return self._timed(lambda: [work() for _ in range(calls)], calls)

    def _timed(self, work: Callable[[], object], count: int) -> float:
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) / count


# `bulk` comes first: it brings the jobs that the others use up, so that the depth stays.
MEASURES: dict[str, Callable[[Side], float]] = {
    "bulk enqueue": Side.bulk,
    "settle+claim of 100": Side.settle_and_claim,
    "enqueue one": Side.enqueue,
    "pick-up: look and claim of one": Side.pick_up,
    "app.jobs(), 100 of them": Side.list_jobs,
    "prune, one step, each job": Side.prune,
    "app.stats()": Side.stats,
}


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    """The part of `make bench`: up to a million."""
    if quick:
        measure_depth(arenas, figures, (100, 1_000), 1_000, 1_000, QUICK)
    else:
        measure_depth(arenas, figures, SIZES, OTHERS, OTHERS, FULL)


def measure_depth(
    arenas: list[Arena], figures: Figures, sizes: Sequence[int], others: int, finished: int, size: Size
) -> None:
    least, *more = sizes
    cases = [Case("queued", count) for count in more]
    cases += [Case(kind, finished if kind == "finished" else others) for kind in _OTHER_KINDS]
    for arena in arenas:
        arena.place.close()
        with beside(arena) as shallow_url:
            for case in cases:
                if case.jobs:
                    _measure_case(arena, figures, case, Case("queued", least), shallow_url, size)


def _filled(url: str, cases: Sequence[Case], size: Size) -> Side:
    """Returns a database with these jobs, and some to be pruned."""
    _empty(url)
    side = Side(url, size)
    side.open()
    for kind, count in [*cases, Case("to be pruned", size.pruned)]:
        fill(url, kind, count)
    return side


def _measure_case(arena: Arena, figures: Figures, case: Case, least: Case, shallow_url: str, size: Size) -> None:
    figures.heading(f"Depth, {arena.name}, {case}, next to {least}")
    started = time.perf_counter()
    shallow = _filled(shallow_url, [least], size)
    deep = _filled(arena.url, [case] if case.kind == least.kind else [least, case], size)
    sizes = ", ".join(f"{what} {each:,.0f}" for what, each in bytes_per_job(arena.url).items())
    figures.say("bytes a job", f"{sizes}   (filled in {time.perf_counter() - started:.0f} s)")
    ratios: dict[str, float] = {}
    taken = [{what: (each(shallow), each(deep)) for what, each in MEASURES.items()} for _ in range(size.rounds)]
    for what in MEASURES:
        pairs = [times[what] for times in taken]
        few, many = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios[what] = statistics.median(few / many for few, many in pairs)
        both = f"at {least.jobs:,} {_told(few)}   here {_told(many)}"
        figures.say(what, f"{both}   rate {ratios[what]:5.0%}")
    shallow.app.close()
    deep.app.close()
    if case.jobs >= _DEEP:
        bar = _BARS[max(depth for depth in _BARS if depth <= case.jobs)]
        slowest = min(_BARRED, key=lambda what: ratios[what])
        figures.at_least(f"depth, {case}, {arena.name}: {slowest}", ratios[slowest], bar, f" of {least.jobs:,}")


def _told(seconds: float) -> str:
    return f"{1e3 * seconds:>9,.3f} ms {1 / seconds:>7,.0f}/s"


@contextmanager
def beside(arena: Arena) -> Generator[str]:
    """Yields the address of a second database of the same kind, on the same disk or server."""
    if arena.is_sqlite:
        with sqlite_place() as url:
            yield url
        return
    with psycopg.connect(arena.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shallow")
        connection.execute("CREATE DATABASE shallow")
        yield urlsplit(arena.url)._replace(path="/shallow").geturl()
        connection.execute("DROP DATABASE shallow WITH (FORCE)")


def _empty(url: str) -> None:
    place = SqlitePlace(url) if url.startswith("sqlite") else PostgresPlace(url)
    place.fresh_raw()
    place.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.depth")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="jobs queued, the first to compare with")
    parser.add_argument("--others", type=int, default=OTHERS, help="jobs scheduled, waiting, of an unknown task")
    parser.add_argument("--finished", type=int, default=OTHERS, help="jobs finished")
    parser.add_argument("--on", choices=["sqlite", "postgres", "both"], default="both", help="databases")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it runs, not to compare")
    given = parser.parse_args()
    sizes = [int(each) for each in given.sizes.split(",")]
    figures = Figures()
    try:
        with arenas(given.on) as found:
            measure_depth(found, figures, sizes, given.others, given.finished, QUICK if given.quick else FULL)
    finally:
        figures.summary()


if __name__ == "__main__":
    run_until_stopped(main)
