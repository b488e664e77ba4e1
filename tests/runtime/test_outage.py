"""A worker whose database fails for a while: it finds out which jobs it still holds, and claims nothing blindly."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import StorageUnavailable
from dray.runtime.engine import Engine
from dray.runtime.worker import Worker
from dray.task.task import Task
from tests.backends import raw
from tests.runtime.watching import LONG, Gate, ended, state_of, until


@pytest.fixture
def quick(app: App) -> Task[..., Any]:
    @app.task(name="quick", queue="other")
    def quick() -> None:
        pass

    return quick


@pytest.fixture
def grow(app: App, quick: Task[..., Any]) -> Task[..., Any]:
    @app.task(name="grow", queue="other")
    def grow(ctx: dray.Context) -> None:
        ctx.add(quick)

    return grow


def fail_once(worker: Worker, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine's next call fail, as when the server crashes."""
    call, failures = getattr(worker._backend.work, verb), [StorageUnavailable("the server has crashed")]

    def failing(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return call(*args, **options)

    monkeypatch.setattr(worker._backend.work, verb, failing)


@pytest.mark.parametrize("verb", ["exchange", "grow"])
def test_a_body_whose_claim_the_crash_forgot_is_stopped_and_writes_nothing(
    app: App, grow: Task[..., Any], verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @app.task(name="long")
    def long() -> None:
        gate.pass_through()

    with app.worker(concurrency=2, lease=60, grace=0) as worker:
        job = long.enqueue()
        gate.await_arrival()
        app.pause("default")  # otherwise it would be claimed again at once
        raw.forget_claim(core_of(app).backend, job.id)
        fail_once(worker, verb, monkeypatch)
        wf = app.workflow("growing")
        wf.add(grow)
        assert wf.enqueue().wait(LONG) == "completed"
        until(lambda: not worker._in_flight.executions())

    assert (state_of(job), job.attempt, job.attempts()) == ("queued", 0, [])
    assert f"no longer holds 1 job ({job.id[-8:]}): stopping their bodies" in caplog.text


def test_an_idle_worker_that_could_not_look_finds_what_another_process_enqueues_afterwards(
    app: App, quick: Task[..., Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own looks can show it that the database is back."""
    with app.worker() as worker:
        quick.enqueue().result(timeout=LONG)
        fail_once(worker, "look", monkeypatch)
        worker._inbox.look_soon()
        until(lambda: worker._engine._outage.is_on)
        with App(url) as elsewhere:
            made = elsewhere.enqueue("quick", queue="other")

        assert ended(app.job(made.id)) == "completed"


def test_a_worker_that_cannot_be_told_from_a_dead_one_claims_nothing(
    app: App, quick: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beats fail and its proof is lost, although the engine's own connection works."""
    ticks: list[str] = []
    tick = Engine.tick

    def counted(self: Engine) -> float:
        rest = tick(self)
        ticks.append("ticked")
        return rest

    def refuse(*_: Any, **__: Any) -> None:
        raise StorageUnavailable("the network is gone")

    monkeypatch.setattr(Engine, "tick", counted)
    with app.worker() as worker:
        quick.enqueue().result(timeout=LONG)
        with monkeypatch.context() as cut:
            cut.setattr(worker._beats.workers, "beat", refuse)
            cut.setattr(type(worker._heartbeat.lease.proof), "is_held", False)
            worker._heartbeat.wake()
            until(lambda: not worker.condition().is_ready)

            job = quick.enqueue()
            before = len(ticks)
            worker._inbox.look_soon()
            until(lambda: len(ticks) >= before + 2)
            assert state_of(job) == "queued"

        assert ended(job) == "completed"
        assert worker.condition().is_ready
