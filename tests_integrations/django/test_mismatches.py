"""Where Django and a queue disagree at first sight: each was a failure once."""

# Django has no annotations, and checkers guess wrong.
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import math
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.testing import drain
from tests_integrations.django.conftest import Make, Project, sqlite, use


def test_1_a_database_in_memory_takes_migrations_and_jobs(make_project: Make) -> None:
    from django.core import checks
    from django.db import transaction

    project = make_project("memory")
    outside = project.tasks.echo.enqueue(1)
    with transaction.atomic():
        order = project.orders.create(what="tea")
        inside = project.tasks.pay.enqueue(order.pk)
        assert drain(project.app) == 2

    assert outside.task.get_result(outside.id).return_value == [[1], {}]
    inside.refresh()
    assert inside.return_value == "tea"
    assert [each for each in checks.run_checks() if each.id.startswith("dray.")] == []  # in a test all is well
    with pytest.raises(ValueError, match="in memory"):
        project.app.worker().run_until_idle()


def test_2_jobs_follow_the_name_of_the_database(make_project: Make, tmp_path: Path) -> None:
    project = make_project("sqlite")
    app = project.app
    project.tasks.echo.enqueue("the shop's own")

    use(sqlite(tmp_path / "test.sqlite3"))  # as a test runner does, after Django is set up
    Project(sqlite(tmp_path / "test.sqlite3")).make_tables()
    project.tasks.echo.enqueue("a test's")

    assert app.url.endswith("test.sqlite3")
    assert [job.args["args"] for job in app.jobs()] == [["a test's"]]
    assert drain(app) == 1
    use(sqlite(tmp_path / "db.sqlite3"))
    assert [(job.args["args"], job.state) for job in app.jobs()] == [(["the shop's own"], "queued")]


def test_3_no_connection_is_left_when_a_test_database_is_removed(make_project: Make, postgres_server: str) -> None:
    from django.apps import apps

    from dray.integrations.django.tables import after_migrate

    project = make_project("postgres", application_name="the-shop")
    project.tasks.echo.enqueue()  # outside atomic(): on a connection of Dray's
    for config in apps.get_app_configs():  # as `flush` does after a TransactionTestCase
        after_migrate(config, "default")
    project.connection.close()
    assert sessions(postgres_server, "the-shop") == 0


def test_4_a_copy_of_the_main_file_is_whole(make_project: Make, tmp_path: Path) -> None:
    from django.apps import apps

    from dray.integrations.django.tables import after_migrate

    project = make_project("sqlite", init_command="PRAGMA journal_mode = WAL")
    project.orders.create(what="tea")
    project.tasks.echo.enqueue()  # Dray's own connection too
    whole = objects(tmp_path / "db.sqlite3")

    for config in apps.get_app_configs():
        after_migrate(config, "default", plan=[])
    shutil.copy(tmp_path / "db.sqlite3", tmp_path / "copy.sqlite3")  # as `test --parallel` does

    assert objects(tmp_path / "copy.sqlite3") == whole
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as connection:
        assert connection.execute("SELECT count(*) FROM shop_order").fetchall() == [(1,)]


@pytest.mark.parametrize(("task", "max_age"), [("count_orders", 0), ("acount_orders", 0), ("acount_orders", 600)])
def test_5_bodies_leave_no_sessions_behind(make_project: Make, postgres_server: str, task: str, max_age: int) -> None:
    """A coroutine's queries have a thread that ends with it: nothing would use its connection again."""
    project = make_project("postgres", application_name=f"{task}-{max_age}")
    project.connection.settings_dict["CONN_MAX_AGE"] = max_age
    for _ in range(12):
        getattr(project.tasks, task).enqueue()
    project.app.close()
    project.connection.close()

    with project.app.worker(concurrency=4):
        project.app.wait(project.app.jobs(), timeout=30)
        assert sessions(postgres_server, f"{task}-{max_age}", "shop_order") == 0


def test_5_bodies_in_a_test_keep_its_connection(project: Project) -> None:
    from django.db import transaction

    with transaction.atomic():
        order = project.orders.create(what="tea")
        project.tasks.pay.enqueue(order.pk)
        assert drain(project.app) == 1
        assert project.orders.get().is_paid  # the transaction is still there


def test_6_a_deferred_transaction_says_what_to_set(make_project: Make, tmp_path: Path) -> None:
    from django.core import checks
    from django.db import OperationalError, transaction

    project = make_project("sqlite", transaction_mode=None)
    project.tasks.echo.enqueue()  # the file is in WAL mode now
    with transaction.atomic():
        assert project.orders.count() == 0
        with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as other, other:
            other.execute("INSERT INTO shop_order (what, is_paid) VALUES ('tea', 0)")
        with pytest.raises(OperationalError, match="IMMEDIATE"):
            project.tasks.echo.enqueue()
    assert [each.id for each in checks.run_checks() if each.id.startswith("dray.")] == ["dray.W002"]


def test_8_threads_share_an_app(project: Project) -> None:
    from django.tasks import task_backends

    def enqueue() -> None:
        seen.append(task_backends["default"])
        project.tasks.echo.enqueue()
        project.connection.close()

    seen: list[Any] = []
    threads = [threading.Thread(target=enqueue) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(backend) for backend in seen}) == 3
    assert {id(backend.app) for backend in seen} == {id(project.app)}
    assert len(project.app.jobs()) == 3


@pytest.mark.parametrize(
    ("value", "error"),
    [(math.nan, TypeError), ({1: 2}, TypeError), ("x" * 300_000, ValueError), (object(), TypeError)],
    ids=["NaN", "a number as a key", "too large", "an object"],
)
def test_9_what_json_cannot_carry_is_refused(project: Project, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"(?i)unsupported|bytes"):
        project.tasks.echo.enqueue(value)
    assert project.app.jobs() == []


def test_10_flush_removes_jobs(project: Project) -> None:
    from django.apps import apps

    from dray.integrations.django.tables import after_migrate

    project.tasks.echo.enqueue()
    after_migrate(apps.get_app_config("dray"), "default")  # `migrate` has a plan, `flush` has none
    assert project.app.jobs() == []


def objects(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}


def sessions(server: str, application: str, query: str = "") -> int:
    """How many sessions an application has open; those whose last statement names a table."""
    with psycopg.connect(server) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND query LIKE %s",
            [application, f"%{query}%"],
        )
        return found.fetchall()[0][0]
