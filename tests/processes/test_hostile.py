"""Bodies that harm their process, in each runner: recorded once, and the worker goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.handle.job import Job
from tests.processes.harness import Fleet, Process
from tests.processes.places import Scenario, Together, on_both

STOP = "tests.processes.apps_stop"
KINDS = ("harm_in_thread", "harm_on_loop", "harm_in_child", "harm_on_loop_in_child")

# What a body does: how its job ends, the type and the words of the error.
ENDINGS = {
    "SystemExit": ("error", "SystemExit", "3"),
    "KeyboardInterrupt": ("error", "KeyboardInterrupt", ""),
    "unspeakable": ("error", "Unspeakable", "could not be read"),
    "20 MB": ("error", "ValueError", "20,000,000 bytes in all"),
    "no JSON": ("result", "PayloadError", "result cannot be stored"),
    "no JSON inside": ("result", "PayloadError", "result.when"),
    "large result": ("result", "PayloadTooLarge", "result cannot be stored"),
}
DEATHS = {"os._exit": "exit status 7", "segfault": "SIGSEGV", "kill": "SIGKILL"}


def harm(fleet: Fleet, kind: str, what: str, **using: Any) -> Job[Any]:
    return fleet.enqueue(f"{STOP}.{kind}", label=f"{kind} {what}", harm=what, using=using)


def test_whatever_a_body_raises_or_returns_is_recorded_once(together: Together) -> None:
    together.wait(recorded_once)


@on_both
def recorded_once(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=2)
    its_id = fleet.worker_of(worker)
    jobs = {
        (kind, what): harm(fleet, kind, what, max_attempts=1 if ending[0] == "error" else 3)
        for what, ending in ENDINGS.items()
        for kind in KINDS
    }
    fleet.ended(list(jobs.values()), seconds=60)

    for (kind, what), job in jobs.items():
        reason, error_type, words = ENDINGS[what]
        (attempt,) = job.attempts()
        assert (job.state, job.reason, attempt.outcome) == ("failed", reason, reason), (kind, what)
        assert attempt.error is not None
        assert attempt.error.type == error_type, (kind, what)
        assert words in (attempt.error.message or ""), (kind, what)
        assert len(attempt.error.message or "") < 20_000, (kind, what)
        assert len(attempt.error.traceback or "") <= 64 * 1024, (kind, what)
        assert len(fleet.ledger.starts(f"{kind} {what}")) == 1, (kind, what)
    assert_goes_on(fleet, worker, its_id)


def test_what_is_no_ordinary_error_is_retried_like_one(together: Together) -> None:
    together.wait(retried)


@on_both
def retried(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=2)
    its_id = fleet.worker_of(worker)
    harms = ("SystemExit", "KeyboardInterrupt", "unspeakable")
    jobs = [harm(fleet, kind, what, max_attempts=2) for what in harms for kind in KINDS]
    fleet.ended(jobs)
    for job in jobs:
        assert (job.refresh().state, job.reason) == ("failed", "error")
        assert fleet.outcomes(job) == ["error", "error"]
    assert len(fleet.ledger.starts()) == 2 * len(jobs)
    assert_goes_on(fleet, worker, its_id)


def test_a_body_that_kills_its_child_process_costs_its_own_attempts_only(together: Together) -> None:
    together.wait(child_killed)


@on_both
def child_killed(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=3)
    its_id = fleet.worker_of(worker)
    path = fleet.folder / "go"
    beside = fleet.enqueue(f"{STOP}.wait_in_child", label="beside", path=str(path))
    fleet.until(lambda: fleet.ledger.starts("beside"))
    kinds = ("harm_in_child", "harm_on_loop_in_child")
    jobs = {(kind, what): harm(fleet, kind, what, max_attempts=2) for what in DEATHS for kind in kinds}
    many = [harm(fleet, kind, "os._exit", max_attempts=10) for kind in kinds]  # max_crashes is 3
    fleet.ended([*jobs.values(), *many])

    for (kind, what), job in jobs.items():
        assert (job.refresh().state, job.reason) == ("failed", "crashed"), (kind, what)
        assert fleet.outcomes(job) == ["crashed", "crashed"], (kind, what)
        for attempt in job.attempts():
            assert attempt.error is not None
            assert DEATHS[what] in (attempt.error.message or "")
    for job in many:
        assert fleet.outcomes(job) == ["crashed"] * 3
        assert (job.state, job.reason, job.attempt) == ("failed", "crashed", 3)
    error = jobs["harm_in_child", "segfault"].attempts()[0].error
    assert error is not None
    assert "in _segfault" in (error.traceback or ""), "where it crashed is not told"
    path.touch()
    assert beside.result(timeout=10) == "beside"
    assert len(fleet.ledger.starts("beside")) == 1
    assert_goes_on(fleet, worker, its_id)


def worker_killed(kind: str, what: str) -> Scenario:
    """Its first attempt takes a worker with it, the next two only a child process; then it has failed."""

    @on_both
    def scenario(fleet: Fleet) -> None:
        job = harm(fleet, kind, what, max_attempts=10)
        first = fleet.launch(STOP, concurrency=2, lease=2)
        assert first.wait() == (7 if what == "os._exit" else -11)
        second = fleet.start(STOP, concurrency=2, lease=2)
        its_id = fleet.worker_of(second)
        fleet.ended([job])

        assert fleet.outcomes(job) == ["crashed"] * 3
        assert (job.refresh().state, job.reason) == ("failed", "crashed")
        died, *isolated = fleet.ledger.starts()
        assert died.pid == first.pid
        assert second.pid not in {entry.pid for entry in isolated}
        assert len({entry.pid for entry in isolated}) == 2
        assert_goes_on(fleet, second, its_id)

    return scenario


WORKER_KILLED = {
    (kind, what): worker_killed(kind, what)
    for kind, what in (("harm_in_thread", "os._exit"), ("harm_in_thread", "segfault"), ("harm_on_loop", "os._exit"))
}


@pytest.mark.parametrize(("kind", "what"), WORKER_KILLED)
def test_a_body_that_kills_its_worker_runs_alone_from_then_on(together: Together, kind: str, what: str) -> None:
    together.wait(WORKER_KILLED[kind, what])


def test_exit_beside_a_coroutine_does_not_end_its_loop(together: Together) -> None:
    together.wait(exit_beside)


@on_both
def exit_beside(fleet: Fleet) -> None:
    """asyncio lets SystemExit and KeyboardInterrupt of a task or a callback through to whoever runs the loop."""
    worker = fleet.start(STOP, concurrency=8)
    its_id = fleet.worker_of(worker)
    path = fleet.folder / "go"
    beside = fleet.enqueue(f"{STOP}.wait_on_loop", label="beside", path=str(path), using={"max_attempts": 1})
    fleet.until(lambda: fleet.ledger.starts("beside"))
    ends = {"exit_in_subtask": ("failed", "error"), "exit_in_callback": ("completed", None)}
    jobs = {
        (task, what): fleet.enqueue(f"{STOP}.{task}", label=f"{task} {what}", harm=what, using={"max_attempts": 1})
        for task in ends
        for what in ("SystemExit", "KeyboardInterrupt")
    }
    fleet.ended(list(jobs.values()))
    for (task, what), job in jobs.items():
        assert (job.refresh().state, job.reason) == ends[task], (task, what)
        assert len(fleet.ledger.starts(f"{task} {what}")) == 1, (task, what)
    path.touch()
    assert beside.result(timeout=10) == "beside"
    assert len(fleet.ledger.starts("beside")) == 1
    assert_goes_on(fleet, worker, its_id)


def test_a_coroutine_that_stops_its_loop_harms_nobody_else(together: Together) -> None:
    together.wait(stopped_loop)


@on_both
def stopped_loop(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=4)
    its_id = fleet.worker_of(worker)
    path = fleet.folder / "go"
    beside = fleet.enqueue(f"{STOP}.wait_on_loop", label="beside", path=str(path))
    fleet.until(lambda: fleet.ledger.starts("beside"))
    job = fleet.enqueue(f"{STOP}.stop_loop", label="stop")
    fleet.ended([job])
    path.touch()
    assert beside.result(timeout=10) == "beside"
    assert len(fleet.ledger.starts("beside")) == 1
    assert_goes_on(fleet, worker, its_id)


def test_a_body_that_cuts_itself_off_from_its_worker_has_crashed(together: Together) -> None:
    together.wait(cut_off)


@on_both
def cut_off(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=2)
    its_id = fleet.worker_of(worker)
    job = fleet.enqueue(f"{STOP}.close_everything", label="cut off", using={"max_attempts": 1})
    fleet.ended([job])
    assert (job.refresh().state, job.reason) == ("failed", "crashed")
    assert_goes_on(fleet, worker, its_id)


def test_a_process_that_a_body_forks_and_forgets_speaks_for_nobody(together: Together) -> None:
    together.wait(forked)


@on_both
def forked(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=2)
    its_id = fleet.worker_of(worker)
    job = fleet.enqueue(f"{STOP}.fork_and_return", label="twins")
    assert job.result(timeout=20) > 0
    fleet.until(lambda: fleet.ledger.entries("forked"), "the other one to come back from the body")
    assert (len(fleet.ledger.starts("twins")), len(fleet.ledger.entries("forked"))) == (1, 1)
    assert_goes_on(fleet, worker, its_id)


def test_a_copy_of_the_worker_that_a_body_forks_runs_nothing(together: Together) -> None:
    together.wait(copied)


@on_both
def copied(fleet: Fleet) -> None:
    """The copy has all that the worker had in hand: it must neither run it nor stay."""
    forks = [fleet.enqueue(f"{STOP}.fork_in_thread", label="fork") for _ in range(3)]
    behind = [fleet.enqueue(f"{STOP}.in_thread", label="behind") for _ in range(50)]
    forks += [fleet.enqueue(f"{STOP}.fork_on_loop", label="fork") for _ in range(3)]
    behind += [fleet.enqueue(f"{STOP}.on_loop", label="behind") for _ in range(50)]
    worker = fleet.start(STOP, concurrency=2)
    its_id = fleet.worker_of(worker)
    fleet.ended([*forks, *behind])
    assert fleet.states() == {"completed": len(forks) + len(behind)}
    copies = [entry.more for entry in fleet.ledger.starts("fork")]
    fleet.until(lambda: not any(is_alive(pid) for pid in copies), "the copies to end")
    assert len(fleet.ledger.starts("behind")) == len(behind)
    assert len(fleet.ledger.entries("forked")) == len(forks)
    assert_goes_on(fleet, worker, its_id)


def assert_goes_on(fleet: Fleet, worker: Process, its_id: str | None) -> None:
    """The same worker as before runs more jobs, in each runner, and ends as it should."""
    since = len(fleet.ledger.ends())
    again = [fleet.enqueue(f"{STOP}.{task}", label="again") for task in ("in_thread", "on_loop", "in_child")]
    fleet.ended(again)
    assert [job.refresh().state for job in again] == ["completed"] * 3
    assert len(fleet.ledger.ends()) == since + 3
    assert fleet.worker_of(worker) == its_id
    assert worker.end() == 0
    fleet.until(fleet.is_alone, "its children to be gone")
    fleet.audit()


def is_alive(pid: int) -> bool:
    """Whether it can still do anything; a dead one that nobody has buried yet cannot."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


TOGETHER = (
    recorded_once,  # the longest first
    *WORKER_KILLED.values(),
    child_killed,
    retried,
    exit_beside,
    stopped_loop,
    cut_off,
    forked,
    copied,
)
