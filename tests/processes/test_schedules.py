"""Slots and the death of those who fire them: each comes once, none is missed."""

from __future__ import annotations

import os
import time
from collections import Counter
from datetime import timedelta

from dray.app_interface import core_of
from tests.processes import clockwork
from tests.processes.harness import APPS, Fleet, Process
from tests.processes.places import Together, on_both

SECONDS = float(os.environ.get("DRAY_SOAK_SECONDS", "10"))
LEASE = 1.0
AHEAD = {clockwork.VARIABLE: "5"}


def test_each_slot_is_fired_once_though_whoever_has_the_duty_is_killed_each_second(together: Together) -> None:
    together.wait(killed_each_second)


@on_both
def killed_each_second(fleet: Fleet) -> None:
    """The clock of one worker in two is five seconds ahead, and those that die are started again."""
    beat(fleet)
    workers = [launch(fleet, number) for number in range(3)]
    fleet.until(lambda: holder(fleet, workers), "somebody to have the duty")
    kills = 0
    over_at = time.monotonic() + SECONDS
    while time.monotonic() < over_at:
        time.sleep(1.0)
        victim = holder(fleet, workers)
        if victim is not None:
            victim.kill()
            kills += 1
            workers.remove(victim)
            workers.append(launch(fleet, kills))

    finish(fleet, workers)
    assert kills >= SECONDS / 4
    assert slots(fleet) >= SECONDS


def test_slots_are_met_while_whoever_has_the_duty_stands_still(together: Together) -> None:
    together.wait(stopped)


@on_both
def stopped(fleet: Fleet) -> None:
    """It lives, as far as anybody can tell: nobody takes its duty."""
    workers = [fleet.launch(lease=30) for _ in range(2)]
    fleet.until(lambda: holder(fleet, workers), "somebody to have the duty")
    holding = holder(fleet, workers)
    assert holding is not None
    fleet.still(holding)
    beat(fleet)

    fleet.until(lambda: slots(fleet) >= 3, "slots that a deputy fires", seconds=20)

    assert holder(fleet, workers) is holding
    holding.go_on()
    finish(fleet, workers)


def beat(fleet: Fleet) -> None:
    """A slot each second, and whoever comes late fires all that were missed."""
    task = f"{APPS}.sturdy"
    fleet.app.schedule("beat", task, every=1, args={"label": "beat"}, misfire="all", misfire_limit=1000)


def launch(fleet: Fleet, number: int) -> Process:
    return fleet.launch(lease=LEASE, environment=AHEAD if number % 2 else None)


def holder(fleet: Fleet, workers: list[Process]) -> Process | None:
    """The process that has the duty, if it is alive."""
    live = dict(fleet.live_workers())
    held = [lease.holder for lease in core_of(fleet.app).backend.leases.held() if lease.duty == "schedule"]
    pids = [live.get(worker_id or "") for worker_id in held]
    return next((worker for worker in workers if worker.pid in pids and worker.is_alive), None)


def slots(fleet: Fleet) -> int:
    return fleet.sql("SELECT count(*) FROM dray_jobs WHERE schedule = 'beat'")[0][0]


def finish(fleet: Fleet, workers: list[Process]) -> None:
    """Each slot from the first to the last that was fired has one job, and all of them run."""
    fleet.until(lambda: all(map(fleet.worker_of, workers)), "all workers")
    fired = slots(fleet)
    fleet.until(lambda: slots(fleet) > fired, "one more slot")
    assert fleet.app.pause_schedule("beat")
    fleet.until(lambda: set(fleet.states()) == {"completed"}, "all jobs to complete")
    (info,) = fleet.app.schedules()
    assert info.last_at is not None
    counted = Counter(job.slot for job in fleet.app.jobs(limit=10_000))
    expected = {
        info.created_at + timedelta(seconds=k) for k in range(1, (info.last_at - info.created_at).seconds + 1)
    }
    assert [slot for slot, count in counted.items() if count > 1] == []
    assert expected - counted.keys() == set()
    assert counted.keys() - expected == set()
    assert {worker.end() for worker in workers} == {0}
    assert [line for worker in workers for line in worker.lines("ERROR", "CRITICAL", "Traceback")] == []
    fleet.audit()


TOGETHER = (killed_each_second, stopped)
