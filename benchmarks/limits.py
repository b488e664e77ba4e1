"""`make bench`: what limits, keys and rates cost, beside the same work without them.

Both sides of each pair take turns in one run, so that a noisy neighbour hits both. Each figure is the median of the
rounds' ratios, or a percentile over all of them. See docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import psycopg

from benchmarks.arena import Arena, arenas
from benchmarks.figures import Figures, spread
from benchmarks.processes import run_until_stopped, until
from benchmarks.raw import TASK
from benchmarks.storage import CLOCK, IDS, ROUNDS, Pair, args_of, drain_pair, rate, register
from dray.backends import Backend
from dray.backends.postgres.session import PostgresSession
from dray.backends.sqlite.session import SqliteSession
from dray.backends.statements import Statement
from dray.model.job import Claim, Demand
from dray.model.limit import Bounds, Source, bounds_of
from dray.model.new_job import NewJob
from dray.model.settlement import completed

ARGS = args_of(117)
SLOTS = 8


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    jobs: int  # in each round
    keys: int
    blocked: int  # jobs in front of others
    bodies: int
    heavy: int  # jobs of the heavy tenant


FULL = Size(ROUNDS, 10_000, 10_000, 1_000_000, 400, 20_000)
QUICK = Size(1, 300, 300, 500, 16, 200)


# The storage layer


def limit(backend: Backend, **given: object) -> None:
    backend.limits.say("task", TASK, Source.DECLARED, _bounds(given))


def _bounds(given: dict[str, object]) -> Bounds:
    return bounds_of("task", given)


def enqueue(backend: Backend, keys: Sequence[str | None], queue: str = "default", priority: int = 0) -> None:
    for begin in range(0, len(keys), 50_000):
        some = keys[begin : begin + 50_000]
        backend.jobs.enqueue(
            [NewJob(id=IDS.new(), task=TASK, args=ARGS, key=key, queue=queue, priority=priority) for key in some]
        )


def cycled(names: Sequence[str], count: int) -> list[str | None]:
    return [names[number % len(names)] for number in range(count)]


def names(count: int, prefix: str = "key") -> list[str]:
    return [f"{prefix}-{number:06}" for number in range(count)]


@dataclass
class Drain:
    """A worker that does nothing but end what it has claimed and claim the next."""

    backend: Backend
    queue: str = "default"
    batch: int = 100
    held: list[Claim] = field(default_factory=list[Claim])
    took: list[float] = field(default_factory=list[float])  # seconds, each exchange

    def __post_init__(self) -> None:
        self.worker = register(self.backend)

    def step(self) -> int:
        """Returns how many jobs it has ended."""
        now, ended = CLOCK.steady(), self.held
        began = time.perf_counter()
        settlements = [completed(claim, now, now, "null") for claim in ended]
        demand = Demand((self.queue,), (TASK,), self.batch)
        self.held = self.backend.work.exchange(self.worker, settlements, demand).claims
        self.took.append(time.perf_counter() - began)
        return len(ended)

    def run(self, jobs: int) -> None:
        done = 0
        while done < jobs:
            done += self.step()


_SENDS = ((SqliteSession, "_execute"), (PostgresSession, "_run"))  # each statement passes there


def statements(arena: Arena, batch: int) -> float:
    """How many statements an exchange sends where there are no limits and no keys."""
    backend, exchanges = arena.place.fresh_dray(), 5
    enqueue(backend, [None] * batch * (exchanges + 2))
    drain = Drain(backend, batch=batch)
    drain.step()  # the first one of a worker finds out whether there are limits
    with counted_statements() as sent:
        for _ in range(exchanges):
            drain.step()
    return len(sent) / exchanges


@contextmanager
def counted_statements() -> Generator[list[str]]:
    """The names of the statements that are sent meanwhile, to either database."""
    sent: list[str] = []
    on_sqlite, on_postgres = (getattr(each, name) for each, name in _SENDS)

    def note_sqlite(self: SqliteSession, name: str, params: dict[str, Any]) -> Any:
        sent.append(name)
        return on_sqlite(self, name, params)

    def note_postgres(self: PostgresSession, statement: Statement, params: dict[str, Any]) -> Any:
        sent.append(statement.name)
        return on_postgres(self, statement, params)

    with ExitStack() as patches:
        for (each, name), note in zip(_SENDS, (note_sqlite, note_postgres), strict=True):
            patches.enter_context(patch.object(each, name, note))
        yield sent


def key_pair(arena: Arena, size: Size, batch: int) -> Pair:
    """Rates without keys, and with as many keys as there are jobs, one at a time for each."""
    rates: list[float] = []
    for keys in ([None] * (size.jobs + batch), cycled(names(size.keys), size.jobs + batch)):
        backend = arena.place.fresh_dray()
        if keys[0] is not None:
            limit(backend, key_limit=1)
        enqueue(backend, keys)
        rates.append(rate(partial(Drain(backend, batch=batch).run, size.jobs), size.jobs))
    return Pair(*rates)


def other_queue_pair(arena: Arena, size: Size) -> Pair:
    """Rates of a queue without limits, alone and beside one with keys and limits."""
    rates: list[float] = []
    for is_alone in (True, False):
        backend = arena.place.fresh_dray()
        if not is_alone:
            backend.limits.say("queue", "limited", Source.DECLARED, _bounds({"limit": 5, "key_limit": 1}))
            enqueue(backend, cycled(names(size.keys), size.keys), "limited")
        enqueue(backend, [None] * (size.jobs + 100))
        rates.append(rate(partial(Drain(backend).run, size.jobs), size.jobs))
    return Pair(*rates)


def blocked(arena: Arena, size: Size) -> tuple[float, float]:
    """The median exchange of 100 jobs, of two queues of a table that take turns: one of them has very many jobs of
    blocked keys in front."""
    backend = arena.place.fresh_dray()
    limit(backend, key_limit=1)
    closed = names(100, "blocked")
    enqueue(backend, closed, "blocked", 9)
    Drain(backend, "blocked").step()
    enqueue(backend, cycled(closed, size.blocked), "blocked", 9)
    drains = [Drain(backend, queue) for queue in ("clear", "blocked")]
    for drain in drains:
        enqueue(backend, cycled(names(1_000, drain.queue), 100 + size.jobs), drain.queue)
    _analyze(arena)
    for _ in range(size.jobs // 100):
        for drain in drains:
            drain.step()
    clear, behind = (statistics.median(drain.took) for drain in drains)
    return clear, behind


def closed(arena: Arena, size: Size) -> tuple[list[float], list[float]]:
    """Seconds of a claim where all keys are closed, and until a new key is served."""
    backend = arena.place.fresh_dray()
    limit(backend, key_limit=1)
    keys = names(size.keys)
    enqueue(backend, cycled(keys, 2 * size.keys))
    holder = Drain(backend)
    for _ in range(size.keys // holder.batch + 1):
        holder.held = []  # it ends none of them
        holder.step()
    _analyze(arena)
    drain, served = Drain(backend, batch=SLOTS), list[float]()
    for number in range(size.rounds * 4):
        for _ in range(10):
            drain.step()
        # Anywhere among the others.
        enqueue(backend, [f"{keys[number * size.keys // (size.rounds * 4)]}-new"])
        began = time.perf_counter()
        while not drain.held:
            drain.step()
        served.append(time.perf_counter() - began)
        drain.step()
    return drain.took, served


def _analyze(arena: Arena) -> None:
    """What autovacuum does within a minute."""
    if not arena.is_sqlite:
        with psycopg.connect(arena.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE dray_jobs")


# A worker, in this process


def slots_pair(arena: Arena, size: Size, seconds: float) -> Pair:
    """Rates of bodies without a limit, and with one as high as the worker has slots."""
    return Pair(*(_bodies(arena, size, limit, seconds) for limit in (None, SLOTS)))


def _bodies(arena: Arena, size: Size, limit: int | None, seconds: float) -> float:
    with arena.fresh() as app:
        ends: list[float] = []

        def body() -> None:
            time.sleep(seconds)
            ends.append(time.perf_counter())

        task = app.task(name="body", limit=limit)(body)
        task.enqueue_many([()] * size.bodies)
        with app.worker(concurrency=SLOTS):
            until(lambda: len(ends) == size.bodies, "all bodies")
    return (len(ends) - SLOTS) / (ends[-1] - ends[SLOTS - 1])


def bulk_pair(arena: Arena, size: Size) -> Pair:
    """Rates of one bulk enqueue, of a task without keys and of one that makes a key of each call."""
    rates: list[float] = []
    for key in (None, "tenant"):
        with arena.fresh() as app:
            task = app.task(name="serve", key=key)(_serve)
            calls = [(f"tenant {number % 100}",) for number in range(size.jobs)]
            rates.append(rate(partial(task.enqueue_many, calls), size.jobs))
    return Pair(*rates)


def _serve(tenant: str) -> None: ...


@dataclass
class Tenants:
    """What happened while one heavy tenant and a hundred light ones had work."""

    waits: list[float]  # of the light ones' jobs, seconds
    per_second: float


BODY = 0.005
LONG_BODY = 0.03  # of what the bar is on; shorter ones are shown too


def tenants(arena: Arena, size: Size, *, has_keys: bool) -> Tenants:
    with arena.fresh() as app:
        enqueued_at: dict[int, float] = {}
        waits: list[float] = []
        ends: list[float] = []
        lock = threading.Lock()

        def serve(tenant: str, number: int) -> None:  # noqa: ARG001 - the key
            now = time.perf_counter()
            time.sleep(BODY)
            with lock:
                ends.append(time.perf_counter())
                if number in enqueued_at:
                    waits.append(now - enqueued_at[number])

        task = app.task(name="serve", key="tenant" if has_keys else None)(serve)
        task.enqueue_many([("heavy", -1)] * size.heavy)
        lights = size.bodies if has_keys else 0
        with app.worker(concurrency=SLOTS):
            until(lambda: len(ends) > 50, "the heavy tenant to be under way")
            for number in range(lights):
                time.sleep(0.01)
                enqueued_at[number] = time.perf_counter()
                task.enqueue(f"light {number % 100}", number)
            until(lambda: len(waits) == lights, "the light ones")
            if not has_keys:
                time.sleep(0.01 * size.bodies)
        return Tenants(waits, (len(ends) - 50) / (ends[-1] - ends[50]))


def shares(arena: Arena, size: Size) -> float:
    """How far the tenant that was served most or least is from the mean, of a hundred that wait."""
    with arena.fresh() as app:
        served: Counter[str] = Counter()
        lock = threading.Lock()

        def serve(tenant: str) -> None:
            with lock:
                served[tenant] += 1

        task = app.task(name="serve", key="tenant")(serve)
        wanted = 100 * (size.jobs // 200)
        task.enqueue_many([(f"tenant {number % 100}",) for number in range(2 * wanted)])
        with app.worker(concurrency=SLOTS):
            until(lambda: served.total() >= wanted, "half of them")
            with lock:
                counts = dict(served)
    mean = sum(counts.values()) / 100
    return max(abs(counts.get(f"tenant {number}", 0) - mean) / mean for number in range(100))


# All of it


_KEY_BARS = {"SQLite": 0.6, "PostgreSQL": 0.5}


def measure(arena: Arena, figures: Figures, size: Size, sections: Sequence[str]) -> None:
    figures.heading(f"Limits and keys, {arena.name}")
    for section in sections:
        SECTIONS[section](arena, figures, size)


def _measure_plain(arena: Arena, figures: Figures, size: Size) -> None:
    """No bar: it is for a comparison with another release, which has to run on the same machine."""
    for batch in (1, 8, 100):
        jobs = max(2 * batch, size.jobs * batch // 100)
        pairs = [drain_pair(arena.place, 117, batch, jobs) for _ in range(size.rounds)]
        more = f"   {statements(arena, batch):g} statements an exchange"
        figures.pairs(f"no limits, settle+claim of {batch}", pairs, more)


def _measure_bulk(arena: Arena, figures: Figures, size: Size) -> None:
    pairs = [bulk_pair(arena, size) for _ in range(size.rounds)]
    _say(figures, "bulk enqueue, a key for each job", ("plain", "with keys"), pairs)


def _measure_keys(arena: Arena, figures: Figures, size: Size) -> None:
    for batch in (100, 8):
        pairs = [key_pair(arena, size, batch) for _ in range(size.rounds)]
        ratio = _say(figures, f"settle+claim of {batch}, {size.keys:,} keys", ("plain", "with keys"), pairs)
        if batch == 100:
            figures.at_least(f"{size.keys:,} keys, by 100, {arena.name}", ratio, _KEY_BARS[arena.name], " of plain")


def _measure_others(arena: Arena, figures: Figures, size: Size) -> None:
    pairs = [other_queue_pair(arena, size) for _ in range(size.rounds)]
    ratio = _say(figures, "a queue beside one with limits", ("alone", "beside"), pairs)
    figures.at_least(f"other queues, {arena.name}", ratio, 0.95, " of alone")


def _measure_blocked(arena: Arena, figures: Figures, size: Size) -> None:
    clear, behind = blocked(arena, size)
    name = f"{size.blocked:,} jobs of blocked keys in front"
    figures.say(name, f"exchange p50 {clear * 1e3:.2f} ms without, {behind * 1e3:.2f} ms with")
    figures.at_most(f"{name}, {arena.name}", behind / clear, 1.2, " x without")


def _measure_closed(arena: Arena, figures: Figures, size: Size) -> None:
    took, served = closed(arena, size)
    name = f"{size.keys:,} closed keys"
    figures.say(f"{name}: a claim, ms", str(spread([each * 1e3 for each in took])))
    figures.say(f"{name}: a new key is served, ms", str(spread([each * 1e3 for each in served])))
    figures.at_most(f"{name}, a claim, {arena.name}", statistics.median(took) * 1e3, 5, " ms")
    figures.at_most(f"{name}, a new key, {arena.name}", statistics.median(served) * 1e3, 200, " ms")


def _measure_slots(arena: Arena, figures: Figures, size: Size) -> None:
    for seconds in (LONG_BODY, 0.005, 0.001):
        pairs = [slots_pair(arena, size, seconds) for _ in range(size.rounds)]
        name = f"a limit of {SLOTS} for {SLOTS} slots, bodies of {seconds * 1e3:g} ms"
        ratio = _say(figures, name, ("without", "with"), pairs)
        if seconds == LONG_BODY:
            figures.at_least(f"a limit equal to all slots, {arena.name}", ratio, 0.95, " of unlimited")


def _measure_tenants(arena: Arena, figures: Figures, size: Size) -> None:
    found = [(tenants(arena, size, has_keys=False), tenants(arena, size, has_keys=True)) for _ in range(size.rounds)]
    pairs = [Pair(first.per_second, turns.per_second) for first, turns in found]
    ratio = _say(figures, "one heavy and 100 light tenants", ("FIFO", "turns"), pairs)
    figures.at_least(f"heavy and light tenants, {arena.name}", ratio, 0.85, " of FIFO")
    waits = spread([wait * 1e3 for _, turns in found for wait in turns.waits])
    figures.say("how long light tenants wait, ms", str(waits))
    figures.at_most(f"light tenants' p99, {arena.name}", waits.p99, BODY * 1e3 + 20, " ms")
    uneven = statistics.median(shares(arena, size) for _ in range(size.rounds))
    figures.at_most(f"uneven shares of 100 tenants, {arena.name}", uneven, 0.1, " of the mean")


def _say(figures: Figures, what: str, columns: tuple[str, str], pairs: Sequence[Pair]) -> float:
    first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(pair.dray / pair.raw for pair in pairs)
    figures.say(what, f"{columns[0]} {first:>8,.0f}/s   {columns[1]} {second:>8,.0f}/s   ratio {ratio:5.0%}")
    return ratio


SECTIONS: dict[str, Callable[[Arena, Figures, Size], None]] = {
    "plain": _measure_plain,
    "bulk": _measure_bulk,
    "keys": _measure_keys,
    "others": _measure_others,
    "blocked": _measure_blocked,
    "closed": _measure_closed,
    "slots": _measure_slots,
    "tenants": _measure_tenants,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.limits")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it runs, not to compare")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section; may be given again")
    parser.add_argument("--on", choices=["sqlite", "postgres", "both"], default="both", help="databases")
    given = parser.parse_args()
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, {machine}")
    figures = Figures()
    try:
        with arenas(given.on) as found:
            for arena in found:
                measure(arena, figures, QUICK if given.quick else FULL, given.only or list(SECTIONS))
    finally:
        figures.summary()


if __name__ == "__main__":
    run_until_stopped(main)
