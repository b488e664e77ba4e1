"""Which jobs a worker claims, from which queues, in which order; and which it does not claim."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.clock import SystemClock
from dray.handle.job import Job
from dray.instants import SECOND
from dray.model import settlement
from dray.model.job import Demand
from dray.model.worker import NewWorker
from tests import verbs
from tests.backends import beside
from tests.runtime.watching import LONG, Gate, come_to, ended, outcomes, sql, state_of, until


@pytest.fixture
def ran(app: App) -> list[str]:
    """The arguments of the jobs of the task `note`, in the order in which they ran."""
    found: list[str] = []

    @app.task(name="note")
    def _(word: str) -> None:
        found.append(word)

    return found


def note(app: App, word: str, **using: Any) -> Job[Any]:
    return app.enqueue("note", {"word": word}, **using)


def work_off(app: App, **options: Any) -> int:
    given: dict[str, Any] = {"concurrency": 1, **options}
    return app.worker(**given).run_until_idle()


# Order


def test_higher_priority_runs_first_then_the_earlier_job(app: App, ran: list[str]) -> None:
    for word, priority in [("b", 0), ("d", -5), ("a", 10), ("c", 0)]:
        note(app, word, priority=priority)

    assert work_off(app) == 4
    assert ran == ["a", "b", "c", "d"]


def test_a_queues_default_priority_is_of_jobs_that_name_none(app: App, ran: list[str]) -> None:
    app.queue("default", priority=5)
    note(app, "default 5")
    note(app, "own 7", priority=7)
    note(app, "own 0", priority=0)

    work_off(app)

    assert ran == ["own 7", "default 5", "own 0"]


def test_a_job_that_was_due_earlier_runs_first(app: App, ran: list[str]) -> None:
    now = datetime.now(UTC)
    note(app, "second", run_at=now - timedelta(minutes=1))
    note(app, "first", run_at=now - timedelta(minutes=2))

    work_off(app)

    assert ran == ["first", "second"]


def test_queues_in_a_list_are_worked_off_in_its_order(app: App, ran: list[str]) -> None:
    for n in range(3):
        note(app, "low", queue="low", priority=100)
        note(app, f"high {n}", queue="high")

    assert work_off(app, queues=["high", "low"]) == 6
    assert ran == ["high 0", "high 1", "high 2", "low", "low", "low"]


def test_other_queues_are_left_alone(app: App, ran: list[str]) -> None:
    other = note(app, "other", queue="other")
    note(app, "mine", queue="mine")

    assert work_off(app, queues="mine") == 1
    assert (ran, state_of(other)) == (["mine"], "queued")


@pytest.mark.parametrize("concurrency", [1, 8])
def test_weights_are_how_often_a_queue_has_its_turn(app: App, ran: list[str], concurrency: int) -> None:
    task = core_of(app).registry.get("note")
    task.using(queue="mail").enqueue_many([("mail",)] * 500)
    task.using(queue="default").enqueue_many([("default",)] * 500)

    assert work_off(app, queues="mail:4,default:1", concurrency=concurrency) == 1_000

    share = Counter(ran[:500])["mail"] / 500
    assert 0.7 <= share <= 0.9
    assert Counter(ran[:100])["default"] > 0  # no queue waits until the others are empty


def test_a_worker_for_all_queues_finds_new_ones(app: App, url: str, ran: list[str]) -> None:
    with app.worker(concurrency=1):
        note(app, "first", queue="one").result(timeout=LONG)
        note(app, "second", queue="never.seen.before").result(timeout=LONG)
        with beside.connect(url) as connection:
            job = note(app, "third", queue="users.own", connection=connection)
            connection.commit()
        began = time.monotonic()
        job.result(timeout=LONG)
        assert time.monotonic() - began < 5

    assert ran == ["first", "second", "third"]


def test_a_busy_worker_for_all_queues_finds_new_ones_too(app: App) -> None:
    is_found = threading.Event()

    @app.task(name="again", max_attempts=1)
    def again() -> None:
        if not is_found.is_set():
            again.enqueue()

    @app.task(name="find")
    def find() -> None:
        is_found.set()

    with app.worker(concurrency=2):
        for _ in range(8):
            again.enqueue()
        find.using(queue="another").enqueue()
        assert is_found.wait(LONG)


# Pause


def test_nothing_is_claimed_from_a_paused_queue(app: App, ran: list[str]) -> None:
    assert app.pause("default")
    job = note(app, "later")
    other = note(app, "now", queue="other")

    with app.worker():
        assert ended(other) == "completed"
        assert state_of(job) == "queued"
        assert app.resume("default")
        assert ended(job) == "completed"

    assert ran == ["now", "later"]


def test_after_a_pause_nothing_starts_but_what_was_claimed(app: App) -> None:
    starts: list[int] = []

    @app.task(name="short")
    def short() -> None:
        starts.append(1)
        time.sleep(0.002)

    short.enqueue_many([()] * 600)
    with app.worker(concurrency=2):
        until(lambda: len(starts) > 200)  # by now it claims ahead
        app.pause("default")
        claimed = {row[0] for row in sql(app, "SELECT id FROM dray_jobs WHERE state = 'running'")}
        before = len(starts)
        until(lambda: not sql(app, "SELECT id FROM dray_jobs WHERE state = 'running'"))
        ended_by_now = sql(app, "SELECT count(*) FROM dray_jobs WHERE state = 'completed'")[0][0]
        time.sleep(0.2)

        assert sql(app, "SELECT count(*) FROM dray_jobs WHERE state = 'completed'")[0][0] == ended_by_now
        assert len(starts) == ended_by_now
        assert len(starts) - before <= len(claimed)
        app.resume("default")
        until(lambda: len(starts) == 600)

    assert sql(app, "SELECT max(attempt) FROM dray_jobs") == [(1,)]


def test_what_was_claimed_ahead_goes_back_when_its_queue_is_paused(app: App) -> None:
    gate = Gate()

    @app.task(name="short")
    def short() -> None:
        pass

    @app.task(name="long")
    def long() -> None:
        gate.pass_through()

    with app.worker(concurrency=1):
        short.enqueue_many([()] * 300)  # teaches it to claim ahead
        until(lambda: app.stats().states.get("completed") == 300)
        app.pause("default")
        jobs = [long.using(priority=1).enqueue(), *short.enqueue_many([()] * 50)]
        app.resume("default")
        gate.await_arrival()
        app.pause("default")
        until(lambda: [state_of(job) for job in jobs[1:]] == ["queued"] * 50, seconds=5)
        assert {job.attempt for job in jobs[1:]} == {0}
        gate.open()
        assert ended(jobs[0]) == "completed"
        app.resume("default")
        until(lambda: all(job.refresh().state == "completed" for job in jobs))

    assert {len(job.attempts()) for job in jobs} == {1}


# What a worker cannot run


def test_jobs_of_tasks_that_nobody_here_knows_are_left_alone(app: App, ran: list[str]) -> None:
    strangers = [app.enqueue("elsewhere.known", {"n": n}) for n in range(50)]
    note(app, "known")

    assert work_off(app) == 1

    assert {(state_of(job), job.attempt) for job in strangers} == {("queued", 0)}
    assert ran == ["known"]


def misfit(app: App) -> Job[Any]:
    """Enqueues a job whose arguments do not fit the code here."""
    job = note(app, "fits")
    sql(app, "UPDATE dray_jobs SET args = ? WHERE id = ?", '{"colour": "red"}', job.id)
    return job


def test_arguments_that_do_not_fit_wait_for_code_that_they_do(app: App, ran: list[str]) -> None:
    job = misfit(app)
    fitting = note(app, "fits")

    assert work_off(app) == 1

    assert (state_of(job), job.attempt, outcomes(job)) == ("scheduled", 0, [])
    assert "unknown 'colour'" in (job.error or "")
    assert "missing 'word'" in (job.error or "")
    assert 4 < (job.run_at - job.created_at).total_seconds() < 10
    assert state_of(fitting) == "completed"

    sql(app, "UPDATE dray_jobs SET args = ?, run_at = created_at WHERE id = ?", '{"word": "mended"}', job.id)
    assert work_off(app) == 1
    assert (state_of(job), job.attempt, job.error) == ("completed", 1, None)
    assert ran == ["fits", "mended"]


def age(app: App, job: Job[Any], **ago: float) -> None:
    """Pretends that the arguments have not fitted for this long, and that the next try is due."""
    since = datetime.now(UTC) - timedelta(**ago)
    _, _, rest = (job.refresh().error or "").partition("Z: ")
    error = f"Misfit: since {since:%Y-%m-%dT%H:%M:%SZ}: {rest}"
    sql(app, "UPDATE dray_jobs SET run_at = created_at, error = ? WHERE id = ?", error, job.id)


def test_the_wait_for_fitting_code_doubles_up_to_five_minutes_and_ends_after_a_day(app: App, ran: list[str]) -> None:
    job = misfit(app)
    waits: list[float] = []

    for ago in (0, 5, 10, 40, 160, 1_000, 80_000):
        if ago:
            age(app, job, seconds=ago)
        began = datetime.now(UTC)
        work_off(app)
        assert (state_of(job), job.attempt) == ("scheduled", 0)
        waits.append((job.run_at - began).total_seconds())

    for waited, wanted in zip(waits, (5, 5, 10, 40, 160, 300, 300), strict=True):
        assert wanted - 2 < waited < wanted + 5
    age(app, job, hours=24, seconds=1)
    work_off(app)

    assert (state_of(job), outcomes(job)) == ("failed(arguments)", ["arguments"])
    assert "colour" in (job.error or "")
    with pytest.raises(dray.errors.JobFailed, match="arguments that its function does not take"):
        job.result(timeout=0)


def test_the_time_of_misfitting_is_told_from_the_row(app: App, ran: list[str]) -> None:
    job = misfit(app)
    work_off(app)
    since = (job.refresh().error or "")[:35]
    sql(app, "UPDATE dray_jobs SET run_at = created_at WHERE id = ?", job.id)

    work_off(app)

    assert (job.refresh().error or "").startswith(since)
    assert since.startswith("Misfit: since 2")


def test_a_worker_that_hands_the_job_back_does_not_start_the_time_of_misfitting_over(
    app: App, ran: list[str]
) -> None:
    job = misfit(app)
    work_off(app)
    since = (job.refresh().error or "")[:35]
    assert since.startswith("Misfit: since 2")
    sql(app, "UPDATE dray_jobs SET run_at = created_at WHERE id = ?", job.id)
    backend, stranger = (
        core_of(app).backend,
        NewWorker(id=core_of(app).new_id(), name="w", host="h", pid=1, boot=core_of(app).clock.boot),
    )
    backend.workers.register(stranger, 15_000_000)
    (claim,) = verbs.claim(backend, stranger.id, Demand(("default",), (job.task,), 1))

    verbs.settle(backend, stranger.id, [settlement.released(claim, core_of(app).clock.steady())])

    assert (state_of(job), (job.error or "")[:35]) == ("queued", since)
    work_off(app)
    assert (job.refresh().error or "").startswith(since)
    assert ran == []


def test_where_the_row_cannot_be_read_the_time_of_misfitting_does_not_start_over(
    app: App, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = misfit(app)
    work_off(app)
    since = (job.refresh().error or "")[:35]
    sql(app, "UPDATE dray_jobs SET run_at = created_at WHERE id = ?", job.id)

    def away(_: object) -> object:
        raise dray.errors.StorageUnavailable("nobody answers")

    with monkeypatch.context() as outage:
        outage.setattr(core_of(app).backend.jobs, "get", away)
        work_off(app)

    assert (state_of(job), job.attempt, (job.error or "")[:35]) == ("scheduled", 0, since)
    assert ran == []


def test_arguments_that_nobody_can_read_fail_the_job_at_once(app: App, ran: list[str]) -> None:
    jobs = [note(app, "fits") for _ in UNREADABLE]
    for job, stored in zip(jobs, UNREADABLE, strict=True):
        sql(app, "UPDATE dray_jobs SET args = ? WHERE id = ?", stored, job.id)

    assert work_off(app) == 0

    assert {(state_of(job), *outcomes(job)) for job in jobs} == {("failed(arguments)", "arguments")}
    assert ran == []


UNREADABLE = ("{", "[1]", "7", '{"word": NaN}', "")


@dataclass
class Picky:
    """A class whose own code rejects values; the worker treats whatever it raises as a misfit."""

    n: int
    refuses: Any = None

    def __post_init__(self) -> None:
        if MOODS:
            raise MOODS[-1]


MOODS: list[BaseException] = []


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_code_that_reads_arguments_may_raise_anything(app: App, ran: list[str], runner: str) -> None:
    def function(given: Picky) -> int:
        return given.n

    async def coroutine(given: Picky) -> int:
        return given.n

    job = app.task(name="picky")(function if runner == "thread" else coroutine).enqueue(Picky(7))
    for mood in (RuntimeError("bad day"), KeyError("k"), SystemExit(3), ValueError("no")):
        MOODS.append(mood)
        try:
            work_off(app)
        finally:
            MOODS.clear()
        assert (state_of(job), job.attempt) == ("scheduled", 0)
        assert type(mood).__name__ in (job.error or "") or "refused it: no" in (job.error or "")
        sql(app, "UPDATE dray_jobs SET run_at = created_at WHERE id = ?", job.id)

    note(app, "the slot lives")
    assert work_off(app) == 2
    assert job.result(timeout=0) == 7
    assert ran == ["the slot lives"]


# Time


class Shifted(SystemClock):
    """The machine's clock with an offset."""

    def __init__(self, us: int) -> None:
        self._us = us

    def now(self) -> int:
        return super().now() + self._us


def test_a_delayed_job_starts_on_time(app: App) -> None:
    started: dict[int, float] = {}

    @app.task(name="tick")
    def tick(n: int) -> None:
        started[n] = time.time()

    delays = [0.15, 0.3, 0.31, 0.7]
    with app.worker(concurrency=1):
        jobs = [tick.using(delay=delay).enqueue(n) for n, delay in enumerate(delays)]
        for job in jobs:
            job.result(timeout=LONG)

    for n, job in enumerate(jobs):
        late = started[n] - job.refresh().run_at.timestamp()
        assert -0.001 <= late < 0.5


def test_a_delayed_job_of_an_unseen_queue_starts_on_time_too(app: App, ran: list[str]) -> None:
    with app.worker(concurrency=1):
        job = note(app, "x", queue="unseen", delay=0.3)
        come_to(job, "completed")
        late = (job.started_at or job.created_at) - job.run_at

    assert timedelta(milliseconds=-1) <= late < timedelta(milliseconds=500)


def test_an_expired_job_never_runs(app: App, ran: list[str]) -> None:
    app.pause("default")
    job = note(app, "too late", expires_in=0.05)
    time.sleep(0.06)
    app.resume("default")

    work_off(app)

    assert ran == []
    with app.worker():
        assert ended(job) == "cancelled(expired)"


def test_a_worker_whose_clock_is_wrong_runs_what_it_enqueued(url: str) -> None:
    """On PostgreSQL only the server's clock counts; on SQLite producer and worker have the same wrong clock."""
    for us in (3_600 * SECOND, -3_600 * SECOND):
        with App(url, clock=Shifted(us)) as app:

            @app.task(name="note")
            def note() -> int:
                return 7

            job = note.enqueue()
            assert app.worker().run_until_idle() == 1
            assert job.result(timeout=0) == 7
