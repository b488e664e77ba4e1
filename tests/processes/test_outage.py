"""The database is away for longer than a lease: nothing is lost or taken over, and workers go on by themselves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dray.app_interface import core_of
from dray.errors import StorageLocked
from dray.handle.job import Job
from tests.processes import network
from tests.processes.harness import APPS, Fleet, Process
from tests.processes.places import Places, Together
from tests.server import Server

LEASE = 2.0
FAR_LEASE = 4.0
FAR_URL = f"postgresql://postgres@{network.HOST}/postgres?schema=own"
AWAY = 4.0  # seconds: twice the lease
FEW = 8  # lines for one outage, from the four threads of a worker that notice it


def busy(fleet: Fleet, lease: float = LEASE) -> list[Process]:
    """Two workers in the middle of much work, each with a body that waits for a file among it."""
    queues = [[f"only-{number}", "default"] for number in range(2)]
    workers = [fleet.start(concurrency=4, queues=each, lease=lease) for each in queues]
    for number in range(2):
        path = str(fleet.folder / f"long-{number}")
        fleet.enqueue("until_there", label=f"long-{number}", path=path, using={"queue": f"only-{number}"})
        fleet.until(lambda: fleet.ledger.starts(f"long-{number}"), "a long body")  # noqa: B023
    fleet.enqueue_many("nap", [{"label": f"nap-{n}", "seconds": 0.05} for n in range(200)])
    fleet.until(lambda: len(fleet.ledger.ends()) > 20, "work to flow")
    return workers


def nothing_was_lost(fleet: Fleet, workers: list[Process], jobs: int, few: int = FEW) -> None:
    """All is done, by workers that nobody has declared dead and that have not said much about it."""
    for number in range(2):
        (fleet.folder / f"long-{number}.1").touch()
    fleet.until(lambda: fleet.states() == {"completed": jobs}, "all jobs to complete", seconds=60)
    assert fleet.sql("SELECT outcome FROM dray_attempts WHERE outcome = 'crashed'") == []
    assert fleet.sql("SELECT id FROM dray_workers WHERE state = 'dead'") == []
    assert {entry.label for entry in fleet.ledger.ends()} == {
        *(f"nap-{n}" for n in range(200)),
        *(f"long-{n}" for n in range(2)),
        *(f"later-{n}" for n in range(jobs - 202)),
    }
    assert [worker.end() for worker in workers] == [0, 0]
    for worker in workers:
        assert worker.lines("ERROR", "CRITICAL", "Traceback") == [], worker.said
        assert len(worker.lines("WARNING")) <= few, worker.said
        assert len(worker.remarks) <= 2 * few, worker.said
    fleet.audit()


def waits_under_way(fleet: Fleet) -> int:
    waits = {wait for each in list(core_of(fleet.app).waiter._waits.values()) for wait in each}
    return sum(wait.is_under_way for wait in waits)


def told_to_stop(fleet: Fleet) -> set[str]:
    return {entry.label for entry in fleet.ledger.entries("stop")}


def later(fleet: Fleet, count: int = 5) -> None:
    fleet.enqueue_many("quick", [{"label": f"later-{n}"} for n in range(count)])


def test_a_server_that_was_down_for_longer_than_a_lease(together: Together) -> None:
    together.wait(down)


def down(places: Places) -> None:
    """A worker that cannot reach it stops its bodies before the lease ends, and runs them again afterwards."""
    with places.server() as (server, fleet), ThreadPoolExecutor(2) as threads:
        workers = busy(fleet)
        longs = fleet.app.jobs(state="running", task=f"{APPS}.until_there")
        waiting = [threads.submit(job.result, 60) for job in longs]
        fleet.until(lambda: waits_under_way(fleet) == 2, "two who wait for results")
        server.stop()
        stopped_at = time.monotonic()
        try:
            fleet.until(lambda: told_to_stop(fleet) >= {"long-0", "long-1"}, "bodies to be stopped")
            assert max(entry.at for entry in fleet.ledger.entries("stop")) - stopped_at < LEASE + 1
            time.sleep(max(0.0, stopped_at + AWAY - time.monotonic()))
        finally:
            server.start()
        for long in ("long-0", "long-1"):
            fleet.until(lambda: len(fleet.ledger.starts(long)) == 2, "it to run again")  # noqa: B023
        later(fleet)
        nothing_was_lost(fleet, workers, 207)
        # Those who were waiting for results all the time have noticed nothing.
        assert [each.result() for each in waiting] == ["attempt 1"] * 2


def test_a_server_that_crashed_and_was_up_again_within_the_lease(together: Together) -> None:
    together.wait(crashed)


def crashed(places: Places) -> None:
    """Bodies run on, and their outcomes count."""
    with places.server() as (server, fleet):
        workers = busy(fleet, lease=30)
        ids = [fleet.worker_of(worker) for worker in workers]
        fleet.sql("SELECT pg_current_xact_id()")  # a durable commit: the claims before it outlive the crash
        server.crash()
        later(fleet)
        nothing_was_lost(fleet, workers, 207)
        assert [len(fleet.ledger.starts(f"long-{n}")) for n in range(2)] == [1, 1]
        assert all_workers(fleet) == ids


def test_a_server_that_hangs_for_longer_than_a_lease(together: Together) -> None:
    together.wait(hung)


def hung(places: Places) -> None:
    """Nobody gets an answer; afterwards the locks of those who live are still held."""
    with places.server() as (server, fleet):
        workers = busy(fleet)
        ids = [fleet.worker_of(worker) for worker in workers]
        frozen = processes_of(server)
        assert len(frozen) > 5
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(AWAY)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        later(fleet)
        nothing_was_lost(fleet, workers, 207)
        assert all_workers(fleet) == ids


def test_sessions_that_are_ended_over_and_over_for_longer_than_a_lease(together: Together) -> None:
    together.wait(cut_again_and_again)


def cut_again_and_again(places: Places) -> None:
    with places.server() as (_, fleet):
        workers = busy(fleet)
        times = 12
        for _ in range(times):
            fleet.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'dray%' AND pid <> pg_backend_pid()"
            )
            time.sleep(AWAY / times)
        later(fleet)
        nothing_was_lost(fleet, workers, 207, few=times + FEW)


def test_a_file_that_was_locked_for_longer_than_a_lease(together: Together) -> None:
    together.wait(locked)


def locked(places: Places) -> None:
    """Bodies run on: the kernel proves their workers alive. Nobody gets to write meanwhile."""
    with places.sqlite() as fleet:
        workers = busy(fleet)
        ids = [fleet.worker_of(worker) for worker in workers]
        locker = fleet.run(["-m", "tests.processes.locker", str(AWAY)])
        fleet.until(lambda: fleet.ledger.entries("locked"), "the lock")
        began = time.monotonic()
        later(fleet)  # waits for its turn, and gets it
        assert time.monotonic() - began > AWAY / 2
        assert locker.wait() == 0
        nothing_was_lost(fleet, workers, 207)
        assert [len(fleet.ledger.starts(f"long-{n}")) for n in range(2)] == [1, 1]
        assert all_workers(fleet) == ids


def test_a_file_that_is_locked_while_workers_start_and_end(together: Together) -> None:
    together.wait(locked_at_either_end)


def locked_at_either_end(places: Places) -> None:
    with places.sqlite() as fleet:
        fleet.enqueue("quick", label="first")
        locker = fleet.run(["-m", "tests.processes.locker", "3"])
        fleet.until(lambda: fleet.ledger.entries("locked"), "the lock")
        worker = fleet.launch(lease=1)
        assert locker.wait() == 0
        fleet.until(lambda: fleet.ledger.ends("first"), "the worker to have come through")
        again = fleet.run(["-m", "tests.processes.locker", "3"])
        fleet.until(lambda: len(fleet.ledger.entries("locked")) == 2, "the second lock")
        code = worker.end()
        assert again.wait() == 0
        assert code == 0
        assert fleet.states() == {"completed": 1}
        assert worker.lines("ERROR", "CRITICAL", "Traceback") == []


def test_a_worker_whose_network_is_gone_stops_its_bodies_before_others_take_them_over(together: Together) -> None:
    together.wait(cable_pulled)


def cable_pulled(places: Places) -> None:
    """The packets vanish and nobody is told; the server and everybody else go on. The server finds out by its
    keepalives; the worker has to stop its bodies before that, by its own clock."""
    with network.network() as net, far_server(places) as fleet:
        lonely = start_at_the_far_end(fleet, net)
        first_id = fleet.worker_of(lonely)
        tasks = ("until_there", "deaf_in_process", "deaf_async")
        jobs = [fleet.enqueue("until_there", label="until_there", path=str(fleet.folder / "long"))]
        jobs += [fleet.enqueue(task, label=task) for task in tasks[1:]]
        fleet.until(lambda: len(fleet.ledger.starts()) == 3, "the bodies")
        held = fleet.enqueue("quick", label="held", using={"delay": 3600})
        fall_silent_at_the_far_end(fleet, net, held)
        successor = fleet.start(lease=FAR_LEASE)
        net.pull()
        over_at = time.monotonic() + FAR_LEASE
        fleet.until(lambda: time.monotonic() >= over_at)
        assert [fleet.ledger.alive(task) for task in tasks] == [[], [], []]
        fleet.until(lambda: len(fleet.ledger.starts()) == 6, "the successor to take over", seconds=60)
        assert fleet.ledger.entries("overlap") == []
        fleet.until(lambda: cancelled(fleet, held), "the row that somebody locked who is cut off", seconds=60)
        net.plug()
        fleet.until(lambda: fleet.worker_of(lonely) not in {first_id, None}, "it to come back", seconds=60)
        (fleet.folder / "long.2").touch()
        assert [job.result(timeout=30) for job in jobs] == ["attempt 2"] * 3
        assert [fleet.outcomes(job) for job in jobs] == [["crashed", "completed"]] * 3
        assert successor.end() == 0
        again = fleet.enqueue("quick", label="afterwards")
        assert again.result(timeout=30) == "afterwards"
        # Its newest: a network that only just works may swallow the answer to a first registration.
        assert again.attempts()[0].worker == fleet.worker_of(lonely) != first_id
        assert lonely.end() == 0
        assert len(lonely.lines("WARNING")) <= 8, lonely.said
        fleet.audit()


def cancelled(fleet: Fleet, job: Job[Any]) -> bool:
    try:
        return bool(fleet.app.cancel(job.id))
    except StorageLocked:
        return False


@contextmanager
def far_server(places: Places) -> Generator[Fleet]:
    """A fleet on a server that listens at this end of the cable too."""
    with places.server() as (server, fleet):
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"{rules.read_text()}\nhost all all {network.HOST}/30 trust\n")
        server.stop()
        server.start("-h", network.HOST)
        yield fleet


def start_at_the_far_end(fleet: Fleet, net: network.Network) -> Process:
    worker = fleet.run(
        ["-m", "tests.processes.serve", APPS, json.dumps({"lease": FAR_LEASE})],
        {"DRAY_URL": FAR_URL},
        under=["ip", "netns", "exec", net.name],
    )
    fleet.until(lambda: fleet.worker_of(worker), "the worker at the far end")
    return worker


def fall_silent_at_the_far_end(fleet: Fleet, net: network.Network, job: Job[Any]) -> None:
    """The server would take it for alive for two hours, and whoever needs the row would wait."""
    words = ["-m", "tests.processes.silent", job.id]
    fleet.run(words, {"DRAY_URL": FAR_URL}, under=["ip", "netns", "exec", net.name])
    fleet.until(lambda: fleet.ledger.entries("locked"), "the lock")


def all_workers(fleet: Fleet) -> list[str]:
    """The ids of all workers that ever were, oldest first."""
    return [each[0] for each in fleet.sql("SELECT CAST(id AS text) FROM dray_workers ORDER BY started_at, id")]


def processes_of(server: Server) -> list[int]:
    """The server's processes."""
    pid = int((server.data / "postmaster.pid").read_text().split("\n")[0])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def test_what_a_locker_does_keeps_others_from_writing(tmp_path: Path) -> None:
    """Lest the tests above prove nothing."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as first, closing(sqlite3.connect(path, timeout=0)) as second:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.execute("CREATE TABLE t (x)")
    first.close()
    second.close()


TOGETHER = (cable_pulled, down, crashed, hung, cut_again_and_again, locked, locked_at_either_end)
