"""A machine that can start no more threads or processes: jobs go back without losing an attempt, and work resumes."""

from __future__ import annotations

import errno
import subprocess
import threading
from collections.abc import Generator
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import DrayError
from dray.runtime import engine
from dray.runtime.children import worker_side
from dray.runtime.worker import Worker
from dray.task.task import Task
from tests.runtime.watching import LONG, Gate, ended, sql, state_of, until

KINDS = ["thread", "async", "process"]


class Machine:
    """While it is full, no thread for bodies and no process can be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.tries = 0
        start, popen = threading.Thread.start, subprocess.Popen

        def start_thread(thread: threading.Thread) -> None:
            if self._refuses(thread.name.startswith(("dray-run", "dray-loop", "dray-child"))):
                raise RuntimeError("can't start new thread")
            start(thread)

        def start_process(*args: Any, **options: Any) -> Any:
            if self._refuses(True):
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return popen(*args, **options)

        monkeypatch.setattr(threading.Thread, "start", start_thread)
        monkeypatch.setattr(worker_side.subprocess, "Popen", start_process)

    def _refuses(self, is_concerned: bool) -> bool:
        self.tries += self.is_full and is_concerned
        return self.is_full and is_concerned


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks of all claims, in order."""
    found: list[str] = []
    dispatch = engine.Engine._dispatch

    def noting(self: Any, claims: Any, claimed_at: int) -> None:
        found.extend(claim.task for claim in claims)
        dispatch(self, claims, claimed_at)

    monkeypatch.setattr(engine.Engine, "_dispatch", noting)
    return found


@pytest.fixture
def app(kinds_app: App) -> App:
    return kinds_app


@pytest.fixture
def tasks(app: App) -> dict[str, Task[..., Any]]:
    """A task for each runner that returns at once."""
    return {kind: core_of(app).registry.get(f"of-{kind}") for kind in KINDS}


@pytest.fixture
def worker(app: App, tasks: dict[str, Task[..., Any]]) -> Generator[Worker]:
    with app.worker(concurrency=3, lease=1) as started:
        yield started


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_run_goes_back_unburned_and_runs_once_it_can(
    worker: Worker, machine: Machine, claimed: list[str], tasks: dict[str, Task[..., Any]], kind: str
) -> None:
    machine.is_full = True
    jobs = [tasks[kind].enqueue() for _ in range(3)]

    until(lambda: not worker.condition().is_ready)
    until(lambda: [state_of(job) for job in jobs] == ["queued"] * 3)
    assert [job.refresh().attempt for job in jobs] == [0, 0, 0]
    until(lambda: not worker.condition().is_healthy)
    until(lambda: machine.tries >= 3)  # it keeps trying, with pauses
    # Claimed once, and once more if a job came after the first ones were given back.
    assert len(claimed) <= 4
    assert "cannot start" in (worker.condition().reason or "")

    machine.is_full = False
    assert [ended(job) for job in jobs] == ["completed"] * 3
    assert [job.refresh().attempt for job in jobs] == [1, 1, 1]
    until(lambda: worker.condition().is_healthy and worker.condition().is_ready)
    assert worker.condition().reason is None


def test_what_has_a_thread_goes_on_and_no_more_is_claimed_than_there_are(
    app: App, machine: Machine, claimed: list[str], tasks: dict[str, Task[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(tasks["thread"], "function", gate.pass_through)
    with app.worker(concurrency=3, lease=60) as worker:
        first = tasks["thread"].enqueue()
        gate.await_arrival()
        machine.is_full = True
        jobs = [tasks["thread"].enqueue() for _ in range(3)]
        until(lambda: not worker.condition().is_ready)
        until(lambda: machine.tries >= 3)
        assert [state_of(job) for job in (first, *jobs)] == ["running", "queued", "queued", "queued"]
        assert len(claimed) <= 4

        machine.is_full = False
        gate.await_arrival(2)
        until(lambda: worker.condition().is_ready)
        gate.open()
        assert [ended(job) for job in (first, *jobs)] == ["completed"] * 4
    assert {job.refresh().attempt for job in jobs} == {1}


def test_tasks_that_need_no_process_run_while_none_can_be_started(
    worker: Worker, machine: Machine, tasks: dict[str, Task[..., Any]], app: App
) -> None:
    tasks["thread"].enqueue_many([()] * 3)
    until(lambda: app.stats().states["completed"] == 3)
    tasks["async"].enqueue().result(LONG)
    machine.is_full = True
    stranded = tasks["process"].enqueue()
    until(lambda: not worker.condition().is_ready)
    until(lambda: state_of(stranded) == "queued")

    assert [ended(tasks[kind].enqueue()) for kind in ("thread", "async")] == ["completed"] * 2

    machine.is_full = False
    assert ended(stranded) == "completed"


def test_a_job_that_has_to_be_isolated_is_not_claimed_over_and_over(
    worker: Worker, machine: Machine, claimed: list[str], tasks: dict[str, Task[..., Any]], app: App
) -> None:
    """By its task it could run in a thread, so claims keep returning it although no child process can be started."""
    tasks["thread"].enqueue_many([()] * 3)
    until(lambda: app.stats().states["completed"] == 3)
    app.pause("default")
    job = tasks["thread"].enqueue()
    sql(app, "UPDATE dray_jobs SET crashes = 1 WHERE state = 'queued'")
    machine.is_full = True
    claimed.clear()
    app.resume("default")
    until(lambda: not worker.condition().is_ready)
    until(lambda: machine.tries >= 3)

    assert claimed == ["of-thread"]
    assert (state_of(job), job.refresh().attempt) == ("scheduled", 0)

    machine.is_full = False
    sql(app, "UPDATE dray_jobs SET run_at = created_at")
    assert ended(job) == "completed"


def test_a_worker_of_so_many_jobs_counts_those_it_has_run(
    app: App, machine: Machine, tasks: dict[str, Task[..., Any]]
) -> None:
    machine.is_full = True
    tasks["thread"].enqueue_many([()] * 2)
    worker = app.worker(concurrency=1, max_jobs=2)
    done = threading.Thread(target=worker.run)
    done.start()
    until(lambda: machine.tries >= 3)
    machine.is_full = False
    done.join(LONG)

    assert not done.is_alive()
    assert worker.ran == 2


def start_while_another_error_is_handled(app: App) -> None:
    try:
        int("no number")
    except ValueError:
        app.worker().start()


def test_a_worker_without_a_thread_of_its_own_does_not_start_and_leaves_nothing(
    app: App, tasks: dict[str, Task[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "dray-duties":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DrayError, match="no thread could be started for this worker: can't start new thread"):
            start_while_another_error_is_handled(app)

    assert [worker.state for worker in app.workers()] == ["stopped"]
    assert not [thread for thread in threading.enumerate() if thread.name in {"dray-heartbeat", "dray-stopper"}]


def test_a_worker_stops_in_order_without_a_thread_to_stop_it(
    app: App, tasks: dict[str, Task[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "dray-stop":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tasks["thread"].enqueue()
    app.worker().run(until_idle=True)

    assert [worker.state for worker in app.workers()] == ["stopped"]
    assert app.stats().states["completed"] == 1
