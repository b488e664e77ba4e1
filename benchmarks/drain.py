"""No-op jobs with six arguments from a preloaded queue: one worker with every guarantee, compared with the raw loop.

The worker is ``dray worker --burst``. Its time is from the start of the first body to the write of the last outcome,
according to the rows; the start and end of the process do not count.
"""

from __future__ import annotations

import resource
import statistics
import time

import dray
from benchmarks.arena import SIX, SIX_JSON, Arena, noop_of
from benchmarks.figures import Figures
from benchmarks.processes import python, until, workers
from benchmarks.storage import IDS, ROUNDS, Pair, rate
from dray.model.new_job import NewJob

FLOORS = {"SQLite": 20_000, "PostgreSQL": 10_000}
_BATCH = 100
_SPAN_SQLITE = "SELECT (max(updated_at) - min(started_at)) / 1e6, sum(state = 'completed') FROM dray_jobs"
_SPAN_POSTGRES = """
SELECT extract(epoch FROM max(updated_at) - min(started_at))::float8, count(*) FILTER (WHERE state = 'completed')
FROM dray_jobs"""
_LEFT = "SELECT EXISTS (SELECT 1 FROM dray_jobs WHERE state IN ('queued', 'running'))"
_WAYS: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (  # title, task, share of the jobs, options
    ("threads, default concurrency", "benchmarks.tasks.noop", 1, ()),
    ("threads, concurrency 1", "benchmarks.tasks.noop", 1 / 3, ("-c", "1")),
    ("async", "benchmarks.more_tasks.async_noop", 1 / 3, ("-i", "benchmarks.more_tasks")),
    ("processes", "benchmarks.more_tasks.process_noop", 1 / 15, ("-i", "benchmarks.more_tasks")),
)


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    jobs, rounds = (3_000, 1) if quick else (30_000, ROUNDS)
    for arena in arenas:
        figures.heading(f"No-op drain, {arena.name}, jobs a second (one worker process)")
        for title, task, share, options in _WAYS:
            count, before = int(jobs * share), _cpu_seconds()
            pairs = [Pair(_raw(arena, count), _worker(arena, task, count, options)) for _ in range(rounds)]
            cpu = 1e6 * (_cpu_seconds() - before) / (rounds * count)
            bare, dray = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(pair.dray / pair.raw for pair in pairs)
            figures.say(
                title, f"raw {bare:>8,.0f}/s   Dray {dray:>8,.0f}/s   ratio {ratio:5.0%}   CPU {cpu:.0f} us a job"
            )
            if not options:
                figures.at_least(f"no-op drain, {arena.name}", dray, FLOORS[arena.name], "/s")
        _beside_producer(arena, figures, seconds=1 if quick else 5)


def _cpu_seconds() -> float:
    """Returns the CPU time of all workers so far. Unlike a rate, it hardly depends on other load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _raw(arena: Arena, jobs: int) -> float:
    place = arena.place
    place.fresh_raw()
    place.raw_insert([IDS.new() for _ in range(jobs + _BATCH)], SIX_JSON)
    found = rate(lambda: place.raw_drain(_BATCH, jobs), jobs)
    place.close()
    return found


def _worker(arena: Arena, task: str, jobs: int, options: tuple[str, ...]) -> float:
    with arena.fresh() as app:
        app.backend.jobs.enqueue([NewJob(id=IDS.new(), task=task, args=SIX_JSON) for _ in range(jobs)])
    quietly = ("--log-level", "warning")
    python(arena.url, "-m", "dray", "worker", "benchmarks.tasks:app", "--burst", *quietly, *options)
    seconds, completed = arena.query(_SPAN_SQLITE, _SPAN_POSTGRES)
    assert completed == jobs, f"{completed} of {jobs} jobs were completed"
    return jobs / seconds


def _produce(app: dray.App, seconds: float) -> int:
    noop, count, ends = noop_of(app), 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        noop.enqueue(*SIX)
        count += 1
    return count


def _beside_producer(arena: Arena, figures: Figures, *, seconds: float) -> None:
    """Runs a worker while a producer enqueues single jobs as fast as it can."""
    with arena.fresh() as app:
        alone = _produce(app, seconds) / seconds
    with arena.fresh() as app, workers(arena, app, ()):
        started = time.monotonic()
        count = _produce(app, seconds)
        until(lambda: not arena.query(_LEFT, _LEFT)[0], "all jobs to end")
        served = count / (time.monotonic() - started)
    figures.say(
        "a worker beside a producer of single jobs",
        f"producer alone {alone:,.0f}/s, beside the worker {count / seconds:,.0f}/s, served {served:,.0f}/s",
    )
