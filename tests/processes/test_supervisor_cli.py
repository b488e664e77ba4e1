"""`dray worker --processes N`: one command, several workers, restarted when they die, gone when it is."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes.harness import Fleet, Process
from tests.processes.places import Scenario, Together, on_both

STOP = "tests.processes.apps_stop"
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
AT_ONCE = 3.0  # seconds; ten times what it takes


def supervise(fleet: Fleet, count: int = 2, *options: str) -> Process:
    """`dray worker`, with all of its workers there; forked, as all that `fork` starts."""
    command = ["-m", "dray", "worker", f"{STOP}:app", "--processes", str(count), "--lease", "2", *options]
    supervisor = fleet.fork(command)
    fleet.until(lambda: len(workers_of(fleet, supervisor)) == count, f"{count} workers to register")
    return supervisor


def workers_of(fleet: Fleet, supervisor: Process) -> dict[int, str]:
    """The live workers, by process, all of them children of the supervisor."""
    return {pid: worker_id for worker_id, pid in fleet.live_workers() if parent(pid) == supervisor.pid}


def test_a_worker_that_is_killed_is_started_anew_and_its_job_runs_again(together: Together) -> None:
    together.wait(killed)


@on_both
def killed(fleet: Fleet) -> None:
    supervisor = supervise(fleet, 2, "-c", "1")
    job = fleet.enqueue(f"{STOP}.wait_in_thread", label="job", path=str(fleet.folder / "go"))
    fleet.until(fleet.ledger.starts)
    before = workers_of(fleet, supervisor)
    victim = fleet.ledger.starts()[0].pid
    assert victim in before
    os.kill(victim, signal.SIGKILL)

    fleet.until(lambda: len(set(workers_of(fleet, supervisor)) - set(before)) == 1, "another to take its place")
    fleet.until(lambda: len(fleet.ledger.starts()) == 2, "the job to be rescued")
    (fleet.folder / "go").touch()
    fleet.ended([job])
    assert fleet.outcomes(job) == ["crashed", "completed"]
    assert fleet.ledger.entries("overlap") == []
    assert len(workers_of(fleet, supervisor)) == 2
    assert supervisor.end() == 0
    fleet.until(fleet.is_alone, "all of them to be gone")


def told(number: signal.Signals) -> Scenario:
    @on_both
    def scenario(fleet: Fleet) -> None:
        supervisor = supervise(fleet, 2, "-c", "1")
        jobs = [
            fleet.enqueue(f"{STOP}.wait_in_thread", label=f"job {each}", path=str(fleet.folder / "go"))
            for each in range(2)
        ]
        fleet.until(lambda: len(fleet.ledger.starts()) == 2)
        ids = list(workers_of(fleet, supervisor).values())
        supervisor.send(number)
        fleet.until(lambda: {fleet.worker_state(each) for each in ids} == {"draining"}, "both to drain")
        late = fleet.enqueue(f"{STOP}.in_thread", label="late")
        (fleet.folder / "go").touch()
        assert supervisor.wait() == 0

        assert fleet.left() == [], "the supervisor ends after its workers"
        assert [job.refresh().state for job in [*jobs, late]] == ["completed", "completed", "queued"]
        assert {fleet.worker_state(each) for each in ids} == {"stopped"}

    return scenario


TOLD = {number: told(number) for number in SIGNALS}


@pytest.mark.parametrize("number", SIGNALS)
def test_one_signal_ends_all_in_good_order(together: Together, number: signal.Signals) -> None:
    together.wait(TOLD[number])


def told_everybody(count: int) -> Scenario:
    """systemd sends SIGTERM to every process of a service: supervisor, workers, and the children that run bodies."""

    @on_both
    def scenario(fleet: Fleet) -> None:
        if count == 1:
            top = fleet.fork(["-m", "dray", "worker", f"{STOP}:app", "-c", "2"])
            fleet.until(lambda: fleet.worker_of(top), "the worker to register")
        else:
            top = supervise(fleet, count, "-c", "1")
        path = str(fleet.folder / "go")
        jobs = [
            fleet.enqueue(f"{STOP}.{task}", label=task, path=path) for task in ("wait_in_thread", "wait_in_child")
        ]
        fleet.until(lambda: len(fleet.ledger.starts()) == 2)
        ids = [worker_id for worker_id, _ in fleet.live_workers()]
        for pid in {top.pid, *fleet.left()}:
            os.kill(pid, signal.SIGTERM)
        fleet.until(lambda: {fleet.worker_state(each) for each in ids} == {"draining"}, "all of them to drain")
        (fleet.folder / "go").touch()
        assert top.wait() == 0
        assert [job.refresh().state for job in jobs] == ["completed"] * 2
        assert len(fleet.ledger.starts()) == 2
        fleet.until(fleet.is_alone, "all of them to be gone")

    return scenario


TOLD_EVERYBODY = {count: told_everybody(count) for count in (1, 2)}


@pytest.mark.parametrize("count", TOLD_EVERYBODY)
def test_a_signal_to_everybody_at_once_counts_once(together: Together, count: int) -> None:
    together.wait(TOLD_EVERYBODY[count])


def test_what_outlasts_grace_is_handed_back_by_each(together: Together) -> None:
    together.wait(handed_back)


@on_both
def handed_back(fleet: Fleet) -> None:
    supervisor = supervise(fleet, 2, "-c", "1", "--grace", "0.3")
    jobs = [
        fleet.enqueue(f"{STOP}.{task}", label=task, path=str(fleet.folder / "go"), using={"max_attempts": 1})
        for task in ("wait_in_thread", "wait_with_family")
    ]
    fleet.until(lambda: len(fleet.ledger.starts()) == 2)
    assert supervisor.end() == 0
    assert [(job.refresh().state, job.attempt) for job in jobs] == [("queued", 0)] * 2
    fleet.until(fleet.is_alone, "children, and theirs, to be gone")


def told_twice(number: signal.Signals) -> Scenario:
    @on_both
    def scenario(fleet: Fleet) -> None:
        supervisor = supervise(fleet, 2, "-c", "1")
        for task in ("wait_in_thread", "wait_with_family"):
            fleet.enqueue(f"{STOP}.{task}", label=task, path=str(fleet.folder / "go"))
        fleet.until(lambda: len(fleet.ledger.starts()) == 2)
        ids = list(workers_of(fleet, supervisor).values())
        supervisor.send(number)
        fleet.until(lambda: {fleet.worker_state(each) for each in ids} == {"draining"}, "both to drain")
        began = time.monotonic()
        supervisor.send(number)
        assert supervisor.wait() == 128 + number
        assert time.monotonic() - began < AT_ONCE
        fleet.until(fleet.is_alone, "all of them to be gone")

    return scenario


TOLD_TWICE = {number: told_twice(number) for number in SIGNALS[:2]}


@pytest.mark.parametrize("number", SIGNALS[:2])
def test_a_second_signal_ends_all_at_once(together: Together, number: signal.Signals) -> None:
    together.wait(TOLD_TWICE[number])


def test_workers_end_in_good_order_when_their_supervisor_is_killed(together: Together) -> None:
    together.wait(orphaned)


@on_both
def orphaned(fleet: Fleet) -> None:
    """They get SIGTERM from the kernel: what they run may end."""
    supervisor = supervise(fleet, 2, "-c", "1")
    job = fleet.enqueue(f"{STOP}.wait_in_thread", label="job", path=str(fleet.folder / "go"))
    fleet.until(fleet.ledger.starts)
    ids = list(workers_of(fleet, supervisor).values())
    supervisor.kill()
    fleet.until(lambda: "active" not in {fleet.worker_state(each) for each in ids}, "both to drain")
    assert job.refresh().state == "running"
    (fleet.folder / "go").touch()
    fleet.until(fleet.is_alone, "both to end")
    assert job.refresh().state == "completed"
    assert {fleet.worker_state(each) for each in ids} == {"stopped"}


def test_a_worker_whose_thread_does_not_stop_is_replaced_by_a_new_process(together: Together) -> None:
    together.wait(renewed)


@on_both
def renewed(fleet: Fleet) -> None:
    supervisor = supervise(fleet, 2, "-c", "2")
    using = {"timeout": 1, "max_attempts": 2}
    stuck = fleet.enqueue(f"{STOP}.hang", label="stuck", way="sleep", attempts=1, using=using)
    fleet.until(fleet.ledger.starts)
    its_pid = fleet.ledger.starts()[0].pid
    fleet.ended([stuck])
    assert fleet.outcomes(stuck) == ["timeout", "completed"]
    assert fleet.ledger.entries("overlap") == []
    fleet.until(lambda: len(workers_of(fleet, supervisor)) == 2, "another to take its place")
    assert its_pid not in workers_of(fleet, supervisor)
    assert supervisor.end() == 0


def test_a_burst_ends_when_the_work_is_done(together: Together) -> None:
    together.wait(burst)


@on_both
def burst(fleet: Fleet) -> None:
    jobs = [fleet.enqueue(f"{STOP}.in_thread", label=f"{number}") for number in range(50)]
    start = fleet.run if fleet.is_sqlite else fleet.fork  # a new Python for each once: it takes 1 s of a processor
    supervisor = start(["-m", "dray", "worker", f"{STOP}:app", "--processes", "2", "--burst"])
    assert supervisor.wait() == 0
    assert {job.refresh().state for job in jobs} == {"completed"}
    assert len(fleet.ledger.starts()) == 50
    assert fleet.left() == []


def test_a_burst_that_is_told_to_end_does_so_in_good_order(together: Together) -> None:
    together.wait(burst_told)


@on_both
def burst_told(fleet: Fleet) -> None:
    path = str(fleet.folder / "go")
    jobs = [fleet.enqueue(f"{STOP}.wait_in_thread", label=f"{number}", path=path) for number in range(5)]
    worker = fleet.fork(["-m", "dray", "worker", f"{STOP}:app", "-c", "2", "--burst"])
    fleet.until(lambda: len(fleet.ledger.starts()) == 2, "two to start")
    (its_id,) = [worker_id for worker_id, _ in fleet.live_workers()]
    worker.terminate()
    fleet.until(lambda: fleet.worker_state(its_id) == "draining", "the worker to drain")
    (fleet.folder / "go").touch()
    assert worker.wait() == 0
    assert [job.refresh().state for job in jobs] == ["completed"] * 2 + ["queued"] * 3


def test_one_job_is_one_job_though_its_body_does_not_stop(together: Together) -> None:
    together.wait(once_stuck)


@on_both
def once_stuck(fleet: Fleet) -> None:
    """The process ends with the body, and does not begin anew for the retry."""
    using = {"timeout": 1, "max_attempts": 2}
    stuck = fleet.enqueue(f"{STOP}.hang", label="stuck", way="sleep", attempts=1, using=using)
    other = fleet.enqueue(f"{STOP}.in_thread", label="other")
    worker = fleet.fork(["-m", "dray", "worker", f"{STOP}:app", "-c", "2", "--once"])
    assert worker.wait() == 0
    assert fleet.outcomes(stuck) == ["timeout"]
    assert stuck.refresh().state in {"scheduled", "queued"}
    assert other.refresh().state == "queued"
    assert len(fleet.ledger.starts()) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["worker", "no.such.module:app", "--processes", "2"], 2),
        (["worker", f"{STOP}:app", "--processes", "2", "-c", "0"], 2),
        (["worker", f"{STOP}:app", "--processes", "0"], 2),
        (["worker", f"{STOP}:app", "--processes", "2", "--url", "postgresql://nobody@127.0.0.1:1/none"], 6),
    ],
)
def test_what_cannot_work_ends_with_one_code_and_no_storm(
    sqlite_yard: Fleet, arguments: list[str], code: int
) -> None:
    start = sqlite_yard.run if "--url" in arguments else sqlite_yard.fork  # workers that are forked get no typed one
    supervisor = start(["-m", "dray", *arguments], {"PGCONNECT_TIMEOUT": "2"})
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
