"""What operators do with ended jobs: retry them, or delete them with their history."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.session import PostgresSession
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import CancelResult, LogLine
from tests import verbs
from tests.backends import beside
from tests.backends.lives import until
from tests.backends.world import World

LARGE = '"' + "x" * 3_000 + '"'


def end(world: World, as_state: str, **options: Any) -> str:
    """Returns a job that has ended."""
    job_id, worker = world.enqueue("ending", max_attempts=1, **options), world.worker()
    if as_state == "cancelled":
        world.backend.jobs.cancel([job_id])
    elif as_state == "failed":
        world.fail(worker, world.claim_one(worker, tasks=("ending",)))
    elif as_state == "crashed":
        world.claim_one(worker, tasks=("ending",))
        world.bury(worker)
    elif as_state == "completed":
        world.complete(worker, world.claim_one(worker, tasks=("ending",)), '"done"')
    return job_id


# Retry


@pytest.mark.parametrize("ended", ["completed", "failed", "crashed", "cancelled"])
def test_an_ended_job_starts_over_as_if_it_were_new(world: World, ended: str) -> None:
    job_id = end(world, ended, args='{"n":1}', priority=3, tags=("x",))
    before = world.job(job_id)
    world.clock.advance(HOUR)

    assert world.backend.jobs.retry([job_id]) == [job_id]

    job = world.job(job_id)
    assert (job.state, job.reason, job.run_at, job.updated_at) == (
        "queued",
        None,
        world.clock.now(),
        world.clock.now(),
    )
    assert (job.attempt, job.crashes, job.claim) == (0, 0, before.claim)
    assert (job.worker_id, job.started_at, job.finished_at, job.cancel_requested_at) == (None,) * 4
    assert (job.result, job.error, job.progress, job.progress_message) == (None,) * 4
    assert (job.args, job.priority, job.tags, job.created_at) == (
        '{"n":1}',
        3,
        ("x",),
        before.created_at,
    )


def test_a_job_started_over_runs_under_a_claim_that_was_never_used(world: World) -> None:
    job_id, worker = end(world, "failed"), world.worker()
    world.backend.jobs.retry([job_id])

    claim = world.claim_one(worker, tasks=("ending",))

    assert (claim.claim, claim.attempt, claim.crashes) == (2, 1, 0)


@pytest.mark.parametrize("live", ["queued", "scheduled", "waiting", "running"])
def test_a_live_job_is_not_started_over(world: World, live: str) -> None:
    parent = world.enqueue("parent")
    job_id = world.enqueue(
        delay_us=HOUR if live == "scheduled" else 0, parents=(parent,) if live == "waiting" else ()
    )
    if live == "running":
        world.claim_one(world.worker())
    before = world.job(job_id)
    assert before.state == live

    assert world.backend.jobs.retry([job_id]) == []

    assert world.job(job_id) == before


def test_only_those_that_ended_among_many_start_over(world: World) -> None:
    failed, live, unknown = end(world, "failed"), world.enqueue(), world.ids.new()

    assert world.backend.jobs.retry([live, failed, unknown, failed]) == [failed]
    assert world.backend.jobs.retry([]) == []


def test_the_completed_attempt_is_kept_in_the_history(world: World) -> None:
    job_id, worker = world.enqueue(), world.worker()
    claim = world.claim_one(worker)
    world.clock.advance(SECOND)
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.completed(claim, now - SECOND, now, '"one"')])
    ended = world.job(job_id)
    assert world.backend.history.attempts(job_id) == []

    world.backend.jobs.retry([job_id])
    world.clock.advance(SECOND)
    world.fail(worker, world.claim_one(worker))
    world.complete(worker, world.claim_one(worker), '"two"')

    first, second = world.backend.history.attempts(job_id)
    assert (first.claim, first.attempt, first.worker_id, first.outcome) == (1, 1, worker, "completed")
    assert (first.started_at, first.finished_at) == (ended.started_at, ended.finished_at)
    assert (second.claim, second.attempt, second.outcome) == (2, 1, "error")
    job = world.job(job_id)
    assert (job.state, job.claim, job.attempt, job.result) == ("completed", 3, 2, '"two"')


def test_a_job_completed_and_started_over_twice_keeps_both_attempts(world: World) -> None:
    job_id, worker = world.enqueue(), world.worker()
    for _ in range(2):
        world.complete(worker, world.claim_one(worker))
        world.backend.jobs.retry([job_id])

    assert [(a.claim, a.outcome) for a in world.backend.history.attempts(job_id)] == [
        (1, "completed"),
        (2, "completed"),
    ]


def test_a_large_result_is_forgotten_and_large_arguments_stay(world: World) -> None:
    job_id, worker = world.enqueue(args=LARGE), world.worker()
    world.complete(worker, world.claim_one(worker), LARGE)
    assert world.job(job_id).result == LARGE

    world.backend.jobs.retry([job_id])
    assert (world.job(job_id).result, world.job(job_id).args) == (None, LARGE)
    claim = world.claim_one(worker)
    world.complete(worker, claim, '"small"')

    assert (claim.args, world.job(job_id).result) == (LARGE, '"small"')


def test_a_cancel_that_was_asked_for_is_forgotten(world: World) -> None:
    job_id, worker = world.enqueue(), world.worker()
    claim = world.claim_one(worker)
    world.backend.jobs.cancel([job_id])
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.cancelled(claim, now, now)])

    world.backend.jobs.retry([job_id])

    world.claim_one(worker)
    assert [held.cancel_requested for held in world.backend.workers.beat(worker, HOUR).held] == [False]


def test_a_result_that_arrives_after_the_job_was_started_over_is_stale(world: World) -> None:
    job_id, lost = world.enqueue(max_attempts=1), world.worker()
    late = world.claim_one(lost)
    world.bury(lost)
    world.backend.jobs.retry([job_id])
    assert world.complete(lost, late, '"late"').stale == [job_id]

    claim = world.claim_one(world.worker())

    assert (claim.claim, claim.attempt) == (2, 1)
    assert world.complete(lost, late, '"late"').stale == [job_id]
    assert (world.job(job_id).state, world.job(job_id).result) == ("running", None)


# Delete


@pytest.mark.parametrize("state", ["queued", "scheduled", "completed", "failed", "cancelled"])
def test_a_job_that_does_not_run_is_deleted(world: World, state: str) -> None:
    if state in {"queued", "scheduled"}:
        job_id = world.enqueue(delay_us=HOUR if state == "scheduled" else 0)
    else:
        job_id = end(world, state)
    other = world.enqueue()

    assert world.backend.jobs.delete([job_id]) == [job_id]

    assert [job.id for job in world.backend.jobs.newest()] == [other]
    assert world.backend.jobs.delete([job_id]) == []


def test_a_running_job_is_not_deleted(world: World) -> None:
    job_id, worker = world.enqueue(), world.worker()
    claim = world.claim_one(worker)

    assert world.backend.jobs.delete([job_id, world.ids.new()]) == []

    world.complete(worker, claim)
    assert world.job(job_id).state == "completed"


def test_a_deleted_job_takes_all_that_belongs_to_it_along(world: World, url: str) -> None:
    job_id, worker = world.enqueue(args=LARGE, max_attempts=1), world.worker()
    child = world.enqueue("child", parents=(job_id,), on_parent_failure="run")
    claim = world.claim_one(worker)
    verbs.write_logs(world.backend, worker, [LogLine(job_id, claim.claim, 0, "INFO", "app", "hello")])
    world.fail(worker, claim)
    world.complete(worker, world.claim_one(worker, tasks=("child",)))
    assert world.job(child).state == "completed"

    assert world.backend.jobs.delete([job_id]) == [job_id]

    for table in ("dray_attempts", "dray_logs", "dray_edges"):
        assert beside.rows(url, "SELECT count(*) FROM " + table) == [(0,)]
    if not isinstance(world.backend.db, PostgresDatabase):  # on PostgreSQL they are in the row
        assert beside.count(url, "dray_payloads") == 0
    assert beside.count(url, "dray_jobs") == 1


def test_a_deleted_job_frees_its_unique_key(world: World) -> None:
    job_id = world.enqueue(unique_key="k", unique_us=HOUR)
    world.backend.jobs.delete([job_id])

    assert not world.backend.jobs.enqueue([world.new(unique_key="k")])[0].duplicate


def test_a_chain_is_deleted_from_its_end(world: World) -> None:
    a = world.enqueue()
    b = world.enqueue(parents=(a,))
    c = world.enqueue(parents=(b,))

    assert [world.backend.jobs.delete([job_id]) for job_id in (a, b, c, b, a)] == [[], [], [c], [b], [a]]


# Lost responses


def test_a_retry_whose_answer_was_lost_is_told_as_done(server: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, live = end(server, "failed"), server.enqueue()
    beside.lose_next_answer(server.backend, monkeypatch)

    assert server.backend.jobs.retry([failed, live]) == [failed]
    assert (server.job(failed).state, server.job(failed).attempt) == ("queued", 0)
    assert server.backend.jobs.retry([failed]) == []


def test_a_delete_whose_answer_was_lost_is_told_as_done(server: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, needed, never = end(server, "completed"), server.enqueue(), server.ids.new()
    server.enqueue("child", parents=(needed,))
    beside.lose_next_answer(server.backend, monkeypatch)

    assert server.backend.jobs.delete([gone, needed, never]) == [gone]
    assert server.backend.jobs.get([gone]) == []
    assert server.backend.jobs.delete([gone]) == []


def test_a_cancel_whose_answer_was_lost_is_told_as_done(server: World, monkeypatch: pytest.MonkeyPatch) -> None:
    running, waiting, ended = server.enqueue(), server.enqueue(), end(server, "cancelled")
    server.claim_one(server.worker())
    beside.lose_next_answer(server.backend, monkeypatch)

    answer = server.backend.jobs.cancel([running, waiting, ended])

    assert answer == {
        running: CancelResult.REQUESTED,
        waiting: CancelResult.CANCELLED,
        ended: CancelResult.FINAL,
    }
    assert server.backend.jobs.cancel([waiting]) == {waiting: CancelResult.FINAL}


def test_a_job_that_another_has_ended_between_two_tries_was_not_cancelled(
    server: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try had no effect: its connection was lost before the commit."""
    job_id, worker = server.enqueue(), server.worker()
    claim = server.claim_one(worker)
    assert isinstance(server.backend.db, PostgresDatabase)
    rows, losses = PostgresSession.rows, [1]

    def cut(session: PostgresSession, name: str, /, **params: Any) -> list[Any]:
        answer = rows(session, name, **params)
        if name == "settle_found" and losses:
            losses.pop()
            session._connection.close()
            until(lambda: not server.complete(worker, claim).locked)  # the server lets go of the row a little later
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(PostgresSession, "rows", cut)

    assert server.backend.jobs.cancel([job_id]) == {job_id: CancelResult.FINAL}
    assert server.job(job_id).state == "completed"
