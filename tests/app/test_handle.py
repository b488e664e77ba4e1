"""A job's handle: its attributes, waiting for results, and actions."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends.store.work import Report
from dray.errors import JobCancelled, JobEnded, JobFailed, UnknownJob
from dray.handle.job import AttemptError, Job, Progress
from dray.instants import SECOND, to_datetime
from dray.model import settlement as model
from dray.model.job import LogLine, Reason
from dray.ops.why import why
from tests import verbs
from tests.app.hands import LEASE_US, Hands
from tests.manual_clock import ManualClock


def tomorrow(day: date) -> date:
    return day + timedelta(days=1)


# Attributes


def test_what_it_shows_stays_as_it_was_until_it_is_refreshed(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    assert job.state == "queued"

    hands.complete(job)

    assert job.state == "queued"
    assert job.refresh().state == "completed"
    assert asyncio.run(app.job(job.id).arefresh()).state == "completed"


def test_a_fresh_handle_is_not_read_before_it_is_asked(app: App) -> None:
    job = app.enqueue("x")
    app.cancel(job)

    assert job.state == "cancelled"


def test_it_shows_the_facts_of_the_row(app: App, hands: Hands, clock: ManualClock) -> None:
    began = to_datetime(clock.now())
    job = app.enqueue("x", {"a": 1}, queue="q", priority=3, name="one", tags=["t"], max_attempts=2)
    assert (job.started_at, job.finished_at, job.expires_at) == (None, None, None)
    hands.complete(job)

    job.refresh()

    assert (job.task, job.queue, job.priority, job.name, job.tags) == ("x", "q", 3, "one", ("t",))
    assert (job.state, job.reason, job.error, job.attempt, job.max_attempts) == ("completed", None, None, 1, 2)
    assert (job.created_at, job.run_at, job.started_at) == (began, began, began)
    assert job.finished_at == began + timedelta(seconds=1)
    assert job.created_at.tzinfo is UTC
    assert repr(job) == f"<Job {job.id} x completed>"


def test_arguments_that_a_task_redacts_are_hidden(app: App) -> None:
    def send(to: str, token: str) -> None: ...

    job = app.task(name="send", redact=["token"])(send).enqueue("ann", "secret")

    assert job.args == {"to": "ann", "token": "***"}
    assert "secret" not in repr(job)


def test_arguments_that_were_not_kept_are_none(app: App, hands: Hands) -> None:
    job = app.enqueue("x", {"a": 1})
    claim, now = hands.claim(job), hands.clock.steady()
    hands.settle(model.completed(claim, now, now, keep_args=False))

    assert job.args is None


def test_progress_is_what_the_body_said_last(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    assert job.progress == Progress(None, None)

    claim = hands.claim(job)
    verbs.progress(core_of(app).backend, hands.worker, [Report(claim.id, claim.claim, 42.5, "half way")])

    percent, message = job.refresh().progress
    assert (percent, message) == (42.5, "half way")


def test_logs_are_read_in_order_and_on_from_a_line(app: App, hands: Hands, clock: ManualClock) -> None:
    job = app.enqueue("x")
    claim, at = hands.claim(job), clock.steady()
    lines = [LogLine(job.id, claim.claim, at, "INFO", "shop", f"line {n}") for n in range(3)]
    verbs.write_logs(core_of(app).backend, hands.worker, lines)

    found = job.logs()

    assert [(line.level, line.logger, line.message) for line in found] == [
        ("INFO", "shop", f"line {n}") for n in range(3)
    ]
    assert found[0].at == to_datetime(clock.now())
    assert job.logs(after=found[0].seq, limit=1) == found[1:2]


def test_a_handle_stays_in_its_process(app: App) -> None:
    job = app.enqueue("x")

    with pytest.raises(TypeError, match=f"job {job.id} stays in its process; pass job.id"):
        pickle.dumps(job)


# Attempts


def test_every_attempt_is_shown_with_its_error(app: App, hands: Hands) -> None:
    job = app.enqueue("x", max_attempts=3)
    assert job.attempts() == []
    hands.stumble(job, "first")
    hands.stumble(job, "second")
    claim = hands.claim(job)

    first, second, third = job.attempts()

    assert [(a.number, a.outcome, a.worker) for a in (first, second)] == [
        (1, "error", hands.worker),
        (2, "error", hands.worker),
    ]
    assert first.error == AttemptError("ValueError", "first", "Traceback: here")
    assert first.started_at is not None
    assert first.finished_at is not None
    assert (third.number, third.outcome, third.finished_at, third.error) == (3, "running", None, None)

    hands.complete(job, 7, claim)

    *_, third = job.attempts()
    assert (third.number, third.outcome, third.worker, third.error) == (3, "completed", hands.worker, None)
    assert third.finished_at == job.finished_at


def test_attempts_before_a_retry_are_still_shown(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.complete(job)
    assert job.retry()
    hands.fail(job)

    assert [(a.number, a.outcome) for a in job.attempts()] == [(1, "completed"), (1, "error")]


def test_attempts_with_the_same_number_are_told_apart_by_their_start_and_claim(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.stumble(job)
    hands.fail(job)
    assert job.retry()
    hands.fail(job)
    assert job.retry()
    hands.complete(job)

    numbers = [(a.start, a.number, a.claim) for a in job.attempts()]

    assert numbers == [(1, 1, 1), (1, 2, 2), (2, 1, 3), (3, 1, 4)]
    assert "in start 3, attempt 1 of 3" in why(core_of(app).backend, job.id).causes[0].text


# Results


def test_the_result_is_what_the_body_returned(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.complete(job, {"rows": [1, 2]})

    assert job.result() == {"rows": [1, 2]}
    assert asyncio.run(job.aresult()) == {"rows": [1, 2]}
    assert job.state == "completed"


def test_the_result_has_the_type_of_the_annotation_where_the_task_is_known(app: App, hands: Hands, url: str) -> None:
    job = app.task(name="tomorrow")(tomorrow).enqueue(date(2026, 1, 1))
    hands.complete(job, "2026-01-02")

    assert job.result() == date(2026, 1, 2)
    with App(url) as elsewhere:
        assert elsewhere.job(job.id).result() == "2026-01-02"


def test_a_body_that_returned_nothing_has_the_result_none(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    claim, now = hands.claim(job), hands.clock.steady()
    hands.settle(model.completed(claim, now, now, None))

    assert job.result(timeout=5) is None


def test_a_result_is_waited_for(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(job.result(timeout=30)))
    thread.start()
    hands.complete(job, 7)
    thread.join()

    assert found == [7]


def test_a_coroutine_waits_for_a_result(app: App, hands: Hands) -> None:
    job = app.enqueue("x")

    async def wait() -> Any:
        waiting = asyncio.create_task(job.aresult(timeout=30))
        await asyncio.sleep(0)
        await asyncio.to_thread(hands.complete, job, 7)
        return await waiting

    assert asyncio.run(wait()) == 7


@pytest.mark.parametrize(
    ("timeout", "within"), [(0, "0 seconds"), (0.01, "0.01 seconds"), (timedelta(seconds=1), "1 second")]
)
def test_a_job_that_takes_too_long_goes_on(app: App, hands: Hands, timeout: Any, within: str) -> None:
    job = app.enqueue("x")
    hands.claim(job)

    with pytest.raises(TimeoutError, match=f"job {job.id} has not ended within {within} and goes on"):
        job.result(timeout=timeout)
    with pytest.raises(TimeoutError):
        asyncio.run(job.aresult(timeout=timeout))
    assert job.state == "running"


def test_no_time_at_all_is_enough_for_a_job_that_has_ended(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.complete(job, 7)

    assert job.result(timeout=0) == 7
    assert asyncio.run(job.aresult(timeout=0)) == 7


@pytest.mark.parametrize(("timeout", "kind"), [(-1, ValueError), ("5", TypeError), (float("nan"), ValueError)])
def test_a_timeout_that_means_nothing_is_refused(app: App, timeout: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="timeout must be"):
        app.enqueue("x").result(timeout)


# Failures


def test_a_failure_says_what_happened_to_which_job_and_what_to_do(app: App, hands: Hands) -> None:
    job = app.enqueue("mail.send", max_attempts=1)
    hands.fail(job, "no such user", traceback='File "shop.py", line 7')

    with pytest.raises(JobFailed) as raised:
        job.result()

    error = raised.value
    assert (error.job, error.reason, error.error) == (job, "error", "ValueError: no such user")
    assert str(error) == (
        f"job {job.id} (mail.send) failed in attempt 1 of 1: ValueError: no such user\n"
        "see job.attempts(); job.retry() starts it over"
    )
    assert error.__notes__ == ['where the body failed:\nFile "shop.py", line 7']


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (Reason.TIMEOUT, "ran out of time in attempt 1 of 3"),
        (Reason.RESULT, "completed, but its result cannot be stored"),
        (Reason.ARGUMENTS, "has arguments that its function does not take"),
        (Reason.CRASHED, "lost its worker"),
    ],
)
def test_every_reason_is_put_in_words(app: App, hands: Hands, reason: Reason, says: str) -> None:
    job = app.enqueue("x")
    hands.fail(job, reason=reason)

    with pytest.raises(JobFailed, match=says) as raised:
        asyncio.run(job.aresult())
    assert raised.value.reason == reason


def test_a_huge_traceback_is_cut_for_the_note(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.fail(job, traceback="begins here\n" + "frame\n" * 8_000 + "ends here")

    with pytest.raises(JobFailed) as raised:
        job.result()

    (note,) = raised.value.__notes__
    assert len(note) < 10_000
    assert "begins here" in note
    assert note.endswith("ends here")


def test_a_cancelled_job_says_so(app: App) -> None:
    job = app.enqueue("x")
    job.cancel()

    with pytest.raises(JobCancelled, match=f"job {job.id} .x. was cancelled\njob.retry.. starts it over") as raised:
        job.result()
    assert (raised.value.job, raised.value.reason, raised.value.error) == (job, "user", None)


def test_a_job_that_ended_with_its_parent_says_so(app: App, hands: Hands) -> None:
    parent = app.enqueue("x", queue="p")
    child = app.enqueue("x", after=parent)
    hands.fail(parent)

    with pytest.raises(JobCancelled, match="because a job that it depends on did not complete"):
        child.result(timeout=5)


def test_a_failure_can_be_copied_and_sent_without_its_handle(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.fail(job)
    with pytest.raises(JobEnded) as raised:
        job.result()

    for again in (pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)):
        assert (type(again), str(again), again.reason, again.job) == (JobFailed, str(raised.value), "error", None)


# Actions


def test_cancel_ends_a_job_that_has_not_started(app: App) -> None:
    job = app.enqueue("x")

    assert job.cancel() is True
    assert (job.state, job.reason) == ("cancelled", "user")
    assert job.cancel() is False
    assert asyncio.run(app.enqueue("x").acancel()) is True


def test_cancel_asks_a_running_job_to_stop_and_tells_its_worker(app: App, hands: Hands) -> None:
    job = app.enqueue("x", queue="q")
    hands.claim(job)
    woken: list[list[str]] = []
    core_of(app).on_enqueue.append(lambda queues: woken.append(list(queues)))

    assert job.cancel() is True

    assert job.state == "running"
    assert woken == [["q"]]
    assert [held.cancel_requested for held in core_of(app).backend.workers.beat(hands.worker, LEASE_US).held] == [
        True
    ]


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_the_next_look_after_an_action_is_new(app: App, hands: Hands, verb: str) -> None:
    job = app.enqueue("x", queue="q")
    claim = hands.claim(job) if verb == "cancel" else None
    if verb == "retry":
        job.cancel()
    assert getattr(job, verb)() is True

    hands.complete(job, 7, claim)

    assert job.state == "completed"


def test_cancel_wakes_who_waits(app: App) -> None:
    job = app.enqueue("x")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            job.result(timeout=30)
        except JobCancelled as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    app.cancel(job.id)
    thread.join()

    assert len(raised) == 1


def test_retry_starts_an_ended_job_over_and_tells_workers(app: App, hands: Hands) -> None:
    job = app.enqueue("x", queue="q")
    assert job.retry() is False
    hands.fail(job)
    woken: list[list[str]] = []
    core_of(app).on_enqueue.append(lambda queues: woken.append(list(queues)))

    assert job.retry() is True

    assert (job.state, job.attempt, job.error) == ("queued", 0, None)
    assert woken == [["q"]]
    hands.complete(job, 7)
    assert job.result() == 7
    assert asyncio.run(job.aretry()) is True


def test_delete_removes_a_job_with_its_history(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    hands.fail(job)

    assert job.delete() is True
    with pytest.raises(UnknownJob):
        _ = job.state
    assert core_of(app).backend.history.attempts(job.id) == []


def test_delete_leaves_what_runs_or_is_needed(app: App, hands: Hands) -> None:
    parent = app.enqueue("x")
    app.enqueue("x", after=parent)
    assert parent.delete() is False

    hands.claim(parent)
    assert parent.delete() is False
    assert parent.state == "running"


USES: list[Callable[[Job[Any]], Any]] = [
    lambda job: job.state,
    lambda job: job.refresh(),
    lambda job: job.result(),
    lambda job: asyncio.run(job.aresult()),
    lambda job: job.cancel(),
    lambda job: job.retry(),
    lambda job: job.delete(),
    lambda job: job.attempts(),
]


@pytest.mark.parametrize("use", USES)
def test_a_job_that_is_not_there_is_unknown_at_once(app: App, use: Callable[[Job[Any]], Any]) -> None:
    job = app.enqueue("x")
    job.delete()

    with pytest.raises(UnknownJob, match=f"no job has the id {job.id}: it was never committed"):
        use(job)


def test_a_crash_is_shown_as_an_attempt(app: App, hands: Hands, clock: ManualClock) -> None:
    job = app.enqueue("x", max_attempts=1)
    hands.claim(job)
    clock.advance(LEASE_US + SECOND)
    core_of(app).backend.workers.rescue(verbs.overdue(core_of(app).backend), rng=hands.rng)

    with pytest.raises(JobFailed, match="lost its worker") as raised:
        job.result()
    assert raised.value.reason == "crashed"
    assert [attempt.outcome for attempt in job.attempts()] == ["crashed"]


def test_instants_are_aware_datetimes(app: App) -> None:
    at = datetime(2100, 1, 2, 3, 4, 5, 678, tzinfo=UTC)

    assert app.enqueue("x", run_at=at).run_at == at
