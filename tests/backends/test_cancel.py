"""Cancelling: immediate before the start, by request while the job runs, never after its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dray.backends.store.graph import GraphStore
from dray.errors import StorageLocked
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import CancelResult, Claim, Demand, Outcome, Reason
from dray.model.settlement import Settlement
from tests import verbs
from tests.backends import raw

if TYPE_CHECKING:
    from tests.backends.world import World

PUT_BACK: dict[str, Callable[[Claim, int], Settlement]] = {
    "retry": lambda claim, at: model.errored(claim, at, at, Outcome.ERROR, SECOND, "ValueError", "no", None),
    "retry at once": lambda claim, at: model.errored(claim, at, at, Outcome.RETRY, 0, "Retry", "again", None),
    "snooze": lambda claim, at: model.snoozed(claim, at, at, SECOND),
    "release": model.released,
}


def _asked_to_stop(world: World, *, max_attempts: int = 3) -> tuple[str, Claim]:
    """Returns a worker and the claim of a running job with a cancel request."""
    world.enqueue(max_attempts=max_attempts)
    worker = world.worker()
    claim = world.claim_one(worker)
    world.backend.jobs.cancel([claim.id])
    world.clock.advance(SECOND)
    return worker, claim


@pytest.mark.parametrize("delay_us", [0, HOUR])
def test_a_job_that_has_not_started_is_cancelled_at_once(world: World, delay_us: int) -> None:
    job_id = world.enqueue(delay_us=delay_us)

    answer = world.backend.jobs.cancel([job_id])

    assert answer == {job_id: CancelResult.CANCELLED}
    job = world.job(job_id)
    assert (job.state, job.reason, job.finished_at) == ("cancelled", "user", world.clock.now())
    assert (job.attempt, world.backend.history.attempts(job_id)) == (0, [])
    world.clock.advance(HOUR)
    assert world.claim(world.worker()) == []


def test_a_job_that_waits_for_a_parent_is_cancelled_at_once(world: World) -> None:
    parent = world.enqueue()
    child = world.enqueue(parents=(parent,))

    assert world.backend.jobs.cancel([child]) == {child: CancelResult.CANCELLED}
    assert [job.state for job in world.backend.jobs.get([parent, child])] == ["queued", "cancelled"]


def test_a_running_job_is_asked_to_stop_and_its_worker_learns_it_from_the_beat(world: World) -> None:
    job_id, other = world.enqueue(), world.enqueue()
    worker = world.worker()
    world.claim(worker, 2)

    answer = world.backend.jobs.cancel([job_id])

    assert answer == {job_id: CancelResult.REQUESTED}
    job = world.job(job_id)
    assert (job.state, job.reason, job.cancel_requested_at) == ("running", None, world.clock.now())
    held = world.backend.workers.beat(worker, SECOND).held
    assert [(row.id, row.cancel_requested) for row in held] == [(job_id, True), (other, False)]


def test_a_second_request_keeps_the_time_of_the_first(world: World) -> None:
    _, claim = _asked_to_stop(world)
    before = world.job(claim.id).cancel_requested_at

    assert world.backend.jobs.cancel([claim.id]) == {claim.id: CancelResult.REQUESTED}
    assert world.job(claim.id).cancel_requested_at == before


def test_a_body_that_stops_when_asked_is_cancelled(world: World) -> None:
    worker, claim = _asked_to_stop(world)
    now = world.clock.steady()

    settled = verbs.settle(world.backend, worker, [model.cancelled(claim, now, now)])

    assert settled == ([], [], [], [], [])
    job = world.job(claim.id)
    assert (job.state, job.reason, job.attempt) == ("cancelled", "user", 1)


@pytest.mark.parametrize("outcome", PUT_BACK)
def test_after_a_request_a_job_put_back_ends_as_cancelled(world: World, outcome: str) -> None:
    worker, claim = _asked_to_stop(world)

    settled = verbs.settle(world.backend, worker, [PUT_BACK[outcome](claim, world.clock.steady())])

    assert settled.cancelled == [claim.id]
    job = world.job(claim.id)
    assert (job.state, job.reason, job.finished_at) == ("cancelled", "user", world.clock.now())
    world.clock.advance(HOUR)
    assert world.claim(worker) == []


def test_an_attempt_that_failed_after_a_request_is_in_the_history_of_the_cancelled_job(world: World) -> None:
    worker, claim = _asked_to_stop(world)

    world.fail(worker, claim, delay_us=SECOND)

    (attempt,) = world.backend.history.attempts(claim.id)
    assert (attempt.outcome, attempt.error_message) == ("error", "no")
    assert world.job(claim.id).state == "cancelled"


def test_after_a_request_a_rescued_job_ends_as_cancelled(world: World) -> None:
    worker, claim = _asked_to_stop(world)
    world.clock.advance(60 * SECOND)

    (rescued,) = world.backend.workers.rescue(verbs.overdue(world.backend), rng=world.rng)

    assert (rescued.id, rescued.worker_id, rescued.state) == (claim.id, worker, "cancelled")
    job = world.job(claim.id)
    assert (job.state, job.reason, job.crashes) == ("cancelled", "user", 1)
    assert [attempt.outcome for attempt in world.backend.history.attempts(claim.id)] == ["crashed"]


def test_after_a_request_a_job_rescued_from_its_last_attempt_ends_as_cancelled_too(world: World) -> None:
    worker, claim = _asked_to_stop(world, max_attempts=1)

    world.bury(worker)

    assert (world.job(claim.id).state, world.job(claim.id).reason) == ("cancelled", "user")


def test_a_body_that_completes_although_asked_to_stop_is_completed(world: World) -> None:
    worker, claim = _asked_to_stop(world)

    settled = world.complete(worker, claim, '"done"')

    assert settled.cancelled == []
    job = world.job(claim.id)
    assert (job.state, job.reason, job.result) == ("completed", None, '"done"')


def test_a_body_that_fails_for_good_although_asked_to_stop_is_failed(world: World) -> None:
    worker, claim = _asked_to_stop(world, max_attempts=1)

    settled = world.fail(worker, claim)

    assert settled.cancelled == []
    assert (world.job(claim.id).state, world.job(claim.id).reason) == ("failed", "error")


def test_a_batch_of_outcomes_says_which_of_them_were_cancelled(world: World) -> None:
    ids = [world.enqueue() for _ in range(4)]
    worker = world.worker()
    claims = world.claim(worker, 4)
    world.backend.jobs.cancel([ids[1], ids[3]])
    now = world.clock.steady()

    settled = verbs.settle(
        world.backend,
        worker,
        [
            model.released(claims[0], now),
            model.released(claims[1], now),
            model.failed(claims[2], now, now, Reason.ERROR, "ValueError", "no", None),
            model.completed(claims[3], now, now),
        ],
    )

    assert settled == ([], [], [], [], [ids[1]])
    assert [job.state for job in world.backend.jobs.get(ids)] == ["queued", "cancelled", "failed", "completed"]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_an_ended_job_is_left_alone(world: World, end: str) -> None:
    job_id = world.enqueue(max_attempts=1)
    worker = world.worker()
    if end == "cancelled":
        world.backend.jobs.cancel([job_id])
    elif end == "failed":
        world.fail(worker, world.claim_one(worker))
    else:
        world.complete(worker, world.claim_one(worker))
    before = raw.stored(world.backend, job_id)
    world.clock.advance(SECOND)

    assert world.backend.jobs.cancel([job_id]) == {job_id: CancelResult.FINAL}
    assert raw.stored(world.backend, job_id) == before


def test_each_job_of_a_batch_has_its_own_answer(world: World) -> None:
    final, running, waiting = (world.enqueue(priority=n) for n in (3, 2, 1))
    worker = world.worker()
    claims = world.claim(worker, 2)
    world.complete(worker, claims[0])
    unknown = world.ids.new()

    answer = world.backend.jobs.cancel([unknown, waiting, final, running])

    assert answer == {
        unknown: CancelResult.UNKNOWN,
        waiting: CancelResult.CANCELLED,
        final: CancelResult.FINAL,
        running: CancelResult.REQUESTED,
    }


def test_cancelling_nothing_answers_nothing(world: World) -> None:
    assert world.backend.jobs.cancel([]) == {}


def test_an_operator_retry_forgets_the_request(world: World) -> None:
    worker, claim = _asked_to_stop(world)
    world.fail(worker, claim)
    world.backend.jobs.retry([claim.id])

    again = world.claim_one(worker)
    world.fail(worker, again, delay_us=SECOND)

    job = world.job(claim.id)
    assert (job.state, job.cancel_requested_at) == ("scheduled", None)


def _refuse(*_: object) -> None:
    raise StorageLocked("another transaction holds the lock; nothing was written")


def test_an_exchange_keeps_its_claims_though_the_children_of_what_it_ended_cannot_be_told_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.enqueue()
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()
    child, other = world.enqueue("child", parents=(claim.id,)), world.enqueue()
    outcome = model.completed(claim, now, now, None)

    with monkeypatch.context() as locked:
        locked.setattr(GraphStore, "fan_out", _refuse)
        answer = world.backend.work.exchange(worker, [outcome], Demand(("default",), ("task",), 1))

    assert [each.id for each in answer.claims] == [other]
    assert answer.fan_out.left
    world.backend.graph.fan_out()  # as a worker does when told
    assert [world.job(i).state for i in (claim.id, child)] == ["completed", "queued"]


def test_a_cancel_that_is_written_is_no_error_though_its_children_cannot_be_told_now(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = world.enqueue()
    child = world.enqueue(parents=(parent,))

    with monkeypatch.context() as locked:
        locked.setattr(GraphStore, "fan_out", _refuse)
        answer = world.backend.jobs.cancel([parent])
    before = world.job(child).state
    world.backend.graph.fan_out()  # as the worker with the duty does

    assert answer == {parent: CancelResult.CANCELLED}
    assert (before, world.job(child).state) == ("waiting", "cancelled")
    assert "will be told later" in caplog.text
