"""Bodies that keep everybody else from running, for three times the lease: their workers live, so they run once."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.processes.bouncer import bouncer
from tests.processes.harness import Fleet, side_by_side

LEASE = 1.0
LONG = 3 * LEASE
# One worker each for what would hinder the others: a catastrophic match in a thread, the GIL kept on an event loop,
# an event loop blocked; one for those that do not hinder their worker. A match on every runner and database would
# take all the time of this machine, and what matters of it is that it keeps the GIL.
WORKERS = (
    ("hold_async",),
    ("block_async",),
    ("block_thread", "hold_process", "block_process"),
)


def test_a_body_that_hinders_its_worker_for_three_leases_runs_once_with_every_runner(fleets: list[Fleet]) -> None:
    side_by_side(fleets, hindered)


def hindered(fleet: Fleet) -> None:
    groups = (("match_thread" if fleet.is_sqlite else "hold_thread",), *WORKERS)
    workers = [fleet.launch(lease=LEASE, queues=list(tasks)) for tasks in groups]
    # Whoever finds one of them dead brings its jobs back, whatever queues it serves itself.
    watcher = fleet.launch(lease=LEASE, queues=["elsewhere"])
    everybody = {*workers, watcher}
    fleet.until(lambda: len(fleet.live_workers()) == len(everybody), "the workers")
    ids = {fleet.worker_of(worker) for worker in everybody}
    tasks = [task for each in groups for task in each]
    jobs = {task: fleet.enqueue(task, label=task, seconds=LONG, using={"queue": task}) for task in tasks}
    fleet.ended(list(jobs.values()), 120)
    for task, job in jobs.items():
        assert job.result() >= LONG, task
        assert fleet.outcomes(job) == ["completed"], task
        assert len(fleet.ledger.starts(task)) == 1, task
    assert {fleet.worker_of(worker) for worker in everybody} == ids
    assert {worker.end() for worker in everybody} == {0}
    fleet.audit()


@pytest.fixture
def pooled(postgres_yard: Fleet, postgres_server: str) -> Generator[str]:
    """The address of the fleet's database behind a pooler."""
    with bouncer(postgres_server) as address:
        schema = postgres_yard.url.rpartition("schema=")[2]
        yield f"{address}?schema={schema}"


def test_behind_a_pooler_a_body_that_keeps_the_gil_past_the_lease_is_taken_over_and_its_result_refused(
    postgres_yard: Fleet, pooled: str
) -> None:
    """There only the lease speaks, which nobody can renew meanwhile; a body that lets others run keeps its job."""
    fleet, behind = postgres_yard, {"DRAY_URL": pooled}
    victim = fleet.start(lease=LEASE, queues=["kept"], concurrency=2, environment=behind)
    patient = fleet.start(lease=LEASE, queues=["let"], environment=behind)
    first_id = fleet.worker_of(victim)
    # Ready before the body is, and kept from its job: a slow start would leave that to the victim, come back.
    successor = fleet.start(lease=LEASE, queues=["kept"], environment=behind)
    fleet.still(successor)
    fine = fleet.enqueue("block_async", label="fine", seconds=LONG, using={"queue": "let"})
    job = fleet.enqueue("hold_thread", label="kept", seconds=5 * LEASE, using={"queue": "kept"})
    fleet.until(lambda: fleet.ledger.starts("kept"), "the body")
    successor.go_on()
    fleet.until(lambda: len(fleet.ledger.starts("kept")) == 2, "the successor to take over")
    fleet.until(lambda: fleet.worker_of(victim) not in {None, first_id}, "the victim to come back under a new id")

    assert job.result(timeout=30) < LEASE
    assert [(a.outcome, a.worker) for a in job.attempts()] == [
        ("crashed", first_id),
        ("completed", fleet.worker_of(successor)),
    ]
    assert fine.result(timeout=30) >= LONG
    assert fleet.outcomes(fine) == ["completed"]
    assert {worker.end() for worker in (victim, patient, successor)} == {0}
    assert fleet.sql(_ORPHANS) == []


def test_behind_a_pooler_the_lease_is_a_minute_and_with_a_direct_way_to_listen_a_proof_stands_beside_it(
    postgres_yard: Fleet, pooled: str
) -> None:
    fleet, behind = postgres_yard, {"DRAY_URL": pooled}
    pooler = fleet.start(environment=behind)
    direct = fleet.start(environment={**behind, "DRAY_TEST_LISTEN_URL": fleet.url})
    leases = {
        pid: round(float(seconds))
        for pid, seconds in fleet.sql("SELECT pid, extract(epoch FROM lease_until - last_seen_at) FROM dray_workers")
    }
    assert leases == {pooler.pid: 60, direct.pid: 15}
    assert {worker.end() for worker in (pooler, direct)} == {0}


_ORPHANS = "SELECT id FROM dray_jobs WHERE state = 'running'"
