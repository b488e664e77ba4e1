"""A GigQ file, made by GigQ itself, brought over into Dray."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import tracemalloc
from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import gigq
import pytest
from gigq.db_utils import close_connections

import dray.testing
from dray.app_interface import core_of
from dray.integrations.importing import carrying, snapshot
from dray.integrations.importing.entries import Wishes
from dray.integrations.importing.gigq import GigQ
from dray.model.action import By
from dray.ops.audit import audit
from tests_integrations.importing import theirs as functions
from tests_integrations.importing.conftest import Import, jobs_by_name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gigq.db"


@pytest.fixture
def queue(file: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[gigq.JobQueue]:
    """GigQ stores functions by module and name: these are `theirs.add` and so on."""
    module = ModuleType("theirs")
    for name in ("add", "boom", "total"):
        function = getattr(functions, name)
        monkeypatch.setattr(function, "__module__", "theirs")
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "theirs", module)
    yield gigq.JobQueue(str(file))
    close_connections()


def work(file: Path) -> None:
    """All that GigQ can do now."""
    worker = gigq.Worker(str(file))
    while worker.process_one():
        pass


def job(name: str, function: Any = functions.add, **options: Any) -> gigq.Job:
    if function is functions.add:
        options.setdefault("params", {"a": 1, "b": 2})
    return gigq.Job(name, function, **options)


def change(file: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement, values)
        connection.commit()


def test_jobs_of_every_state_come_over_with_what_they_have(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    queue.submit(job("done", priority=7, description="sums"))
    queue.submit(job("failed", functions.boom, params={"word": "luck"}, max_attempts=2))
    work(file)
    queue.submit(job("retrying", functions.boom, params={"word": "time"}, retry_delay=3600, timeout=60))
    work(file)
    cancelled = job("cancelled")
    queue.submit(cancelled)
    queue.cancel(cancelled.id)
    queue.submit(job("pending", priority=-3))

    said = dray_import("gigq", str(file))

    assert (said.code, said.json["carried"], said.json["left_out"]) == (0, 5, 0)
    jobs = jobs_by_name(target)
    done, failed, retrying = jobs["done"], jobs["failed"], jobs["retrying"]
    assert (done.task, done.state, done.result(timeout=0), done.row.priority) == ("theirs.add", "completed", 3, 7)
    assert (done.row.description, done.row.timeout) == ("sums", 300)
    assert (failed.state, failed.row.reason, failed.row.error) == ("failed", "error", "no luck")
    assert [each.outcome for each in failed.attempts()] == ["error", "error"]
    assert (retrying.state, retrying.row.attempt, retrying.row.max_attempts) == ("scheduled", 1, 3)
    assert json.loads(retrying.row.retry) == {"policy": ["fixed", 3600]}
    assert retrying.row.run_at > core_of(target).backend.now()
    assert (jobs["cancelled"].state, jobs["cancelled"].row.reason) == ("cancelled", "user")
    assert (jobs["pending"].state, jobs["pending"].row.priority) == ("queued", -3)
    (action,) = core_of(target).backend.actions.newest()
    assert (action.verb, action.kind, action.target, action.done) == ("import", "database", str(file), 5)


def test_what_comes_over_runs(queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import) -> None:
    """A child that GigQ stored before its parents waits for both, one of which GigQ has completed."""
    ready = job("ready", params={"a": 10, "b": 1})
    queue.submit(ready)
    work(file)
    workflow = gigq.Workflow("sums")
    other = job("other", params={"a": 20, "b": 2})
    child = job("child", functions.total)
    workflow.add_job(child, depends_on=[ready, other])
    workflow.add_job(other)
    workflow.submit_all(queue)

    assert dray_import("gigq", str(file)).states == {
        ("completed", "completed"): 1,
        ("pending", "queued"): 1,
        ("pending", "waiting"): 1,
    }
    app = sys.modules["tasks"].app
    core_of(app).change_settings(url=core_of(target).settings.url)
    dray.testing.drain(app)

    assert jobs_by_name(target)["child"].result(timeout=0) == [11, 22]
    app.close()


def test_a_child_of_a_failed_job_is_held_until_that_is_retried(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    parent = job("parent", functions.boom, params={"word": "luck"}, max_attempts=1)
    child = job("child", functions.total, dependencies=[parent.id])
    queue.submit(parent)
    queue.submit(child)
    work(file)

    dray_import("gigq", str(file))

    jobs = jobs_by_name(target)
    assert (jobs["parent"].state, jobs["child"].state) == ("failed", "waiting")
    assert target.retry(jobs["parent"].id)
    assert jobs_by_name(target)["parent"].state == "queued"


def test_a_second_run_imports_what_is_new_and_nothing_twice(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    queue.submit(job("first"))
    before = dray_import("gigq", str(file))
    queue.submit(job("second"))

    again = dray_import("gigq", str(file))

    assert (before.json["carried"], again.json["carried"], again.json["left_out"]) == (1, 1, 1)
    assert {"state": "pending", "becomes": None, "jobs": 1, "why": "it is here already"} in again.json["states"]
    assert len(target.jobs()) == 2


def test_an_interrupted_import_goes_on(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        queue.submit(job(f"job {number}"))
    monkeypatch.setattr(carrying, "_BATCH", 3)
    write, calls = carrying._write, list[int]()

    def cut_off(*given: Any) -> list[int]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*given)

    monkeypatch.setattr(carrying, "_write", cut_off)
    stopped = dray_import("gigq", str(file))

    assert (stopped.code, len(target.jobs())) == (130, 3)
    assert "the same command goes on from here" in stopped.err
    assert dray_import("gigq", str(file)).json["carried"] == 4
    assert len(target.jobs()) == 7


def test_running_jobs_are_refused_until_it_is_said_what_to_do(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    queue.submit(job("running", max_attempts=1))
    gigq.Worker(str(file))._claim_job()

    refused = dray_import("gigq", str(file))
    assert (refused.code, target.jobs()) == (1, [])
    assert "1 job runs in" in refused.err
    assert "--running requeue" in refused.err
    assert dray_import("gigq", str(file), "--dry-run").states == {("running", None): 1}
    assert dray_import("gigq", str(file), "--running", "skip").code == 0
    assert target.jobs() == []
    assert dray_import("gigq", str(file), "--running", "requeue").states == {("running", "queued"): 1}
    # The attempt that runs there does not count here: with one attempt the job could not run at all.
    assert (target.jobs()[0].row.attempt, target.jobs()[0].row.max_attempts) == (0, 1)


def test_a_dry_run_writes_nothing(queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import) -> None:
    queue.submit(job("one"))

    said = dray_import("gigq", str(file), "--dry-run")

    assert (said.json["done"], said.json["carried"]) == (False, 1)
    assert (target.jobs(), core_of(target).backend.actions.newest()) == ([], [])


@pytest.mark.parametrize("in_use", [False, True])
def test_the_file_is_not_changed_and_gets_no_neighbours(
    queue: gigq.JobQueue, file: Path, dray_import: Import, in_use: bool
) -> None:
    queue.submit(job("one"))
    if not in_use:
        close_connections()
    file.chmod(0o400)

    def seen() -> dict[str, str]:
        theirs = [each for each in file.parent.glob("gigq.db*") if not each.name.endswith("-shm") or not in_use]
        return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in theirs}

    before = seen()
    assert dray_import("gigq", str(file)).json["carried"] == 1

    assert seen() == before
    assert ("gigq.db-wal" in before) == in_use


def test_bad_rows_are_named_and_all_others_are_carried(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    names = ["no json", "no object", "nan", "odd state", "no time", "itself", "orphan", "large", "fine"]
    made = {name: job(name) for name in names}
    made["orphan"].dependencies = ["gone"]
    made["itself"].dependencies = [made["itself"].id]
    for each in made.values():
        queue.submit(each)
    child = job("child", dependencies=[made["no json"].id])
    queue.submit(child)
    change(file, "UPDATE jobs SET params = '{' WHERE name = 'no json'")
    change(file, "UPDATE jobs SET params = '[1]' WHERE name = 'no object'")
    change(file, """UPDATE jobs SET params = '{"a": NaN}' WHERE name = 'nan'""")
    change(file, "UPDATE jobs SET status = 'napping' WHERE name = 'odd state'")
    change(file, "UPDATE jobs SET created_at = 'yesterday' WHERE name = 'no time'")
    text = json.dumps("x" * 2_000_000)
    change(file, "UPDATE jobs SET status = 'completed', result = ? WHERE name = 'large'", text)

    planned = dray_import("gigq", str(file), "--dry-run")
    said = dray_import("gigq", str(file))

    assert (planned.code, planned.states) == (0, said.states)
    assert said.code == 1
    assert {job.row.name for job in target.jobs()} == {"orphan", "large", "fine"}
    problems = {each["key"]: each["what"] for each in said.json["problems"]}
    assert "not JSON" in problems[made["no json"].id]
    assert "is no object" in problems[made["no object"].id]
    assert "NaN" in problems[made["nan"].id]
    assert problems[made["odd state"].id] == "its state 'napping' is not known"
    assert "no time that can be read" in problems[made["no time"].id]
    assert problems[made["itself"].id] == "it runs after itself"
    assert "which is gone" in problems[made["orphan"].id]
    assert "larger than" in problems[made["large"].id]
    assert problems[child.id] == carrying.NO_PARENT
    assert said.err.count(": not carried: ") == 7
    assert "7 jobs could not be carried, and stay in the source" in said.err


def test_jobs_that_wait_for_each_other_are_named(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    first, second = job("first"), job("second")
    first.dependencies, second.dependencies = [second.id], [first.id]
    queue.submit(first)
    queue.submit(second)

    said = dray_import("gigq", str(file))

    assert (said.code, target.jobs()) == (1, [])
    assert {each["what"] for each in said.json["problems"]} == {carrying.NO_PARENT}


def test_tasks_get_other_names_and_unknown_ones_are_pointed_out(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    queue.submit(job("sum"))
    queue.submit(job("boom", functions.boom, params={"word": "x"}))

    said = dray_import("gigq", str(file), "--task-map", "theirs.add=pair", "--queue", "old")

    assert {each.row.task for each in target.jobs()} == {"pair", "theirs.boom"}
    assert {each.queue for each in target.jobs()} == {"old"}
    assert said.json["unknown_tasks"] == [{"task": "theirs.boom", "jobs": 1}]
    assert "no code here has these tasks" in said.err
    assert "theirs.boom" in said.err


def test_times_are_of_the_machine_that_gigq_ran_on(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    queue.submit(job("one"))
    change(file, "UPDATE jobs SET created_at = '2026-01-10T12:00:00'")

    dray_import("gigq", str(file), "--timezone", "Asia/Tokyo")

    assert target.jobs()[0].created_at == datetime(2026, 1, 10, 3, tzinfo=UTC)


def test_a_second_run_with_another_zone_brings_nothing_twice(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    first = job("first")
    queue.submit(first)
    queue.submit(job("second", dependencies=[first.id]))

    dray_import("gigq", str(file), "--timezone", "UTC")
    again = dray_import("gigq", str(file), "--timezone", "Asia/Tokyo")

    assert (again.json["carried"], len(target.jobs())) == (0, 2)


def test_finished_jobs_are_kept_from_the_import_on(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    queue.submit(job("old"))
    work(file)
    then = "2020-01-01T00:00:01"
    change(file, "UPDATE jobs SET created_at = ?, started_at = ?, completed_at = ?", then, then, then)

    dray_import("gigq", str(file))

    (row,) = (each.row for each in target.jobs())
    kept_until = (row.finished_at or 0) + (row.keep_us or 0)
    assert abs(kept_until - core_of(target).backend.now() - timedelta(days=7) // timedelta(microseconds=1)) < 60e6


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DROP TABLE job_executions", "it has no table job_executions"),
        ("ALTER TABLE jobs DROP COLUMN description", "its table jobs has no column description"),
        ("ALTER TABLE jobs ADD COLUMN shard TEXT", "its table jobs has a column shard"),
    ],
)
def test_a_schema_that_is_not_known_is_refused(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import, statement: str, says: str
) -> None:
    queue.submit(job("one"))
    change(file, statement)

    said = dray_import("gigq", str(file))

    assert (said.code, target.jobs()) == (2, [])
    assert says in said.err
    assert "no database of GigQ" in said.err


def test_what_is_no_file_and_what_is_no_database_is_said(file: Path, dray_import: Import) -> None:
    assert (dray_import("gigq", str(file)).code, dray_import("gigq", str(file)).err.count("no such file")) == (6, 1)
    file.write_text("this is no database\n" * 100)
    assert "cannot be read as a SQLite database" in dray_import("gigq", str(file)).err


def test_a_damaged_file_is_refused_before_a_part_of_it_is_carried(
    queue: gigq.JobQueue, file: Path, target: dray.App, dray_import: Import
) -> None:
    for number in range(20):
        queue.submit(job(f"number {number}", description="x" * 1_000))
    close_connections()
    content = bytearray(file.read_bytes())
    page = content.index(b"x" * 1_000) // 4096 * 4096
    content[page : page + 4096] = bytes(4096)
    file.write_bytes(content)

    said = dray_import("gigq", str(file))

    assert (said.code, target.jobs(), said.err.count("\n")) == (6, [], 1)
    assert "the file is damaged" in said.err


def test_a_locked_file_is_waited_for_a_while(
    queue: gigq.JobQueue, file: Path, dray_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit(job("one"))
    close_connections()
    monkeypatch.setattr(snapshot, "_PATIENCE_S", 0.05)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        assert "kept it locked" in dray_import("gigq", str(file)).err


def test_a_file_of_an_older_gigq_is_read(queue: gigq.JobQueue, file: Path, dray_import: Import) -> None:
    queue.submit(job("one"))
    for column in ("pass_parent_results", "retry_delay", "retry_after"):
        change(file, f"ALTER TABLE jobs DROP COLUMN {column}")

    assert dray_import("gigq", str(file)).json["carried"] == 1


def test_many_jobs_need_little_memory(queue: gigq.JobQueue, file: Path, sqlite_url: str, tmp_path: Path) -> None:
    """40 MB of arguments, of which 8 MB are in memory."""
    queue.submit(job("one", params={"text": "x" * 20_000}))
    with closing(sqlite3.connect(file)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(jobs)")][1:]
        rest = ", ".join(names)
        connection.execute(
            "WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 2000) "
            f"INSERT INTO jobs (id, {rest}) SELECT 'copy ' || n.value, {rest} FROM n, jobs"
        )
        connection.commit()
    with closing(dray.App(sqlite_url)) as app:
        app.init()
        core = core_of(app)
        tracemalloc.start()
        found = _import_all(file, app)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert found.count(carried=True) == 2_001
        assert peak < 32_000_000
        assert audit(core.backend).broken == ()


def _import_all(file: Path, app: dray.App) -> carrying.Imported:
    core = core_of(app)
    known = carrying.TasksHere(core)
    wishes = Wishes(queue="default", tasks={}, running="skip", now=core.backend.now(), known=known)
    with closing(GigQ(file, wishes)) as source:
        return carrying.carry(source, core.backend, core.new_id(), By("ann", "cli"))
