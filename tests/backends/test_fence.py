"""Fencing: a worker that lost its claim cannot change the job, and learns that the claim is lost.

Each test loses a claim in one way and then tries every write a worker has. The clock advances each time, so that
a single changed column would show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Demand, LogLine, Outcome, Reason
from dray.model.settlement import Settled, Settlement
from tests import verbs
from tests.backends import raw

if TYPE_CHECKING:
    from tests.backends.world import World

OUTCOMES: dict[str, Callable[[Claim, int], Settlement]] = {
    "completed": lambda claim, at: model.completed(claim, at, at, '"late"' * 500, keep_args=False),
    "failed": lambda claim, at: model.failed(claim, at, at, Reason.ERROR, "ValueError", "no", "trace"),
    "retry": lambda claim, at: model.errored(claim, at, at, Outcome.ERROR, SECOND, "ValueError", "no", "trace"),
    "cancelled": lambda claim, at: model.cancelled(claim, at, at, "stopped"),
    "snoozed": lambda claim, at: model.snoozed(claim, at, at, SECOND),
    "released": model.released,
}
WRITES = [*OUTCOMES, "progress", "log"]


def is_refused(world: World, worker: str, claim: Claim, write: str) -> bool:
    """Writes under a claim; returns whether the claim is reported as lost, or as having ended the job before."""
    if write == "progress":
        return verbs.progress(world.backend, worker, [(claim.id, claim.claim, 50.0, "half")]) == [False]
    if write == "log":
        line = LogLine(claim.id, claim.claim, world.clock.steady(), "INFO", "job", "late")
        return verbs.write_logs(world.backend, worker, [line]) == [False]
    settled = verbs.settle(world.backend, worker, [OUTCOMES[write](claim, world.clock.steady())])
    lost = Settled(stale=[claim.id], already=[], locked=[], refused=[], cancelled=[])
    return settled in (lost, lost._replace(stale=[], already=[claim.id]))


def assert_fenced_off(world: World, worker: str, claim: Claim) -> None:
    before = raw.stored(world.backend, claim.id)
    for write in WRITES:
        world.clock.advance(SECOND)
        refused = is_refused(world, worker, claim, write)
        assert raw.stored(world.backend, claim.id) == before, f"{write} changed something"
        assert refused, f"{write} was not told that the claim is lost"


def claimed(world: World, *, max_attempts: int = 3) -> tuple[str, Claim]:
    """Returns a worker with a job that has a log line and progress."""
    world.enqueue(args='{"a": "%s"}' % ("x" * 2_000), max_attempts=max_attempts)
    worker = world.worker()
    claim = world.claim_one(worker)
    verbs.progress(world.backend, worker, [(claim.id, claim.claim, 10.0, "begun")])
    verbs.write_logs(
        world.backend, worker, [LogLine(claim.id, claim.claim, world.clock.steady(), "INFO", "job", "begun")]
    )
    return worker, claim


def test_after_a_rescue_the_old_claim_changes_nothing(world: World) -> None:
    worker, claim = claimed(world)
    world.bury(worker)
    assert world.job(claim.id).state == "scheduled"

    assert_fenced_off(world, worker, claim)


def test_after_a_rescue_that_ended_the_job_the_old_claim_changes_nothing(world: World) -> None:
    worker, claim = claimed(world, max_attempts=1)
    world.bury(worker)
    assert world.job(claim.id).reason == "crashed"

    assert_fenced_off(world, worker, claim)


def test_after_a_rescue_that_cancelled_the_job_the_old_claim_changes_nothing(
    world: World,
) -> None:
    worker, claim = claimed(world)
    world.backend.jobs.cancel([claim.id])
    world.bury(worker)
    assert world.job(claim.id).state == "cancelled"

    assert_fenced_off(world, worker, claim)


def test_after_a_rescue_and_another_workers_claim_the_old_claim_changes_nothing(
    world: World,
) -> None:
    worker, claim = claimed(world)
    world.bury(worker)
    world.clock.advance(SECOND)
    again = world.claim_one(world.worker())
    assert (again.id, again.claim) == (claim.id, claim.claim + 1)

    assert_fenced_off(world, worker, claim)


def test_after_a_rescue_and_another_workers_completion_the_old_claim_changes_nothing(
    world: World,
) -> None:
    worker, claim = claimed(world)
    world.bury(worker)
    world.clock.advance(SECOND)
    other = world.worker()
    world.complete(other, world.claim_one(other), '"theirs"')

    assert_fenced_off(world, worker, claim)


def test_after_an_operator_retry_and_another_workers_claim_the_old_claim_changes_nothing(
    world: World,
) -> None:
    worker, claim = claimed(world, max_attempts=1)
    world.fail(worker, claim)
    world.backend.jobs.retry([claim.id])
    again = world.claim_one(world.worker())
    assert (again.claim, again.attempt) == (claim.claim + 1, claim.attempt)

    assert_fenced_off(world, worker, claim)


def test_after_an_operator_retry_and_a_claim_of_its_own_a_workers_old_claim_changes_nothing(
    world: World,
) -> None:
    worker, claim = claimed(world)
    world.complete(worker, claim)
    world.backend.jobs.retry([claim.id])
    world.claim_one(worker)

    assert_fenced_off(world, worker, claim)


def test_the_right_number_from_the_wrong_worker_changes_nothing(world: World) -> None:
    _, claim = claimed(world)

    assert_fenced_off(world, world.worker(), claim)


def test_the_wrong_worker_changes_nothing_after_the_holder_put_the_job_back(world: World) -> None:
    worker, claim = claimed(world)
    world.fail(worker, claim, delay_us=60 * SECOND)

    assert_fenced_off(world, world.worker(), claim)


def test_a_number_that_was_not_issued_yet_changes_nothing(world: World) -> None:
    worker, claim = claimed(world)

    assert_fenced_off(world, worker, claim._replace(claim=claim.claim + 1))


def test_a_number_issued_again_to_another_worker_is_not_the_old_workers(world: World) -> None:
    worker, claim = claimed(world)
    raw.forget_claim(world.backend, claim.id)
    again = world.claim_one(world.worker())
    assert (again.id, again.claim) == (claim.id, claim.claim)

    assert_fenced_off(world, worker, claim)


def test_a_number_issued_again_and_completed_by_another_worker_is_not_the_old_workers(
    world: World,
) -> None:
    worker, claim = claimed(world)
    raw.forget_claim(world.backend, claim.id)
    other = world.worker()
    world.complete(other, world.claim_one(other), '"theirs"')

    assert_fenced_off(world, worker, claim)


def test_a_number_issued_again_and_put_back_by_another_worker_is_not_the_old_workers(
    world: World,
) -> None:
    worker, claim = claimed(world)
    raw.forget_claim(world.backend, claim.id)
    other = world.worker()
    world.fail(other, world.claim_one(other), delay_us=60 * SECOND)

    assert_fenced_off(world, worker, claim)


def test_a_claim_that_was_lost_and_not_issued_again_changes_nothing(world: World) -> None:
    worker, claim = claimed(world)
    raw.forget_claim(world.backend, claim.id)

    assert_fenced_off(world, worker, claim)


def test_writes_to_a_job_that_is_gone_are_refused(world: World) -> None:
    worker, claim = claimed(world)
    world.complete(worker, claim)
    world.backend.jobs.delete([claim.id])

    assert_fenced_off(world, worker, claim)


def test_an_outcome_from_before_a_job_was_deleted_and_enqueued_again_is_stale(world: World) -> None:
    """With the same id, its claims are counted from one again."""
    new, worker = world.new(), world.worker()
    world.backend.jobs.enqueue([new])
    claim, now = world.claim_one(worker), world.clock.steady()
    old = model.completed(claim, now, now, None)
    verbs.settle(world.backend, worker, [model.released(claim, now)])
    world.backend.jobs.delete([claim.id])
    world.backend.jobs.enqueue([new])

    answer = world.backend.work.exchange(worker, [old], Demand(("default",), ("task",), 1))

    assert [(each.id, each.claim) for each in answer.claims] == [(claim.id, claim.claim)]
    assert (answer.settled.stale, answer.settled.locked) == ([claim.id], [])


def test_a_stale_outcome_does_not_stop_those_beside_it(world: World) -> None:
    worker = world.worker()
    ids = [world.enqueue() for _ in range(4)]
    claims = world.claim(worker, 4)
    raw.forget_claim(world.backend, ids[1])
    now = world.clock.steady()

    settled = verbs.settle(world.backend, worker, [model.completed(claim, now, now) for claim in claims])

    assert settled.stale == [ids[1]]
    assert [job.state for job in world.backend.jobs.get(ids)] == [
        "completed",
        "queued",
        "completed",
        "completed",
    ]


def test_a_rescue_decided_before_a_completion_cannot_undo_it(world: World) -> None:
    worker, claim = claimed(world)
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    assert [verdict.worker_id for verdict in verdicts] == [worker]
    world.complete(worker, claim, '"done"')
    before = raw.stored(world.backend, claim.id)

    rescued = world.backend.workers.rescue(verdicts, rng=world.rng)

    assert rescued == []
    assert raw.stored(world.backend, claim.id) == before
    assert world.job(claim.id).result == '"done"'


def test_where_settle_and_rescue_race_each_job_has_one_outcome_and_the_worker_knows_which(
    world: World,
) -> None:
    worker = world.worker()
    world.backend.jobs.enqueue([world.new() for _ in range(120)])
    claims = world.claim(worker, 120)
    world.clock.advance(60 * SECOND)
    verdicts = verbs.overdue(world.backend)
    ready = threading.Barrier(2, timeout=30)

    def settle() -> set[str]:
        ready.wait()
        stale: set[str] = set()
        left = {claim.id: model.completed(claim, 0, 0) for claim in claims}
        for _ in range(1_000):
            if not left:
                return stale
            batch = list(left.values())[:5]
            settled = verbs.settle(world.backend, worker, batch)
            stale.update(settled.stale)
            left = {i: s for i, s in left.items() if s not in batch or i in settled.locked}
        raise AssertionError("rows stayed locked")

    def rescue() -> set[str]:
        ready.wait()
        return {job.id for _ in range(15) for job in world.backend.workers.rescue(verdicts, rng=world.rng, limit=5)}

    with ThreadPoolExecutor(2) as pool:
        settling, rescuing = pool.submit(settle), pool.submit(rescue)
        stale, rescued = settling.result(), rescuing.result()

    states = {job.id: job.state for job in world.backend.jobs.get([claim.id for claim in claims])}
    assert stale == rescued == {i for i, state in states.items() if state == "scheduled"}
    assert set(states.values()) <= {"completed", "scheduled"}
