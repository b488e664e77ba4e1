"""Bodies that harm their process, in each runner: recorded once, and the worker goes on."""

from __future__ import annotations

from typing import Any

import pytest

from dray.handle import Job
from tests.processes.harness import Process, Yard, side_by_side

STOP = "tests.processes.apps_stop"
KINDS = ("harm_in_thread", "harm_on_loop", "harm_in_child", "harm_on_loop_in_child")

# What a body does: how its job ends, the type and the words of the error.
ENDINGS = {
    "SystemExit": ("error", "SystemExit", "3"),
    "KeyboardInterrupt": ("error", "KeyboardInterrupt", ""),
    "unspeakable": ("error", "Unspeakable", "could not be read"),
    "100 MB": ("error", "ValueError", "100,000,000 bytes in all"),
    "no JSON": ("result", "PayloadError", "result cannot be stored"),
    "no JSON inside": ("result", "PayloadError", "result.when"),
    "large result": ("result", "PayloadTooLarge", "result cannot be stored"),
}
DEATHS = {"os._exit": "exit status 7", "segfault": "SIGSEGV", "kill": "SIGKILL"}


def harm(yard: Yard, kind: str, what: str, **using: Any) -> Job[Any]:
    return yard.enqueue(f"{STOP}.{kind}", label=f"{kind} {what}", harm=what, using=using)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_body_raises_or_returns_is_recorded_once(yards: list[Yard], kind: str) -> None:
    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=2)
        its_id = yard.worker_of(worker)
        jobs = {
            what: harm(yard, kind, what, max_attempts=1 if ENDINGS[what][0] == "error" else 3) for what in ENDINGS
        }
        yard.ended(list(jobs.values()))

        for what, job in jobs.items():
            reason, error_type, words = ENDINGS[what]
            (attempt,) = job.attempts()
            assert (job.state, job.reason, attempt.outcome) == ("failed", reason, reason), what
            assert attempt.error is not None
            assert attempt.error.type == error_type, what
            assert words in (attempt.error.message or ""), what
            assert len(attempt.error.message or "") < 20_000, what
            assert len(attempt.error.traceback or "") <= 64 * 1024, what
            assert len(yard.ledger.starts(f"{kind} {what}")) == 1, what
        assert_goes_on(yard, worker, its_id)

    side_by_side(yards, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_ordinary_error_is_retried_like_one(yards: list[Yard], kind: str) -> None:
    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=2)
        jobs = [harm(yard, kind, what, max_attempts=2) for what in ("SystemExit", "KeyboardInterrupt", "unspeakable")]
        yard.ended(jobs)
        for job in jobs:
            assert (job.refresh().state, job.reason) == ("failed", "error")
            assert yard.outcomes(job) == ["error", "error"]
        assert len(yard.ledger.starts()) == 6
        assert_goes_on(yard, worker, yard.worker_of(worker))

    side_by_side(yards, scenario)


@pytest.mark.parametrize("kind", ["harm_in_child", "harm_on_loop_in_child"])
def test_a_body_that_kills_its_child_process_costs_its_own_attempts_only(yards: list[Yard], kind: str) -> None:
    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=3)
        its_id = yard.worker_of(worker)
        path = yard.folder / "go"
        beside = yard.enqueue(f"{STOP}.wait_in_child", label="beside", path=str(path))
        yard.until(lambda: yard.ledger.starts("beside"))
        jobs = {what: harm(yard, kind, what, max_attempts=2) for what in DEATHS}
        many = harm(yard, kind, "os._exit", max_attempts=10)  # max_crashes is 3
        yard.ended([*jobs.values(), many])

        for what, job in jobs.items():
            assert (job.refresh().state, job.reason) == ("failed", "crashed"), what
            assert yard.outcomes(job) == ["crashed", "crashed"], what
            for attempt in job.attempts():
                assert attempt.error is not None
                assert DEATHS[what] in (attempt.error.message or "")
        assert yard.outcomes(many) == ["crashed"] * 3
        assert (many.state, many.reason, many.attempt) == ("failed", "crashed", 3)
        error = jobs["segfault"].attempts()[0].error
        assert error is not None
        assert "in _segfault" in (error.traceback or ""), "where it crashed is not told"
        path.touch()
        assert beside.result(timeout=10) == "beside"
        assert len(yard.ledger.starts("beside")) == 1
        assert_goes_on(yard, worker, its_id)

    side_by_side(yards, scenario)


@pytest.mark.parametrize("what", ["os._exit", "segfault"])
@pytest.mark.parametrize("kind", ["harm_in_thread", "harm_on_loop"])
def test_a_body_that_kills_its_worker_runs_alone_from_then_on(yards: list[Yard], kind: str, what: str) -> None:
    """Its first attempt takes a worker with it, the next two only a child process; then it has failed."""

    def scenario(yard: Yard) -> None:
        job = harm(yard, kind, what, max_attempts=10)
        first = yard.launch(STOP, concurrency=2, lease=2)
        assert first.wait() == (7 if what == "os._exit" else -11)
        second = yard.start(STOP, concurrency=2, lease=2)
        its_id = yard.worker_of(second)
        yard.ended([job])

        assert yard.outcomes(job) == ["crashed"] * 3
        assert (job.refresh().state, job.reason) == ("failed", "crashed")
        died, *isolated = yard.ledger.starts()
        assert died.pid == first.pid
        assert second.pid not in {entry.pid for entry in isolated}
        assert len({entry.pid for entry in isolated}) == 2
        assert_goes_on(yard, second, its_id)

    side_by_side(yards, scenario)


@pytest.mark.parametrize("task", ["exit_in_subtask", "exit_in_callback"])
def test_exit_beside_a_coroutine_does_not_end_its_loop(yards: list[Yard], task: str) -> None:
    """asyncio lets SystemExit and KeyboardInterrupt of a task or a callback through to whoever runs the loop."""

    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=4)
        its_id = yard.worker_of(worker)
        path = yard.folder / "go"
        beside = yard.enqueue(f"{STOP}.wait_on_loop", label="beside", path=str(path), using={"max_attempts": 1})
        yard.until(lambda: yard.ledger.starts("beside"))
        harms = ("SystemExit", "KeyboardInterrupt")
        jobs = [yard.enqueue(f"{STOP}.{task}", label=what, harm=what, using={"max_attempts": 1}) for what in harms]
        yard.ended(jobs)
        ended = ("failed", "error") if task == "exit_in_subtask" else ("completed", None)
        assert {(job.refresh().state, job.reason) for job in jobs} == {ended}
        path.touch()
        assert beside.result(timeout=10) == "beside"
        assert {len(yard.ledger.starts(what)) for what in (*harms, "beside")} == {1}
        assert_goes_on(yard, worker, its_id)

    side_by_side(yards, scenario)


def test_a_coroutine_that_stops_its_loop_harms_nobody_else(yards: list[Yard]) -> None:
    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=4)
        its_id = yard.worker_of(worker)
        path = yard.folder / "go"
        beside = yard.enqueue(f"{STOP}.wait_on_loop", label="beside", path=str(path))
        yard.until(lambda: yard.ledger.starts("beside"))
        job = yard.enqueue(f"{STOP}.stop_loop", label="stop")
        yard.ended([job])
        path.touch()
        assert beside.result(timeout=10) == "beside"
        assert len(yard.ledger.starts("beside")) == 1
        assert_goes_on(yard, worker, its_id)

    side_by_side(yards, scenario)


def test_a_body_that_cuts_itself_off_from_its_worker_has_crashed(yards: list[Yard]) -> None:
    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=2)
        its_id = yard.worker_of(worker)
        job = yard.enqueue(f"{STOP}.close_everything", label="cut off", using={"max_attempts": 1})
        yard.ended([job])
        assert (job.refresh().state, job.reason) == ("failed", "crashed")
        assert_goes_on(yard, worker, its_id)

    side_by_side(yards, scenario)


def test_a_process_that_a_body_forks_and_forgets_speaks_for_nobody(yards: list[Yard]) -> None:
    def scenario(yard: Yard) -> None:
        worker = yard.start(STOP, concurrency=2)
        its_id = yard.worker_of(worker)
        job = yard.enqueue(f"{STOP}.fork_and_return", label="twins")
        assert job.result(timeout=20) > 0
        yard.until(lambda: yard.ledger.entries("forked"), "the other one to come back from the body")
        assert (len(yard.ledger.starts("twins")), len(yard.ledger.entries("forked"))) == (1, 1)
        assert_goes_on(yard, worker, its_id)

    side_by_side(yards, scenario)


def assert_goes_on(yard: Yard, worker: Process, its_id: str | None) -> None:
    """The same worker as before runs more jobs, in each runner, and ends as it should."""
    since = len(yard.ledger.ends())
    again = [yard.enqueue(f"{STOP}.{task}", label="again") for task in ("in_thread", "on_loop", "in_child")]
    yard.ended(again)
    assert [job.refresh().state for job in again] == ["completed"] * 3
    assert len(yard.ledger.ends()) == since + 3
    assert yard.worker_of(worker) == its_id
    assert worker.end() == 0
    yard.until(lambda: not yard.left(), "its children to be gone")
    yard.audit()
