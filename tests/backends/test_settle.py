"""Settling: how an attempt ends, what is stored, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dray.backends import open_backend
from dray.backends.store.work import SILENCE, Exchange, Notes, Report
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Demand, LogLine, Outcome, Reason
from dray.model.settlement import Settled, Settlement
from dray.wording import short_id
from tests import verbs
from tests.backends import raw
from tests.backends.world import World

if TYPE_CHECKING:
    from dray.clock import Ids
    from tests.manual_clock import ManualClock

WRITTEN = Settled(stale=[], already=[], locked=[], refused=[], cancelled=[])
UNICODE = json.dumps({"text": 'žluťoučký 🐎 \u0000 "quoted" \n %s :name ? $1'}, ensure_ascii=False)


# What is stored


@pytest.mark.parametrize("size", [0, 100, 1_000, 2_000, 100_000])
def test_arguments_and_result_of_any_size_read_back_equal(world: World, size: int) -> None:
    args, result = json.dumps(["ř" * size]), json.dumps({"ž": "🐎" * size}, ensure_ascii=False)
    job_id = world.enqueue(args=args)
    worker = world.worker()

    claim = world.claim_one(worker)
    settled = world.complete(worker, claim, result)

    assert claim.args == args
    assert settled == WRITTEN
    job = world.job(job_id)
    assert (job.state, job.reason, job.args, job.result) == ("completed", None, args, result)


def test_text_that_looks_like_sql_json_or_placeholders_reads_back_equal(world: World) -> None:
    job_id = world.enqueue(args=UNICODE)
    worker = world.worker()

    claim = world.claim_one(worker)
    world.complete(worker, claim, UNICODE)

    assert claim.args == world.job(job_id).args == world.job(job_id).result == UNICODE


def test_a_result_of_none_is_no_result(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()

    world.complete(worker, world.claim_one(worker), None)

    assert world.job(job_id).result is None


@pytest.mark.parametrize("second", ["1", None, json.dumps("y" * 5_000)])
def test_the_result_of_a_later_run_replaces_a_large_one(world: World, second: str | None) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.complete(worker, world.claim_one(worker), json.dumps("x" * 2_000))
    world.backend.jobs.retry([job_id])
    assert world.job(job_id).result is None

    world.complete(worker, world.claim_one(worker), second)

    assert world.job(job_id).result == second


@pytest.mark.parametrize("size", [10, 2_000])
def test_arguments_not_kept_are_dropped_once_the_job_completed_and_not_before(world: World, size: int) -> None:
    args = json.dumps(["x" * size])
    job_id = world.enqueue(args=args)
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))
    assert world.job(job_id).args == args
    claim = world.claim_one(worker)
    assert claim.args == args

    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.completed(claim, now, now, '"done"', keep_args=False)])

    job = world.job(job_id)
    assert (job.args, job.result) == (None, '"done"')
    assert world.backend.jobs.retry([job_id]) == []  # it has no arguments to run with


def test_the_error_is_short_in_the_jobs_row_and_whole_in_its_attempt(world: World) -> None:
    job_id = world.enqueue(max_attempts=1)
    worker = world.worker()
    message, trace = "příliš dlouhé " * 200, "Traceback …\n" * 500
    claim, now = world.claim_one(worker), world.clock.steady()

    settlement = model.errored(claim, now, now, Outcome.ERROR, 0, "ValueError", message, trace)
    verbs.settle(world.backend, worker, [settlement])

    error = world.job(job_id).error
    assert error is not None
    assert (len(error), error[:19], error[-1]) == (300, "ValueError: příliš ", "…")
    (attempt,) = world.backend.history.attempts(job_id)
    assert (attempt.error_type, attempt.error_message, attempt.traceback) == ("ValueError", message, trace)


def test_every_attempt_is_recorded_but_the_completed_one_that_the_row_shows(world: World) -> None:
    job_id = world.enqueue(max_attempts=5)
    worker, other = world.worker(), world.worker()
    world.fail(worker, world.claim_one(worker))
    claim, now = world.claim_one(other), world.clock.steady()
    timeout = model.errored(claim, now, now, Outcome.TIMEOUT, 0, "Timeout", "5 s", None)
    verbs.settle(world.backend, other, [timeout])
    world.complete(worker, world.claim_one(worker))

    recorded = [(a.claim, a.attempt, a.worker_id, a.outcome) for a in world.backend.history.attempts(job_id)]

    assert recorded == [(1, 1, worker, "error"), (2, 2, other, "timeout")]
    job = world.job(job_id)
    assert (job.claim, job.attempt, job.worker_id, job.error) == (3, 3, worker, None)


def test_a_completed_attempt_moves_to_the_history_before_the_job_runs_again(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    world.complete(worker, world.claim_one(worker))
    shown = world.job(job_id)

    world.backend.jobs.retry([job_id])

    (attempt,) = world.backend.history.attempts(job_id)
    assert (attempt.claim, attempt.attempt, attempt.worker_id, attempt.outcome) == (1, 1, worker, "completed")
    assert (attempt.started_at, attempt.finished_at) == (shown.started_at, shown.finished_at)


def _history_of(world: World, attempts: int) -> tuple[str, str, Claim]:
    """Returns a job with this many failed attempts, and its next claim."""
    job_id = world.enqueue(max_attempts=1_000)
    worker = world.worker()
    claim = world.claim_one(worker)
    for _ in range(attempts):
        now = world.clock.steady()
        settlement = model.errored(claim, now, now, Outcome.ERROR, 0, "ValueError", f"{claim.claim}", None)
        demand = Demand(("default",), ("task",), 1)
        (claim,) = world.backend.work.exchange(worker, [settlement], demand).claims
    return job_id, worker, claim


def test_the_newest_100_attempts_are_kept(world: World) -> None:
    job_id, _, _ = _history_of(world, 103)

    kept = world.backend.history.attempts(job_id)

    assert [attempt.claim for attempt in kept] == list(range(4, 104))
    assert world.job(job_id).attempt == 104


def test_a_crash_and_an_operator_retry_keep_no_more_than_100_attempts_either(world: World) -> None:
    job_id, worker, _ = _history_of(world, 100)
    world.bury(worker)
    after_crash = [attempt.claim for attempt in world.backend.history.attempts(job_id)]
    world.clock.advance(SECOND)
    other = world.worker()
    world.complete(other, world.claim_one(other))
    world.backend.jobs.retry([job_id])
    after_retry = [attempt.claim for attempt in world.backend.history.attempts(job_id)]

    assert after_crash == list(range(2, 102))
    assert after_retry == list(range(3, 103))


# What is counted


def test_a_failed_attempt_waits_for_its_delay_and_stays_counted(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()

    settled = world.fail(worker, world.claim_one(worker), delay_us=5 * SECOND)

    assert settled == WRITTEN
    job = world.job(job_id)
    assert (job.state, job.attempt, job.claim, job.worker_id) == ("scheduled", 1, 1, None)
    assert (job.run_at, job.error) == (world.clock.now() + 5 * SECOND, "ValueError: no")
    assert (job.started_at, job.finished_at) == (None, None)
    assert world.claim(worker) == []
    world.clock.advance(5 * SECOND)
    again = world.claim_one(worker)
    assert (again.id, again.attempt, again.claim) == (job_id, 2, 2)


def test_a_failed_attempt_without_a_delay_is_ready_at_once(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()

    world.fail(worker, world.claim_one(worker))

    assert world.job(job_id).state == "queued"
    assert world.claim_one(worker).attempt == 2


def test_the_last_attempt_that_fails_ends_the_job(world: World) -> None:
    job_id = world.enqueue(max_attempts=2)
    worker = world.worker()
    world.fail(worker, world.claim_one(worker))

    world.fail(worker, world.claim_one(worker))

    job = world.job(job_id)
    assert (job.state, job.reason, job.attempt, job.worker_id) == ("failed", "error", 2, worker)
    assert job.finished_at == world.clock.now()
    assert [attempt.outcome for attempt in world.backend.history.attempts(job_id)] == ["error", "error"]
    assert world.claim(worker) == []


def test_an_attempt_that_must_not_be_repeated_ends_the_job_with_attempts_left(world: World) -> None:
    job_id = world.enqueue(max_attempts=5)
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()

    verbs.settle(world.backend, worker, [model.failed(claim, now, now, Reason.ARGUMENTS, "TypeError", "no x", None)])

    job = world.job(job_id)
    assert (job.state, job.reason, job.attempt, job.error) == ("failed", "arguments", 1, "TypeError: no x")


def test_a_body_that_cancels_itself_ends_as_cancelled(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()

    settled = verbs.settle(world.backend, worker, [model.cancelled(claim, now, now, "not needed")])

    assert settled == WRITTEN
    job = world.job(job_id)
    assert (job.state, job.reason, job.error) == ("cancelled", "user", "not needed")
    assert [attempt.outcome for attempt in world.backend.history.attempts(job_id)] == ["cancelled"]


def test_a_snooze_moves_the_job_gives_the_attempt_back_and_leaves_no_record(world: World) -> None:
    job_id = world.enqueue(max_attempts=1)
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()

    settled = verbs.settle(world.backend, worker, [model.snoozed(claim, now, now, 60 * SECOND)])

    assert settled == WRITTEN
    job = world.job(job_id)
    assert (job.state, job.attempt, job.claim) == ("scheduled", 0, 1)
    assert job.run_at == world.clock.now() + 60 * SECOND
    assert world.backend.history.attempts(job_id) == []


def test_a_job_can_snooze_for_ever(world: World) -> None:
    world.enqueue(max_attempts=1)
    worker = world.worker()
    for n in range(1, 20):
        claim, now = world.claim_one(worker), world.clock.steady()
        assert (claim.attempt, claim.claim) == (1, n)
        verbs.settle(world.backend, worker, [model.snoozed(claim, now, now, 0)])


def test_a_release_gives_the_attempt_back_and_leaves_no_record(world: World) -> None:
    job_id = world.enqueue(max_attempts=1)
    worker = world.worker()
    claim = world.claim_one(worker)

    settled = verbs.settle(world.backend, worker, [model.released(claim, world.clock.steady())])

    assert settled == WRITTEN
    job = world.job(job_id)
    assert (job.state, job.attempt, job.claim, job.worker_id, job.started_at) == ("queued", 0, 1, None, None)
    assert world.backend.history.attempts(job_id) == []


def errors_after(world: World, end: Callable[[Claim, int], Settlement]) -> tuple[str | None, str | None]:
    """Returns the error of a job that failed once, before and after another attempt ends in this way."""
    job_id, worker = world.enqueue(), world.worker()
    world.fail(worker, world.claim_one(worker))
    before, claim = world.job(job_id).error, world.claim_one(worker)
    verbs.settle(world.backend, worker, [end(claim, world.clock.steady())])
    return before, world.job(job_id).error


def released_later(claim: Claim, at: int) -> Settlement:
    """Released by a process that exits while a body does not stop."""
    return model.released(claim, at)._replace(state="scheduled", delay_us=SECOND)


def postponed(claim: Claim, at: int) -> Settlement:
    return model.postponed(claim, at, SECOND)


@pytest.mark.parametrize("end", [model.released, released_later, postponed])
def test_a_job_that_goes_back_unrun_keeps_the_error_it_had(
    world: World, end: Callable[[Claim, int], Settlement]
) -> None:
    assert errors_after(world, end) == ("ValueError: no", "ValueError: no")


def test_a_body_that_ran_and_snoozed_leaves_no_error_of_before(world: World) -> None:
    assert errors_after(world, lambda claim, at: model.snoozed(claim, at, at, 0)) == ("ValueError: no", None)


def test_a_released_job_keeps_its_place_in_the_queue_and_a_snoozed_one_goes_behind(world: World) -> None:
    first, second = world.enqueue(), world.enqueue()
    worker = world.worker()
    claims = world.claim(worker, 2)
    world.clock.advance(SECOND)
    third = world.enqueue()
    place = world.job(second).run_at
    world.clock.advance(SECOND)
    now = world.clock.steady()

    verbs.settle(world.backend, worker, [model.snoozed(claims[0], now, now, 0), model.released(claims[1], now)])

    assert world.job(second).run_at == place
    assert world.job(first).run_at == world.clock.now()
    assert [claim.id for claim in world.claim(worker, 3)] == [second, third, first]


def test_an_operator_retry_starts_the_counts_over_but_never_the_claim(world: World) -> None:
    job_id = world.enqueue(max_attempts=2)
    worker = world.worker()
    world.claim_one(worker)
    world.bury(worker)
    world.clock.advance(SECOND)
    other = world.worker()
    world.fail(other, world.claim_one(other))
    job = world.job(job_id)
    assert (job.state, job.attempt, job.crashes, job.claim) == ("failed", 2, 1, 2)

    retried = world.backend.jobs.retry([job_id])

    assert retried == [job_id]
    job = world.job(job_id)
    assert (job.state, job.attempt, job.crashes, job.claim) == ("queued", 0, 0, 2)
    assert (job.reason, job.error, job.worker_id, job.finished_at) == (None, None, None, None)
    again = world.claim_one(other)
    assert (again.attempt, again.crashes, again.claim) == (1, 0, 3)


def test_a_running_job_is_not_retried_by_an_operator(world: World) -> None:
    job_id = world.enqueue()
    world.claim_one(world.worker())
    before = raw.stored(world.backend, job_id)
    world.clock.advance(SECOND)

    assert world.backend.jobs.retry([job_id]) == []
    assert raw.stored(world.backend, job_id) == before


# Times


def test_times_are_those_of_the_body_though_the_settle_came_late(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim = world.claim_one(worker)
    world.clock.advance(2 * SECOND)
    started, started_at = world.clock.steady(), world.clock.now()
    world.clock.advance(3 * SECOND)
    finished, finished_at = world.clock.steady(), world.clock.now()
    world.clock.advance(30 * SECOND)

    verbs.settle(world.backend, worker, [model.completed(claim, started, finished)])

    job = world.job(job_id)
    assert (job.started_at, job.finished_at) == (started_at, finished_at)
    assert job.updated_at == world.clock.now()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_wall_clock_does_not_change_how_long_a_body_ran(world: World, step: int) -> None:
    done, gone = world.enqueue(), world.enqueue(max_attempts=1)
    worker = world.worker()
    first, second = world.claim(worker, 2)
    started = world.clock.steady()
    world.clock.advance(3 * SECOND)
    finished = world.clock.steady()
    world.clock.step(step)
    world.clock.advance(30 * SECOND)

    verbs.settle(
        world.backend,
        worker,
        [
            model.completed(first, started, finished),
            model.errored(second, started, finished, Outcome.ERROR, 0, "ValueError", "no", None),
        ],
    )

    finished_at = world.clock.now() - 30 * SECOND
    for job in (world.job(done), world.job(gone)):
        assert (job.started_at, job.finished_at) == (finished_at - 3 * SECOND, finished_at)
    (attempt,) = world.backend.history.attempts(gone)
    assert (attempt.started_at, attempt.finished_at) == (finished_at - 3 * SECOND, finished_at)


def test_the_times_of_an_attempt_that_is_repeated_are_kept_in_its_record(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim = world.claim_one(worker)
    started, started_at = world.clock.steady(), world.clock.now()
    world.clock.advance(3 * SECOND)
    finished = world.clock.steady()
    world.clock.advance(30 * SECOND)

    settlement = model.errored(claim, started, finished, Outcome.ERROR, 10 * SECOND, "ValueError", "no", None)
    verbs.settle(world.backend, worker, [settlement])

    (attempt,) = world.backend.history.attempts(job_id)
    assert (attempt.started_at, attempt.finished_at) == (started_at, started_at + 3 * SECOND)


# Repeated


REPEATABLE: dict[str, Callable[[Claim, int], Settlement]] = {
    "completed": lambda claim, at: model.completed(claim, at, at, json.dumps("x" * 2_000)),
    "failed": lambda claim, at: model.failed(claim, at, at, Reason.ERROR, "ValueError", "no", "trace"),
    "retry": lambda claim, at: model.errored(claim, at, at, Outcome.RETRY, SECOND, "Retry", "later", None),
    "cancelled": lambda claim, at: model.cancelled(claim, at, at, "stopped"),
}


@pytest.mark.parametrize("outcome", REPEATABLE)
def test_an_outcome_whose_answer_was_lost_can_be_written_again_and_stands_once(world: World, outcome: str) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    settlement = REPEATABLE[outcome](world.claim_one(worker), world.clock.steady())
    assert verbs.settle(world.backend, worker, [settlement]) == WRITTEN
    before = raw.stored(world.backend, job_id)
    world.clock.advance(500_000)

    again = verbs.settle(world.backend, worker, [settlement])

    assert again == WRITTEN._replace(already=[job_id])
    assert raw.stored(world.backend, job_id) == before


def test_an_outcome_given_twice_in_one_batch_is_written_once(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    settlement = REPEATABLE["retry"](world.claim_one(worker), world.clock.steady())

    settled = verbs.settle(world.backend, worker, [settlement, settlement])

    assert settled == WRITTEN
    assert (world.job(job_id).state, world.job(job_id).attempt) == ("scheduled", 1)
    assert len(world.backend.history.attempts(job_id)) == 1


# Bad data


REFUSED: dict[str, Callable[[Claim, int], Settlement]] = {
    "no reason": lambda claim, at: REPEATABLE["failed"](claim, at)._replace(reason=None),
    "unknown state": lambda claim, at: model.completed(claim, at, at)._replace(state="nonsense"),
    "lone surrogate": lambda claim, at: model.completed(claim, at, at, '"\ud800"'),
    "endless delay": lambda claim, at: REPEATABLE["retry"](claim, at)._replace(delay_us=1 << 70),
}


def _batch_of_ten(
    world: World, bad: Callable[[Claim, int], Settlement], places: set[int]
) -> tuple[str, list[str], list[Settlement]]:
    worker = world.worker()
    ids = [world.enqueue() for _ in range(10)]
    now = world.clock.steady()
    good = [REPEATABLE["completed"], REPEATABLE["retry"], REPEATABLE["failed"]]
    outcomes = [bad if n in places else good[n % 3] for n in range(10)]
    settlements = [make(claim, now) for make, claim in zip(outcomes, world.claim(worker, 10), strict=True)]
    return worker, ids, settlements


def _assert_good_ones_written(world: World, ids: list[str], places: set[int]) -> None:
    for n, job in enumerate(world.backend.jobs.get(ids)):
        if n in places:
            continue
        recorded = [attempt.outcome for attempt in world.backend.history.attempts(job.id)]
        expected = [("completed", []), ("scheduled", ["retry"]), ("failed", ["error"])][n % 3]
        assert (job.state, recorded) == expected
        assert job.attempt == 1


@pytest.mark.parametrize("bad", REFUSED)
def test_an_outcome_that_the_database_refuses_does_not_block_those_beside_it(world: World, bad: str) -> None:
    worker, ids, settlements = _batch_of_ten(world, REFUSED[bad], {4})

    settled = verbs.settle(world.backend, worker, settlements)

    assert settled == WRITTEN._replace(refused=[ids[4]])
    _assert_good_ones_written(world, ids, {4})
    job = world.job(ids[4])
    assert (job.state, job.reason, job.result) == ("failed", "result", None)
    assert [attempt.outcome for attempt in world.backend.history.attempts(ids[4])] == ["result"]


def test_several_refused_outcomes_are_all_found(world: World) -> None:
    places = {0, 1, 9}
    worker, ids, settlements = _batch_of_ten(world, REFUSED["no reason"], places)

    settled = verbs.settle(world.backend, worker, settlements)

    assert sorted(settled.refused) == [ids[0], ids[1], ids[9]]
    _assert_good_ones_written(world, ids, places)
    assert {job.reason for n, job in enumerate(world.backend.jobs.get(ids)) if n in places} == {"result"}


def test_a_nul_in_an_error_message_does_not_block_the_outcomes_beside_it(world: World) -> None:
    def with_nul(claim: Claim, at: int) -> Settlement:
        return model.failed(claim, at, at, Reason.ERROR, "ValueError", "a\x00b", "trace\x00")

    worker, ids, settlements = _batch_of_ten(world, with_nul, {4})

    settled = verbs.settle(world.backend, worker, settlements)

    _assert_good_ones_written(world, ids, {4})
    # PostgreSQL refuses the character, SQLite stores it. Either way the job has failed and ran once.
    outcome = (settled.refused, world.job(ids[4]).reason)
    assert outcome in [([ids[4]], "result"), ([], "error")]
    assert (world.job(ids[4]).state, len(world.backend.history.attempts(ids[4]))) == ("failed", 1)


@pytest.mark.parametrize("ends", [0, 1, 2])
@pytest.mark.parametrize("bad", ["a line", "a report"])
def test_notes_that_the_database_refuses_are_dropped_and_cost_no_outcome_and_no_claim(
    world: World, bad: str, ends: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [world.enqueue() for _ in range(4)]
    worker = world.worker()
    claims = world.claim(worker, 3)
    claim, half = claims[0], "half \ud83d"
    line = LogLine(claim.id, claim.claim, 0, "INFO", "shop", half)
    notes = Notes([line] if bad == "a line" else (), [Report(claim.id, 1, 5.0, half)] if bad == "a report" else ())
    settlements = [model.completed(each, 0, 0) for each in claims[:ends]]

    exchange = world.backend.work.exchange(worker, settlements, Demand(("default",), ("task",), 5), notes)

    assert (exchange.settled, exchange.late) == (WRITTEN, SILENCE)
    assert [each.id for each in exchange.claims] == ids[3:]
    assert [world.job(job_id).state for job_id in ids[:3]] == ["completed"] * ends + ["running"] * (3 - ends)
    (record,) = [record for record in caplog.records if record.name == "dray"]
    assert short_id(claim.id) in record.getMessage()


def test_a_refused_outcome_does_not_cost_what_bodies_said(world: World) -> None:
    worker, ids, settlements = _batch_of_ten(world, REFUSED["no reason"], {4})
    notes = Notes([LogLine(s.id, s.claim, s.started, "INFO", "shop", "said") for s in settlements])

    settled = world.backend.work.exchange(worker, settlements, Demand((), (), 0), notes).settled

    assert settled == WRITTEN._replace(refused=[ids[4]])
    assert [len(world.backend.history.log_lines(job_id)) for job_id in ids] == [1] * 10


def test_a_refused_outcome_does_not_stop_the_claim_beside_it(world: World) -> None:
    worker, ids, settlements = _batch_of_ten(world, REFUSED["unknown state"], {4})
    ready = world.enqueue()

    exchange = world.backend.work.exchange(worker, settlements, Demand(("default",), ("task",), 5))

    assert exchange.settled.refused == [ids[4]]
    assert [claim.id for claim in exchange.claims] == [ready]


def test_a_refused_outcome_of_a_lost_claim_is_stale_and_fails_nothing(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()
    raw.forget_claim(world.backend, job_id)
    world.claim_one(world.worker())
    before = raw.stored(world.backend, job_id)

    settled = verbs.settle(world.backend, worker, [REFUSED["lone surrogate"](claim, now)])

    assert settled == WRITTEN._replace(stale=[job_id])
    assert raw.stored(world.backend, job_id) == before


# One transaction


def test_an_exchange_settles_promotes_expires_and_claims_at_once(world: World) -> None:
    worker = world.worker()
    done = world.enqueue(priority=9)
    claim = world.claim_one(worker)
    due = world.enqueue(delay_us=SECOND)
    later = world.enqueue(delay_us=HOUR)
    expired = world.enqueue(expires_us=SECOND)
    world.clock.advance(SECOND)
    now = world.clock.steady()

    exchange = world.backend.work.exchange(
        worker, [model.completed(claim, now, now)], Demand(("default",), ("task",), 5)
    )

    assert exchange.settled == WRITTEN
    assert exchange.promoted == ["default"]
    assert [claim.id for claim in exchange.claims] == [due]
    states = {job.id: (job.state, job.reason) for job in world.backend.jobs.get([done, due, later, expired])}
    assert states == {
        done: ("completed", None),
        due: ("running", None),
        later: ("scheduled", None),
        expired: ("cancelled", "expired"),
    }


def test_what_an_exchange_puts_back_it_may_claim_again(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()
    failed = model.errored(claim, now, now, Outcome.ERROR, 0, "ValueError", "no", None)

    exchange = world.backend.work.exchange(worker, [failed], Demand(("default",), ("task",), 1))

    assert [(again.id, again.claim, again.attempt) for again in exchange.claims] == [(job_id, 2, 2)]


def test_a_released_job_that_expires_in_the_same_exchange_was_not_cancelled_by_anybody(world: World) -> None:
    job_id = world.enqueue(expires_us=SECOND)
    worker = world.worker()
    claim = world.claim_one(worker)
    world.clock.advance(2 * SECOND)

    exchange = world.backend.work.exchange(
        worker, [model.released(claim, world.clock.steady())], Demand(("default",), ("task",), 1)
    )

    assert (world.job(job_id).state, world.job(job_id).reason) == ("cancelled", "expired")
    assert exchange == Exchange(WRITTEN, [], [], expired=(job_id,))


def test_an_outcome_can_be_made_durable(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim, now = world.claim_one(worker), world.clock.steady()

    settled = verbs.settle(world.backend, worker, [model.completed(claim, now, now)], durable=True)

    assert settled == WRITTEN
    assert world.job(job_id).state == "completed"


def test_an_outcome_whose_row_somebody_holds_is_written_later_and_never_dropped(world: World) -> None:
    job_id = world.enqueue()
    worker = world.worker()
    claim = world.claim_one(worker)

    def settle_until_written() -> Settled:
        for _ in range(20_000):
            if not (settled := world.complete(worker, claim, '"done"')).locked:
                return settled
        raise AssertionError("the row stayed locked")

    with ThreadPoolExecutor(1) as pool:
        with raw.job_held(world.backend, job_id):
            settling = pool.submit(settle_until_written)
            with pytest.raises(TimeoutError):
                settling.result(timeout=0.1)
        settled = settling.result(timeout=30)

    assert settled == WRITTEN
    assert (world.job(job_id).state, world.job(job_id).result) == ("completed", '"done"')


def test_on_postgres_a_row_that_somebody_holds_does_not_hold_up_the_outcomes_beside_it(
    postgres_url: str, clock: ManualClock, ids: Ids
) -> None:
    with closing(open_backend(postgres_url, clock=clock)) as backend:
        backend.migrate()
        world = World(backend, clock, ids)
        held, free = world.enqueue(), world.enqueue()
        worker = world.worker()
        settlements = [model.completed(claim, 0, 0) for claim in world.claim(worker, 2)]

        with ThreadPoolExecutor(1) as pool, raw.job_held(backend, held):
            settled = pool.submit(verbs.settle, backend, worker, settlements).result(timeout=10)
        again = verbs.settle(backend, worker, settlements)

        assert settled == WRITTEN._replace(locked=[held])
        assert again == WRITTEN._replace(already=[free])
        assert [job.state for job in backend.jobs.get([held, free])] == ["completed", "completed"]
