"""What the doctor finds where the work does not get done."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.instants import SECOND
from dray.maintenance.rescuer import Rescuer
from dray.model.job import Demand
from dray.model.settlement import completed
from dray.model.worker import NewWorker
from tests import verbs
from tests.backends.processes import raw_sql
from tests.cli.examined import HOUR, MINUTE, examined, found, set_back
from tests.cli.shell import Shell, until
from tests.standstill import bring_to_a_stand


@pytest.fixture
def app(url: str) -> Generator[App]:
    """On each database in turn, with its tables and some tasks."""
    made = App(url)
    core_of(made).backend.migrate()
    made.task(name="add")(add)
    made.task(name="fail", max_attempts=1)(fail)
    made.task(name="hang")(hang)
    yield made
    released.set()
    made.close()
    released.clear()


begun, released = threading.Event(), threading.Event()


def add(a: int, b: int) -> int:
    return a + b


def fail() -> None:
    raise ValueError("no")


def hang() -> None:
    begun.set()
    released.wait(60)


@contextmanager
def process(shell: Shell, *words: str) -> Generator[int]:
    """A worker of its own, alive and known."""
    shell("db", "init")
    with shell.background("worker", "--log-level", "error", "--lease", "1", *words) as started:
        until(lambda: raw_sql(shell.url, f"SELECT 1 FROM dray_workers WHERE pid = {started.pid}"))
        yield started.pid


# Who does the work


def test_ready_jobs_without_a_worker_are_a_failure(app: App) -> None:
    assert found(app.url, "workers") == ("note", "no worker is alive; nothing is ready either")
    app.enqueue("add", {"a": 1, "b": 2})

    assert found(app.url, "workers") == ("failed", "no worker is alive, and 1 job could run")


def test_a_worker_that_was_killed_is_found_dead(shell: Shell) -> None:
    with process(shell, "--name", "the-killed") as pid:
        os.kill(pid, signal.SIGKILL)

        said = until(
            lambda: text if (each := found(shell.url, "dead-workers"))[0] == "warning" and (text := each[1]) else 0
        )

    assert said == "1 worker died without deregistering, and no worker has taken over: the-killed"


def test_a_job_in_the_hands_of_a_worker_that_has_ended_is_found(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def rest(_: Rescuer) -> float:
        return 60.0

    monkeypatch.setattr(Rescuer, "tick", rest)  # or it may take the job back before the doctor looks
    app.enqueue("hang")
    with app.worker():
        begun.wait(60)
        begun.clear()
        raw_sql(app.url, "UPDATE dray_jobs SET worker_id = '01a1e083-5ed4-704a-ae25-a11872c7f5d4'")
        verdict, text = found(app.url, "dead-workers")
        released.set()

    assert (verdict, text) == ("warning", "jobs are held by workers that have ended")


def test_a_worker_that_is_stopped_is_there_and_silent_and_its_duties_can_get_lost(shell: Shell) -> None:
    with process(shell, "--name", "the-stopped") as pid:
        duties = 7 if shell.url.startswith("sqlite") else 6
        until(lambda: len(raw_sql(shell.url, "SELECT 1 FROM dray_leases WHERE holder IS NOT NULL")) == duties)
        bring_to_a_stand(shell.url, pid)

        until(lambda: found(shell.url, "silent-workers")[0] == "warning")
        results = examined(shell.url)
        assert "the-stopped; last seen" in results["silent-workers"].text
        assert f"process {pid} " in (results["silent-workers"].fix or "")
        assert results["workers"].text == "1 worker alive"
        assert results["duties"].text == "every duty has a worker"

        raw_sql(shell.url, "DELETE FROM dray_leases WHERE duty = 'prune'")
        assert found(shell.url, "duties")[0] == "ok"  # a worker may be about to take it
        set_back(shell.url, "dray_workers", "started_at", MINUTE)
        lost = found(shell.url, "duties")
        assert lost == ("failed", "no worker has the duties prune, though workers are there")


def test_tasks_that_no_worker_knows_and_queues_that_none_serves(app: App) -> None:
    with app.worker(queues=["mail"]):
        app.enqueue("shop.other", queue="mail")
        app.enqueue("add", {"a": 1, "b": 2}, queue="slow")
        results = examined(app.url)

    unknown, unserved = results["unknown-tasks"], results["unserved-queues"]
    assert (unknown.verdict, unserved.verdict) == ("warning", "warning")
    assert unknown.text == "1 job of tasks that no live worker knows: shop.other"
    assert unserved.text == "1 job in queues that no worker serves: slow"
    assert unserved.fix == "dray worker -q slow"


def test_workers_of_older_code_lack_tasks(app: App) -> None:
    with app.worker(name="the-older"):
        assert found(app.url, "older-code", tasks=["add"])[0] == "ok"
        verdict, text = found(app.url, "older-code", tasks=["add", "new"])

    assert verdict == "note"
    assert text == "1 of 1 worker lacking tasks of this app (new), by other code or older: the-older"


# Limits


def idle_worker(app: App) -> str:
    """A worker that lives, has free slots, and does nothing."""
    core = core_of(app)
    new = NewWorker(
        id=core.new_id(), name="the-idle", host="here", pid=1, boot=core.clock.boot, tasks=("add",), concurrency=4
    )
    core.backend.workers.register(new, HOUR * SECOND)
    return new.id


def test_a_job_that_limits_let_start_is_not_left_alone_by_an_able_worker(app: App) -> None:
    worker = idle_worker(app)
    app.queue("default", limit=1)
    first, second = (app.enqueue("add", {"a": 1, "b": 2}, key="k") for _ in range(2))
    assert "limits" not in examined(app.url)  # nothing has waited for long

    set_back(app.url, "dray_jobs", "run_at", MINUTE)
    assert found(app.url, "limits")[0] == "ok"  # the limit is of this moment
    set_back(app.url, "dray_limits", "changed_at", MINUTE)
    verdict, text = found(app.url, "limits")
    assert verdict == "warning"
    assert text.startswith(f"limits let job {first.id} start (queue default, task add), and the-idle has free slots")

    claim = [*verbs.claim(core_of(app).backend, worker, Demand(("default",), ("add",), 2))]
    assert [each.id for each in claim] == [first.id]
    set_back(app.url, "dray_jobs", "started_at", MINUTE)
    assert found(app.url, "limits")[0] == "ok"  # the limit is reached

    app.queue("default", limit=2)
    set_back(app.url, "dray_limits", "changed_at", MINUTE)
    assert f"job {second.id}" in found(app.url, "limits")[1]
    now = core_of(app).clock.steady()
    verbs.settle(core_of(app).backend, worker, [completed(claim[0], now, now, None)])
    assert found(app.url, "limits")[0] == "ok"  # one has just ended


def test_a_job_without_a_key_and_a_limit_or_in_a_paused_queue_is_no_matter_of_limits(app: App) -> None:
    idle_worker(app)
    app.enqueue("add", {"a": 1, "b": 2})
    app.enqueue("add", {"a": 1, "b": 2}, queue="paused", key="k")
    app.pause("paused")
    set_back(app.url, "dray_jobs", "run_at", MINUTE)

    assert found(app.url, "limits")[0] == "ok"


# What waits, and what went wrong


def test_paused_queues_matter_where_jobs_wait(app: App) -> None:
    assert found(app.url, "paused-queues") == ("ok", "no queue is paused")
    app.pause("mail")
    assert found(app.url, "paused-queues")[0] == "note"
    app.enqueue("add", {"a": 1, "b": 2}, queue="mail")

    verdict, text = found(app.url, "paused-queues")

    assert verdict == "warning"
    assert re.fullmatch(r"paused: mail \(for \d\S+\); 1 job waiting there", text)


@pytest.mark.parametrize(("delay", "age"), [(0, "70m"), (3600, "10m")], ids=["queued", "scheduled"])
def test_a_job_that_has_been_ready_for_long_is_a_backlog(app: App, delay: int, age: str) -> None:
    app.enqueue("add", {"a": 1, "b": 2}, delay=delay)
    assert found(app.url, "backlog")[0] == "ok"
    set_back(app.url, "dray_jobs", "run_at", 70 * MINUTE)

    verdict, text = found(app.url, "backlog")

    assert (verdict, text) == (
        "warning",
        f"the oldest ready job has waited for {age} (queue default, task add); 1 job ready in all",
    )
    app.pause("default")
    assert found(app.url, "backlog")[0] == "ok"


def test_many_failures_are_a_warning(app: App) -> None:
    for _ in range(10):
        app.enqueue("fail")
    app.worker().run_until_idle()

    result = examined(app.url)["failures"]
    assert (result.verdict, result.fix) == ("warning", "dray jobs --state failed --since 1h")
    assert result.text == "10 jobs failed and 0 jobs completed in the last hour"

    set_back(app.url, "dray_jobs", "finished_at", 61 * MINUTE)
    assert found(app.url, "failures")[0] == "ok"


def test_a_job_that_runs_past_its_timeout(app: App) -> None:
    job = app.enqueue("hang")
    with app.worker():
        begun.wait(60)
        begun.clear()
        raw_sql(app.url, "UPDATE dray_jobs SET timeout = 30")
        assert found(app.url, "timeouts")[0] == "ok"
        set_back(app.url, "dray_jobs", "started_at", 5 * MINUTE)
        verdict, text = found(app.url, "timeouts")
        released.set()

    assert verdict == "warning"
    assert f"{job.id} (hang, for 5m instead of 30s)" in text


def _late(url: str) -> None:
    set_back(url, "dray_schedules", "next_at", 3 * HOUR)


def _without_a_zone(url: str) -> None:
    raw_sql(url, "UPDATE dray_schedules SET tz = 'Mars/Base', cron = '0 3 * * *', every_us = NULL")


@pytest.mark.parametrize(
    ("harm", "expected", "said"),
    [(_late, "warning", "late: nightly, by 2h"), (_without_a_zone, "failed", "Mars/Base")],
    ids=["late", "zone"],
)
def test_schedules_that_do_not_fire(app: App, harm: Callable[[str], None], expected: str, said: str) -> None:
    app.schedule("nightly", "add", every=3600, args={"a": 1, "b": 2})
    assert found(app.url, "schedules") == ("ok", "1 schedule on time")
    harm(app.url)

    verdict, text = found(app.url, "schedules")

    assert verdict == expected
    assert said in text
    app.pause_schedule("nightly")
    assert found(app.url, "schedules")[0] == "ok"


def test_a_schedule_of_a_task_that_no_worker_knows(app: App) -> None:
    app.schedule("nightly", "shop.other", every=3600)
    assert found(app.url, "schedules")[0] == "ok"
    with app.worker():
        said = found(app.url, "schedules")

    assert said == ("warning", "schedules of tasks that no live worker knows: nightly")


def test_history_past_its_retention_is_a_warning(app: App) -> None:
    app.enqueue("add", {"a": 1, "b": 2})
    app.worker().run_until_idle()
    set_back(app.url, "dray_jobs", "finished_at", 7 * 24 * HOUR)
    assert found(app.url, "history")[0] == "ok"  # the pruner may be about to come
    set_back(app.url, "dray_jobs", "finished_at", 25 * HOUR)

    assert found(app.url, "history") == ("warning", "not pruned though past retention: 1 completed job")


def test_what_is_queued_is_not_counted_to_the_end(tmp_path: Path) -> None:
    url = str(tmp_path / "jobs.db")
    with App(url) as app:
        core_of(app).backend.migrate()
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 29999) "
            "INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, max_attempts, max_crashes, created_at, "
            "updated_at) SELECT printf('%036d', i), 'task' || (i % 2), 'mail', 'queued', 0, 1, 3, 3, 1, 1 FROM n"
        )
    connection.close()

    assert found(url, "workers") == ("failed", "no worker is alive, and at least 20,000 jobs could run")
