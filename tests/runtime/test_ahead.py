"""Claiming ahead: slightly more jobs than there are slots, and only jobs that lose nothing by it."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends.database import DataRefused
from dray.backends.store.work import NOTHING, WorkStore
from dray.errors import StorageError
from dray.handle.job import Job
from dray.instants import HOUR
from dray.runtime import engine
from dray.runtime.dispatcher import Dispatcher
from tests.runtime.watching import LONG, Gate, ended, sql, state_of, until


def running(app: App) -> int:
    return sql(app, "SELECT count(*) FROM dray_jobs WHERE state = 'running'")[0][0]


class Claims:
    """Records how many jobs each claim took."""

    def __init__(self) -> None:
        self.sizes: list[int] = []


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    found = Claims()
    exchange = engine.Engine._dispatch

    def counting(self: Any, claims: Any, claimed_at: int) -> None:
        found.sizes.append(len(claims))
        exchange(self, claims, claimed_at)

    monkeypatch.setattr(engine.Engine, "_dispatch", counting)
    return found


@pytest.fixture(autouse=True)
def short(app: App) -> Any:
    """A task so short that a worker starts to claim ahead."""

    @app.task(name="short")
    def short() -> None:
        pass

    return short


def teach(app: App, count: int = 300) -> None:
    core_of(app).registry.get("short").enqueue_many([()] * count)


def test_while_bodies_are_short_more_are_claimed_than_can_run(app: App, claims: Claims) -> None:
    teach(app, 1_000)

    assert app.worker(concurrency=2).run_until_idle() == 1_000

    assert claims.sizes[0] <= 2  # the worker does not know yet how long bodies take
    assert 20 < max(claims.sizes) <= 2 + core_of(app).backend.db.most_ahead
    assert sql(app, "SELECT max(attempt), min(attempt) FROM dray_jobs") == [(1, 1)]


def test_bodies_run_while_the_outcomes_of_others_are_written(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight: list[tuple[int, int]] = []  # at each transaction: outcomes written in it, and jobs that are in flight
    exchange = engine.Engine._exchange

    def counting(self: Any, demand: Any) -> float:
        in_flight.append((len(self._in_flight.outcomes), len(self._in_flight.held)))
        return exchange(self, demand)

    monkeypatch.setattr(engine.Engine, "_exchange", counting)
    most = 2 + core_of(app).backend.db.most_ahead
    teach(app, 4 * most)

    assert app.worker(concurrency=2).run_until_idle() == 4 * most

    full = [outcomes for outcomes, held in in_flight if held == most]
    assert full  # all that may be in flight is
    assert max(full) <= most // 2  # the other half runs meanwhile, or has run


class Exchanges:
    """Counts bodies that were held back and then started: during an exchange, and outside of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside = self.outside = 0
        self.fails_next = False  # the next one that begins while bodies are held back
        self.failed = False
        self.still_waiting: int | None = None  # bodies, at the exchange after the one that failed
        self._is_inside = False
        self._held_back = 0
        exchange, take, start = WorkStore.exchange, Dispatcher.take, Dispatcher.start

        def exchanging(store: WorkStore, *args: Any, **options: Any) -> Any:
            self._is_inside = True
            if self.failed and self.still_waiting is None:
                self.still_waiting = self._held_back
            try:
                if self.fails_next and self._held_back:
                    self.fails_next, self.failed = False, True
                    raise StorageError("the server is gone")
                return exchange(store, *args, **options)
            finally:
                self._is_inside = False

        def taking(dispatcher: Dispatcher, claims: Any, *args: Any) -> None:
            take(dispatcher, claims, *args)
            self._held_back = len(claims)
            self.took(dispatcher)

        def starting(dispatcher: Dispatcher) -> None:
            if self._is_inside:
                self.inside += self._held_back
            else:
                self.outside += self._held_back
            self._held_back = 0
            start(dispatcher)

        monkeypatch.setattr(WorkStore, "exchange", exchanging)
        monkeypatch.setattr(Dispatcher, "take", taking)
        monkeypatch.setattr(Dispatcher, "start", starting)

    def took(self, dispatcher: Dispatcher) -> None:
        """Claims are held back, maybe only until the next line."""


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    return Exchanges(monkeypatch)


def test_where_a_server_does_the_work_bodies_start_while_it_does(app: App, exchanges: Exchanges) -> None:
    teach(app, 5_000)

    assert app.worker(concurrency=2).run_until_idle() == 5_000

    assert exchanges.inside + exchanges.outside == 5_000
    # On a file the engine's thread itself does the work: what it has claimed starts at once.
    assert (exchanges.inside > 0) == core_of(app).backend.db.is_remote


def test_bodies_that_wait_for_the_next_exchange_start_though_it_fails(app: App, exchanges: Exchanges) -> None:
    teach(app, 5_000)
    exchanges.fails_next = True

    assert app.worker(concurrency=2).run_until_idle() == 5_000

    assert exchanges.failed == core_of(app).backend.db.is_remote
    assert not exchanges.still_waiting
    assert exchanges.inside + exchanges.outside == 5_000
    assert sql(app, "SELECT DISTINCT state, claim FROM dray_jobs") == [("completed", 1)]


def test_bodies_that_wait_for_the_next_exchange_can_be_taken_back(
    app: App, exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = app.worker(concurrency=2)
    recalled: list[int] = []

    def recall(dispatcher: Dispatcher) -> None:
        if not recalled and len(dispatcher._bodies.inbox.ended) >= 100:  # enough that they are held back
            recalled.append(sum(map(len, dispatcher.unstarted.values())))
            dispatcher._bodies.inbox.recall()

    monkeypatch.setattr(exchanges, "took", recall)
    teach(app, 5_000)

    assert worker.run_until_idle() == 5_000

    assert recalled or not core_of(app).backend.db.is_remote
    assert sql(app, "SELECT DISTINCT state, attempt FROM dray_jobs") == [("completed", 1)]
    given_back = sql(app, "SELECT count(*) FROM dray_jobs WHERE claim = 2")[0][0]
    if core_of(app).backend.db.is_remote:
        assert given_back >= sum(recalled)  # none of them had started


def test_bodies_do_not_wait_until_refused_outcomes_are_written_one_by_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    transact = WorkStore._transact

    def refusing(store: WorkStore, *args: Any, **options: Any) -> Any:
        calls.append("transaction")
        if len(calls) == 1:
            raise DataRefused("one of them")
        return transact(store, *args, **options)

    monkeypatch.setattr(WorkStore, "_transact", refusing)
    core_of(app).backend.work.exchange(str(uuid.uuid4()), [], NOTHING, meanwhile=lambda: calls.append("bodies start"))

    assert calls[:3] == ["transaction", "bodies start", "transaction"]


def test_of_long_bodies_no_more_are_claimed_than_can_run(app: App, claims: Claims) -> None:
    most: list[int] = []

    @app.task(name="long")
    def long() -> None:
        most.append(running(app))
        time.sleep(0.12)

    long.enqueue_many([()] * 12)
    app.worker(concurrency=2).run_until_idle()

    assert max(most) <= 2
    assert max(claims.sizes) <= 2


def test_what_cannot_lose_an_attempt_is_not_claimed_ahead(app: App) -> None:
    """If the worker crashed, the job would fail without having run."""
    gate = Gate()

    @app.task(name="once", max_attempts=1)
    def once() -> None:
        pass

    @app.task(name="hold")
    def hold() -> None:
        gate.pass_through()

    with app.worker(concurrency=1):
        teach(app)
        until(lambda: app.stats().states["completed"] == 300)
        app.pause("default")
        hold.using(priority=9).enqueue()
        delicate = [once.using(priority=5).enqueue() for _ in range(5)]
        crashed = [once.using(priority=4, max_attempts=5).enqueue() for _ in range(5)]
        sql(app, "UPDATE dray_jobs SET crashes = 1 WHERE priority = 4")
        seen = watch_states(app, [*delicate, *crashed])
        app.resume("default")
        gate.await_arrival()
        states = seen()
        gate.open()
        until(lambda: app.stats().states["completed"] == 311)

    assert states == {"queued"}


def watch_states(app: App, jobs: list[Job[Any]]) -> Any:
    """Returns all states that these jobs are seen in for a while."""

    def look() -> set[str]:
        found: set[str] = set()
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline:
            found |= {state_of(job) for job in jobs}
        return found

    return look


def test_what_waits_behind_a_long_body_goes_back_and_runs_elsewhere(app: App) -> None:
    gate = Gate()
    where: dict[int, str] = {}

    @app.task(name="mixed")
    def mixed(n: int) -> None:
        where[n] = threading.current_thread().name
        if n == 0:
            gate.pass_through()

    with app.worker(concurrency=1) as first:
        teach(app)
        until(lambda: app.stats().states["completed"] == 300)
        app.pause("default")
        blocker = mixed.using(priority=1).enqueue(0)
        behind = mixed.enqueue_many([(n,) for n in range(1, 31)])
        app.resume("default")
        gate.await_arrival()
        with app.worker(concurrency=1) as second:
            began = time.monotonic()
            until(lambda: all(job.refresh().state == "completed" for job in behind))
            assert time.monotonic() - began < 10
            assert {attempt.worker for job in behind for attempt in job.attempts()} == {second.id}
        assert state_of(blocker) == "running"
        gate.open()
        assert ended(blocker) == "completed"
        assert [attempt.worker for attempt in blocker.attempts()] == [first.id]

    assert {job.attempt for job in behind} == {1}  # given back without an attempt, then counted once


@pytest.mark.parametrize("seconds", [0.02, 0.1])
def test_what_waits_behind_bodies_that_have_become_longer_goes_back(app: App, seconds: float) -> None:
    """Bodies still end one by one, so the worker is not stuck, but the 50 ms of work it claimed take seconds."""
    behind: list[int] = []

    @app.task(name="longer")
    def longer() -> None:
        behind.append(running(app) - 1)
        time.sleep(seconds)

    with app.worker(concurrency=1):
        teach(app)
        until(lambda: app.stats().states["completed"] == 300)
        app.pause("default")
        longer.enqueue_many([()] * 60)
        app.resume("default")
        until(lambda: len(behind) >= 1 / seconds)

    assert max(behind) > 10  # claimed ahead at first
    assert behind[-1] * seconds <= 0.1


def test_one_slow_body_does_not_hold_up_short_ones(app: App) -> None:
    gate = Gate()

    @app.task(name="hold")
    def hold() -> None:
        gate.pass_through()

    with app.worker(concurrency=2):
        blocker = hold.enqueue()
        gate.await_arrival()
        teach(app, 500)
        until(lambda: app.stats().states["completed"] == 500)
        assert state_of(blocker) == "running"
        gate.open()
        assert ended(blocker) == "completed"


def test_what_is_claimed_ahead_starts_in_order(app: App) -> None:
    ran: list[int] = []

    @app.task(name="note")
    def note(n: int) -> None:
        ran.append(n)

    note.enqueue_many([(n,) for n in range(500)])
    app.worker(concurrency=1).run_until_idle()

    assert ran == list(range(500))


@pytest.mark.parametrize("why", ["one attempt", "a crash"])
def test_what_may_not_be_claimed_ahead_does_not_wait_until_all_else_has_run(app: App, why: str) -> None:
    """Its priority is higher than that of the jobs that the worker could claim ahead instead, without end."""
    ran: list[str] = []

    @app.task(name="plain")
    def plain() -> None:
        ran.append("plain")
        time.sleep(0.002)

    @app.task(name="delicate", max_attempts=1 if why == "one attempt" else 3)
    def delicate() -> None:
        ran.append("delicate")

    plain.enqueue_many([()] * 600)
    waiting = delicate.using(priority=9, delay=3_600).enqueue()
    with app.worker(concurrency=1) as worker:
        worker._engine._claim_policy.body_took(2_500)
        until(lambda: len(ran) >= 50)
        sql(app, f"UPDATE dray_jobs SET crashes = 1 WHERE id = '{waiting.id}'" if why == "a crash" else "SELECT 1")
        before = len(ran)
        sql(app, f"UPDATE dray_jobs SET state = 'queued', run_at = created_at WHERE id = '{waiting.id}'")
        assert ended(waiting) == "completed"
        at = ran.index("delicate") if "delicate" in ran else len(ran)  # after a crash it runs in a child process

    assert at - before < 300  # a few dozen on a quiet machine


def test_leaving_hands_back_what_was_claimed_ahead(app: App) -> None:
    gate = Gate()

    @app.task(name="hold")
    def hold() -> None:
        gate.pass_through()

    worker = app.worker(concurrency=1)
    worker.start()
    teach(app)
    until(lambda: app.stats().states["completed"] == 300)
    app.pause("default")
    blocker = hold.using(priority=1).enqueue()
    teach(app, 50)
    app.resume("default")
    gate.await_arrival()
    leaving = threading.Thread(target=worker.stop)
    leaving.start()
    until(lambda: app.stats().states["queued"] == 50)
    gate.open()
    leaving.join(LONG)

    assert ended(blocker) == "completed"
    assert sql(app, "SELECT max(attempt) FROM dray_jobs WHERE state = 'queued'") == [(0,)]


def test_a_pause_hands_back_at_once_what_was_claimed_ahead(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_STALE_AHEAD", HOUR)  # after this time the job would be given back anyway
    gate = Gate()

    @app.task(name="hold")
    def hold() -> None:
        gate.pass_through()

    app.pause("default")
    blocker = hold.using(priority=1).enqueue()
    teach(app, 50)
    with app.worker(concurrency=1) as worker, App(url) as other:
        until(worker._engine.is_idle.is_set)  # its first claim, from a queue it did not know, found nothing
        worker._engine._claim_policy.body_took(1)  # as after many short bodies
        other.resume("default")  # a resume in this process could come after the claim, and give back too
        gate.await_arrival()
        assert running(app) > 1

        app.pause("default")

        until(lambda: app.stats().states["queued"] == 50)
        assert state_of(blocker) == "running"
        gate.open()
        assert ended(blocker) == "completed"
    assert sql(app, "SELECT max(attempt) FROM dray_jobs WHERE state = 'queued'") == [(0,)]


def test_bodies_that_were_expected_to_be_short_run_beside_each_other(app: App) -> None:
    """Few threads are awake while bodies are short: here all eight are needed at once."""
    together = threading.Barrier(8)

    @app.task(name="meet")
    def meet() -> None:
        together.wait(LONG)

    teach(app)
    with app.worker(concurrency=8) as worker:
        until(lambda: worker.ran == 300)
        jobs = meet.enqueue_many([()] * 8)
        for job in jobs:
            job.result(timeout=LONG)
