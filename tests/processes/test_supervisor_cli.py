"""`dray worker --processes N`: one command, several workers, restarted when they die, gone when it is."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes.harness import Process, Yard
from tests.processes.places import Scenario, Together, on_both

STOP = "tests.processes.apps_stop"
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
AT_ONCE = 3.0  # seconds; ten times what it takes


def supervise(yard: Yard, count: int = 2, *options: str) -> Process:
    """`dray worker`, with all of its workers there."""
    command = ["-m", "dray", "worker", f"{STOP}:app", "--processes", str(count), "--lease", "2", *options]
    supervisor = yard.run(command)
    yard.until(lambda: len(workers_of(yard, supervisor)) == count, f"{count} workers to register")
    return supervisor


def workers_of(yard: Yard, supervisor: Process) -> dict[int, str]:
    """The live workers, by process, all of them children of the supervisor."""
    return {pid: worker_id for worker_id, pid in yard.live_workers() if parent(pid) == supervisor.pid}


def test_a_worker_that_is_killed_is_started_anew_and_its_job_runs_again(together: Together) -> None:
    together.wait(killed)


@on_both
def killed(yard: Yard) -> None:
    supervisor = supervise(yard, 2, "-c", "1")
    job = yard.enqueue(f"{STOP}.wait_in_thread", label="job", path=str(yard.folder / "go"))
    yard.until(yard.ledger.starts)
    before = workers_of(yard, supervisor)
    victim = yard.ledger.starts()[0].pid
    assert victim in before
    os.kill(victim, signal.SIGKILL)

    yard.until(lambda: len(set(workers_of(yard, supervisor)) - set(before)) == 1, "another to take its place")
    yard.until(lambda: len(yard.ledger.starts()) == 2, "the job to be rescued")
    (yard.folder / "go").touch()
    yard.ended([job])
    assert yard.outcomes(job) == ["crashed", "completed"]
    assert yard.ledger.entries("overlap") == []
    assert len(workers_of(yard, supervisor)) == 2
    assert supervisor.end() == 0
    yard.until(lambda: not yard.left(), "all of them to be gone")


def told(number: signal.Signals) -> Scenario:
    @on_both
    def scenario(yard: Yard) -> None:
        supervisor = supervise(yard, 2, "-c", "1")
        jobs = [
            yard.enqueue(f"{STOP}.wait_in_thread", label=f"job {each}", path=str(yard.folder / "go"))
            for each in range(2)
        ]
        yard.until(lambda: len(yard.ledger.starts()) == 2)
        ids = list(workers_of(yard, supervisor).values())
        supervisor.send(number)
        yard.until(lambda: {yard.worker_state(each) for each in ids} == {"draining"}, "both to drain")
        late = yard.enqueue(f"{STOP}.in_thread", label="late")
        (yard.folder / "go").touch()
        assert supervisor.wait() == 0

        assert yard.left() == [], "the supervisor ends after its workers"
        assert [job.refresh().state for job in [*jobs, late]] == ["completed", "completed", "queued"]
        assert {yard.worker_state(each) for each in ids} == {"stopped"}

    return scenario


TOLD = {number: told(number) for number in SIGNALS}


@pytest.mark.parametrize("number", SIGNALS)
def test_one_signal_ends_all_in_good_order(together: Together, number: signal.Signals) -> None:
    together.wait(TOLD[number])


def told_everybody(count: int) -> Scenario:
    """systemd sends SIGTERM to every process of a service: supervisor, workers, and the children that run bodies."""

    @on_both
    def scenario(yard: Yard) -> None:
        if count == 1:
            top = yard.run(["-m", "dray", "worker", f"{STOP}:app", "-c", "2"])
            yard.until(lambda: yard.worker_of(top), "the worker to register")
        else:
            top = supervise(yard, count, "-c", "1")
        path = str(yard.folder / "go")
        jobs = [yard.enqueue(f"{STOP}.{task}", label=task, path=path) for task in ("wait_in_thread", "wait_in_child")]
        yard.until(lambda: len(yard.ledger.starts()) == 2)
        ids = [worker_id for worker_id, _ in yard.live_workers()]
        for pid in {top.pid, *yard.left()}:
            os.kill(pid, signal.SIGTERM)
        yard.until(lambda: {yard.worker_state(each) for each in ids} == {"draining"}, "all of them to drain")
        (yard.folder / "go").touch()
        assert top.wait() == 0
        assert [job.refresh().state for job in jobs] == ["completed"] * 2
        assert len(yard.ledger.starts()) == 2
        yard.until(lambda: not yard.left(), "all of them to be gone")

    return scenario


TOLD_EVERYBODY = {count: told_everybody(count) for count in (1, 2)}


@pytest.mark.parametrize("count", TOLD_EVERYBODY)
def test_a_signal_to_everybody_at_once_counts_once(together: Together, count: int) -> None:
    together.wait(TOLD_EVERYBODY[count])


def test_what_outlasts_grace_is_handed_back_by_each(together: Together) -> None:
    together.wait(handed_back)


@on_both
def handed_back(yard: Yard) -> None:
    supervisor = supervise(yard, 2, "-c", "1", "--grace", "0.3")
    jobs = [
        yard.enqueue(f"{STOP}.{task}", label=task, path=str(yard.folder / "go"), using={"max_attempts": 1})
        for task in ("wait_in_thread", "wait_with_family")
    ]
    yard.until(lambda: len(yard.ledger.starts()) == 2)
    assert supervisor.end() == 0
    assert [(job.refresh().state, job.attempt) for job in jobs] == [("queued", 0)] * 2
    yard.until(lambda: not yard.left(), "children, and theirs, to be gone")


def told_twice(number: signal.Signals) -> Scenario:
    @on_both
    def scenario(yard: Yard) -> None:
        supervisor = supervise(yard, 2, "-c", "1")
        for task in ("wait_in_thread", "wait_with_family"):
            yard.enqueue(f"{STOP}.{task}", label=task, path=str(yard.folder / "go"))
        yard.until(lambda: len(yard.ledger.starts()) == 2)
        ids = list(workers_of(yard, supervisor).values())
        supervisor.send(number)
        yard.until(lambda: {yard.worker_state(each) for each in ids} == {"draining"}, "both to drain")
        began = time.monotonic()
        supervisor.send(number)
        assert supervisor.wait() == 128 + number
        assert time.monotonic() - began < AT_ONCE
        yard.until(lambda: not yard.left(), "all of them to be gone")

    return scenario


TOLD_TWICE = {number: told_twice(number) for number in SIGNALS[:2]}


@pytest.mark.parametrize("number", SIGNALS[:2])
def test_a_second_signal_ends_all_at_once(together: Together, number: signal.Signals) -> None:
    together.wait(TOLD_TWICE[number])


def test_workers_end_in_good_order_when_their_supervisor_is_killed(together: Together) -> None:
    together.wait(orphaned)


@on_both
def orphaned(yard: Yard) -> None:
    """They get SIGTERM from the kernel: what they run may end."""
    supervisor = supervise(yard, 2, "-c", "1")
    job = yard.enqueue(f"{STOP}.wait_in_thread", label="job", path=str(yard.folder / "go"))
    yard.until(yard.ledger.starts)
    ids = list(workers_of(yard, supervisor).values())
    supervisor.kill()
    yard.until(lambda: "active" not in {yard.worker_state(each) for each in ids}, "both to drain")
    assert job.refresh().state == "running"
    (yard.folder / "go").touch()
    yard.until(lambda: not yard.left(), "both to end")
    assert job.refresh().state == "completed"
    assert {yard.worker_state(each) for each in ids} == {"stopped"}


def test_a_worker_whose_thread_does_not_stop_is_replaced_by_a_new_process(together: Together) -> None:
    together.wait(renewed)


@on_both
def renewed(yard: Yard) -> None:
    supervisor = supervise(yard, 2, "-c", "2")
    using = {"timeout": 1, "max_attempts": 2}
    stuck = yard.enqueue(f"{STOP}.hang", label="stuck", way="sleep", attempts=1, using=using)
    yard.until(yard.ledger.starts)
    its_pid = yard.ledger.starts()[0].pid
    yard.ended([stuck])
    assert yard.outcomes(stuck) == ["timeout", "completed"]
    assert yard.ledger.entries("overlap") == []
    yard.until(lambda: len(workers_of(yard, supervisor)) == 2, "another to take its place")
    assert its_pid not in workers_of(yard, supervisor)
    assert supervisor.end() == 0


def test_a_burst_ends_when_the_work_is_done(together: Together) -> None:
    together.wait(burst)


@on_both
def burst(yard: Yard) -> None:
    jobs = [yard.enqueue(f"{STOP}.in_thread", label=f"{number}") for number in range(50)]
    supervisor = yard.run(["-m", "dray", "worker", f"{STOP}:app", "--processes", "2", "--burst"])
    assert supervisor.wait() == 0
    assert {job.refresh().state for job in jobs} == {"completed"}
    assert len(yard.ledger.starts()) == 50
    assert yard.left() == []


def test_a_burst_that_is_told_to_end_does_so_in_good_order(together: Together) -> None:
    together.wait(burst_told)


@on_both
def burst_told(yard: Yard) -> None:
    path = str(yard.folder / "go")
    jobs = [yard.enqueue(f"{STOP}.wait_in_thread", label=f"{number}", path=path) for number in range(5)]
    worker = yard.run(["-m", "dray", "worker", f"{STOP}:app", "-c", "2", "--burst"])
    yard.until(lambda: len(yard.ledger.starts()) == 2, "two to start")
    (its_id,) = [worker_id for worker_id, _ in yard.live_workers()]
    worker.terminate()
    yard.until(lambda: yard.worker_state(its_id) == "draining", "the worker to drain")
    (yard.folder / "go").touch()
    assert worker.wait() == 0
    assert [job.refresh().state for job in jobs] == ["completed"] * 2 + ["queued"] * 3


def test_one_job_is_one_job_though_its_body_does_not_stop(together: Together) -> None:
    together.wait(once_stuck)


@on_both
def once_stuck(yard: Yard) -> None:
    """The process ends with the body, and does not begin anew for the retry."""
    using = {"timeout": 1, "max_attempts": 2}
    stuck = yard.enqueue(f"{STOP}.hang", label="stuck", way="sleep", attempts=1, using=using)
    other = yard.enqueue(f"{STOP}.in_thread", label="other")
    worker = yard.run(["-m", "dray", "worker", f"{STOP}:app", "-c", "2", "--once"])
    assert worker.wait() == 0
    assert yard.outcomes(stuck) == ["timeout"]
    assert stuck.refresh().state in {"scheduled", "queued"}
    assert other.refresh().state == "queued"
    assert len(yard.ledger.starts()) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["worker", "no.such.module:app", "--processes", "2"], 2),
        (["worker", f"{STOP}:app", "--processes", "2", "-c", "0"], 2),
        (["worker", f"{STOP}:app", "--processes", "0"], 2),
        (["worker", f"{STOP}:app", "--processes", "2", "--url", "postgresql://nobody@127.0.0.1:1/none"], 6),
    ],
)
def test_what_cannot_work_ends_with_one_code_and_no_storm(sqlite_yard: Yard, arguments: list[str], code: int) -> None:
    supervisor = sqlite_yard.run(["-m", "dray", *arguments], {"PGCONNECT_TIMEOUT": "2"})
    assert supervisor.wait() == code, supervisor.said
    assert "Traceback" not in supervisor.said
    assert len(supervisor.said.splitlines()) < 20, supervisor.said
    assert sqlite_yard.left() == []


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


TOGETHER = (
    renewed,  # the longest first
    once_stuck,
    killed,
    handed_back,
    orphaned,
    *TOLD_TWICE.values(),
    *TOLD_EVERYBODY.values(),
    *TOLD.values(),
    burst,
    burst_told,
)
