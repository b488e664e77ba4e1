"""Hooks are told of what has happened to jobs, once it is written, and can change nothing about it."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sqlite3
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NoReturn

import psycopg
import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError
from dray.handle.job import AttemptError, Job
from dray.hooks import EVENTS
from dray.model.job import Demand
from dray.model.worker import NewWorker
from dray.runtime import events
from dray.testing import drain
from tests import verbs
from tests.runtime import hooked
from tests.runtime.test_middleware import hooked_app
from tests.runtime.watching import LONG, Gate, ended, sql, state_of, until

__all__ = ["hooked_app"]


class Told:
    """Notes what hooks are told, with the state that the job has in the database at that moment."""

    def __init__(self, app: App, *wanted: str) -> None:
        self.events: list[tuple[str, str, str]] = []  # event, job, state
        self.errors: list[AttemptError | None] = []
        self.threads: set[str] = set()
        for event in wanted or EVENTS:
            app.on(event)(functools.partial(self.note, event))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    def note(self, event: str, job: Job[Any], error: AttemptError | None = None) -> None:
        self.events.append((event, job.id, state_of(job)))
        self.errors.append(error)
        self.threads.add(threading.current_thread().name)

    def of(self, job: Job[Any]) -> list[str]:
        """The events of a job, each with what the database said at that moment."""
        return [f"{event}: {state}" for event, job_id, state in self.events if job_id == job.id]

    def names_of(self, job: Job[Any]) -> list[str]:
        return [event for event, job_id, _ in self.events if job_id == job.id]


def nothing() -> None:
    pass


def fail() -> NoReturn:
    raise ValueError("no")


async def afail() -> NoReturn:
    await asyncio.sleep(0)
    fail()


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_hooks_are_told_of_each_step_in_the_life_of_a_job(app: App, runner: str) -> None:
    told = Told(app)
    attempts: list[int] = []

    def body(how: str, attempt: int) -> str:
        attempts.append(attempt)
        if how == "fail" or (how == "stumble" and attempt == 1):
            raise ValueError(how)
        if how == "cancel":
            raise dray.Cancel("not needed")
        if how == "snooze" and len(attempts) == 1:
            raise dray.Snooze(0)
        return how

    async def abody(how: str, ctx: dray.Context) -> str:
        return body(how, ctx.attempt)

    def plain(how: str, ctx: dray.Context) -> str:
        return body(how, ctx.attempt)

    function: Any = plain if runner == "thread" else abody
    task: Any = app.task(name="task", max_attempts=2, retry=0)(function)
    snoozed = task.enqueue("snooze")
    app.worker(concurrency=1).run_until_idle()
    good, bad, again, cancelled = (task.enqueue(how) for how in ("complete", "fail", "stumble", "cancel"))
    app.worker(concurrency=1).run_until_idle()

    assert told.names_of(good) == ["enqueued", "started", "completed"]
    assert told.names_of(bad) == ["enqueued", "started", "retried", "started", "failed"]
    assert told.names_of(again) == ["enqueued", "started", "retried", "started", "completed"]
    assert told.names_of(cancelled) == ["enqueued", "started", "cancelled"]
    assert told.names_of(snoozed) == ["enqueued", "started", "started", "completed"]  # it went back: no event
    assert told.of(good)[-1] == "completed: completed"
    assert told.of(bad)[-1] == "failed: failed(error)"
    assert told.of(cancelled)[-1] == "cancelled: cancelled(user)"
    assert told.threads == {threading.current_thread().name, "dray-hooks"}  # the enqueues, and all else


@pytest.mark.parametrize("by", ["worker", "drain", "cancel"])
def test_jobs_that_are_cancelled_with_their_parent_are_told_of_once(app: App, by: str) -> None:
    told = Told(app, "cancelled")
    parent = app.task(name="fail", max_attempts=1)(fail).enqueue()
    other = app.enqueue("fail", after=[parent])
    child = app.enqueue("fail", after=[parent, other])
    grandchild = app.enqueue("fail", after=[child])
    if by == "cancel":
        parent.cancel()
    elif by == "drain":
        drain(app)
    else:
        app.worker().run_until_idle()

    ids = [job_id for _, job_id, _ in told.events]
    assert len(ids) == len(set(ids))
    for job in (other, child, grandchild):
        assert told.of(job) == ["cancelled: cancelled(parent)"]
    assert told.of(parent) == (["cancelled: cancelled(user)"] if by == "cancel" else [])


def test_the_error_is_what_the_attempt_is_recorded_with(app: App) -> None:
    told = Told(app, "retried", "failed")
    job = app.task(name="fail", max_attempts=2, retry=0)(fail).enqueue()
    app.worker().run_until_idle()

    assert told.names_of(job) == ["retried", "failed"]
    assert told.errors == [attempt.error for attempt in job.attempts()]
    assert told.errors[0] is not None
    assert (told.errors[0].type, told.errors[0].message) == ("ValueError", "no")
    assert "in fail" in (told.errors[0].traceback or "")


def test_a_hook_may_take_the_job_alone_or_name_the_error(app: App) -> None:
    said: list[Any] = []

    @app.on("failed")
    def short(job: Job[Any]) -> None:
        said.append(job.task)

    @app.on("failed")
    def named(job: Job[Any], *, error: AttemptError | None) -> None:
        assert error is not None
        said.append(error.type)

    @app.on("failed")
    @app.on("completed")
    def both(job: Job[Any], failure: AttemptError | None) -> None:
        said.append(failure.message if failure else "well")

    app.task(name="fail", max_attempts=1)(fail).enqueue()
    app.worker().run_until_idle()
    app.task(name="nothing")(nothing).enqueue()
    app.worker().run_until_idle()

    assert said == ["fail", "ValueError", "no", "well"]


def test_hooks_run_in_the_workers_process_also_for_bodies_in_child_processes(hooked_app: App) -> None:
    pids: dict[str, int] = {}

    def note(event: str, job: Job[Any], error: AttemptError | None) -> None:
        pids[f"{event} {error.type if error else ''}".strip()] = os.getpid()

    for event in ("started", "completed", "failed"):
        core_of(hooked_app).hooks.on(event)(functools.partial(note, event))
    try:
        hooked.add.enqueue(1)
        hooked.fail.enqueue(1)
        hooked_app.worker(concurrency=1).run_until_idle()
    finally:
        core_of(hooked_app).hooks._events.clear()

    assert pids == dict.fromkeys(("started", "completed", "failed ValueError"), os.getpid())


# What is written counts


def test_an_outcome_whose_claim_was_lost_is_no_event(app: App) -> None:
    told, gate = Told(app, "completed", "failed", "retried", "cancelled"), Gate()
    other = NewWorker(id=core_of(app).ids.new(), name="other", host="here", pid=1, boot=core_of(app).clock.boot)
    core_of(app).backend.workers.register(other, 3_600_000_000)

    @app.task(name="slow")
    def slow() -> None:
        gate.pass_through()

    job = slow.enqueue()
    with app.worker() as worker:
        gate.await_arrival()
        # As if this worker had been declared dead, and another one had the job.
        sql(app, f"UPDATE dray_jobs SET claim = claim + 1, worker_id = '{other.id}'")
        gate.open()
        until(lambda: worker.ran == 1)

    assert job.refresh().state == "running"
    assert told.events == []


def test_a_body_that_completes_its_job_itself_is_completed_once_whatever_it_does_afterwards(app: App) -> None:
    told = Told(app)

    @app.task(name="own")
    def own(ctx: dray.Context) -> None:
        until(lambda: told.events[-1][0] == "started")  # the hook has seen the job as it is while its body runs
        with ctx.transaction():
            pass
        fail()

    job = own.enqueue()
    app.worker().run_until_idle()

    assert told.of(job) == ["enqueued: queued", "started: running", "completed: completed"]


def test_one_that_completes_it_on_a_connection_of_its_own_too(app: App) -> None:
    told = Told(app, "completed", "retried", "failed")

    @app.task(name="own")
    def own(ctx: dray.Context) -> None:
        with closing(connect(app)) as connection:
            ctx.complete(connection=connection)
            connection.commit()
        fail()

    job = own.enqueue()
    app.worker().run_until_idle()

    assert told.of(job) == ["completed: completed"]


def connect(app: App) -> Any:
    if app.url.startswith("sqlite:"):
        return sqlite3.connect(app.url.removeprefix("sqlite:///"))
    url, _, schema = app.url.partition("&schema=")
    connection: Any = psycopg.connect(url)
    connection.execute(f'SET search_path TO "{schema}"')
    connection.commit()
    return connection


def test_a_rescued_job_is_retried_or_failed_by_the_worker_that_takes_it_back(app: App) -> None:
    told = Told(app, "retried", "failed")
    task = app.task(name="nothing")(nothing)
    jobs = task.enqueue(), task.using(max_attempts=1).enqueue()
    gone = NewWorker(id=core_of(app).ids.new(), name="gone", host="here", pid=1, boot=core_of(app).clock.boot)
    core_of(app).backend.workers.register(gone, 15_000_000)
    assert len(verbs.claim(core_of(app).backend, gone.id, Demand(("default",), ("nothing",), 2))) == 2
    core_of(app).backend.workers.deregister(gone.id)

    with app.worker():
        assert [ended(job) for job in jobs] == ["completed", "failed(crashed)"]

    assert [told.names_of(job) for job in jobs] == [["retried"], ["failed"]]
    assert [error and error.type for error in told.errors] == ["WorkerDied"] * 2


def test_a_job_that_expired_and_one_that_is_cancelled_while_it_runs_are_cancelled(app: App) -> None:
    told, gate = Told(app, "cancelled"), Gate()
    past = datetime(2020, 1, 1, tzinfo=UTC)
    expired = app.task(name="nothing")(nothing).using(expires_at=past).enqueue()

    @app.task(name="slow")
    def slow() -> None:
        gate.pass_through()

    running = slow.enqueue()
    with app.worker():
        gate.await_arrival()
        assert running.cancel()
        states = ended(running), ended(expired)

    assert states == ("cancelled(user)", "cancelled(expired)")
    assert told.of(running) == ["cancelled: cancelled(user)"]
    assert told.of(expired) == ["cancelled: cancelled(expired)"]


def test_what_is_cancelled_before_it_starts_is_reported_where_it_is_cancelled(app: App) -> None:
    told = Told(app, "cancelled")
    task = app.task(name="nothing")(nothing)
    job, other = task.enqueue(), task.enqueue()

    assert job.cancel()
    assert app.cancel(other)
    assert not job.cancel()  # nothing happened

    assert told.of(job) == told.of(other) == ["cancelled: cancelled(user)"]
    assert told.threads == {threading.current_thread().name}


# Enqueues


def test_an_enqueue_is_reported_once_it_is_committed_unless_nothing_was_written(app: App) -> None:
    told = Told(app, "enqueued")
    task = app.task(name="nothing")(nothing)

    jobs = [task.enqueue(), *task.enqueue_many([()] * 60), task.using(unique="k", delay=60).enqueue()]
    assert task.using(unique="k").enqueue().duplicate
    jobs.append(app.enqueue("elsewhere"))
    jobs.append(asyncio.run(task.aenqueue()))
    flow = app.workflow("flow")
    first = flow.add(task)
    flow.add(task, after=[first])
    jobs += flow.enqueue().jobs()

    assert [job_id for _, job_id, _ in told.events] == [job.id for job in jobs]
    assert {state for _, _, state in told.events} == {"queued", "scheduled", "waiting"}


def test_what_you_commit_yourself_is_not_reported(app: App) -> None:
    told = Told(app, "enqueued")
    task = app.task(name="nothing")(nothing)
    with closing(connect(app)) as connection:
        task.using(connection=connection).enqueue()
        connection.commit()

    assert len(app.jobs()) == 1
    assert told.events == []


def test_jobs_of_schedules_and_steps_that_bodies_add_are_reported_by_the_worker(app: App) -> None:
    told = Told(app, "enqueued")
    task = app.task(name="nothing")(nothing)
    app.schedule("beat", task, every=1)

    @app.task(name="grow")
    def grow(ctx: dray.Context) -> None:
        ctx.add(task, step="added")

    flow = app.workflow("flow")
    flow.add(grow)
    run = flow.enqueue()
    with app.worker():
        beat, *_ = until(lambda: [job for job in app.jobs() if job.schedule == "beat"])
        assert run.wait(LONG) == "completed"

    assert told.names_of(beat) == told.names_of(run.job("added")) == ["enqueued"]


def test_a_hook_that_enqueues_is_not_told_of_its_own_jobs(app: App) -> None:
    seen: list[str] = []
    task = app.task(name="nothing")(nothing)

    @app.on("enqueued")
    def another(job: Job[Any]) -> None:
        seen.append(job.id)
        task.enqueue()

    job = task.enqueue()

    assert seen == [job.id]
    assert len(app.jobs()) == 2


# Hooks that misbehave


def test_what_a_hook_raises_is_logged_and_changes_nothing(app: App, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    @app.on("enqueued")
    def careless(job: Job[Any]) -> NoReturn:
        raise RuntimeError("no such channel")

    @app.on("completed")
    def worse(job: Job[Any]) -> NoReturn:
        raise SystemExit(3)

    @app.on("completed")
    def good(job: Job[Any]) -> None:
        told.append(job.id)

    with caplog.at_level(logging.ERROR, logger="dray"):
        jobs = app.task(name="nothing")(nothing).enqueue_many([()] * 2)
        assert app.worker().run_until_idle() == 2

    assert [job.refresh().state for job in jobs] == ["completed"] * 2
    assert told == [job.id for job in jobs]
    said = caplog.text
    for hook, event in (("careless", "enqueued"), ("worse", "completed")):
        for job in jobs:
            assert f"{hook} for {event} of job {job.id[-8:]} failed; the job is not affected" in said
    assert "no such channel" in said


def test_a_slow_hook_delays_no_job_and_what_is_too_much_is_dropped_and_said(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_MOST", 5)
    gate, told = threading.Event(), list[str]()

    @app.on("completed")
    def slow(job: Job[Any]) -> None:
        assert gate.wait(LONG)
        told.append(job.id)

    task = app.task(name="nothing")(nothing)
    with caplog.at_level(logging.WARNING, logger="dray"), app.worker() as worker:
        jobs = task.enqueue_many([()] * 30)
        assert [ended(job) for job in jobs] == ["completed"] * 30  # while the first hook still waits
        until(lambda: worker.ran == 30)
        gate.set()

    assert 5 <= len(told) <= 6
    assert "hooks are too slow: 2" in caplog.text


def test_a_worker_that_ends_works_off_its_events_but_does_not_wait_for_ever(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    told: list[str] = []

    @app.on("completed")
    def slow(job: Job[Any]) -> None:
        told.append(job.id)
        if len(told) > 3:
            gate.wait(LONG)
        time.sleep(0.01)

    task = app.task(name="nothing")(nothing)
    task.enqueue_many([()] * 3)
    app.worker().run_until_idle()
    assert len(told) == 3

    task.enqueue_many([()] * 3)
    with caplog.at_level(logging.WARNING, logger="dray"):
        app.worker(grace=0.01).run_until_idle()
    gate.set()

    assert "hooks took too long: 3 events were not reported before the worker ended" in caplog.text


# What is refused


async def _coroutine(job: Any, error: Any = None) -> None: ...


def _generator(job: Any) -> Any:
    yield job


def _takes_none() -> None: ...


def _takes_three(job: Any, error: Any, more: Any) -> None: ...


@pytest.mark.parametrize(
    ("event", "given", "kind", "said"),
    [
        ("fail", nothing, ConfigError, "there is no event 'fail'; did you mean failed"),
        (7, nothing, ConfigError, "there is no event 7; known are enqueued, started"),
        (nothing, nothing, TypeError, r'^an event is missing; write @app\.on\("completed"\); known are enqueued'),
        ("failed", _coroutine, TypeError, "is an async def, and hooks run on a plain thread; write it as a def"),
        ("failed", _generator, TypeError, "has a yield in it"),
        ("failed", _takes_none, TypeError, r"def _takes_none\(job, error=None\)"),
        ("failed", _takes_three, TypeError, "a hook takes a job, and an error if it likes"),
        ("failed", "print", TypeError, "is a function"),
    ],
)
def test_what_cannot_be_told_is_refused_when_it_is_registered(
    event: Any, given: Any, kind: type[Exception], said: str
) -> None:
    app = App("sqlite:///unused.db")

    with pytest.raises(kind, match=said):
        app.on(event)(given)

    assert not core_of(app).hooks.worker_events


def test_a_second_parameter_of_the_hooks_own_is_left_alone(app: App) -> None:
    said: list[str] = []
    for name in ("a", "b"):
        app.on("enqueued")(lambda _job, name=name: said.append(name))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    app.enqueue("task")

    assert said == ["a", "b"]
