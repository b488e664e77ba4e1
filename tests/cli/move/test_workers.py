"""A live worker prevents a move; a dead worker's jobs are moved by force, and then rescued in the target."""

from __future__ import annotations

import signal

import pytest

import dray
from dray.backends import open_backend
from dray.clock import Ids, SystemClock
from dray.errors import DatabaseClosed
from dray.model.job import LogLine
from dray.model.worker import NewWorker
from dray.ops import move, move_plan
from tests import verbs
from tests.backends.whole import everything, sql
from tests.cli.move.contents import LEASE_US, fill
from tests.cli.move.moves import is_closed, moved, sides, states
from tests.cli.shell import TASKS, Shell, until


def test_a_live_worker_stands_in_the_way(shell: Shell, source: str, target: str) -> None:
    fill(source)
    with shell.background("worker", "-q", "nothing", DRAY_URL=source):
        until(lambda: shell.try_("workers", DRAY_URL=source).rows)
        for words in ([], ["--force"]):
            done = moved(shell, source, target, *words)
            assert (done.code, "1 worker is still at work" in done.err) == (1, True), done.err
        look = moved(shell, source, target, "--dry-run")
        assert (look.code, "stop all workers first" in look.err) == (0, True), look.err
        assert {name: int(rows) for name, rows, _ in look.rows} == {n: len(r) for n, r in everything(source).items()}
    assert not is_closed(source)


def test_a_worker_that_starts_meanwhile_stands_in_the_way(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    backend, clock = open_backend(shell.url), SystemClock()
    new = NewWorker(id=Ids(clock).new(), name="w", host="here", pid=1, boot=clock.boot)
    count = 0

    def tell(_: move.Progress) -> None:
        nonlocal count
        count += 1
        if count == 2:
            backend.workers.register(new, LEASE_US)

    with sides(shell.url, postgres_url) as (here, there):
        with pytest.raises(dray.MoveError, match="1 worker is still at work"):
            move.carry(move_plan.plan(here, there), tell=tell)
        assert not is_closed(shell.url)
        backend.workers.deregister(new.id)
        move.carry(move_plan.plan(here, there))
    backend.close()
    assert everything(postgres_url) == everything(shell.url)


def test_a_worker_of_another_boot_stands_in_the_way(shell: Shell, postgres_url: str) -> None:
    """A file does not show whether a worker on another machine uses it; a server does."""
    fill(shell.url)
    backend = open_backend(shell.url)
    new = NewWorker(id=Ids(SystemClock()).new(), name="w", host="elsewhere", pid=1, boot="of another machine")
    backend.workers.register(new, LEASE_US)

    for words in ([], ["--force"]):
        done = moved(shell, shell.url, postgres_url, *words)
        assert (done.code, "1 worker is of another boot, and may be at work" in done.err) == (1, True), done.err
    assert not is_closed(shell.url)
    backend.workers.deregister(new.id)
    backend.close()

    assert moved(shell, shell.url, postgres_url).code == 0


def test_a_worker_that_starts_on_the_target_meanwhile_stands_in_the_way(
    shell: Shell, source: str, target: str
) -> None:
    fill(source)
    backend, clock = open_backend(target), SystemClock()
    backend.migrate()
    new = NewWorker(id=Ids(clock).new(), name="w", host="here", pid=1, boot=clock.boot)

    with sides(source, target) as (here, there):
        planned = move_plan.plan(here, there)
        backend.workers.register(new, LEASE_US)
        with pytest.raises(dray.MoveError, match="has workers at work"):
            move.carry(planned)
        assert not is_closed(target)
        assert not any(everything(target).values())
        backend.workers.deregister(new.id)
        move.carry(planned)
    backend.close()
    assert everything(target) == everything(source)


_ONCE = """
import pathlib, time

@app.task
def once() -> str:
    flag = pathlib.Path("once")
    if flag.exists():
        return "again"
    flag.touch()
    time.sleep(3600)
"""


def test_a_dead_worker_s_job_is_carried_by_force_and_taken_back_in_the_target(
    shell: Shell, postgres_url: str
) -> None:
    shell.write("tasks.py", TASKS + _ONCE)
    job = shell("enqueue", "tasks.once").value
    with shell.background("worker") as process:
        until((shell.folder / "once").exists)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    (worker, claim) = sql(shell.url, "SELECT worker_id, claim FROM dray_jobs WHERE state = 'running'")[0]

    refused = moved(shell, shell.url, postgres_url)
    assert (refused.code, "1 job is running" in refused.err, "--force" in refused.err) == (1, True, True)
    done = moved(shell, shell.url, postgres_url, "--force", "--json").json
    assert (done["states"], done["taken_back"]) == ({"running": 1}, 1)
    assert states(postgres_url) == {"scheduled": 1}
    assert shell.try_("audit", DRAY_URL=postgres_url).code == 0

    # The old worker comes too late: its outcome changes nothing, here or there.
    late = open_backend(shell.url)
    with pytest.raises(DatabaseClosed):
        verbs.write_logs(late, worker, [LogLine(job, claim, 0, "INFO", "shop", "late")])
    late.close()
    with shell.background("worker", DRAY_URL=postgres_url):
        until(lambda: states(postgres_url) == {"completed": 1})
    found = shell("job", "show", job, "--json", DRAY_URL=postgres_url).json
    assert (found["result"], found["crashes"], found["attempt"]) == ("again", 1, 2)
    assert found["attempts"][0]["outcome"] == "crashed"
