"""Outcomes that a worker leaves because it has to stop: the worker that rescues the jobs writes them, once."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
import pytest

from dray.address import PostgresAddress, parse_address
from dray.backends import open_backend
from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Outcome, Reason
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement
from dray.model.worker import Rescued
from tests import verbs
from tests.backends import raw
from tests.backends.world import World

TOOK = 3 * SECOND  # run time of the body
LATER = 40 * SECOND  # when the job is rescued


def claimed(world: World, **options: Any) -> tuple[str, Claim]:
    job_id = world.enqueue(**options)
    worker = world.worker()
    claim = world.claim_one(worker)
    assert claim.id == job_id
    world.clock.advance(TOOK)
    return worker, claim


def leave_and_rescue(
    world: World, worker: str, settlement: Settlement, new: list[NewJob] | None = None
) -> list[Rescued]:
    """The worker leaves, and its jobs are rescued a while later."""
    world.backend.outcomes.leave(worker, [(settlement, new or [])])
    assert world.job(settlement.id).state == "running"
    world.backend.workers.deregister(worker)
    world.clock.advance(LATER)
    return world.backend.workers.rescue([], rng=world.rng)


def left(world: World) -> int:
    return raw.run(world.backend, "SELECT count(*) FROM dray_outcomes")[0][0]


def times(world: World) -> tuple[int, int]:
    """Returns when the body started and ended, by the monotonic clock."""
    return world.clock.steady() - TOOK, world.clock.steady()


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_body_that_completed_has_completed(world: World, max_attempts: int) -> None:
    worker, claim = claimed(world, max_attempts=max_attempts)
    ended_at = world.clock.now()

    rescued = leave_and_rescue(world, worker, model.completed(claim, *times(world), '{"x": [1, "é\\u0000"]}'))

    assert rescued == [Rescued(claim.id, 1, worker, "completed", "default", had_ended=True)]
    job = world.job(claim.id)
    assert (job.state, job.reason, job.result) == ("completed", None, '{"x": [1, "é\\u0000"]}')
    assert (job.attempt, job.crashes, job.worker_id) == (1, 0, worker)
    assert (job.started_at, job.finished_at) == (ended_at - TOOK, ended_at)
    assert left(world) == 0
    assert world.backend.workers.rescue([], rng=world.rng) == []


def test_a_body_that_failed_has_failed_of_its_own_error(world: World) -> None:
    worker, claim = claimed(world, max_attempts=1)
    failed = model.errored(claim, *times(world), Outcome.ERROR, 0, "ValueError", "no", "trace")

    leave_and_rescue(world, worker, failed)

    job = world.job(claim.id)
    assert (job.state, job.reason, job.crashes, job.error) == ("failed", "error", 0, "ValueError: no")
    (attempt,) = world.backend.history.attempts(claim.id)
    assert (attempt.outcome, attempt.error_message, attempt.traceback) == ("error", "no", "trace")
    assert attempt.worker_id == worker


def test_what_is_to_run_again_does_after_its_delay(world: World) -> None:
    worker, claim = claimed(world)

    leave_and_rescue(
        world, worker, model.errored(claim, *times(world), Outcome.ERROR, 60 * SECOND, "ValueError", "no", None)
    )

    job = world.job(claim.id)
    assert (job.state, job.attempt, job.crashes) == ("scheduled", 1, 0)
    assert job.run_at == world.clock.now() + 60 * SECOND


def test_what_goes_back_goes_back_unburned(world: World) -> None:
    worker, claim = claimed(world, max_attempts=1)

    leave_and_rescue(world, worker, model.released(claim, world.clock.steady()))

    job = world.job(claim.id)
    assert (job.state, job.attempt, job.crashes) == ("queued", 0, 0)


def test_a_cancel_that_was_requested_meanwhile_ends_what_would_run_again(world: World) -> None:
    worker, claim = claimed(world)
    world.backend.outcomes.leave(worker, [(model.released(claim, world.clock.steady()), [])])
    world.backend.jobs.cancel([claim.id])
    world.backend.workers.deregister(worker)

    (rescued,) = world.backend.workers.rescue([], rng=world.rng)

    assert rescued.state == "cancelled"
    assert world.job(claim.id).state == "cancelled"


def test_steps_that_the_body_added_come_with_it(world: World) -> None:
    workflow_id = world.ids.new()
    worker, claim = claimed(world, workflow_id=workflow_id, step="grower")
    steps = [
        world.new(workflow_id=workflow_id, step="first", parents=(claim.id,), tags=("a", "b")),
        world.new(workflow_id=workflow_id, step="second"),
    ]

    leave_and_rescue(world, worker, model.completed(claim, *times(world)), steps)

    assert world.job(claim.id).state == "completed"
    assert [(world.job(step.id).state, world.job(step.id).tags) for step in steps] == [
        ("queued", ("a", "b")),
        ("queued", ()),
    ]
    assert left(world) == 0


def test_steps_that_cannot_be_written_fail_the_job_and_keep_no_other_from_being_rescued(world: World) -> None:
    workflow_id = world.ids.new()
    worker, claim = claimed(world, workflow_id=workflow_id, step="grower")
    bad = world.new(workflow_id=workflow_id, step="bad", parents=(world.ids.new(),))
    other = world.enqueue()
    world.claim_one(worker)

    rescued = leave_and_rescue(world, worker, model.completed(claim, *times(world)), [bad])

    assert {(each.id, each.state) for each in rescued} == {(claim.id, "failed"), (other, "scheduled")}
    job = world.job(claim.id)
    assert (job.reason, job.crashes) == (Reason.RESULT, 0)
    assert "the steps it added cannot be written" in (job.error or "")


def test_an_outcome_of_a_lost_claim_is_not_left(world: World) -> None:
    worker, claim = claimed(world)
    world.complete(worker, claim)

    world.backend.outcomes.leave(worker, [(model.released(claim, world.clock.steady()), [])])

    assert left(world) == 0


def test_another_workers_attempt_is_not_ended_by_it(world: World) -> None:
    """The outcome was left and also written in time: it must not affect the next claim."""
    worker, claim = claimed(world)
    world.backend.outcomes.leave(worker, [(model.completed(claim, *times(world)), [])])
    world.fail(worker, claim)
    second = world.worker()
    again = world.claim_one(second)
    world.bury(second)

    assert (again.id, again.claim) == (claim.id, 2)
    assert [each.outcome for each in world.backend.history.attempts(claim.id)] == ["error", "crashed"]
    assert world.job(claim.id).state == "scheduled"


def enqueued_again(world: World) -> tuple[str, Claim]:
    """A job under the id of one that was deleted, whose worker had left an outcome and written it in time."""
    worker, claim = claimed(world)
    world.backend.outcomes.leave(worker, [(model.completed(claim, *times(world)), [])])
    world.complete(worker, claim)
    assert world.backend.jobs.delete([claim.id]) == [claim.id]
    second, again = claimed(world, id=claim.id)
    assert (again.id, again.claim) == (claim.id, claim.claim)
    return second, again


def test_what_was_left_of_a_deleted_job_does_not_delay_the_rescue_of_one_with_its_id(world: World) -> None:
    worker, claim = enqueued_again(world)
    world.bury(worker)

    assert world.job(claim.id).state == "scheduled"
    assert [each.outcome for each in world.backend.history.attempts(claim.id)] == ["crashed"]


def test_what_was_left_of_a_deleted_job_gives_way_to_what_one_with_its_id_leaves(world: World) -> None:
    worker, claim = enqueued_again(world)

    leave_and_rescue(world, worker, model.completed(claim, *times(world), "7"))

    assert (world.job(claim.id).state, world.job(claim.id).result) == ("completed", "7")


def test_what_is_left_of_ended_claims_is_removed_with_old_workers(world: World) -> None:
    worker, claim = claimed(world)
    world.backend.outcomes.leave(worker, [(model.completed(claim, *times(world)), [])])
    world.complete(worker, claim)
    assert left(world) == 1

    world.backend.workers.prune(0)

    assert left(world) == 0


def test_it_waits_for_no_lock_of_the_row(shared_url: str) -> None:
    """Not even for the strongest lock a user can take."""
    from dray.clock import Ids
    from tests.manual_clock import ManualClock

    clock = ManualClock()
    address = parse_address(shared_url)
    assert isinstance(address, PostgresAddress)
    with closing(open_backend(shared_url, clock=clock)) as backend:
        backend.migrate()
        world = World(backend, clock, Ids(clock))
        worker, claim = claimed(world, max_attempts=1)
        done = model.completed(claim, *times(world), "1")
        with psycopg.connect(address.conninfo) as user:
            user.execute(f'SELECT 1 FROM "{address.schema}".dray_jobs FOR UPDATE'.encode())
            assert verbs.settle(backend, worker, [done]).locked == [claim.id]
            backend.outcomes.leave(worker, [(done, [])])
            backend.workers.deregister(worker)
            assert backend.workers.rescue([], rng=world.rng) == []
        assert [each.state for each in backend.workers.rescue([], rng=world.rng)] == ["completed"]
