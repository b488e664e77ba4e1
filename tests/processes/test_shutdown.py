"""SIGTERM, SIGINT and SIGHUP: nothing new is claimed, what runs may end, the rest goes back, and the process ends."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from dray.handle.job import Job
from tests.processes.harness import Fleet, Process
from tests.processes.places import Scenario, Together, on_both

STOP = "tests.processes.apps_stop"
WAITERS = ("wait_in_thread", "wait_on_loop", "wait_in_child")
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
AT_ONCE = 3.0  # seconds; ten times what it takes


def wait(fleet: Fleet, task: str, label: str, **using: Any) -> Job[Any]:
    """A job that runs until `let_go`."""
    return fleet.enqueue(f"{STOP}.{task}", label=label, path=str(fleet.folder / "go"), using=using)


def let_go(fleet: Fleet) -> None:
    (fleet.folder / "go").touch()


def started(fleet: Fleet, count: int) -> None:
    fleet.until(lambda: len(fleet.ledger.starts()) >= count, f"{count} bodies to start")


def draining(number: signal.Signals) -> Scenario:
    """A lease of two seconds, and a drain of three: the worker must go on beating, or it would be declared dead."""

    @on_both
    def scenario(fleet: Fleet) -> None:
        worker = fleet.start(STOP, concurrency=4, lease=2)
        its_id = fleet.worker_of(worker)
        assert its_id is not None
        jobs = [wait(fleet, task, task) for task in WAITERS]
        started(fleet, 3)
        worker.send(number)
        fleet.until(lambda: fleet.worker_state(its_id) == "draining", "the worker to say that it drains")

        # There is a free slot, but it takes nobody any more; a second worker does.
        late = fleet.enqueue(f"{STOP}.in_thread", label="late")
        witness = fleet.start(STOP, concurrency=1, lease=2)
        fleet.ended([late])
        assert [entry.pid for entry in fleet.ledger.starts("late")] == [witness.pid]
        beats = [last_seen(fleet, its_id)]
        for _ in range(3):
            fleet.until(lambda: last_seen(fleet, its_id) != beats[-1], "another beat", seconds=10)
            beats.append(last_seen(fleet, its_id))
        assert fleet.worker_state(its_id) == "draining"
        assert [job.refresh().state for job in jobs] == ["running"] * 3

        if number == signal.SIGHUP:
            worker.send(number)  # from the kernel, after the shell's
        let_go(fleet)
        assert worker.wait() == 0
        assert [job.refresh().state for job in jobs] == ["completed"] * 3
        assert {len(fleet.ledger.starts(task)) for task in WAITERS} == {1}
        assert {fleet.outcomes(job)[0] for job in jobs} == {"completed"}
        assert fleet.worker_state(its_id) == "stopped"
        assert witness.end() == 0
        fleet.until(fleet.is_alone, "its children to be gone")

    return scenario


DRAINING = {number: draining(number) for number in SIGNALS}


@pytest.mark.parametrize("number", SIGNALS)
def test_what_runs_may_end_and_nothing_new_is_claimed(together: Together, number: signal.Signals) -> None:
    together.wait(DRAINING[number])


def test_what_does_not_end_within_grace_is_handed_back_with_its_attempt(together: Together) -> None:
    together.wait(handed_back)


@on_both
def handed_back(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=4, grace=0.5)
    jobs = [wait(fleet, task, task, max_attempts=1) for task in WAITERS]
    jobs.append(wait(fleet, "wait_with_family", "family", max_attempts=1))
    started(fleet, 4)
    assert worker.end() == 0

    for job in jobs:
        assert (job.refresh().state, job.attempt, job.reason) == ("queued", 0, None)
        assert fleet.outcomes(job) == []
    raised = {entry.label for entry in fleet.ledger.entries("raised")}
    assert raised == {*WAITERS, "family"}, "a body could not clean up"
    fleet.until(fleet.is_alone, "its children, and theirs, to be gone")

    let_go(fleet)
    fleet.start(STOP, concurrency=4)
    fleet.ended(jobs)
    assert [job.refresh().state for job in jobs] == ["completed"] * 4
    assert fleet.ledger.entries("overlap") == []


def test_what_was_claimed_ahead_goes_back_unrun(together: Together) -> None:
    together.wait(claimed_ahead)


@on_both
def claimed_ahead(fleet: Fleet) -> None:
    """Short bodies make the worker claim ahead; then a long one has the only slot when the signal comes."""
    short = [fleet.enqueue(f"{STOP}.in_thread", label="short") for _ in range(60)]
    long = wait(fleet, "wait_in_thread", "long")
    behind = [fleet.enqueue(f"{STOP}.in_thread", label="behind") for _ in range(60)]
    worker = fleet.start(STOP, concurrency=1)
    fleet.until(lambda: fleet.ledger.starts("long"), "the long one to start")
    worker.terminate()
    fleet.until(lambda: set(fleet.states()) == {"completed", "running", "queued"}, "what is ahead to be back")
    fleet.until(lambda: fleet.states()["running"] == 1, "what is ahead to be back")
    let_go(fleet)
    assert worker.wait() == 0

    assert fleet.states() == {"completed": len(short) + 1, "queued": len(behind)}
    assert fleet.sql("SELECT DISTINCT attempt FROM dray_jobs WHERE state = 'queued'") == [(0,)]
    assert fleet.ledger.starts("behind") == []
    fleet.start(STOP, concurrency=2)
    fleet.ended([*behind, long])
    assert len(fleet.ledger.starts()) == len(short) + 1 + len(behind)
    fleet.audit()


def test_a_worker_that_was_told_to_end_while_it_stood_still_does_so_when_it_goes_on(together: Together) -> None:
    together.wait(told_while_stopped)


@on_both
def told_while_stopped(fleet: Fleet) -> None:
    """The kernel may then give the signal to any thread, and Python acts on it in the main one only."""
    for number in SIGNALS:
        worker = fleet.start(STOP, concurrency=2)
        fleet.ended([fleet.enqueue(f"{STOP}.in_thread", label="warm")])
        worker.pause()
        worker.send(number)
        worker.go_on()
        assert worker.wait(20) == 0


def test_a_worker_that_is_told_to_end_while_it_renews_itself_does_not_come_back(together: Together) -> None:
    together.wait(told_while_renewing)


@on_both
def told_while_renewing(fleet: Fleet) -> None:
    """A thread does not stop, so the process is to be renewed; the signal comes before it is."""
    worker = fleet.start(STOP, concurrency=2)
    using = {"timeout": 1, "max_attempts": 1}
    stuck = fleet.enqueue(f"{STOP}.hang", label="stuck", way="sleep", using=using)
    neighbour = wait(fleet, "wait_in_thread", "neighbour")
    started(fleet, 2)
    fleet.ended([stuck])
    fleet.until(lambda: "renewing this process" in worker.said, "the worker to give up on its thread")
    worker.terminate()
    time.sleep(0.2)  # nothing tells that a signal which changes nothing yet has arrived
    let_go(fleet)
    assert worker.wait(15) == 0
    assert neighbour.refresh().state == "completed"
    assert "active" not in {worker.state for worker in fleet.app.workers()}


def told_twice(number: signal.Signals) -> Scenario:
    @on_both
    def scenario(fleet: Fleet) -> None:
        worker = fleet.start(STOP, concurrency=4, lease=2)
        its_id = fleet.worker_of(worker)
        assert its_id is not None
        jobs = [wait(fleet, task, task) for task in (*WAITERS, "wait_with_family")]
        started(fleet, 4)
        worker.send(number)
        fleet.until(lambda: fleet.worker_state(its_id) == "draining", "the worker to drain")
        began = time.monotonic()
        worker.send(number)
        assert worker.wait() == 128 + number
        assert time.monotonic() - began < AT_ONCE
        # As after kill -9: nothing of it is left, and others take its jobs.
        fleet.until(fleet.is_alone, "its children, and theirs, to be gone")
        fleet.start(STOP, concurrency=4, lease=2)
        fleet.until(lambda: all(fleet.outcomes(job)[:1] == ["crashed"] for job in jobs), "its jobs to be rescued")
        let_go(fleet)
        fleet.ended(jobs)
        assert fleet.ledger.entries("overlap") == []

    return scenario


TOLD_TWICE = {number: told_twice(number) for number in SIGNALS[:2]}


@pytest.mark.parametrize("number", SIGNALS[:2])
def test_a_second_signal_ends_at_once(together: Together, number: signal.Signals) -> None:
    together.wait(TOLD_TWICE[number])


def test_a_thread_that_does_not_stop_loses_its_job_in_the_last_write(together: Together) -> None:
    together.wait(last_write)


@on_both
def last_write(fleet: Fleet) -> None:
    """The process ends with it, so that the job is free for others, and unburned."""
    pipe = fleet.folder / "pipe"
    os.mkfifo(pipe)
    worker = fleet.start(STOP, concurrency=2, grace=0.5, lease=2)
    stuck = fleet.enqueue(f"{STOP}.deaf_until", label="deaf", path=str(pipe), using={"max_attempts": 1})
    started(fleet, 1)
    witness = fleet.start(STOP, concurrency=1, lease=2)
    worker.terminate()
    fleet.until(lambda: len(fleet.ledger.starts("deaf")) == 2 or not worker.is_alive, "it to be handed on")
    assert worker.wait() == 0
    fleet.until(lambda: len(fleet.ledger.starts("deaf")) == 2, "somebody else to run it")
    assert fleet.ledger.entries("overlap") == []
    again = fleet.ledger.starts("deaf")[1]
    assert (again.pid, again.attempt) == (witness.pid, 1)
    os.close(os.open(pipe, os.O_WRONLY))
    assert stuck.result(timeout=20) == "attempt 1"
    assert fleet.outcomes(stuck) == ["completed"]
    assert witness.end() == 0
    fleet.audit()


def test_a_signal_while_the_worker_starts_is_not_lost(together: Together) -> None:
    together.wait(told_while_starting)


@on_both
def told_while_starting(fleet: Fleet) -> None:
    """Sent at every stage of the start: the process ends, and leaves no worker that counts as alive."""
    for pause in (0.05, 0.15, 0.25, 0.35, 0.45, 0.6):
        worker = fleet.launch(STOP)
        time.sleep(pause)  # no signal to wait for: the point is to meet it unprepared
        worker.terminate()
        assert worker.wait(10) in {0, -signal.SIGTERM}
    assert [worker_id for worker_id, _ in fleet.live_workers()] == []


def test_a_worker_ends_though_a_body_has_left_a_thread(together: Together) -> None:
    together.wait(left_a_thread)


@on_both
def left_a_thread(fleet: Fleet) -> None:
    """Python waits at its end for threads that are no daemons; a worker that was told to end does not."""
    worker = cli_worker(fleet)
    job = fleet.enqueue(f"{STOP}.leave_a_thread", label="left")
    fleet.ended([job])
    assert job.refresh().state == "completed"
    assert worker.end() == 0


def cli_worker(fleet: Fleet, *options: str) -> Process:
    """`dray worker`, as people start it."""
    worker = fleet.run(["-m", "dray", "worker", f"{STOP}:app", *options])
    fleet.until(lambda: fleet.worker_of(worker), f"worker {worker.pid} to register")
    return worker


def last_seen(fleet: Fleet, worker_id: str) -> Any:
    return fleet.sql(f"SELECT last_seen_at FROM dray_workers WHERE id = '{worker_id}'")[0][0]


TOGETHER = (
    last_write,  # the longest first
    *TOLD_TWICE.values(),
    told_while_renewing,
    *DRAINING.values(),
    told_while_starting,
    handed_back,
    claimed_ahead,
    told_while_stopped,
    left_a_thread,
)
