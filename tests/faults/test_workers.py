"""The Nth call of a running worker into the driver fails: it goes on by itself, and nothing is lost or doubled.

One worker for all runs of a database: whatever a fault leaves behind, the next ones find.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Generator

import pytest

from tests.faults.bench import Bench, until
from tests.faults.count import Figures
from tests.faults.places import Place
from tests.faults.postgres_proxy import STRANDED
from tests.faults.trial import ALL, RUNS, Trial, Way

LEASE = 2.0
SOME = 5 if RUNS < ALL else 25  # runs of each fault in a soak, of all faults otherwise
MOST_CALLS = 120  # into the driver, while a run's jobs are worked off
_STRANDED = 0.3  # seconds
IDLE_CALLS = 6  # of a worker that has nothing to do, in a second or two


@pytest.fixture
def bench(place: Place) -> Generator[Bench]:
    made = Bench(place, lease=LEASE)
    made.start()
    yield made
    made.close()


def run(bench: Bench, way: Way, at: int, caplog: pytest.LogCaptureFixture) -> int:
    """One run; how many faults befell it."""
    caplog.clear()
    count = bench.place.count
    is_about_connecting = way.fault.units == frozenset({"connect"})
    count.arm(way.fault, at % 3 + 1 if is_about_connecting else at)
    if is_about_connecting:
        bench.place.cut_all()  # or there would be no need for another one
    work = bench.enqueue_some(orphan=at % 4 == 0)
    until(lambda: count.injected or work.is_over(), "the fault or the end")
    injected = disarm(bench)
    until(work.is_over, "the jobs to end", bench.describe)
    work.check(once=way.fault is not STRANDED)
    bench.is_well()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == [], "nobody expected this error"
    return injected


def run_idle(bench: Bench, way: Way, at: int) -> int:
    """The same while there is nothing to do: what comes afterwards is done all the same."""
    count = bench.place.count
    is_about_connecting = way.fault.units == frozenset({"connect"})
    count.arm(way.fault, 1 if is_about_connecting else at)
    if is_about_connecting:
        bench.place.cut_all()
    until(lambda: count.injected or is_about_connecting, "the fault")
    injected = disarm(bench)
    bench.is_well()
    return injected


def disarm(bench: Bench) -> int:
    """All is well again, at once, or after a moment where it is the new connections that are not."""
    if bench.place.count.fault is STRANDED:
        time.sleep(_STRANDED)
    return bench.place.count.disarm()


def test_a_busy_worker_goes_on_whichever_call_fails(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    figures = Figures(f"faults in a busy worker, {bench.place.name}")
    count, over = bench.place.count, bench.start_over
    trial = Trial("busy worker", lambda way, at: run(bench, way, at, caplog), count, figures, start_over=over)
    trial.these(chosen(bench, MOST_CALLS))
    bench.check_slots()
    figures.print()


def test_an_idle_worker_goes_on_whichever_call_fails(bench: Bench) -> None:
    bench.direct.pause_schedule("beat")
    figures = Figures(f"faults in an idle worker, {bench.place.name}")
    count, over = bench.place.count, bench.start_over
    trial = Trial("idle worker", lambda way, at: run_idle(bench, way, at), count, figures, start_over=over)
    trial.these(chosen(bench, IDLE_CALLS))
    figures.print()


def chosen(bench: Bench, calls: int) -> list[tuple[Way, int]]:
    """Some ways, each at some call."""
    chance = random.Random(f"{calls} on {bench.place.name}")
    ways = [Way(fault) for fault in bench.place.faults]
    if RUNS < ALL:
        return [(way, chance.randint(1, calls)) for way in chance.sample(ways, SOME)]
    return [(way, at) for way in ways for at in chance.sample(range(1, calls + 1), min(SOME, calls))]
