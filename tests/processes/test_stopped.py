"""Workers that stand still (SIGSTOP, a suspended machine): not dead, unless they are cut off as well."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from dray.handle.job import Job
from tests.processes.harness import Fleet, Process
from tests.processes.places import Places, Together, on_both

LEASE = 1.0
LONG = 3.5  # seconds: the lease is over, and others have looked more than once since
RUNNERS = ("until_there", "until_there_async", "until_there_in_process")


def begin(fleet: Fleet, tasks: tuple[str, ...], prefix: str = "") -> list[Job[Any]]:
    """One job of each task, all of them running when this returns."""
    jobs = [
        fleet.enqueue(task, label=prefix + task, path=str(fleet.folder / (prefix + task)), using={"timeout": None})
        for task in tasks
    ]
    fleet.until(lambda: {prefix + task for task in tasks} <= {e.label for e in fleet.ledger.starts()}, "all bodies")
    return jobs


def let_end(fleet: Fleet, attempt: int, labels: tuple[str, ...]) -> None:
    for label in labels:
        (fleet.folder / f"{label}.{attempt}").touch()


def test_a_worker_stopped_for_longer_than_its_lease_keeps_its_jobs_and_its_outcomes_count(together: Together) -> None:
    together.wait(stopped)


@on_both
def stopped(fleet: Fleet) -> None:
    sleeper = fleet.start(lease=LEASE)
    jobs = begin(fleet, RUNNERS)
    first_id = fleet.worker_of(sleeper)
    watcher = fleet.start(lease=LEASE)
    fleet.still(sleeper)
    time.sleep(LONG)
    # A body in a child process is not stopped, and ends meanwhile.
    let_end(fleet, 1, RUNNERS)
    fleet.until(lambda: fleet.ledger.ends("until_there_in_process"), "the body in the child")
    assert fleet.states() == {"running": 3}
    sleeper.go_on()

    assert [job.result(timeout=30) for job in jobs] == ["attempt 1"] * 3
    assert [fleet.outcomes(job) for job in jobs] == [["completed"]] * 3
    assert {attempt.worker for job in jobs for attempt in job.attempts()} == {first_id}
    assert len(fleet.ledger.starts()) == 3
    assert watcher.end() == 0
    again = fleet.enqueue("quick", label="afterwards")
    assert again.result(timeout=30) == "afterwards"
    assert again.attempts()[0].worker == first_id
    assert sleeper.end() == 0
    fleet.audit()


def test_workers_that_were_all_stopped_do_not_take_each_other_for_dead(together: Together) -> None:
    together.wait(all_stopped)


@on_both
def all_stopped(fleet: Fleet) -> None:
    """As when a laptop is closed; one of them wakes earlier than the other."""
    workers: list[Process] = []
    jobs: list[Job[Any]] = []
    for number in range(2):
        workers.append(fleet.start(lease=LEASE, concurrency=1))
        jobs += begin(fleet, ("until_there",), prefix=f"{number}-")
    ids = [fleet.worker_of(worker) for worker in workers]
    for worker in workers:
        fleet.still(worker)
    time.sleep(LONG - 1)
    workers[0].go_on()
    time.sleep(LONG - 1)
    workers[1].go_on()
    let_end(fleet, 1, ("0-until_there", "1-until_there"))

    assert [job.result(timeout=30) for job in jobs] == ["attempt 1"] * 2
    assert [fleet.worker_of(worker) for worker in workers] == ids
    assert len(fleet.ledger.starts()) == 2
    assert [worker.end() for worker in workers] == [0, 0]
    fleet.audit()


def test_a_worker_that_was_stopped_and_cut_off_loses_its_jobs_and_comes_back_under_a_new_id(
    together: Together,
) -> None:
    together.wait(stopped_and_cut_off)


@on_both
def stopped_and_cut_off(fleet: Fleet) -> None:
    tasks = ("until_there", "until_there_async")
    sleeper = fleet.start(lease=LEASE, environment=named(fleet, "sleeper"))
    first_id = fleet.worker_of(sleeper)
    assert first_id is not None
    jobs = begin(fleet, tasks)
    successor = fleet.start(lease=LEASE)
    fleet.still(sleeper)
    cut_off(fleet, "sleeper", first_id)
    fleet.until(lambda: len(fleet.ledger.starts()) == 4, "the successor to take over")
    assert fleet.worker_state(first_id) == "dead"
    let_end(fleet, 1, tasks)
    before = [job.refresh().row for job in jobs]
    sleeper.go_on()

    # Its bodies end, or are stopped, and change nothing.
    new_id = fleet.until(lambda: fleet.worker_of(sleeper), "the sleeper to come back")
    assert new_id != first_id
    fleet.until(lambda: len(late_ends(fleet)) == 2, "its late bodies to end")
    assert [job.refresh().row for job in jobs] == before
    assert {row.worker_id for row in before} == {fleet.worker_of(successor)}
    let_end(fleet, 2, tasks)
    assert [job.result(timeout=30) for job in jobs] == ["attempt 2"] * 2
    assert [fleet.outcomes(job) for job in jobs] == [["crashed", "completed"]] * 2
    assert fleet.worker_state(first_id) == "dead"

    # And it goes on working.
    assert successor.end() == 0
    again = fleet.enqueue("quick", label="afterwards")
    assert again.result(timeout=30) == "afterwards"
    assert again.attempts()[0].worker == new_id
    assert sleeper.end() == 0
    assert sleeper.lines("ERROR", "Traceback") == []
    assert len(sleeper.lines("WARNING")) <= 10, sleeper.said
    fleet.audit()


def test_a_worker_whose_lock_file_was_removed_keeps_its_jobs(together: Together) -> None:
    together.wait(lock_removed)


def lock_removed(places: Places) -> None:
    """By somebody who tidies up: its lease stands, and is renewed. It is not dead, and nobody has said so."""
    with places.sqlite() as fleet:
        worker = fleet.start(lease=LEASE)
        jobs = begin(fleet, RUNNERS)
        watcher = fleet.start(lease=LEASE)
        (folder,) = fleet.folder.parent.glob("*-workers")
        shutil.rmtree(folder)
        time.sleep(LONG)
        assert fleet.states() == {"running": 3}
        let_end(fleet, 1, RUNNERS)
        assert [job.result(timeout=30) for job in jobs] == ["attempt 1"] * 3
        assert [fleet.outcomes(job) for job in jobs] == [["completed"]] * 3
        assert len(fleet.ledger.starts()) == 3
        # Both go on working, each with a proof of its life again.
        both = (worker, watcher)
        fleet.until(
            lambda: {path.stem for path in folder.glob("*.lock")} == {fleet.worker_of(each) for each in both},
            "new lock files",
        )
        assert watcher.end() == 0
        assert fleet.enqueue("quick", label="afterwards").result(timeout=30) == "afterwards"
        assert worker.end() == 0
        fleet.audit()


def late_ends(fleet: Fleet) -> list[str]:
    return [entry.label for entry in fleet.ledger.entries() if entry.what in {"end", "stop"} and entry.attempt == 1]


def named(fleet: Fleet, name: str) -> dict[str, str]:
    """The environment of a worker whose sessions at a server can be told from others'."""
    return {} if fleet.is_sqlite else {"DRAY_URL": f"{fleet.url}&application_name={name}"}


def cut_off(fleet: Fleet, name: str, worker_id: str) -> None:
    """Nobody can see a worker's proof of life any more: its sessions end, or its lock file is another one."""
    if not fleet.is_sqlite:
        fleet.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '{name}'")
        return
    (folder,) = fleet.folder.parent.glob("*-workers")
    lock = Path(folder) / f"{worker_id}.lock"
    lock.unlink()
    lock.touch()


TOGETHER = (stopped, all_stopped, stopped_and_cut_off, lock_removed)
