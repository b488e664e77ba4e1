"""Pickup latency: from a commit in one process to the start of the body in an idle worker, in another process."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.figures import Figures, spread
from benchmarks.processes import python, workers
from benchmarks.slow_sync import slow_sync

_BARS = {"SQLite": (0.8, 3.0), "PostgreSQL": (2.0, 5.0)}  # p50 and p99, ms
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
    pauses = _pauses(40 if quick else 300)
    few = _pauses(3 if quick else 20)
    for arena in arenas:
        p50, p99 = _BARS[arena.name]
        figures.heading(f"Pick-up, {arena.name}, ms from the commit to the body's start, {len(pauses)} samples")
        _report(figures, arena, "bare: a datagram to another process", _pickup(arena, "datagram", pauses))
        by_hand = "polled every ms" if arena.is_sqlite else "LISTEN"
        _report(figures, arena, f"raw: insert and claim by hand, {by_hand}", _pickup(arena, "loop", pauses))
        _report(figures, arena, "enqueue", _pickup(arena, "enqueue", pauses), p50, p99)
        _report(figures, arena, "own connection", _pickup(arena, "connection", pauses))
        if arena.is_sqlite:
            _report(figures, arena, "plain SQL", _pickup(arena, "sql", pauses), p50, p99)
            _measure_slow(arena, figures, pauses)
        else:
            found = _pickup(arena, "sql", few)
            _report(figures, arena, f"plain SQL, no NOTIFY: polled ({len(few)})", found)
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
    figures: Figures, arena: Arena, what: str, found: Pickup, p50: float | None = None, p99: float | None = None
) -> None:
    if not found.pickups:
        figures.say(what, f"all {found.missed} missed")
        return
    pickups = spread(found.pickups)
    missed = f"  MISSED {found.missed}" if found.missed else ""
    figures.say(what, f"{pickups}   (call to commit: p50 {spread(found.calls).p50:.2f}){missed}")
    name = f"pick-up, {arena.name}, {what}"
    if p50 is not None:
        figures.at_most(f"{name}, p50", pickups.p50, p50, " ms")
    if p99 is not None:
        figures.at_most(f"{name}, p99", pickups.p99, p99, " ms")


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
    _report(figures, arena, what, found, p99=_SLOW + 5)
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
