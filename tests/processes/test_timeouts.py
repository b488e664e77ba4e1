"""A timeout ends the attempt, really: nothing of it is left, and no other starts beside it."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from dray.handle.job import Job
from tests.processes.harness import Fleet
from tests.processes.places import Places, Together, on_both

STOP = "tests.processes.apps_stop"
SLEEPERS = 10  # that one of its bodies forks
IN_TIME = timedelta(seconds=8)

STOPPABLE = [
    ("hang", "spin"),
    ("hang_in_child", "spin"),
    ("hang_in_child", "sleep"),
    ("hang_in_child", "breed"),
    ("hang_on_loop", "wait"),
    ("hang_on_loop", "swallow"),
    ("hang_on_loop", "subtask"),
    ("hang_on_loop_in_child", "wait"),
    ("hang_on_loop_in_child", "swallow"),
    ("hang_on_loop_in_child", "subtask"),
    ("hang_on_loop_in_child", "to_thread"),
    ("hang_on_loop_in_child", "sleep"),
]
SECONDS = {"spin": 0.5}  # of a timeout, else one: a body that spins has a processor for as long


def hang(fleet: Fleet, task: str, way: str, *, max_attempts: int, **more: Any) -> Job[Any]:
    using = {"timeout": SECONDS.get(way, 1), "max_attempts": max_attempts}
    return fleet.enqueue(f"{STOP}.{task}", label=f"{task} {way}", way=way, using=using, **more)


def test_whatever_can_be_stopped_ends_as_timeout_within_eight_seconds(together: Together) -> None:
    together.wait(stopped_in_time)


@on_both
def stopped_in_time(fleet: Fleet) -> None:
    worker = fleet.start(STOP, concurrency=len(STOPPABLE))
    jobs = {(task, way): hang(fleet, task, way, max_attempts=1) for task, way in STOPPABLE}
    fleet.ended(list(jobs.values()))

    for which, job in jobs.items():
        (attempt,) = job.attempts()
        assert (job.state, job.reason, attempt.outcome) == ("failed", "timeout", "timeout"), which
        assert took(attempt) < IN_TIME, which
        assert f"timeout of {SECONDS.get(which[1], 1)} s" in (job.error or ""), which
    in_child = jobs["hang_in_child", "breed"].attempts()[0].error
    assert in_child is not None
    assert "in _breed" in (in_child.traceback or ""), "where a killed child was is not told"

    sleepers = [entry.more for entry in fleet.ledger.entries("sleeper")]
    assert len(sleepers) == SLEEPERS
    assert [pid for pid in sleepers if is_alive(pid)] == []
    assert "does not stop" not in worker.said, "it had to be renewed"
    assert_all_runners_work(fleet)
    assert worker.end() == 0
    fleet.until(fleet.is_alone, "its children to be gone")


def test_no_retry_starts_before_the_attempt_that_timed_out_is_gone(together: Together) -> None:
    together.wait(retried_when_gone)


@on_both
def retried_when_gone(fleet: Fleet) -> None:
    """With two workers, and no pause before the retry: whoever is first would start it too early."""
    workers = [fleet.start(STOP, concurrency=len(STOPPABLE)) for _ in range(2)]
    jobs = [hang(fleet, task, way, max_attempts=2, attempts=1) for task, way in STOPPABLE]
    fleet.ended(jobs)

    assert fleet.states() == {"completed": len(jobs)}
    for job in jobs:
        assert fleet.outcomes(job) == ["timeout", "completed"]
        assert job.result(timeout=1) == "attempt 2"
    assert fleet.ledger.entries("overlap") == []
    assert {len(fleet.ledger.starts(f"{task} {way}")) for task, way in STOPPABLE} == {2}
    assert not any("does not stop" in worker.said for worker in workers), "one had to be renewed"
    assert [worker.end() for worker in workers] == [0, 0]


def test_a_thread_that_does_not_stop_holds_its_job_until_the_process_is_renewed(together: Together) -> None:
    together.wait(held_until_renewed)


@on_both
def held_until_renewed(fleet: Fleet) -> None:
    """Two workers: the retry is free for either as soon as the first attempt cannot go on."""
    first = fleet.start(STOP, concurrency=3)
    stuck = hang(fleet, "hang", "sleep", max_attempts=2, attempts=1)
    neighbour = fleet.enqueue(f"{STOP}.wait_in_thread", label="neighbour", path=str(fleet.folder / "go"))
    fleet.until(lambda: len(fleet.ledger.starts()) == 2, "both to start")
    its_worker = fleet.worker_of(first)
    assert its_worker is not None
    second = fleet.start(STOP, concurrency=3)

    fleet.until(lambda: "renewing this process" in first.said, "the worker to give up on its thread")
    fleet.until(lambda: fleet.worker_state(its_worker) == "draining", "it to stop claiming")
    late = [fleet.enqueue(f"{STOP}.in_thread", label=f"late {number}") for number in range(5)]
    fleet.ended(late)
    assert {entry.pid for entry in fleet.ledger.starts() if entry.label.startswith("late")} == {second.pid}
    # It drains: the neighbour may end, and until it has, the stuck one is not free for anybody.
    assert stuck.refresh().state == "running"
    assert len(fleet.ledger.starts("hang sleep")) == 1
    (fleet.folder / "go").touch()

    fleet.ended([stuck, neighbour])
    assert fleet.outcomes(stuck) == ["timeout", "completed"]
    assert fleet.outcomes(neighbour) == ["completed"]
    assert len(fleet.ledger.starts("neighbour")) == 1
    assert fleet.ledger.entries("overlap") == []
    # The same process, another program in it, another worker.
    fleet.until(lambda: fleet.worker_of(first) not in {None, its_worker}, "the worker to come back")
    assert first.is_alive
    second.kill()
    assert_all_runners_work(fleet)
    assert first.end() == 0
    fleet.audit()


def test_a_slow_good_bye_frees_nothing_early(together: Together) -> None:
    together.wait(slow_good_bye)


def slow_good_bye(places: Places) -> None:
    """Somebody migrates the table of duties while the process is to be renewed: its body lives on for as long."""
    with places.postgres() as fleet, psycopg.connect(fleet.url.partition("&schema=")[0]) as other:
        first = fleet.start(STOP, concurrency=2)
        its_id = fleet.worker_of(first)
        assert its_id is not None
        fleet.until(lambda: fleet.duties_of(its_id), "the first to have duties")
        stuck = hang(fleet, "hang", "sleep", max_attempts=2, attempts=1)
        fleet.until(fleet.ledger.starts)
        schema = fleet.url.partition("schema=")[2]
        other.execute(f'LOCK TABLE "{schema}".dray_leases IN ACCESS EXCLUSIVE MODE'.encode())
        # After the lock, which has to be there before the body is out of time: a machine may be slow to start one.
        second = fleet.start(STOP, concurrency=2)
        fleet.until(lambda: "renewing this process" in first.said, "the worker to give up on its thread")
        time.sleep(4)  # in which nothing is to happen: twice the pause before such a retry
        other.rollback()
        fleet.ended([stuck])
        assert fleet.outcomes(stuck) == ["timeout", "completed"]
        assert fleet.ledger.entries("overlap") == []
        assert second.end() == 0


def test_the_last_attempt_of_a_thread_that_does_not_stop_has_failed_at_once(together: Together) -> None:
    together.wait(failed_at_once)


@on_both
def failed_at_once(fleet: Fleet) -> None:
    """Nothing can overlap with it any more: nobody waits for the rest of the process."""
    worker = fleet.start(STOP, concurrency=4)
    stuck = [hang(fleet, "hang", "sleep", max_attempts=1), hang(fleet, "hang_on_loop", "sleep", max_attempts=1)]
    path = str(fleet.folder / "go")
    neighbour = fleet.enqueue(f"{STOP}.wait_in_thread", label="neighbour", path=path)
    fleet.ended(stuck)

    for job in stuck:
        (attempt,) = job.attempts()
        assert (job.state, job.reason, attempt.outcome) == ("failed", "timeout", "timeout")
        assert took(attempt) < IN_TIME
        assert attempt.error is not None
        assert "in _sleep" in (attempt.error.traceback or ""), "where it hangs is not told"
    assert neighbour.refresh().state == "running"
    before = fleet.worker_of(worker)
    (fleet.folder / "go").touch()
    fleet.ended([neighbour])
    fleet.until(lambda: fleet.worker_of(worker) not in {None, before}, "the worker to come back")
    assert_all_runners_work(fleet)
    assert worker.end() == 0
    assert {len(fleet.ledger.starts(label)) for label in ("hang sleep", "hang_on_loop sleep", "neighbour")} == {1}


def test_what_a_coroutine_does_in_a_thread_is_part_of_its_attempt(together: Together) -> None:
    together.wait(in_a_thread_of_its_own)


@on_both
def in_a_thread_of_its_own(fleet: Fleet) -> None:
    """Cancelled, it leaves `asyncio.to_thread` at once, and the thread behind: no retry may start beside that."""
    workers = [fleet.start(STOP, concurrency=2) for _ in range(2)]
    job = hang(fleet, "hang_on_loop", "to_thread", max_attempts=2, attempts=1)
    fleet.until(lambda: len(fleet.ledger.starts()) == 2, "the body and its thread to start")
    fleet.ended([job])
    assert fleet.outcomes(job) == ["timeout", "completed"]
    assert fleet.ledger.entries("overlap") == []
    fleet.until(lambda: active(fleet) == {worker.pid for worker in workers}, "the renewed one to be there again")
    assert [worker.end() for worker in workers] == [0, 0]


def test_a_coroutine_that_blocks_its_loop_is_renewed_away_with_its_neighbours_unburned(together: Together) -> None:
    together.wait(blocked_loop)


@on_both
def blocked_loop(fleet: Fleet) -> None:
    """Coroutines beside it cannot go on: they are handed back, and the blocked one is retried."""
    worker = fleet.start(STOP, concurrency=4, grace=1)
    path = fleet.folder / "go"
    beside = fleet.enqueue(f"{STOP}.wait_on_loop", label="beside", path=str(path))
    fleet.until(lambda: fleet.ledger.starts("beside"), "the neighbour to start")
    stuck = hang(fleet, "hang_on_loop", "sleep", max_attempts=2, attempts=1)
    fleet.until(lambda: len(fleet.ledger.starts("beside")) == 2, "the neighbour to start anew")
    path.touch()

    fleet.ended([stuck, beside])
    assert fleet.outcomes(stuck) == ["timeout", "completed"]
    assert fleet.outcomes(beside) == ["completed"]
    assert beside.attempt == 1, "the neighbour was charged"
    assert fleet.ledger.entries("overlap") == []
    assert worker.end() == 0


def test_hundreds_of_timeouts_wear_nothing_out(together: Together) -> None:
    together.wait(worn_out)


@on_both
def worn_out(fleet: Fleet) -> None:
    """Exceptions that are raised into threads hit anything that runs there; no lock may be left taken."""
    worker = fleet.start(STOP, queues="default", concurrency=4)
    using = {"timeout": 0.02, "max_attempts": 1}
    talks = ("log", "progress", "enqueue", "read")
    jobs = [fleet.enqueue(f"{STOP}.chatter", label="", about=about, using=using) for about in talks * 25]
    fleet.ended(jobs, seconds=60)
    assert {(job.refresh().state, job.reason) for job in jobs} == {("failed", "timeout")}
    assert "does not stop" not in worker.said
    assert_all_runners_work(fleet)
    assert worker.end() == 0


def assert_all_runners_work(fleet: Fleet) -> None:
    """The worker is as good as before."""
    since = len(fleet.ledger.ends())
    again = [fleet.enqueue(f"{STOP}.{task}", label="again") for task in ("in_thread", "on_loop", "in_child")]
    fleet.ended(again)
    assert [job.refresh().state for job in again] == ["completed"] * 3
    assert len(fleet.ledger.ends()) == since + 3


def active(fleet: Fleet) -> set[int]:
    """The processes whose workers claim jobs."""
    return {worker.pid for worker in fleet.app.workers() if worker.state == "active"}


def took(attempt: Any) -> timedelta:
    return attempt.finished_at - attempt.started_at


def is_alive(pid: int) -> bool:
    """Whether it can still do anything; a dead one that nobody has buried yet cannot."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


TOGETHER = (
    blocked_loop,  # the longest first
    in_a_thread_of_its_own,
    slow_good_bye,
    held_until_renewed,
    retried_when_gone,
    failed_at_once,
    stopped_in_time,
    worn_out,
)
