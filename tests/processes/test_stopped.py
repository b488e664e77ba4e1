"""Workers that stand still (SIGSTOP, a suspended machine): not dead, unless they are cut off as well."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from dray.handle import Job
from tests.processes.harness import Process, Yard
from tests.processes.places import Places, Together, on_both

LEASE = 1.0
LONG = 3.5  # seconds: the lease is over, and others have looked more than once since
RUNNERS = ("until_there", "until_there_async", "until_there_in_process")


def begin(yard: Yard, tasks: tuple[str, ...], prefix: str = "") -> list[Job[Any]]:
    """One job of each task, all of them running when this returns."""
    jobs = [
        yard.enqueue(task, label=prefix + task, path=str(yard.folder / (prefix + task)), using={"timeout": None})
        for task in tasks
    ]
    yard.until(lambda: {prefix + task for task in tasks} <= {e.label for e in yard.ledger.starts()}, "all bodies")
    return jobs


def let_end(yard: Yard, attempt: int, labels: tuple[str, ...]) -> None:
    for label in labels:
        (yard.folder / f"{label}.{attempt}").touch()


def test_a_worker_stopped_for_longer_than_its_lease_keeps_its_jobs_and_its_outcomes_count(together: Together) -> None:
    together.wait(stopped)


@on_both
def stopped(yard: Yard) -> None:
    sleeper = yard.start(lease=LEASE)
    jobs = begin(yard, RUNNERS)
    first_id = yard.worker_of(sleeper)
    watcher = yard.start(lease=LEASE)
    yard.still(sleeper)
    time.sleep(LONG)
    # A body in a child process is not stopped, and ends meanwhile.
    let_end(yard, 1, RUNNERS)
    yard.until(lambda: yard.ledger.ends("until_there_in_process"), "the body in the child")
    assert yard.states() == {"running": 3}
    sleeper.go_on()

    assert [job.result(timeout=30) for job in jobs] == ["attempt 1"] * 3
    assert [yard.outcomes(job) for job in jobs] == [["completed"]] * 3
    assert {attempt.worker for job in jobs for attempt in job.attempts()} == {first_id}
    assert len(yard.ledger.starts()) == 3
    assert watcher.end() == 0
    again = yard.enqueue("quick", label="afterwards")
    assert again.result(timeout=30) == "afterwards"
    assert again.attempts()[0].worker == first_id
    assert sleeper.end() == 0
    yard.audit()


def test_workers_that_were_all_stopped_do_not_take_each_other_for_dead(together: Together) -> None:
    together.wait(all_stopped)


@on_both
def all_stopped(yard: Yard) -> None:
    """As when a laptop is closed; one of them wakes earlier than the other."""
    workers: list[Process] = []
    jobs: list[Job[Any]] = []
    for number in range(2):
        workers.append(yard.start(lease=LEASE, concurrency=1))
        jobs += begin(yard, ("until_there",), prefix=f"{number}-")
    ids = [yard.worker_of(worker) for worker in workers]
    for worker in workers:
        yard.still(worker)
    time.sleep(LONG - 1)
    workers[0].go_on()
    time.sleep(LONG - 1)
    workers[1].go_on()
    let_end(yard, 1, ("0-until_there", "1-until_there"))

    assert [job.result(timeout=30) for job in jobs] == ["attempt 1"] * 2
    assert [yard.worker_of(worker) for worker in workers] == ids
    assert len(yard.ledger.starts()) == 2
    assert [worker.end() for worker in workers] == [0, 0]
    yard.audit()


def test_a_worker_that_was_stopped_and_cut_off_loses_its_jobs_and_comes_back_under_a_new_id(
    together: Together,
) -> None:
    together.wait(stopped_and_cut_off)


@on_both
def stopped_and_cut_off(yard: Yard) -> None:
    tasks = ("until_there", "until_there_async")
    sleeper = yard.start(lease=LEASE, environment=named(yard, "sleeper"))
    first_id = yard.worker_of(sleeper)
    assert first_id is not None
    jobs = begin(yard, tasks)
    heir = yard.start(lease=LEASE)
    yard.still(sleeper)
    cut_off(yard, "sleeper", first_id)
    yard.until(lambda: len(yard.ledger.starts()) == 4, "the heir to take over")
    assert yard.worker_state(first_id) == "dead"
    let_end(yard, 1, tasks)
    before = [job.refresh().row for job in jobs]
    sleeper.go_on()

    # Its bodies end, or are stopped, and change nothing.
    new_id = yard.until(lambda: yard.worker_of(sleeper), "the sleeper to come back")
    assert new_id != first_id
    yard.until(lambda: len(late_ends(yard)) == 2, "its late bodies to end")
    assert [job.refresh().row for job in jobs] == before
    assert {row.worker_id for row in before} == {yard.worker_of(heir)}
    let_end(yard, 2, tasks)
    assert [job.result(timeout=30) for job in jobs] == ["attempt 2"] * 2
    assert [yard.outcomes(job) for job in jobs] == [["crashed", "completed"]] * 2
    assert yard.worker_state(first_id) == "dead"

    # And it goes on working.
    assert heir.end() == 0
    again = yard.enqueue("quick", label="afterwards")
    assert again.result(timeout=30) == "afterwards"
    assert again.attempts()[0].worker == new_id
    assert sleeper.end() == 0
    assert sleeper.lines("ERROR", "Traceback") == []
    assert len(sleeper.lines("WARNING")) <= 10, sleeper.said
    yard.audit()


def test_a_worker_whose_lock_file_was_removed_keeps_its_jobs(together: Together) -> None:
    together.wait(lock_removed)


def lock_removed(places: Places) -> None:
    """By somebody who tidies up: its lease stands, and is renewed. It is not dead, and nobody has said so."""
    with places.sqlite() as yard:
        worker = yard.start(lease=LEASE)
        jobs = begin(yard, RUNNERS)
        watcher = yard.start(lease=LEASE)
        (folder,) = yard.folder.parent.glob("*-workers")
        shutil.rmtree(folder)
        time.sleep(LONG)
        assert yard.states() == {"running": 3}
        let_end(yard, 1, RUNNERS)
        assert [job.result(timeout=30) for job in jobs] == ["attempt 1"] * 3
        assert [yard.outcomes(job) for job in jobs] == [["completed"]] * 3
        assert len(yard.ledger.starts()) == 3
        # Both go on working, each with a proof of its life again.
        both = (worker, watcher)
        yard.until(
            lambda: {path.stem for path in folder.glob("*.lock")} == {yard.worker_of(each) for each in both},
            "new lock files",
        )
        assert watcher.end() == 0
        assert yard.enqueue("quick", label="afterwards").result(timeout=30) == "afterwards"
        assert worker.end() == 0
        yard.audit()


def late_ends(yard: Yard) -> list[str]:
    return [entry.label for entry in yard.ledger.entries() if entry.what in {"end", "stop"} and entry.attempt == 1]


def named(yard: Yard, name: str) -> dict[str, str]:
    """The environment of a worker whose sessions at a server can be told from others'."""
    return {} if yard.is_sqlite else {"DRAY_URL": f"{yard.url}&application_name={name}"}


def cut_off(yard: Yard, name: str, worker_id: str) -> None:
    """Nobody can see a worker's proof of life any more: its sessions end, or its lock file is another one."""
    if not yard.is_sqlite:
        yard.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '{name}'")
        return
    (folder,) = yard.folder.parent.glob("*-workers")
    lock = Path(folder) / f"{worker_id}.lock"
    lock.unlink()
    lock.touch()


TOGETHER = (stopped, all_stopped, stopped_and_cut_off, lock_removed)
