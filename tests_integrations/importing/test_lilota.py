"""A lilota database, made by lilota's own migrations and stores, brought over into Dray."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from lilota import stores
from lilota.db.alembic import upgrade_db
from lilota.models import LogEntry, TaskProgress
from lilota.stores import TaskStore
from lilota.utils import exception_to_dict

import dray.testing
from dray.app_interface import core_of
from tests_integrations.importing.conftest import Import

LOGGER = logging.getLogger("theirs.lilota")


class Theirs:
    """lilota, with a worker that is moved by hand."""

    def __init__(self, url: str) -> None:
        upgrade_db(url)
        self.url = url
        self.store = TaskStore(url, LOGGER)

    def schedule(self, name: str, given: Any = None) -> UUID:
        return self.store.create_task(name, given)

    def start(self, max_attempts: int = 1, timeout: timedelta | None = None, *, keep_input: bool = True) -> UUID:
        task = self.store.get_next_task(uuid4())
        self.store.start_task(task.id, max_attempts, timeout, keep_input)
        return task.id

    def complete(self, task: UUID, value: Any) -> None:
        self.store.end_task_success(task, value, TaskProgress(task, self.store.set_progress))

    def fail(self, task: UUID, words: str) -> None:
        try:
            raise LookupError(words)  # noqa: TRY301 - lilota writes the traceback
        except LookupError as error:
            self.store.end_task_failure(task, exception_to_dict(error), TaskProgress(task, self.store.set_progress))

    def change(self, statement: str) -> None:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                connection.execute(statement)
                connection.commit()
        else:
            with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
                connection.execute(statement.encode())


@pytest.fixture
def lilota(made_url: str, tmp_path: Path, postgres_server: str) -> Generator[Theirs]:
    """lilota on the kind of database that Dray is on; on the server in a schema of its own."""
    if made_url.startswith("sqlite"):
        theirs = Theirs(f"sqlite:///{tmp_path / 'lilota.db'}")
    else:
        name = f"lilota_{uuid4().hex}"
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA {name} AUTHORIZATION {name}".encode())
            # The zone of a server is seldom UTC, and lilota's columns have none.
            connection.execute(f"ALTER ROLE {name} SET timezone = 'Asia/Tokyo'".encode())
        server = re.sub(r"//[^@]*@", f"//{name}:@", postgres_server)  # the schema of its name is its own
        theirs = Theirs(server.replace("postgresql://", "postgresql+psycopg://"))
    yield theirs
    for engine in stores._ENGINE_CACHE.values():
        engine.dispose()
    stores._ENGINE_CACHE.clear()


def test_tasks_of_every_state_come_over_with_what_they_have(
    lilota: Theirs, target: dray.App, dray_import: Import
) -> None:
    lilota.schedule("greet", {"name": "ann"})
    lilota.complete(lilota.start(timeout=timedelta(seconds=30)), {"said": ["hello"]})
    lilota.schedule("pair", {"left": 1, "right": 2})
    lilota.fail(lilota.start(), "no such pair")
    lilota.schedule("other", {"x": 1})
    overdue = lilota.start(timeout=timedelta(seconds=-5))
    lilota.store.expire_overdue_tasks()
    lilota.schedule("greet", {"name": "ben"})

    said = dray_import("lilota", lilota.url)

    assert (said.code, said.json["carried"]) == (0, 4)
    assert said.states == {
        ("completed", "completed"): 1,
        ("created", "queued"): 1,
        ("expired", "failed"): 1,
        ("failed", "failed"): 1,
    }
    jobs = {(job.task, job.state): job for job in target.jobs()}
    done, failed = jobs["greet", "completed"], jobs["pair", "failed"]
    assert done.row.args == '{"person":{"name":"ann"}}'  # the one parameter of the task here
    assert (done.row.result, done.row.progress, done.row.timeout) == ('{"said":["hello"]}', 100, 30)
    assert failed.row.args == '{"left":1,"right":2}'  # the task here takes two
    assert (failed.row.error, failed.row.reason) == ("LookupError: no such pair", "error")
    (attempt,) = failed.attempts()
    assert attempt.error is not None
    assert (attempt.error.type, attempt.error.message) == ("LookupError", "no such pair")
    assert "raise LookupError(words)" in (attempt.error.traceback or "")
    assert jobs["other", "failed"].row.reason == "timeout"
    assert jobs["other", "failed"].row.args == '{"data":{"x":1}}'  # no code here knows the task
    waiting = jobs["greet", "queued"].row
    assert (waiting.max_attempts, waiting.timeout) == (4, 20)  # lilota writes them when a task starts
    now = core_of(target).backend.now()
    assert all(0 < now - job.row.created_at < 600e6 for job in target.jobs())
    assert overdue


def test_a_task_and_its_retries_are_one_job(lilota: Theirs, target: dray.App, dray_import: Import) -> None:
    lilota.schedule("greet", {"name": "ann"})
    lilota.fail(lilota.start(max_attempts=3), "first")
    lilota.store.retry_tasks()
    lilota.change("UPDATE lilota_task SET run_at = start_date_time WHERE start_date_time IS NOT NULL")
    lilota.change("UPDATE lilota_task SET run_at = (SELECT min(run_at) FROM lilota_task)")
    second = lilota.start(max_attempts=3)
    with lilota.store._get_session() as session, session.begin():
        line = {"level": "WARNING", "logger": "theirs", "message": "about to fail"}
        session.add(LogEntry(created_at=datetime.now(UTC), task_id=second, **line))
    lilota.fail(second, "second")

    said = dray_import("lilota", lilota.url)

    assert said.states == {("failed", "scheduled"): 1}  # its third attempt is still to come
    (job,) = target.jobs()
    assert (job.state, job.row.attempt, job.row.max_attempts) == ("scheduled", 2, 3)
    assert [each.error.message for each in job.attempts() if each.error] == ["first", "second"]
    assert [(line.level, line.message) for line in job.logs()] == [("WARNING", "about to fail")]
    assert dray_import("lilota", lilota.url).json["carried"] == 0


def test_what_comes_over_runs(lilota: Theirs, target: dray.App, dray_import: Import) -> None:
    lilota.schedule("greet", {"name": "ann"})
    dray_import("lilota", lilota.url)
    app = __import__("tasks").app
    core_of(app).change_settings(url=core_of(target).settings.url)

    dray.testing.drain(app)

    assert target.jobs()[0].result(timeout=0) == "hello ann"
    app.close()


def test_running_tasks_are_refused_until_it_is_said_what_to_do(
    lilota: Theirs, target: dray.App, dray_import: Import
) -> None:
    lilota.schedule("greet", {"name": "ann"})
    lilota.start(max_attempts=2)

    assert (dray_import("lilota", lilota.url).code, target.jobs()) == (1, [])
    assert dray_import("lilota", lilota.url, "--running", "skip").states == {("running", None): 1}
    assert dray_import("lilota", lilota.url, "--running", "requeue").states == {("running", "queued"): 1}
    assert (target.jobs()[0].row.attempt, target.jobs()[0].row.max_attempts) == (0, 2)


def test_input_that_was_not_to_be_kept_is_not_made_up(lilota: Theirs, target: dray.App, dray_import: Import) -> None:
    lilota.schedule("greet", {"name": "secret"})
    lilota.complete(lilota.start(keep_input=False), None)

    dray_import("lilota", lilota.url)

    assert target.jobs()[0].row.args is None


def test_bad_rows_are_named_and_all_others_are_carried(lilota: Theirs, target: dray.App, dray_import: Import) -> None:
    for name in ("a name", "pair", "fine"):
        lilota.schedule(name, {"left": 1})
    lilota.change("""UPDATE lilota_task SET input = '[1]' WHERE name = 'pair'""")
    lilota.change("""UPDATE lilota_task SET name = ' ' WHERE name = 'a name'""")

    said = dray_import("lilota", lilota.url)

    assert (said.code, [job.task for job in target.jobs()]) == (1, ["fine"])
    assert {each["what"][:30] for each in said.json["problems"]} == {
        "its input is no object, and th",
        "task name ' ' cannot be used: ",
    }
    assert dray_import("lilota", lilota.url, "--task-map", " =blank").states["created", "queued"] == 1


def test_a_task_that_is_an_attempt_before_itself_is_named(
    lilota: Theirs, target: dray.App, dray_import: Import
) -> None:
    for name in ("round", "fine"):
        lilota.schedule(name)
    lilota.change("UPDATE lilota_task SET previous_task_id = id WHERE name = 'round'")

    said = dray_import("lilota", lilota.url)

    assert (said.code, said.json["jobs"], [job.task for job in target.jobs()]) == (1, 2, ["fine"])
    assert [each["what"] for each in said.json["problems"]] == ["it is an attempt before itself, in a circle"]


def test_a_schema_that_is_not_known_is_refused(lilota: Theirs, target: dray.App, dray_import: Import) -> None:
    lilota.change("UPDATE lilota_alembic_version SET version_num = 'f00'")
    assert "has the revision 'f00'" in dray_import("lilota", lilota.url).err
    lilota.change("DROP TABLE lilota_log")
    said = dray_import("lilota", lilota.url)

    assert (said.code, target.jobs()) == (2, [])
    assert "it has no table lilota_log" in said.err


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("mysql://user:CANARY@host/db", 2, "is no database address"),
        ("postgresql+psycopg2://user:CANARY@127.0.0.1:1/db?connect_timeout=3", 6, "cannot be read"),
        ("sqlite:///nosuch.db", 6, "no such file"),
    ],
)
def test_an_address_that_leads_nowhere_is_said(
    sqlite_url: str, dray_import: Import, address: str, code: int, says: str
) -> None:
    said = dray_import("lilota", address)

    assert said.code == code
    assert says in said.err
    assert "CANARY" not in said.err.replace("a password on the command line", "")
