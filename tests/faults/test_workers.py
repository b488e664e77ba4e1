"""The Nth call of a running worker into the driver fails: it goes on by itself, and nothing is lost or doubled.

One worker for all runs of a database: whatever a fault leaves behind, the next ones find.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Generator

import pytest

from tests.faults.count import Figures
from tests.faults.databases import FaultyDatabase
from tests.faults.postgres_proxy import READ_ONLY_SERVERS
from tests.faults.trial import ALL, RUNS, Trial, Way
from tests.faults.worker import WorkerUnderTest, until

LEASE = 2.0
SOME = 5 if RUNS < ALL else 25  # runs of each fault in a soak, of all faults otherwise
MOST_CALLS = 120  # into the driver, while a run's jobs are worked off
_READ_ONLY_SECONDS = 0.3  # seconds
IDLE_CALLS = 6  # of a worker that has nothing to do, in a second or two


@pytest.fixture
def tested(database: FaultyDatabase) -> Generator[WorkerUnderTest]:
    made = WorkerUnderTest(database, lease=LEASE)
    made.start()
    yield made
    made.close()


def run(tested: WorkerUnderTest, way: Way, at: int, caplog: pytest.LogCaptureFixture) -> int:
    """One run; returns how many faults it met."""
    caplog.clear()
    count = tested.database.count
    is_about_connecting = way.fault.units == frozenset({"connect"})
    count.arm(way.fault, at % 3 + 1 if is_about_connecting else at)
    if is_about_connecting:
        tested.database.cut_all()  # or there would be no need for another one
    work = tested.enqueue_some(orphan=at % 4 == 0)
    until(lambda: count.injected or work.is_over(), "the fault or the end")
    injected = disarm(tested)
    until(work.is_over, "the jobs to end", tested.describe)
    work.check(once=way.fault is not READ_ONLY_SERVERS)
    tested.is_well()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == [], "an error that no part of it expected"
    return injected


def run_idle(tested: WorkerUnderTest, way: Way, at: int) -> int:
    """The same while there is nothing to do: what comes afterwards is done all the same."""
    count = tested.database.count
    is_about_connecting = way.fault.units == frozenset({"connect"})
    count.arm(way.fault, 1 if is_about_connecting else at)
    if is_about_connecting:
        tested.database.cut_all()
    until(lambda: count.injected or is_about_connecting, "the fault")
    injected = disarm(tested)
    tested.is_well()
    return injected


def disarm(tested: WorkerUnderTest) -> int:
    """All is well again, at once, or after a moment where it is the new connections that are not."""
    if tested.database.count.fault is READ_ONLY_SERVERS:
        time.sleep(_READ_ONLY_SECONDS)
    return tested.database.count.disarm()


def test_a_busy_worker_goes_on_whichever_call_fails(
    tested: WorkerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    figures = Figures(f"faults in a busy worker, {tested.database.name}")
    count, over = tested.database.count, tested.start_over
    trial = Trial("busy worker", lambda way, at: run(tested, way, at, caplog), count, figures, start_over=over)
    trial.these(chosen(tested, MOST_CALLS))
    tested.check_slots()
    figures.print()


def test_an_idle_worker_goes_on_whichever_call_fails(tested: WorkerUnderTest) -> None:
    tested.direct.pause_schedule("beat")
    figures = Figures(f"faults in an idle worker, {tested.database.name}")
    count, over = tested.database.count, tested.start_over
    trial = Trial("idle worker", lambda way, at: run_idle(tested, way, at), count, figures, start_over=over)
    trial.these(chosen(tested, IDLE_CALLS))
    figures.print()


def chosen(tested: WorkerUnderTest, calls: int) -> list[tuple[Way, int]]:
    """Some ways, each at some call."""
    chance = random.Random(f"{calls} on {tested.database.name}")
    ways = [Way(fault) for fault in tested.database.faults]
    if RUNS < ALL:
        return [(way, chance.randint(1, calls)) for way in chance.sample(ways, SOME)]
    return [(way, at) for way in ways for at in chance.sample(range(1, calls + 1), min(SOME, calls))]
