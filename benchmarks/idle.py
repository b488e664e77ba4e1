"""The cost of idle workers: CPU time, memory and wake-ups."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.arena import SIX, Arena, noop_of
from benchmarks.figures import Figures
from benchmarks.processes import cpu_percent, memory_mb, wake_ups, workers
from benchmarks.storage import ROUNDS

_BARS = {"SQLite": (0.1, 25.0), "PostgreSQL": (0.2, 40.0)}  # percent of a core, MB
_WAKE_UPS_BAR = 4.0  # a second, SQLite
_CROWD = 31
_CROWD_BAR = 1.0  # percent of a core each
_JOBS_PER_SECOND = 200
_SETTLE = 3.0  # seconds until the work of a start is done


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    seconds, rounds = (2, 1) if quick else (30, ROUNDS)
    figures.heading(f"One idle worker, medians of {rounds} times {seconds} s")
    bare_rss, bare_pss = _bare_python()
    figures.say("bare Python", f"{bare_rss:.1f} MB resident (PSS {bare_pss:.1f})")
    with ThreadPoolExecutor(len(arenas)) as threads:  # at the same time: they mostly wait
        runs = [threads.submit(_idle, arena, rounds, seconds) for arena in arenas]
    for arena, run in zip(arenas, runs, strict=True):
        percent, rss, pss, wakes = run.result()
        cost = f"{percent:.3f} % of a core, {rss:.1f} MB resident (PSS {pss:.1f}), {wakes:.1f} wake-ups a second"
        figures.say(arena.name, cost)
        most_percent, most_mb = _BARS[arena.name]
        figures.at_most(f"idle worker, {arena.name}, CPU", percent, most_percent, " %")
        figures.at_most(f"idle worker, {arena.name}, resident", rss, most_mb, " MB")
        if arena.is_sqlite:
            figures.at_most(f"idle worker, {arena.name}, wake-ups", wakes, _WAKE_UPS_BAR, "/s")


def _idle(arena: Arena, rounds: int, seconds: float) -> tuple[float, float, float, float]:
    """Returns percent of a core, resident memory, PSS and wake-ups a second: medians of as many windows of time."""
    windows: list[tuple[float, float, float, float]] = []
    with arena.fresh() as app, workers(arena, app, ()) as (pid,):
        app.close()
        time.sleep(_SETTLE)
        for _ in range(rounds):
            before = wake_ups(pid)
            (percent,) = cpu_percent([pid], seconds)
            windows.append((percent, *memory_mb(pid), (wake_ups(pid) - before) / seconds))
    percent, rss, pss, wakes = (statistics.median(side) for side in zip(*windows, strict=True))
    return percent, rss, pss, wakes


def _bare_python() -> tuple[float, float]:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return memory_mb(process.pid)


def measure_crowd(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    count, seconds = (7, 3) if quick else (_CROWD, 20)
    figures.heading(f"{count} idle workers beside a busy pair of {_JOBS_PER_SECOND} jobs/s, percent of a core each")
    for arena in arenas:
        each, busy = _crowd(arena, "other", count, seconds)
        figures.say(f"{arena.name}, of another queue", _told(each, busy))
        figures.at_most(f"{count} idle workers, {arena.name}, the busiest", max(each), _CROWD_BAR, " %")
        # Not idle: these jobs are in their queue too.
        figures.say(
            f"{arena.name}, of the same queue, which share its jobs", _told(*_crowd(arena, "default", count, seconds))
        )


def _told(each: list[float], busy: float) -> str:
    return f"mean {statistics.mean(each):.2f}  max {max(each):.2f}   (the first worker {busy:.1f})"


def _crowd(arena: Arena, queue: str, count: int, seconds: float) -> tuple[list[float], float]:
    """Returns the CPU percentage of each idle worker, and of the busy one."""
    with arena.fresh() as app, workers(arena, app, ("-q", "default"), *[("-q", queue)] * count) as pids:
        noop = noop_of(app)

        def produce() -> None:
            starts = time.monotonic()
            for number in range(int(seconds * _JOBS_PER_SECOND)):
                time.sleep(max(0.0, starts + number / _JOBS_PER_SECOND - time.monotonic()))
                noop.enqueue(*SIX)

        time.sleep(_SETTLE)
        busy, *each = cpu_percent(pids, seconds, produce)
    return each, busy
