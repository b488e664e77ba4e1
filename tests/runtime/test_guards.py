"""Guards in a worker: each test fails if its guard is removed."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import StorageError, StorageLocked, StorageUnavailable
from dray.instants import HOUR, SECOND
from dray.model.settlement import Settlement
from dray.runtime import engine
from dray.runtime.condition import Outage
from dray.runtime.execution import Interrupted
from dray.runtime.heartbeat import Heartbeat, WorkerLease
from dray.runtime.worker import Worker
from tests.backends import beside, raw
from tests.manual_clock import ManualClock
from tests.runtime import test_heartbeat as beats
from tests.runtime.test_outage import fail_once
from tests.runtime.watching import LONG, Gate, ended, outcomes, state_of, until

LEASE = 15 * SECOND


def note_outcomes(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the jobs whose outcomes the engine has tried to write, one entry per try."""
    exchange, found = worker._backend.work.exchange, list[str]()

    def noting(worker_id: str, batch: Sequence[Settlement], *args: Any, **options: Any) -> Any:
        answer = exchange(worker_id, batch, *args, **options)
        found.extend(settlement.id for settlement in batch)
        return answer

    monkeypatch.setattr(worker._backend.work, "exchange", noting)
    return found


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_an_outcome_whose_row_a_users_transaction_holds_is_written_later_and_the_body_runs_once(
    app: App, url: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only PostgreSQL locks single rows. A worker that drops the outcome mistakes the row, at its next beat, for a
    claim whose response was lost, and gives the job back: the body runs a second time."""
    gate, ran = Gate(), list[int]()

    @app.task(name="once")
    def once(ctx: dray.Context) -> str:
        ran.append(ctx.attempt)
        gate.pass_through()
        return "done"

    @app.task(name="child")
    def child() -> None:
        pass

    with app.worker(concurrency=1, lease=60) as worker, beside.connect(url) as request:
        tried = note_outcomes(worker, monkeypatch)
        job = once.enqueue()
        gate.await_arrival()
        after = child.using(after=[job], connection=request).enqueue()
        gate.open()
        until(lambda: job.id in tried)
        assert state_of(job) == "running"
        getattr(request, ending)()
        worker._heartbeat.wake()  # otherwise a dropped outcome would be found only 20 seconds later

        assert ended(job) == "completed"
        assert job.result(timeout=0) == "done"
        if ending == "commit":
            assert ended(app.job(after.id)) == "completed"
    assert (ran, outcomes(job)) == ([1], ["completed"])


def test_a_body_that_lost_its_claim_in_an_outage_is_stopped_before_its_successor_starts(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim had not reached the disk of the crashed server, so another claim runs the job again."""
    arrived, successor, stopped = Gate(), Gate(), list[str]()
    live, most = set[int](), list[int]()

    @app.task(name="long")
    def long() -> None:
        me = len(most)
        live.add(me)
        most.append(len(live))
        try:
            (arrived if me == 0 else successor).pass_through()
        except Interrupted:
            stopped.append("stopped")
            raise
        finally:
            live.discard(me)

    @app.task(name="quick", queue="other")
    def quick() -> None:
        pass

    with app.worker(concurrency=2, lease=60, grace=0) as worker:
        job = long.enqueue()
        arrived.await_arrival()
        app.pause("default")
        raw.forget_claim(core_of(app).backend, job.id)
        fail_once(worker, "exchange", monkeypatch)
        quick.enqueue().result(timeout=LONG)
        until(lambda: stopped, seconds=10)
        until(lambda: not worker._in_flight.executions())
        app.resume("default")
        successor.await_arrival()
        successor.open()
        assert ended(job) == "completed"

    assert stopped == ["stopped"]
    assert most == [1, 1]
    assert outcomes(job) == ["completed"]


def test_a_job_that_was_claimed_ahead_and_cancelled_by_another_process_does_not_start(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_STALE_AHEAD", HOUR)  # after this time the job would be given back anyway
    gate, ran = Gate(), list[str]()

    @app.task(name="hold")
    def hold() -> None:
        gate.pass_through()

    @app.task(name="note")
    def note(name: str) -> None:
        ran.append(name)

    app.pause("default")
    blocker = hold.using(priority=9).enqueue()
    cancelled, other = note.enqueue("cancelled"), note.enqueue("other")
    with app.worker(concurrency=1) as worker, App(url) as elsewhere:
        until(worker._engine.is_idle.is_set)  # its first claim, from a queue it did not know, found nothing
        worker._engine._claim_policy.body_took(1)  # as after many short bodies
        elsewhere.resume("default")
        gate.await_arrival()
        assert state_of(cancelled) == "running"  # claimed ahead

        elsewhere.cancel(cancelled.id)
        worker._heartbeat.wake()
        until(lambda: [each for each in worker._in_flight.executions() if each.stop is not None])
        assert state_of(cancelled) == "running"
        gate.open()

        assert [ended(job) for job in (blocker, cancelled, other)] == ["completed", "cancelled(user)", "completed"]
    assert ran == ["other"]


# The heartbeat, with a clock that the test sets


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def far(clock: ManualClock) -> beats.Far:
    return beats.Far(clock)


@pytest.fixture
def lease(clock: ManualClock, far: Any) -> WorkerLease:
    return WorkerLease("w", far, clock, LEASE)


@pytest.fixture
def bodies(clock: ManualClock, lease: WorkerLease) -> beats.Bodies:
    return beats.Bodies(clock, lease)


@pytest.fixture
def heartbeat(lease: WorkerLease, far: beats.Far, bodies: beats.Bodies) -> Heartbeat:
    return beats.heartbeat_of(lease, far, bodies)


@pytest.mark.parametrize("error", [StorageUnavailable("the network is gone"), StorageLocked("locked")], ids=repr)
def test_a_worker_without_a_proof_of_life_is_cut_off_by_the_first_beat_that_fails(
    heartbeat: Heartbeat, far: beats.Far, bodies: beats.Bodies, error: StorageError
) -> None:
    """It has only its lease: jobs that it claimed now would be taken from it when the lease expires."""
    far.is_held, far.error = False, error

    heartbeat.tick()

    assert bodies.inbox.is_cut_off
    assert bodies.stopped_at is None  # its bodies still have time
    far.error = None
    heartbeat.tick()
    assert not bodies.inbox.is_cut_off


def test_a_worker_with_a_proof_of_life_goes_on_claiming_when_a_beat_fails(
    heartbeat: Heartbeat, far: beats.Far, bodies: beats.Bodies
) -> None:
    far.error = StorageUnavailable("the network is gone")

    heartbeat.tick()

    assert not bodies.inbox.is_cut_off


@pytest.mark.parametrize("took", [1, 4, 9])
def test_after_a_slow_beat_the_lease_counts_from_its_start(
    heartbeat: Heartbeat, clock: ManualClock, far: beats.Far, bodies: beats.Bodies, took: int
) -> None:
    """The database renewed the lease at some moment in between, and the worker cannot know when. By the time of the
    response it may have nearly expired."""
    began = clock.steady()
    far.took = took * SECOND
    heartbeat.tick()
    far.took, far.error = 0, StorageUnavailable("the network is gone")

    assert clock.steady() - heartbeat.lease.obstacle.since == took * SECOND
    while bodies.stopped_at is None and clock.steady() < began + 2 * LEASE:
        clock.advance(max(1_000, int(heartbeat.tick() * SECOND)))

    assert bodies.stopped_at is not None
    assert bodies.stopped_at <= began + LEASE - beats.MARGIN + SECOND // 2
    assert bodies.by == began + LEASE - SECOND


# Text from a body in the log

FORGED = "no\nWARNING dray: all is well\r\x1b[2J\u2028\u202e"
ESCAPED = r"no\nWARNING dray: all is well\r\x1b[2J\u2028\u202e"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Generator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, "dray"):
        yield caplog


def said(log: pytest.LogCaptureFixture, part: str) -> list[str]:
    """Returns the messages that contain this text. No logged message may have a line break or control character."""
    messages = [record.getMessage() for record in log.records if record.name == "dray"]
    assert [each for each in messages if not each.isprintable()] == []
    return [each for each in messages if part in each]


class Forged(BaseException):
    """Not an Exception, but still an error of the body."""


ERRORS: dict[str, BaseException] = {
    "error": ValueError(FORGED),
    "no exception": Forged(FORGED),
    "retry": dray.Retry(0, FORGED),
    "last": dray.Fail(FORGED),
    "cancel": dray.Cancel(FORGED),
    "type": type(f"Odd{FORGED}", (Exception,), {})(),
}


@pytest.mark.parametrize("raised", ERRORS.values(), ids=ERRORS)
def test_the_error_of_a_body_is_one_line_of_the_log(
    app: App, log: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    """This holds for each attempt, whether another follows or not."""

    @app.task(name="forging", max_attempts=2, retry=0)
    def forging() -> None:
        raise raised

    job = forging.enqueue()
    app.worker(concurrency=1).run_until_idle()

    told = said(log, f"job {job.id[-8:]} (forging) ")
    assert len(told) == len(job.attempts())
    assert [each for each in told if ESCAPED not in each] == []


def test_the_error_of_an_outage_is_one_line_of_the_log(log: pytest.LogCaptureFixture) -> None:
    """The driver's message may quote a row."""
    outage = Outage("use the database")

    outage.goes_on(StorageUnavailable(FORGED), now=1)

    assert said(log, "cannot use the database") == [
        f"this worker cannot use the database: {ESCAPED}; going on as soon as it can"
    ]
    assert outage.obstacle is not None
    assert outage.obstacle.reason == f"cannot use the database: {ESCAPED}"
