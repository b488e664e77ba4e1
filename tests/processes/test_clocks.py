"""The wall clock of a running worker is set an hour forward or back: no live job is rescued, no due one forgotten."""

from __future__ import annotations

import signal
import time

from tests.processes import clockwork
from tests.processes.harness import Fleet
from tests.processes.places import Together, on_both

LEASE = 1.0
STEPPING = {clockwork.VARIABLE: "0"}
FORWARD, BACK = signal.SIGUSR1, signal.SIGUSR2


def test_no_live_job_is_rescued_and_no_due_one_forgotten_when_clocks_are_set_forward(together: Together) -> None:
    together.wait(forward)


def test_no_live_job_is_rescued_and_no_due_one_forgotten_when_clocks_are_set_back(together: Together) -> None:
    together.wait(back)


@on_both
def forward(fleet: Fleet) -> None:
    stepped(fleet, FORWARD)


@on_both
def back(fleet: Fleet) -> None:
    stepped(fleet, BACK)


def stepped(fleet: Fleet, step: signal.Signals) -> None:
    """Both workers' on SQLite, where one machine has one clock; one of the two on PostgreSQL: the server's counts."""
    workers = [fleet.launch(lease=LEASE, environment=STEPPING) for _ in range(2)]
    fleet.until(lambda: len(fleet.live_workers()) == 2, "the workers")
    ids = {fleet.worker_of(worker) for worker in workers}
    job = fleet.enqueue("until_there", label="long", path=str(fleet.folder / "long"))
    fleet.until(lambda: fleet.ledger.starts("long"), "the long body")
    # Due in an hour and a little by the clock of now: at once, or in two hours, after the step.
    far = fleet.enqueue("quick", label="far", using={"delay": 3_601.5})
    soon = fleet.enqueue("quick", label="soon", using={"delay": 2})

    for worker in workers if fleet.is_sqlite else workers[:1]:
        worker.send(step)
    stepped_at = time.monotonic()
    time.sleep(3 * LEASE)

    assert fleet.states().get("running") == 1
    if step is FORWARD or not fleet.is_sqlite:
        assert soon.result(timeout=30) == "soon"
        assert fleet.ledger.starts("soon")[0].at - stepped_at < 10
    if step is FORWARD and fleet.is_sqlite:
        assert far.result(timeout=30) == "far"
    else:
        assert fleet.ledger.starts("far") == []
    (fleet.folder / "long.1").touch()
    assert job.result(timeout=30) == "attempt 1"
    assert fleet.outcomes(job) == ["completed"]
    assert {fleet.worker_of(worker) for worker in workers} == ids

    # Death is noticed as ever.
    mortal = fleet.enqueue("first_until_killed", label="mortal")
    (start,) = fleet.until(lambda: fleet.ledger.starts("mortal"), "the mortal one")
    (victim,) = [worker for worker in workers if worker.pid == start.pid]
    victim.kill()
    assert mortal.result(timeout=30) == "attempt 2"
    workers.remove(victim)

    # What is enqueued from here on starts as ever, delayed or not: workers and whoever enqueues agree again.
    for worker in workers if fleet.is_sqlite else workers[:1]:
        worker.send(BACK if step is FORWARD else FORWARD)
    assert fleet.enqueue("quick", label="now").result(timeout=30) == "now"
    assert fleet.enqueue("quick", label="in a moment", using={"delay": 0.5}).result(timeout=30) == "in a moment"
    assert soon.result(timeout=30) == "soon"
    assert {worker.end() for worker in workers} == {0}
    assert [line for worker in workers for line in worker.lines("ERROR", "CRITICAL", "Traceback")] == []
    fleet.audit()


TOGETHER = (forward, back)
