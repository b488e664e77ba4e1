"""Short bodies in child processes: a child has many jobs at a time, and what happens to it concerns one of them."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import termios
import time
from array import array
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dray.model.settlement import Settlement
from dray.runtime.children import worker_side
from dray.runtime.execution import Execution, StopCause
from dray.runtime.runners import process
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import Stage, await_file, await_number, await_that, is_alive, open_files

pytestmark = pytest.mark.usefixtures("shared_forker")


class Talk:
    """Counts what a worker and its children say, and how often the worker wakes up for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chunks: list[list[str]] = []  # the jobs of each message
        self.meanwhile: Callable[[], None] | None = None  # happens while the next message is sent
        self.wakes = 0
        tell, hear = worker_side.ChildHandle.tell, worker_side.ChildHandle.hear

        def telling(handle: Any, message: Any, lock: int | None = None) -> None:
            if "jobs" in message:
                self.chunks.append([claim.id for _, claim in message["jobs"]])
            tell(handle, message, lock)
            if self.meanwhile is not None:
                self.meanwhile()

        def hearing(handle: Any, seconds: float | None, **options: bool) -> bool:
            self.wakes += 1
            return hear(handle, seconds, **options)

        monkeypatch.setattr(worker_side.ChildHandle, "tell", telling)
        monkeypatch.setattr(worker_side.ChildHandle, "hear", hearing)


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Talk:
    return Talk(monkeypatch)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that has to wait for a ring, and reads nothing before: as if a body took long at once."""
    monkeypatch.setattr(process, "_PATIENCE", 60.0)


@pytest.fixture
def stage() -> Generator[Stage]:
    """One child, which has loaded the task."""
    with Stage(size=1) as stage:
        stage.run(bodies.do)
        yield stage


def start(stage: Stage, *whats: str, path: Path | str = "") -> list[Execution]:
    """Starts jobs that are expected to be short, in one message."""
    executions = [stage.execution(bodies.do, what=what, path=str(path)) for what in whats]
    stage.runner.start(executions, are_short=True)
    return executions


def ends(stage: Stage, count: int) -> dict[Execution, Settlement | None]:
    found = [stage.end() for _ in range(count)]
    assert len({execution for execution, _ in found}) == count  # each once
    return dict(found)


def states(stage: Stage, executions: list[Execution]) -> list[str]:
    """How all of these have ended."""
    found = ends(stage, len(executions))
    return [ended.outcome or ended.state if (ended := found[each]) is not None else "" for each in executions]


def pid_of(settlement: Settlement | None) -> int:
    assert settlement is not None
    return json.loads(settlement.result or "null")


# Few messages


def test_a_child_gets_many_short_jobs_in_a_message_and_its_slot_does_not_wake_up_for_each(
    stage: Stage, talk: Talk
) -> None:
    executions = start(stage, *[""] * 500)

    assert states(stage, executions) == ["completed"] * 500
    assert len(talk.chunks) < 50  # about 10
    assert talk.wakes < 100  # about 25, and one in 5 ms


def test_jobs_that_are_not_known_to_be_short_are_sent_one_by_one(stage: Stage, talk: Talk) -> None:
    executions = [stage.execution(bodies.do) for _ in range(20)]

    stage.runner.start(executions)

    assert states(stage, executions) == ["completed"] * 20
    assert talk.chunks == [[each.claim.id] for each in executions]


def test_a_task_that_a_child_has_not_loaded_is_sent_alone(stage: Stage, talk: Talk) -> None:
    executions = [stage.execution(bodies.add, a=1, b=2) for _ in range(3)]

    stage.runner.start(executions, are_short=True)

    assert states(stage, executions) == ["completed"] * 3
    assert talk.chunks == [[executions[0].claim.id], [each.claim.id for each in executions[1:]]]


def test_a_job_with_a_crash_behind_it_runs_alone(stage: Stage, talk: Talk) -> None:
    executions = [stage.execution(bodies.do) for _ in range(7)]
    executions[3].claim = executions[3].claim._replace(crashes=1)

    stage.runner.start(executions, are_short=True)

    assert states(stage, executions) == ["completed"] * 7
    assert [executions[3].claim.id] in talk.chunks


def test_large_arguments_are_sent_alone(stage: Stage, talk: Talk) -> None:
    """A message that a child does not read while it runs a body has to fit into its socket."""
    executions = [stage.execution(bodies.do, path="x" * 300_000 * (number % 2)) for number in range(6)]

    stage.runner.start(executions, are_short=True)

    assert states(stage, executions) == ["completed"] * 6
    assert all(len(chunk) <= 2 for chunk in talk.chunks)


# Deaths


@pytest.mark.parametrize("how", ["exit", "segfault", "kill"])
@pytest.mark.usefixtures("patient")
def test_a_death_costs_an_attempt_of_the_job_that_ran_and_of_no_other(stage: Stage, how: str) -> None:
    """The slot reads nothing before it hears of the death: what has ended was said before, and is not lost."""
    executions = start(stage, *[""] * 5, how, *[""] * 5)

    found = ends(stage, 11)

    assert [found[each].outcome for each in executions] == [  # type: ignore[union-attr]
        *["completed"] * 5,
        "crashed",
        *["completed"] * 5,
    ]
    before, after = ({pid_of(found[each]) for each in some} for some in (executions[:5], executions[6:]))
    assert len(before) == len(after) == 1
    assert before != after
    assert [found[each].counts_crash for each in executions].count(True) == 1  # type: ignore[union-attr]


@pytest.mark.usefixtures("patient")
def test_a_child_that_dies_between_two_jobs_costs_nobody_an_attempt(stage: Stage) -> None:
    child = stage.runner.slots[0].child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    executions = start(stage, *[""] * 5)
    await_that(lambda: stage.runner.slots[0].execution is not None)

    os.kill(child.pid, signal.SIGKILL)

    assert states(stage, executions) == ["completed"] * 5


def test_one_child_after_the_other_dies_and_all_else_runs_once(stage: Stage) -> None:
    whats = ["kill" if number % 10 == 7 else "" for number in range(60)]

    assert states(stage, start(stage, *whats)) == ["crashed" if what else "completed" for what in whats]


@pytest.mark.usefixtures("patient")
def test_what_is_no_message_is_the_fault_of_the_body_that_was_to_end_next(stage: Stage) -> None:
    """If the child has begun another, that goes back without an attempt: what is said of it may be a body's words."""
    executions = start(stage, "", "nonsense", "")

    found = ends(stage, 2)
    assert [found[each].outcome for each in executions[:2]] == ["completed", "crashed"]  # type: ignore[union-attr]
    assert stage.refused == executions[2:] or states(stage, executions[2:]) == ["completed"]
    assert stage.result(bodies.add, a=1, b=2) == 3


# Stops


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("why", [StopCause.TIMEOUT, StopCause.CANCEL])
def test_a_stop_ends_the_job_that_runs_and_those_behind_it_run_elsewhere(
    stage: Stage, tmp_path: Path, why: StopCause
) -> None:
    executions = start(stage, "", "wait", "", "", path=tmp_path / "a")
    pid = await_number(tmp_path / "a.begun")

    stage.stop(executions[1], why)

    assert states(stage, executions) == ["completed", {"cancel": "cancelled"}.get(why, why), "completed", "completed"]
    assert not is_alive(pid)


@pytest.mark.usefixtures("patient")
def test_a_stop_that_comes_when_the_child_has_gone_on_hits_nobody(stage: Stage, tmp_path: Path) -> None:
    """The job has ended, but its slot has not read that yet. Any signal would kill the body that runs now."""
    executions = start(stage, "", "", "unprotected", "", path=tmp_path / "a")
    await_file(tmp_path / "a.begun")

    stage.stop(executions[0], StopCause.CANCEL)
    stage.stop(executions[1])
    stage.runner.abandon(executions[0])
    assert stage.runner.stack(executions[1]) is None
    (tmp_path / "a.go").touch()

    assert states(stage, executions) == ["completed"] * 4


@pytest.mark.usefixtures("patient")
def test_a_job_that_waits_in_a_child_is_stopped_without_a_signal_and_never_begins(
    stage: Stage, tmp_path: Path
) -> None:
    executions = [
        stage.execution(bodies.do, what="unprotected", path=str(tmp_path / "a")),
        stage.execution(bodies.do, what="wait", path=str(tmp_path / "b")),
        stage.execution(bodies.do),
    ]
    stage.runner.start(executions, are_short=True)
    await_file(tmp_path / "a.begun")

    stage.stop(executions[1], StopCause.CANCEL)
    (tmp_path / "a.go").touch()

    assert states(stage, executions) == ["completed", "cancelled", "completed"]
    assert not (tmp_path / "b.begun").exists()


def test_what_is_stopped_while_it_is_sent_never_begins(stage: Stage, talk: Talk, tmp_path: Path) -> None:
    executions = [stage.execution(bodies.do, what=what, path=str(tmp_path / "a")) for what in ("", "wait", "")]
    talk.meanwhile = lambda: stage.stop(executions[1], StopCause.CANCEL)

    stage.runner.start(executions, are_short=True)

    assert states(stage, executions) == ["completed", "cancelled", "completed"]
    assert not (tmp_path / "a.begun").exists()


@pytest.mark.usefixtures("patient")
def test_what_is_sent_while_the_job_before_it_is_stopped_runs_elsewhere(
    stage: Stage, talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends with the job that was told to stop: what it began after that would be cut off."""
    monkeypatch.setattr(process, "_MANY", 2)
    executions = [stage.execution(bodies.do, what=what, path=str(tmp_path / "a")) for what in ("", "", "wait", "")]

    def stop_the_third() -> None:
        if len(talk.chunks) == 2:
            await_file(tmp_path / "a.begun")
            stage.stop(executions[2], StopCause.CANCEL)

    talk.meanwhile = stop_the_third
    stage.runner.start(executions, are_short=True)

    found = ends(stage, 4)
    assert [len(chunk) for chunk in talk.chunks] == [3, 1, 1]
    assert found[executions[2]].outcome == "cancelled"  # type: ignore[union-attr]
    assert pid_of(found[executions[3]]) != pid_of(found[executions[0]])


def test_stops_at_any_moment_hit_only_what_they_are_meant_for(stage: Stage) -> None:
    """A signal that comes too late, or too early, would kill the child: no body here is protected from it."""
    dice = random.Random(7)
    for _ in range(15):
        executions = start(stage, *["spin unprotected"] * 40)
        told = dice.sample(executions, 4)
        for execution in told:
            time.sleep(dice.random() / 500)
            stage.stop(execution, StopCause.CANCEL)
        found = dict(zip(executions, states(stage, executions), strict=True))
        assert {state for each, state in found.items() if each not in told} == {"completed"}
        assert {found[each] for each in told} <= {"completed", "cancelled"}


# What has not begun


@pytest.mark.usefixtures("patient")
def test_what_a_child_has_not_begun_can_be_taken_back(stage: Stage, tmp_path: Path) -> None:
    executions = start(stage, "wait", "", "", path=tmp_path / "a")
    await_file(tmp_path / "a.begun")

    assert stage.runner.take_back() == executions[1:]

    (tmp_path / "a.go").touch()
    assert states(stage, executions[:1]) == ["completed"]
    assert stage.result(bodies.add, a=1, b=2) == 3


def test_what_waits_behind_a_long_body_runs_in_another_child(tmp_path: Path) -> None:
    with Stage(size=2) as stage:
        for _ in range(2):
            stage.start(bodies.do, what="wait", path=str(tmp_path / "first"))
        (tmp_path / "first.go").touch()
        ends(stage, 2)  # both have loaded the task
        executions = start(stage, "wait", *[""] * 20, path=tmp_path / "a")
        long = executions[0]

        assert long not in ends(stage, 20)

        (tmp_path / "a.go").touch()
        assert states(stage, [long]) == ["completed"]


@pytest.mark.usefixtures("patient")
def test_a_more_urgent_job_goes_before_those_that_a_child_has_not_begun(stage: Stage, tmp_path: Path) -> None:
    executions = start(stage, "wait", "", "", path=tmp_path / "a")
    await_file(tmp_path / "a.begun")
    urgent = stage.execution(bodies.do)
    urgent.claim = urgent.claim._replace(priority=9)

    stage.runner.start([urgent], are_short=True)
    (tmp_path / "a.go").touch()

    assert [stage.end()[0] for _ in range(4)] == [executions[0], urgent, *executions[1:]]


@pytest.mark.usefixtures("patient")
def test_a_child_that_has_begun_nothing_of_what_it_got_lets_the_workers_lock_go(tmp_path: Path) -> None:
    lock = tmp_path / "worker.lock"
    with lock.open("w") as file, Stage(size=1, lock=file.fileno()) as stage:
        stage.run(bodies.do)
        child = stage.runner.slots[0].child
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)
        executions = start(stage, "", "")
        await_that(lambda: stage.runner.slots[0].execution is not None)
        assert stage.runner.take_back() == executions

        os.kill(child.pid, signal.SIGCONT)

        await_that(lambda: not array("i", fcntl.ioctl(child._sock, termios.TIOCOUTQ, bytes(4)))[0])  # it has read all
        await_that(lambda: lock not in open_files(child.pid))


# What each reports


def test_each_body_has_its_own_start_and_its_timeout_counts_from_there(stage: Stage, tmp_path: Path) -> None:
    executions = start(stage, *[""] * 5, "wait", path=tmp_path / "a")
    long = executions[-1]

    await_that(lambda: long.started is not None)  # while it runs
    assert long.deadline == (long.started or 0) + 1_000_000
    (tmp_path / "a.go").touch()

    found = ends(stage, 6)
    times = [(each.started, each.finished) for each in found.values() if each is not None]
    assert all(ended <= began for (_, ended), (began, _) in pairwise(times))
    assert [each.started for each in executions] == [began for began, _ in times]
    assert stage.link.begun[-6:] == executions


def test_lines_and_progress_are_those_of_the_job_that_made_them(stage: Stage) -> None:
    stage.link.note = lambda execution: None
    executions = [stage.execution(bodies.do, what="talk", path=f"from {number}") for number in range(30)]

    stage.runner.start(executions, are_short=True)

    assert states(stage, executions) == ["completed"] * 30
    for number, execution in enumerate(executions):
        assert [line.message for line in execution.lines or ()] == [f"from {number}"]
        assert execution.report == (50.0, f"from {number}")


@pytest.mark.usefixtures("patient")
def test_the_stack_of_a_job_is_not_taken_for_that_of_the_next(stage: Stage, tmp_path: Path) -> None:
    executions = start(stage, "wait", "exit", path=tmp_path / "a")
    await_file(tmp_path / "a.begun")

    assert "in await_file" in (stage.runner.stack(executions[0]) or "")
    (tmp_path / "a.go").touch()

    died = ends(stage, 2)[executions[1]]
    assert died is not None
    assert (died.outcome, died.traceback) == ("crashed", None)
