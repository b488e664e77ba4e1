"""Stopping bodies in child processes: first by request, then by force, and nothing is left of them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.instants import HOUR, SECOND
from dray.runtime.children.worker_side import ForkerHandle
from dray.runtime.execution import StopCause
from dray.runtime.inbox import Inbox
from dray.runtime.runners import Runner
from dray.runtime.runners.process import ProcessRunner
from dray.runtime.runners.thread import ThreadRunner
from dray.runtime.stopper import Stopper
from dray.task.task import Task
from tests.manual_clock import ManualClock
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import (
    Link,
    Stage,
    await_file,
    await_number,
    await_that,
    group_members,
    is_alive,
    new_execution,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared_stage(kept_forker: ForkerHandle) -> Generator[Stage]:
    """Shared by all tests that do not need their own, because it is slow to set up. It expects to leave the processes
    that there were before: the forker that tests share is one of them."""
    with Stage() as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    shared_stage.link = Link()
    return shared_stage


@pytest.mark.parametrize("task", [bodies.sleep, bodies.spin, bodies.sleep_in_a_coroutine], ids=lambda task: task.name)
def test_a_body_ends_when_it_is_out_of_time(stage: Stage, tmp_path: Path, task: Task[..., object]) -> None:
    execution = stage.start(task, begun=str(tmp_path / "begun"))
    await_file(tmp_path / "begun")

    stage.stop(execution)

    settlement = stage.settled()
    assert (settlement.outcome, settlement.error_type) == ("timeout", "Timeout")
    assert f"in {task.name.rpartition('.')[2]}" in (settlement.traceback or "")
    assert stage.result(bodies.add, a=1, b=2) == 3


def test_a_body_may_clean_up(stage: Stage, tmp_path: Path) -> None:
    execution = stage.start(bodies.sleep, begun=str(tmp_path / "begun"), cleaned=str(tmp_path / "cleaned"))
    await_file(tmp_path / "begun")

    stage.stop(execution)

    assert stage.settled().outcome == "timeout"
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(
    ("why", "state", "outcome"),
    [
        (StopCause.CANCEL, "cancelled", "cancelled"),
        (StopCause.SHUTDOWN, "queued", None),
        (StopCause.TIMEOUT, "scheduled", "timeout"),
    ],
)
def test_why_it_was_stopped_decides_what_becomes_of_the_job(
    stage: Stage, tmp_path: Path, why: StopCause, state: str, outcome: str | None
) -> None:
    execution = stage.start(bodies.sleep, begun=str(tmp_path / "begun"))
    await_file(tmp_path / "begun")

    stage.stop(execution, why)

    settlement = stage.settled()
    assert (settlement.state, settlement.outcome) == (state, outcome)


def test_nothing_is_written_of_a_job_that_is_lost(stage: Stage, tmp_path: Path) -> None:
    execution = stage.start(bodies.sleep, begun=str(tmp_path / "begun"))
    await_file(tmp_path / "begun")

    stage.stop(execution, StopCause.LOST)

    assert stage.end() == (execution, None)


def test_a_body_knows_that_it_is_to_stop_before_it_is_interrupted(stage: Stage, tmp_path: Path) -> None:
    execution = stage.start(bodies.ask_whether_cancelled, begun=str(tmp_path / "begun"))
    await_file(tmp_path / "begun")

    stage.stop(execution, StopCause.CANCEL)

    assert stage.settled().state == "cancelled"
    assert stage.link.lines == ["cancelled: False, then True"]


def test_a_body_is_interrupted_once_and_may_complete_regardless(stage: Stage, tmp_path: Path) -> None:
    begun, until = tmp_path / "begun", tmp_path / "until"
    execution = stage.start(bodies.go_on_regardless, begun=str(begun), until=str(until))
    await_file(begun)

    for _ in range(5):
        stage.stop(execution, StopCause.CANCEL)
        time.sleep(0.01)  # each would interrupt the body if more than the first counted
    until.touch()

    assert (settlement := stage.settled()).state == "completed"
    assert settlement.result == '"done"'


def test_what_is_stopped_before_it_has_begun_never_begins(tmp_path: Path) -> None:
    with Stage(size=1) as stage:
        until, begun = tmp_path / "until", tmp_path / "begun"
        stage.start(bodies.announce_and_wait, begun=str(begun), until=str(until))
        await_file(begun)
        waiting = stage.start(bodies.sleep, begun=str(tmp_path / "never"))

        stage.stop(waiting, StopCause.CANCEL)
        until.touch()

        assert stage.settled().state == "completed"
        assert stage.settled().state == "cancelled"
        assert not (tmp_path / "never").exists()


def test_a_body_can_be_stopped_at_any_moment(tmp_path: Path) -> None:
    # Between the claim and the outcome, messages and signals are sent and processes start and end.
    with Stage(size=1) as stage:
        for number in range(60):
            execution = stage.start(bodies.talk_a_lot, lines=number % 7 * 10)
            time.sleep(number / 10_000)
            stage.stop(execution, StopCause.CANCEL)
            assert stage.settled().state in {"completed", "cancelled"}
        assert stage.result(bodies.add, a=1, b=2) == 3


def test_the_stack_of_a_running_body_can_be_asked_for(stage: Stage, tmp_path: Path) -> None:
    execution = stage.start(bodies.keep_the_gil, begun=str(tmp_path / "begun"))
    await_file(tmp_path / "begun")

    assert "in keep_the_gil" in (stage.runner.stack(execution) or "")

    stage.runner.abandon(execution)
    assert "died of SIGKILL" in (stage.settled().error_message or "")


@pytest.mark.parametrize(
    ("task", "args"),
    [(bodies.keep_the_gil, {}), (bodies.sleep_in_a_coroutine, {"swallows": True})],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_body_that_does_not_listen_is_killed_and_recorded_with_its_stack(
    stage: Stage, tmp_path: Path, task: Task[..., object], args: dict[str, bool]
) -> None:
    pid = stage.result(bodies.who_am_i)["pid"]
    execution = stage.start(task, begun=str(tmp_path / "begun"), **args)
    await_file(tmp_path / "begun")

    stage.stop(execution)
    await_that(lambda: stage.runner.stack(execution) is not None)
    stage.runner.abandon(execution)

    settlement = stage.settled()
    assert settlement.outcome == "timeout"
    assert "most recent call first" in (settlement.traceback or "")
    assert not is_alive(pid)
    assert stage.result(bodies.add, a=1, b=2) == 3


@pytest.mark.parametrize("deaf", [True, False], ids=["ignores SIGTERM", "ends at SIGTERM"])
def test_nothing_is_left_of_ten_sleepers_that_ignore_sigterm(stage: Stage, tmp_path: Path, deaf: bool) -> None:
    begun = tmp_path / "begun"
    execution = stage.start(bodies.fork_sleepers, begun=str(begun), deaf=deaf, ends="never")
    group = await_number(begun)
    assert len(group_members(group)) == 11

    stage.stop(execution)
    if deaf:
        stage.runner.abandon(execution)

    assert stage.settled().outcome == "timeout"
    assert group_members(group) == []
    assert stage.result(bodies.add, a=1, b=2) == 3


def test_nothing_is_left_of_what_a_child_had_started_that_died(stage: Stage, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    settlement = stage.run(bodies.fork_sleepers, begun=str(begun), deaf=True, ends="dies")

    assert settlement.outcome == "crashed"
    assert group_members(int(begun.read_text())) == []


def test_what_a_body_leaves_running_when_it_ends_well_is_left_alone(stage: Stage) -> None:
    pid = stage.result(bodies.leave_a_process_behind)
    stage.result(bodies.add, a=1, b=2)

    assert is_alive(pid)

    os.kill(pid, signal.SIGKILL)
    await_that(lambda: not is_alive(pid))  # or the next test would expect it to be there


def test_it_is_killed_when_the_worker_dies_though_the_child_ends_before_the_forker_knows(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with Stage() as stage:
        stage.run(bodies.fork_sleepers, begun=str(begun), deaf=False, ends="well")
        group = await_number(begun)
        (slot,) = stage.runner.slots
        assert slot.child is not None

        for end in (slot.child._status, slot.child._sock):  # as the kernel does, before it closes the forker's
            end.close()

        await_that(lambda: not group_members(group))


def test_a_sigterm_that_is_not_the_workers_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    # A service manager signals every process; the worker gets the signal too and decides.
    found = stage.result(bodies.who_am_i)
    begun, until = tmp_path / "begun", tmp_path / "until"
    stage.start(bodies.announce_and_wait, begun=str(begun), until=str(until))
    await_file(begun)

    for pid in (found["pid"], found["parent"]):
        os.kill(pid, signal.SIGTERM)
        os.kill(found["parent"], signal.SIGINT)
    until.touch()

    assert stage.settled().state == "completed"
    assert stage.result(bodies.who_am_i) == found


def test_a_handler_that_one_body_leaves_does_not_keep_the_next_from_stopping(stage: Stage, tmp_path: Path) -> None:
    pid = stage.result(bodies.install_a_handler)
    execution = stage.start(bodies.sleep, begun=str(tmp_path / "begun"))
    await_file(tmp_path / "begun")
    assert is_alive(pid)

    stage.stop(execution)

    assert stage.settled().outcome == "timeout"


def test_kill_9_of_the_worker_leaves_nothing_that_runs_and_frees_its_lock(tmp_path: Path) -> None:
    begun, lock = tmp_path / "begun", tmp_path / "lock"
    program = f"""
import fcntl
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import Stage
lock = open({str(lock)!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
stage = Stage(lock=lock.fileno())
stage.start(bodies.fork_sleepers, begun={str(begun)!r}, deaf=True, ends="never")
stage.settled()
"""
    worker = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        group = await_number(begun)
        forker = int(Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[1])
        assert len(group_members(group)) == 11
    finally:
        worker.kill()
        worker.wait()

    await_that(lambda: not is_alive(forker) and not group_members(group))
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_child_that_outlives_its_worker_keeps_the_workers_lock(tmp_path: Path) -> None:
    begun, lock = tmp_path / "begun", tmp_path / "lock"
    program = f"""
import fcntl
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import Stage
lock = open({str(lock)!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
stage = Stage(lock=lock.fileno())
stage.start(bodies.fork_sleepers, begun={str(begun)!r}, deaf=True, ends="never")
stage.settled()
"""
    worker = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    group = await_number(begun)
    forker = int(Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(forker, signal.SIGSTOP)  # so that it does not end the child
    worker.kill()
    worker.wait()
    try:
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(forker, signal.SIGCONT)

    await_that(lambda: not is_alive(forker) and not group_members(group))
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("runner", "seconds"), [(ProcessRunner, 5), (ThreadRunner, 1)])
def test_a_killed_process_has_longer_to_be_gone_than_a_thread_that_gives_up(
    runner: type[Runner], seconds: int
) -> None:
    """On a busy machine the burial of a child took a second, and its worker renewed itself for nothing."""

    def watch_over(now: int, _: object) -> int:
        return now + HOUR

    clock, abandoned, stuck = ManualClock(), list[Any](), list[Any]()
    execution: Any = new_execution(Link(), bodies.sleep)
    execution.runner = SimpleNamespace(burial_us=runner.burial_us, abandon=abandoned.append)
    execution.stopped_at = execution.abandon_at = clock.steady()
    lease: Any = SimpleNamespace(watch_over=watch_over)
    stopper = Stopper(clock, lambda: [execution], lease, Inbox(), stuck.append)
    clock.advance(seconds * SECOND - 1)
    stopper.tick()
    assert (abandoned, stuck) == ([execution], [])

    clock.advance(1)
    stopper.tick()
    assert stuck == [execution]
