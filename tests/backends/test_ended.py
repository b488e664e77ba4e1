"""What waiters ask: which jobs have ended, and which do not exist."""

from __future__ import annotations

from tests.backends.world import World


def test_only_what_has_ended_is_told_in_full(world: World) -> None:
    done, gone, queued, running = (world.enqueue(queue=name) for name in "abcd")
    scheduled = world.enqueue(delay_us=1_000_000)
    waiting = world.enqueue(parents=(queued,))
    worker = world.worker()
    world.complete(worker, world.claim_one(worker, queue="a"), "7")
    world.backend.jobs.cancel([gone])
    world.claim_one(worker, queue="d")

    jobs, missing = world.backend.jobs.ended([scheduled, done, waiting, gone, queued, running])

    assert [(job.id, job.state, job.result) for job in jobs] == [(done, "completed", "7"), (gone, "cancelled", None)]
    assert missing == []


def test_what_is_not_there_is_told_apart_from_what_lives(world: World) -> None:
    live, deleted, never = world.enqueue(), world.enqueue(), world.ids.new()
    world.backend.jobs.delete([deleted])

    assert world.backend.jobs.ended([never, live, deleted]) == ([], [never, deleted])
    assert world.backend.jobs.ended([]) == ([], [])


def test_a_job_that_starts_over_has_not_ended(world: World) -> None:
    job = world.enqueue()
    world.backend.jobs.cancel([job])
    assert [each.id for each in world.backend.jobs.ended([job]).jobs] == [job]

    world.backend.jobs.retry([job])

    assert world.backend.jobs.ended([job]) == ([], [])
