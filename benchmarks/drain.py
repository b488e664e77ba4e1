"""No-op jobs with six arguments from a preloaded queue: workers with every guarantee, compared with the raw loop.

The time is from the start of the first body to the write of the last outcome, according to the rows; the start and
end of a process do not count. One worker is ``dray worker --burst``. Several are idle when the queue is resumed, so
that all begin at the same moment.
"""

from __future__ import annotations

import resource
import statistics
import time

import dray
from benchmarks.arena import SIX, SIX_JSON, Arena, noop_of
from benchmarks.figures import Figures
from benchmarks.processes import python, until, workers
from benchmarks.raw import TASK
from benchmarks.storage import IDS, ROUNDS, Pair, rate
from dray.app_interface import core_of
from dray.model.new_job import NewJob

_RAW_BAR = 0.62  # of the raw loop, threads
_ASYNC_BAR = 0.9  # of threads
_PROCESS_BAR = 8_000  # jobs a second, two children
_CROWD_BARS = {"SQLite": {2: 1.0, 4: 0.9}, "PostgreSQL": {2: 1.3, 4: 1.3}}  # of one worker
_PRODUCER_BAR = 0.85  # of the producer alone
_SETTLE = 1.0  # seconds until the work of a start is done
_WARM_UP = 2.0  # seconds; on SQLite a new log takes one to grow, and meanwhile each commit costs more
_SPAN_SQLITE = "SELECT (max(updated_at) - min(started_at)) / 1e6, sum(state = 'completed') FROM dray_jobs"
_SPAN_POSTGRES = """
SELECT extract(epoch FROM max(updated_at) - min(started_at))::float8, count(*) FILTER (WHERE state = 'completed')
FROM dray_jobs"""
_LEFT = "SELECT EXISTS (SELECT 1 FROM dray_jobs WHERE state IN ('queued', 'running'))"
_MORE = ("-i", "benchmarks.more_tasks")
_WAYS: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (  # title, task, share of the jobs, options
    ("threads", TASK, 1, ()),
    ("threads, concurrency 1", TASK, 1 / 3, ("-c", "1")),
    ("async", "benchmarks.more_tasks.async_noop", 1, _MORE),
    ("processes, two children", "benchmarks.more_tasks.process_noop", 1 / 3, (*_MORE, "-c", "2")),
)


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    jobs, rounds = (300, 1) if quick else (30_000, ROUNDS)
    for arena in arenas:
        figures.heading(f"No-op drain, {arena.name}, jobs a second (one worker process)")
        ratios, rates = dict[str, float](), dict[str, float]()
        for title, task, share, options in _WAYS:
            count, before = int(jobs * share), _cpu_seconds()
            pairs = [Pair(_raw(arena, count), _worker(arena, task, count, options)) for _ in range(rounds)]
            cpu = 1e6 * (_cpu_seconds() - before) / (rounds * count)
            ratios[title] = figures.pairs(title, pairs, f"   CPU {cpu:.0f} us a job")
            rates[title] = statistics.median(pair.dray for pair in pairs)
        figures.at_least(f"drain, threads, {arena.name}", ratios["threads"], _RAW_BAR, " of raw")
        # The raw loop beside each takes the machine's mood out of the comparison.
        figures.at_least(f"drain, async, {arena.name}", ratios["async"] / ratios["threads"], _ASYNC_BAR, " x threads")
        children = "processes, two children"
        figures.at_least(f"drain, {children}, {arena.name}", rates[children], _PROCESS_BAR, "/s")


def measure_crowd(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    """Several worker processes on one queue."""
    jobs, rounds = (300, 1) if quick else (30_000, ROUNDS)
    for arena in arenas:
        figures.heading(f"No-op drain, {arena.name}, several worker processes, jobs a second")
        bars = _CROWD_BARS[arena.name]
        found = [{count: _together(arena, count, jobs) for count in (1, *bars)} for _ in range(rounds)]
        one = statistics.median(rates[1] for rates in found)
        figures.say("1 worker process", f"{one:>8,.0f}/s")
        for count, bar in bars.items():
            many = statistics.median(rates[count] for rates in found)
            ratio = statistics.median(rates[count] / rates[1] for rates in found)
            figures.say(f"{count} worker processes", f"{many:>8,.0f}/s   {ratio:.2f} times one")
            figures.at_least(f"{count} worker processes, {arena.name}", ratio, bar, " x one")


def measure_producer(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    """A producer of single jobs as fast as it can, alone and beside a worker."""
    rounds, seconds, preloaded = (1, 0.1, 300) if quick else (ROUNDS, 3.0, 100_000)
    for arena in arenas:
        figures.heading(f"A producer of single jobs, {arena.name}, jobs a second")
        _compare(figures, arena, "beside a worker that runs its jobs", rounds, seconds, 0)
        _compare(figures, arena, f"beside a worker on {preloaded:,} jobs", rounds, seconds, preloaded)


def _compare(figures: Figures, arena: Arena, what: str, rounds: int, seconds: float, preloaded: int) -> None:
    found = [
        (_alone(arena, seconds, min(seconds, _WARM_UP)), _beside(arena, seconds, preloaded)) for _ in range(rounds)
    ]
    alone, beside = (statistics.median(side) for side in zip(*found, strict=True))
    ratio = statistics.median(beside / alone for alone, beside in found)
    figures.say(what, f"alone {alone:>8,.0f}/s   beside {beside:>8,.0f}/s   ratio {ratio:5.0%}")
    figures.at_least(f"producer {what}, {arena.name}", ratio, _PRODUCER_BAR, " of alone")


def _cpu_seconds() -> float:
    """Returns the CPU time of all workers so far. Unlike a rate, it hardly depends on other load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _raw(arena: Arena, jobs: int) -> float:
    place = arena.place
    place.fresh_raw()
    batch = arena.largest_batch
    place.raw_insert(place.raw_rows(jobs + batch, SIX_JSON))
    found = rate(lambda: place.raw_drain(batch, jobs), jobs)
    place.close()
    return found


def _preload(app: dray.App, task: str, jobs: int) -> None:
    core_of(app).backend.jobs.enqueue([NewJob(id=IDS.new(), task=task, args=SIX_JSON) for _ in range(jobs)])


def _worker(arena: Arena, task: str, jobs: int, options: tuple[str, ...]) -> float:
    with arena.fresh() as app:
        _preload(app, task, jobs)
    quietly = ("--log-level", "warning")
    python(arena.url, "-m", "dray", "worker", "benchmarks.tasks:app", "--burst", *quietly, *options)
    return _served(arena, jobs)


def _together(arena: Arena, count: int, jobs: int) -> float:
    with arena.fresh() as app:
        _preload(app, TASK, jobs)
        app.pause("default")
        with workers(arena, app, *[()] * count):
            time.sleep(_SETTLE)
            app.resume("default")
            until(lambda: not arena.query(_LEFT, _LEFT)[0], "all jobs to end", pause=0.1)
            return _served(arena, jobs)


def _served(arena: Arena, jobs: int) -> float:
    """The rate at which all jobs were run."""
    seconds, completed = arena.query(_SPAN_SQLITE, _SPAN_POSTGRES)
    assert completed == jobs, f"{completed} of {jobs} jobs were completed"
    return jobs / seconds


def _produce(app: dray.App, seconds: float, warm_up: float) -> float:
    noop = noop_of(app)
    noop.enqueue(*SIX)  # connects
    begins = time.monotonic()
    while time.monotonic() - begins < warm_up:
        noop.enqueue(*SIX)
    count, starts = 0, time.monotonic()
    while time.monotonic() - starts < seconds:
        noop.enqueue(*SIX)
        count += 1
    return count / (time.monotonic() - starts)


def _alone(arena: Arena, seconds: float, warm_up: float) -> float:
    with arena.fresh() as app:
        return _produce(app, seconds, warm_up)


def _beside(arena: Arena, seconds: float, preloaded: int) -> float:
    """The rate of a producer while a worker runs its jobs, or those of a queue that is full before: these are soon
    over, so that measurement begins at once."""
    with arena.fresh() as app:
        if preloaded:
            _preload(app, TASK, preloaded)
        with workers(arena, app, ()):
            if not preloaded:
                time.sleep(_SETTLE)
            return _produce(app, seconds, 0.0 if preloaded else min(seconds, _WARM_UP))
