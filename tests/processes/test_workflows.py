"""A wide workflow under worker processes that are killed at random: every step runs, the last one once.

DRAY_SOAK_STEPS sets its width: `make soak` takes 10,000.
"""

from __future__ import annotations

import os
import random
import time

from dray.app_interface import core_of
from dray.handle.run import Run
from dray.model.job import FINAL
from tests.processes import apps
from tests.processes.harness import Fleet, Process, side_by_side

WIDTH = int(os.environ.get("DRAY_SOAK_STEPS", "200"))
KILLS = 6 if WIDTH < 1_000 else 40
BOUND = 60.0 + WIDTH / 50
LEASE = 1.0
NAP = 0.3 if WIDTH < 1_000 else 0.02


def test_the_last_step_runs_once_after_all_others_though_workers_are_killed(fleets: list[Fleet]) -> None:
    side_by_side(fleets, fan_out_and_in)


def fan_out_and_in(fleet: Fleet) -> None:
    workers = [fleet.start(lease=LEASE, concurrency=4) for _ in range(4)]
    run = enqueue(fleet)
    rng = random.Random(4)
    deadline = time.monotonic() + BOUND
    kills = 0
    while run.state not in FINAL:
        assert time.monotonic() < deadline, (run.counts, fleet.describe())
        if kills < KILLS and run.progress.done > kills * WIDTH / KILLS:
            kills += 1
            replace_one(fleet, workers, rng)
        time.sleep(0.05)

    assert run.state == "completed", run.counts
    assert kills >= KILLS / 2
    assert run.progress == (WIDTH + 2, WIDTH + 2)
    labels = {"first", "last", *(f"child {n}" for n in range(WIDTH))}
    ends = fleet.ledger.ends()
    assert {entry.label for entry in ends} == labels
    assert (run.job("last").attempt, len(fleet.ledger.ends("last"))) == (1, 1)
    (begun,) = fleet.ledger.starts("last")
    assert {entry.label for entry in ends if entry.at < begun.at} == labels - {"last"}
    assert core_of(fleet.app).backend.graph.reconcile() == ([], [])
    fleet.until(lambda: all(map(fleet.worker_of, workers)), "the workers to register")
    assert [worker.end() for worker in workers] == [0] * 4
    fleet.audit()


def enqueue(fleet: Fleet) -> Run:
    wf = fleet.app.workflow("wide")
    nap = fleet.app.task(name=apps.nap.name, max_attempts=50, max_crashes=50)(apps.nap.function)
    first = wf.add(nap, "first", 0, step="first")
    children = [wf.add(nap, f"child {n}", NAP, after=first) for n in range(WIDTH)]
    # When it runs nobody is killed any more: it has one attempt, and takes it.
    wf.add(nap.using(max_attempts=1), "last", 0, after=children, step="last")
    return wf.enqueue()


def replace_one(fleet: Fleet, workers: list[Process], rng: random.Random) -> None:
    place = rng.randrange(len(workers))
    workers[place].kill()
    workers[place] = fleet.launch(lease=LEASE, concurrency=4)
