"""What the overview and the pages of workers and queues read, as rows that tests have made."""

from __future__ import annotations

from dray.backends import Backend
from dray.instants import SECOND
from dray.model.schedule import Schedule
from tests.backends.world import World


def test_what_became_of_the_jobs_of_dead_workers(backend: Backend, world: World) -> None:
    jobs = [world.enqueue() for _ in range(3)]
    dead = world.worker()
    world.claim(dead, 2)
    world.bury(dead)
    other = world.worker()

    assert backend.overview.taken_back([dead, other]) == {dead: {"scheduled": 2}, other: {}}
    found = backend.overview.worker(dead, 10)
    assert found is not None
    assert {job.id for job in found.taken_back_jobs} <= set(jobs)
    assert (found.worker.state, found.running, found.taken_back) == ("dead", [], {"scheduled": 2})
    around = backend.overview.around(since=0, limit=5, most=10)
    assert [worker.id for worker in around.died] == [dead]
    assert [worker.id for worker in backend.overview.ended_workers(5)] == [dead]


def test_a_live_worker_with_what_it_runs(backend: Backend, world: World) -> None:
    world.enqueue()
    worker = world.worker()
    claim = world.claim_one(worker)
    backend.leases.take("prune", worker)

    found = backend.overview.worker(worker, 10)
    assert found is not None
    assert [job.id for job in found.running] == [claim.id]
    assert found.duties == ("prune",)
    assert not found.is_gone
    assert backend.overview.worker(world.ids.new(), 10) is None


def test_what_comes_next_and_how_much_there_is(backend: Backend, world: World) -> None:
    assert not backend.overview.around(since=0, limit=5, most=10).has_jobs

    world.enqueue(max_attempts=1)
    for number in range(4):
        backend.schedules.upsert(Schedule(f"s{number}", "t", every_us=SECOND, next_at=100 - number))
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))

    around = backend.overview.around(since=0, limit=2, most=3)
    assert [schedule.name for schedule in around.next_schedules] == ["s3", "s2"]
    assert (around.schedules, around.failing, around.has_jobs, around.had_workers) == (3, 1, True, True)
    assert backend.overview.around(since=around.now + SECOND, limit=2, most=3).failing == 0


def test_the_newest_jobs_of_a_queue(backend: Backend, world: World) -> None:
    mail = [world.enqueue(queue="mail") for _ in range(3)]
    world.enqueue(queue="other")

    assert [job.id for job in backend.overview.newest_of_queue("mail", 2)] == [mail[2], mail[1]]
    assert backend.overview.newest_of_queue("none", 2) == []
