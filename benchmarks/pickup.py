"""Pickup latency: from a commit in one process to the start of the body in an idle worker, in another process."""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.figures import Figures, Spread, spread
from benchmarks.processes import python, workers
from benchmarks.slow_sync import slow_sync
from benchmarks.storage import ROUNDS

_BARS = {"SQLite": (0.4, 1.5), "PostgreSQL": (1.2, 2.5)}  # p50 and p99, ms
_SLOW = 20  # ms
_WARM_UP = 5
_rng = random.Random(3)


class Pickup:
    """The measurements of a producer, in milliseconds."""

    def __init__(self, said: str) -> None:
        measured = json.loads(said)
        self.calls = [nanoseconds / 1e6 for nanoseconds in measured["calls"]]
        self.pickups = [nanoseconds / 1e6 for nanoseconds in measured["pickups"]]
        self.missed: int = measured["missed"]


def measure(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    pauses, rounds = (_pauses(40), 1) if quick else (_pauses(300), ROUNDS)
    few = _pauses(3 if quick else 20)
    for arena in arenas:
        p50, p99 = _BARS[arena.name]
        figures.heading(f"Pick-up, {arena.name}, ms from the commit to the body's start, {len(pauses)} samples")
        _report(figures, arena, "bare: a datagram to another process", [_pickup(arena, "datagram", pauses)])
        by_hand = "polled every ms" if arena.is_sqlite else "LISTEN"
        found = [(_pickup(arena, "loop", pauses), _pickup(arena, "enqueue", pauses)) for _ in range(rounds)]
        raw, ours = zip(*found, strict=True)
        bare = _report(figures, arena, f"raw: insert and claim by hand, {by_hand}", raw)
        dray = _report(figures, arena, "enqueue", ours, p50, p99)
        figures.say("enqueue, p50", f"{dray / bare:.2f} times the raw loop's")
        _report(figures, arena, "own connection", [_pickup(arena, "connection", pauses)])
        if arena.is_sqlite:
            _report(figures, arena, "plain SQL", [_pickup(arena, "sql", pauses)], p50, p99)
            _measure_slow(arena, figures, pauses)
        else:
            _report(figures, arena, f"plain SQL, no NOTIFY: polled ({len(few)})", [_pickup(arena, "sql", few)])
    _measure_idleness(arenas, figures, quick=quick)


def _pauses(count: int) -> list[float]:
    return [_rng.uniform(0.005, 0.060) for _ in range(count)]


def _pickup(arena: Arena, way: str, pauses: Sequence[float], more: Mapping[str, str] | None = None) -> Pickup:
    """Runs a worker and a producer in separate processes; the first few jobs do not count."""
    with tempfile.TemporaryDirectory(prefix="dray-bench-") as folder, arena.fresh() as app:
        env = {"DRAY_BENCH_SOCKET": str(Path(folder, "ear")), **(more or {})}
        served = () if way in {"datagram", "loop"} else ((),)
        with workers(arena, app, *served, more=env):
            _produce(arena, way, [0.01] * _WARM_UP, env)
            return _produce(arena, way, pauses, env)


def _produce(arena: Arena, way: str, pauses: Sequence[float], env: Mapping[str, str]) -> Pickup:
    return Pickup(python(arena.url, "-m", "benchmarks.producer", way, *map(str, pauses), more=env))


def _report(
    figures: Figures,
    arena: Arena,
    what: str,
    runs: Sequence[Pickup],
    p50: float | None = None,
    p99: float | None = None,
) -> float:
    """Prints the percentiles, medians of all runs; returns the p50."""
    missed = sum(run.missed for run in runs)
    heard = [run for run in runs if run.pickups]
    if not heard:
        figures.say(what, f"all {missed} missed")
        return math.nan
    pickups = Spread(*(statistics.median(side) for side in zip(*(spread(run.pickups) for run in heard), strict=True)))
    calls = statistics.median(spread(run.calls).p50 for run in heard)
    figures.say(what, f"{pickups}   (call to commit: p50 {calls:.2f}){f'  MISSED {missed}' if missed else ''}")
    name = f"pick-up, {arena.name}, {what}"
    if p50 is not None:
        figures.at_most(f"{name}, p50", pickups.p50, p50, " ms")
    if p99 is not None:
        figures.at_most(f"{name}, p99", pickups.p99, p99, " ms")
    return pickups.p50


def _measure_slow(arena: Arena, figures: Figures, pauses: Sequence[float]) -> None:
    what = f"enqueue, every fsync {_SLOW} ms slower"
    with slow_sync(_SLOW) as more:
        if more is None:
            figures.say(what, "left out: there is no C compiler (cc)")
            return
        found = _pickup(arena, "enqueue", pauses, more)
    if spread(found.calls).p50 < _SLOW:
        figures.say(what, "left out: the library was not used, commits are as fast as ever")
        return
    _report(figures, arena, what, [found], p99=_SLOW + 5)
    figures.at_most(f"pick-up, {arena.name}, {what}, missed", found.missed, 0, "")


def _measure_idleness(arenas: list[Arena], figures: Figures, *, quick: bool) -> None:
    """Measures both databases at the same time, because it mostly waits."""
    rests = {1.0: 3, 3.0: 3} if quick else {1.0: 9, 10.0: 5, 60.0: 3}  # seconds: how often
    pauses = [seconds for seconds, count in rests.items() for _ in range(count)]
    figures.heading("Pick-up after a time of idleness, ms")
    with ThreadPoolExecutor(len(arenas)) as threads:
        runs = [threads.submit(_pickup, arena, "enqueue", pauses) for arena in arenas]
    for arena, run in zip(arenas, runs, strict=True):
        pickup = run.result()
        if pickup.missed:
            figures.say(arena.name, f"MISSED {pickup.missed} of {len(pauses)}")
            continue
        after: dict[float, list[float]] = {}
        for seconds, taken in zip(pauses, pickup.pickups, strict=True):
            after.setdefault(seconds, []).append(taken)
        told = "   ".join(f"after {seconds:g} s {statistics.median(ms):.2f}" for seconds, ms in after.items())
        figures.say(f"{arena.name}, medians of {'/'.join(map(str, rests.values()))}", told)
        longest = max(rests)
        name = f"pick-up, {arena.name}, after {longest:g} s idle"
        figures.at_most(name, statistics.median(after[longest]), _BARS[arena.name][1], " ms")
