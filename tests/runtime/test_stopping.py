"""Timeouts and cancels: which bodies stop, when, and that no retry runs while a body has not stopped."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import JobCancelled
from dray.runtime.runners import thread
from tests.runtime.watching import LONG, Gate, come_to, ended, outcomes, state_of, until


def spin(seconds: float = LONG) -> None:
    """Runs Python code, where an exception can be raised into it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def linger() -> None:
    """The same, but it takes hardly any of the processor's time."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        time.sleep(0.001)


class Deaf:
    """A body that cannot be stopped: it waits in a C call until the test releases it."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.live = 0
        self.most = 0
        self._go = threading.Event()
        self._lock = threading.Lock()

    def body(self) -> None:
        with self._lock:
            self.live += 1
            self.most = max(self.most, self.live)
        self.inside.release()
        try:
            self._go.wait(LONG)
        finally:
            with self._lock:
                self.live -= 1

    def await_inside(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.inside.acquire(timeout=LONG)

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def deaf() -> Any:
    found = Deaf()
    yield found
    found.let_go()


# Timeouts


def test_a_busy_loop_is_stopped_in_time(app: App) -> None:
    @app.task(name="busy", timeout=0.2, max_attempts=2, retry=0)
    def busy() -> None:
        spin()

    @app.task(name="quick")
    def quick() -> int:
        return 1

    began = time.monotonic()
    job, other = busy.enqueue(), quick.using(priority=-1).enqueue()
    app.worker(concurrency=1).run_until_idle()

    assert time.monotonic() - began < 10
    assert (state_of(job), outcomes(job)) == ("failed(timeout)", ["timeout", "timeout"])
    assert other.result(timeout=0) == 1
    error = job.attempts()[0].error
    assert error is not None
    assert (error.type, error.message) == ("Timeout", "ran longer than its timeout of 0.2 s")
    assert "in spin" in (error.traceback or "")


def test_the_time_of_a_job_can_be_set_when_it_is_enqueued(app: App) -> None:
    @app.task(name="busy", timeout=3_600, max_attempts=1)
    def busy() -> None:
        linger()

    job = busy.using(timeout=0.1).enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "failed(timeout)"


def test_time_spent_waiting_for_a_slot_does_not_count(app: App) -> None:
    @app.task(name="short", timeout=0.5)
    def short() -> None:
        time.sleep(0.02)

    short.enqueue_many([()] * 40)
    app.worker(concurrency=1).run_until_idle()

    assert app.stats().states["completed"] == 40


def test_a_body_that_ends_well_all_the_same_is_completed(app: App) -> None:
    @app.task(name="late", timeout=0.1)
    def late() -> str:
        try:
            linger()
        except BaseException:  # noqa: BLE001
            return "saved it"
        return "spun"

    job = late.enqueue()
    app.worker().run_until_idle()

    assert job.result(timeout=0) == "saved it"


def test_a_body_that_swallows_it_is_told_again(app: App) -> None:
    told: list[int] = []

    @app.task(name="stubborn", timeout=0.1, max_attempts=1)
    def stubborn() -> None:
        while True:
            try:
                linger()
            except BaseException:
                told.append(1)
                if len(told) == 2:
                    raise

    job = stubborn.enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "failed(timeout)"
    assert len(told) == 2


def test_what_is_raised_into_a_body_never_hits_the_next_one(app: App) -> None:
    """Bodies that end just when their timeout expires: the pending exception must not reach the next body."""

    @app.task(name="edge", timeout=0.02, max_attempts=1)
    def edge(n: int) -> int:
        spin(0.0195 + (n % 10) / 10_000)
        return n

    @app.task(name="innocent", max_attempts=1)
    def innocent(n: int) -> int:
        spin(0.001)
        return n

    jobs: list[Any] = []
    for n in range(50):
        edge.enqueue(n)
        jobs.append(innocent.enqueue(n))
    app.worker(concurrency=2).run_until_idle()

    assert [job.result(timeout=0) for job in jobs] == list(range(50))
    states = app.stats().states
    assert states["completed"] + states["failed"] == 100


def test_a_deaf_body_keeps_its_claim_while_its_slot_is_replaced(app: App, deaf: Deaf, quick_kill: None) -> None:
    @app.task(name="deaf", timeout=0.1, max_attempts=2, retry=0)
    def deaf_task() -> None:
        deaf.body()

    @app.task(name="quick")
    def quick() -> int:
        return 1

    with app.worker(concurrency=1), app.worker(concurrency=1, queues=["nothing", "default"]):
        job = deaf_task.enqueue()
        deaf.await_inside()
        for _ in range(5):
            assert quick.enqueue().result(timeout=LONG) == 1
        time.sleep(1)  # longer than the worker takes to give up
        assert (state_of(job), job.attempt, deaf.live) == ("running", 1, 1)
        deaf.let_go()
        assert ended(job) == "completed"

    assert outcomes(job) == ["timeout", "completed"]
    assert deaf.most == 1  # no retry while the attempt is alive


def test_a_deaf_body_without_another_attempt_fails_at_once(app: App, deaf: Deaf, quick_kill: None) -> None:
    @app.task(name="deaf", timeout=0.1, max_attempts=1)
    def deaf_task() -> None:
        deaf.body()

    with app.worker(concurrency=1):
        job = deaf_task.enqueue()
        deaf.await_inside()
        assert ended(job) == "failed(timeout)"
        assert deaf.live == 1
        (attempt,) = job.attempts()
        assert attempt.error is not None
        assert "did not stop" in (attempt.error.message or "")
        assert "in body" in (attempt.error.traceback or "")
        deaf.let_go()
        until(lambda: not deaf.live)

    assert state_of(job) == "failed(timeout)"


def test_slots_are_replaced_as_often_as_there_are_and_then_the_worker_says_so(
    app: App, deaf: Deaf, quick_kill: None, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="deaf", timeout=0.1, max_attempts=2, retry=0)
    def deaf_task() -> None:
        deaf.body()

    @app.task(name="quick")
    def quick() -> int:
        return 1

    with app.worker(concurrency=2):
        deaf_task.enqueue_many([()] * 2)
        deaf.await_inside(2)
        assert quick.enqueue().result(timeout=LONG) == 1  # both were replaced
        third = deaf_task.enqueue()
        deaf.await_inside()
        until(lambda: any("claims nothing more" in record.getMessage() for record in caplog.records))
        left = quick.enqueue()
        time.sleep(0.3)
        assert state_of(left) == "queued"
        assert state_of(third) == "running"
        assert quick.enqueue().state == "queued"
        assert deaf.most == 3
        deaf.let_go()
        until(lambda: not deaf.live)

    until(lambda: not app.jobs(state="running"))
    assert app.worker().run_until_idle() >= 2
    assert state_of(left) == "completed"


# Cancel


def test_a_running_body_is_stopped(app: App) -> None:
    began = threading.Event()

    @app.task(name="busy")
    def busy() -> None:
        began.set()
        linger()

    with app.worker(concurrency=1):
        job = busy.enqueue()
        assert began.wait(LONG)
        asked = time.monotonic()
        assert job.cancel()
        with pytest.raises(JobCancelled, match="was cancelled"):
            job.result(timeout=LONG)
        assert time.monotonic() - asked < 5

    assert (state_of(job), outcomes(job)) == ("cancelled(user)", ["cancelled"])
    assert not job.cancel()


def test_a_cancel_is_learned_while_other_slots_are_busy(app: App) -> None:
    """Also if another process requested it; here another App stands in for it."""
    began = threading.Semaphore(0)
    is_over = threading.Event()

    @app.task(name="busy")
    def busy() -> None:
        began.release()
        linger()

    @app.task(name="noise", max_attempts=1)
    def noise() -> None:
        if not is_over.is_set():
            noise.enqueue()

    with app.worker(concurrency=2), App(app.url) as other:
        job = busy.enqueue()
        assert began.acquire(timeout=LONG)
        for _ in range(4):
            noise.enqueue()
        asked = time.monotonic()
        assert other.cancel(job.id)
        assert ended(job) == "cancelled(user)"
        assert time.monotonic() - asked < 6
        is_over.set()


def test_what_has_not_started_never_does(app: App) -> None:
    ran: list[str] = []

    @app.task(name="note")
    def note(word: str) -> None:
        ran.append(word)

    queued, scheduled = note.enqueue("queued"), note.using(delay=60).enqueue("scheduled")
    first = note.enqueue("parent")
    waiting = note.using(after=[first]).enqueue("waiting")
    for job in (queued, scheduled, waiting):
        assert job.cancel()
        assert state_of(job) == "cancelled(user)"

    assert app.worker().run_until_idle() == 1
    assert ran == ["parent"]


def test_a_job_that_was_claimed_ahead_never_starts_once_it_is_cancelled(app: App) -> None:
    gate = Gate()
    ran: list[int] = []

    @app.task(name="short")
    def short(n: int) -> None:
        ran.append(n)

    @app.task(name="hold")
    def hold() -> None:
        gate.pass_through()

    with app.worker(concurrency=1):
        short.enqueue_many([(0,)] * 200)  # teaches it to claim ahead
        until(lambda: len(ran) == 200)
        app.pause("default")
        first = hold.using(priority=1).enqueue()
        ahead = short.enqueue_many([(n,) for n in range(1, 11)])
        app.resume("default")
        gate.await_arrival()
        assert all(job.cancel() for job in ahead)
        assert {ended(job) for job in ahead} == {"cancelled(user)"}
        gate.open()
        first.result(timeout=LONG)

    assert set(ran) == {0}


@pytest.mark.parametrize("how", ["retry", "snooze", "release"])
def test_a_cancelled_job_is_not_put_back(app: App, how: str) -> None:
    gate = Gate()

    @app.task(name="body", retry=0)
    def body() -> None:
        try:
            gate.pass_through()
        finally:
            if how == "retry":
                raise dray.Retry(0)
            if how == "snooze":
                raise dray.Snooze(0)

    with app.worker(concurrency=1, grace=0.05):
        job = body.enqueue()
        gate.await_arrival()
        core_of(app).backend.jobs.cancel([job.id])  # recorded, without notifying the worker
        if how != "release":
            gate.open()
            assert ended(job) == "cancelled(user)"

    assert ended(job) == "cancelled(user)"
    gate.open()


def test_a_body_that_completes_though_it_is_cancelled_is_completed(app: App) -> None:
    gate = Gate()

    @app.task(name="body")
    def body(ctx: dray.Context) -> str:
        try:
            gate.pass_through()
        except BaseException:  # noqa: BLE001
            return f"finished, cancelled={ctx.cancelled}"
        return "never told"

    with app.worker(concurrency=1):
        job = body.enqueue()
        gate.await_arrival()
        assert job.cancel()
        assert job.result(timeout=LONG) == "finished, cancelled=True"
    gate.open()


def test_a_cancelled_deaf_body_keeps_its_claim_until_it_ends(app: App, deaf: Deaf, quick_kill: None) -> None:
    @app.task(name="deaf")
    def deaf_task() -> None:
        deaf.body()

    @app.task(name="quick")
    def quick() -> int:
        return 1

    with app.worker(concurrency=1):
        job = deaf_task.enqueue()
        deaf.await_inside()
        assert job.cancel()
        assert quick.enqueue().result(timeout=LONG) == 1
        come_to(job, "running")
        assert not job.retry()
        deaf.let_go()
        assert ended(job) == "cancelled(user)"


def test_a_body_is_struck_in_a_long_slice_and_the_setting_comes_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a short one, another thread could run between the look at the body and the exception raised into it."""
    usual, seen = sys.getswitchinterval(), list[float]()
    raise_into: Any = thread._raise_into

    def noted(*given: Any) -> None:
        seen.append(sys.getswitchinterval())
        raise_into(*given)

    monkeypatch.setattr(thread, "_raise_into", noted)

    @app.task(name="endless", timeout=0.1, max_attempts=1)
    def endless() -> None:
        while True:
            time.sleep(0.001)

    job = endless.enqueue()
    with app.worker(concurrency=1):
        until(lambda: job.refresh().state == "failed")

    assert seen[0] == pytest.approx(0.05)
    assert sys.getswitchinterval() == usual
