"""Cancelled from another process: what runs is stopped, what does not run yet never will."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.handle.job import Job
from tests.processes.harness import Fleet
from tests.processes.places import Scenario, Together, on_both

STOP = "tests.processes.apps_stop"
RUNNING = ("wait_in_thread", "wait_on_loop", "wait_in_child", "wait_with_family")
SOON = 15.0  # seconds; a request is learned in milliseconds, a child may be slow to die, and a beat comes each 20 s


def wait(fleet: Fleet, task: str, **using: Any) -> Job[Any]:
    return fleet.enqueue(f"{STOP}.{task}", label=task, path=str(fleet.folder / "go"), using=using)


def test_running_bodies_are_stopped_with_all_that_they_have_started(together: Together) -> None:
    together.wait(running)


@on_both
def running(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=4, lease=60)  # a beat, which brings requests too, comes each 20 s
    jobs = [wait(fleet, task) for task in RUNNING]
    fleet.until(lambda: len(fleet.ledger.starts()) == 4 and len(fleet.ledger.entries("sleeper")) == 3)
    began = time.monotonic()
    assert [job.cancel() for job in jobs] == [True] * 4
    fleet.ended(jobs)
    assert time.monotonic() - began < SOON

    for job in jobs:
        assert (job.refresh().state, job.reason) == ("cancelled", "user")
        assert fleet.outcomes(job) == ["cancelled"]
        assert job.cancel() is False, "it has ended"
    with pytest.raises(dray.JobCancelled):
        jobs[0].result(timeout=1)
    assert {entry.label for entry in fleet.ledger.entries("raised")} == set(RUNNING), "a body could not clean up"
    assert [entry for entry in fleet.ledger.entries("sleeper") if is_alive(entry.more)] == []
    assert fleet.ledger.ends() == []

    again = [fleet.enqueue(f"{STOP}.{task}", label="again") for task in ("in_thread", "on_loop", "in_child")]
    fleet.ended(again)
    assert worker.end() == 0
    fleet.until(fleet.is_alone, "its children to be gone")


def test_what_does_not_run_yet_never_does(together: Together) -> None:
    together.wait(not_yet_running)


@on_both
def not_yet_running(fleet: Fleet) -> None:
    """Waiting for a parent, for its time, for a free slot; and claimed ahead behind a long body."""
    worker = fleet.start(STOP, concurrency=1)
    for _ in range(40):  # short ones, so that it claims ahead
        fleet.enqueue(f"{STOP}.in_thread", label="short")
    long = wait(fleet, "wait_in_thread")
    queued = [fleet.enqueue(f"{STOP}.in_thread", label="never") for _ in range(20)]
    scheduled = fleet.enqueue(f"{STOP}.in_thread", label="never", using={"delay": 1})
    waiting = fleet.enqueue(f"{STOP}.in_thread", label="never", using={"after": [long]})
    child = fleet.enqueue(f"{STOP}.in_thread", label="never", using={"after": [queued[0]]})
    fleet.until(lambda: fleet.ledger.starts("wait_in_thread"), "the long one to start")
    jobs = [*queued, scheduled, waiting]
    assert [job.cancel() for job in jobs] == [True] * len(jobs)
    # Those that are claimed ahead end when their worker has heard of it, though it has no free slot.
    fleet.ended([*jobs, child])
    assert [job.cancel() for job in jobs] == [False] * len(jobs)

    (fleet.folder / "go").touch()
    fleet.ended([long])
    assert {(job.refresh().state, job.reason) for job in jobs} == {("cancelled", "user")}
    assert (child.refresh().state, child.reason) == ("cancelled", "parent")
    assert long.refresh().state == "completed"
    last = fleet.enqueue(f"{STOP}.in_thread", label="last", using={"delay": 1.2})
    fleet.ended([last])
    assert fleet.ledger.starts("never") == []
    assert worker.end() == 0


def test_a_body_that_completes_all_the_same_is_completed(together: Together) -> None:
    together.wait(completed_anyway)


@on_both
def completed_anyway(fleet: Fleet) -> None:
    fleet.start(STOP, concurrency=1)
    job = fleet.enqueue(f"{STOP}.ask_until_cancelled", label="deaf")
    fleet.until(lambda: fleet.ledger.starts("deaf"))
    assert job.cancel() is True
    assert job.result(timeout=20) == "completed anyway"
    assert fleet.outcomes(job) == ["completed"]
    assert job.cancel() is False


def test_a_job_whose_worker_dies_after_the_request_is_cancelled_not_retried(together: Together) -> None:
    together.wait(worker_dies)


@on_both
def worker_dies(fleet: Fleet) -> None:
    """The request comes while its worker stands still, and the worker is killed before it can obey."""
    worker = fleet.start(STOP, concurrency=1, lease=2)
    job = wait(fleet, "wait_in_thread")
    fleet.until(fleet.ledger.starts)
    fleet.still(worker)
    assert job.cancel() is True
    assert job.cancel() is True, "it is still running, and asked to stop"
    assert job.refresh().state == "running"
    worker.kill()
    fleet.start(STOP, concurrency=1, lease=2)
    fleet.ended([job])
    assert (job.refresh().state, job.reason) == ("cancelled", "user")
    assert len(fleet.ledger.starts()) == 1


def breaking_down(harm: str) -> Scenario:
    """As with the death of a worker: whatever would put the job back ends it instead."""

    @on_both
    def scenario(fleet: Fleet) -> None:
        fleet.start(STOP, concurrency=1)
        job = fleet.enqueue(f"{STOP}.break_when_told", label="told", harm=harm)
        fleet.until(fleet.ledger.starts)
        assert job.cancel() is True
        fleet.ended([job])
        assert (job.refresh().state, job.reason) == ("cancelled", "user")
        assert len(fleet.ledger.starts()) == 1

    return scenario


BREAKING_DOWN = {harm: breaking_down(harm) for harm in ("os._exit", "SystemExit")}


@pytest.mark.parametrize("harm", BREAKING_DOWN)
def test_a_body_that_breaks_down_after_the_request_is_cancelled_not_retried(together: Together, harm: str) -> None:
    together.wait(BREAKING_DOWN[harm])


def test_a_job_that_was_asked_to_stop_is_not_handed_back_at_shutdown(together: Together) -> None:
    together.wait(shut_down)


@on_both
def shut_down(fleet: Fleet) -> None:
    """The body is deaf to both; the process ends with it."""
    pipe = fleet.folder / "pipe"
    os.mkfifo(pipe)
    worker = fleet.start(STOP, concurrency=1, grace=0.2)
    job = fleet.enqueue(f"{STOP}.deaf_until", label="deaf", path=str(pipe))
    fleet.until(fleet.ledger.starts)
    assert job.cancel() is True
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert (job.refresh().state, job.reason) == ("cancelled", "user")


def test_a_running_job_cannot_be_retried_or_deleted(together: Together) -> None:
    together.wait(retried_while_it_runs)


@on_both
def retried_while_it_runs(fleet: Fleet) -> None:
    fleet.start(STOP, concurrency=1)
    job = wait(fleet, "wait_in_thread")
    fleet.until(fleet.ledger.starts)
    assert (job.retry(), job.delete(), job.refresh().state) == (False, False, "running")
    (fleet.folder / "go").touch()
    fleet.ended([job])
    assert len(fleet.ledger.starts()) == 1
    assert job.retry() is True
    fleet.until(lambda: len(fleet.ledger.ends()) == 2, "it to run anew")


def is_alive(pid: int) -> bool:
    """Whether it can still do anything; a dead one that nobody has buried yet cannot."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


TOGETHER = (
    shut_down,  # the longest first
    worker_dies,
    running,
    not_yet_running,
    completed_anyway,
    retried_while_it_runs,
    *BREAKING_DOWN.values(),
)
