"""What a view does: it enqueues inside and outside `atomic()`, and reads results."""

# Django has no annotations, and checkers guess wrong.
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from dray.app_interface import core_of
from dray.testing import drain
from tests_integrations.django.conftest import Make, Project, sqlite


def test_a_job_that_is_enqueued_runs(project: Project) -> None:
    order = project.orders.create(what="tea")

    result = project.tasks.pay.enqueue(order.pk)
    assert result.status == "READY"
    assert drain(project.app) == 1

    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "tea", 1)
    assert project.orders.get().is_paid


def test_a_job_stands_and_falls_with_the_block_that_enqueues_it(project: Project) -> None:
    from django.db import transaction
    from django.tasks.exceptions import TaskResultDoesNotExist

    lost = []
    with transaction.atomic():
        kept = project.tasks.echo.enqueue(1)
        assert project.tasks.echo.get_result(kept.id) == kept  # not committed, and seen
        with undone():
            lost.append(project.tasks.echo.enqueue(2))  # a savepoint
    with undone():
        lost.append(project.tasks.echo.enqueue(3))

    assert [job.id for job in project.app.jobs()] == [kept.id]
    for each in lost:
        with pytest.raises(TaskResultDoesNotExist):
            each.refresh()


def test_a_role_may_have_a_space_in_its_name(make_project: Make, postgres_server: str) -> None:
    role = f"the shop {os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}" SUPERUSER'.encode())
    project = make_project("postgres", assume_role=role)
    project.tasks.echo.enqueue()
    assert drain(project.app) == 1


@contextmanager
def undone() -> Generator[None]:
    """An atomic() block that is rolled back."""
    from django.db import transaction

    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "options",
    [
        {"isolation_level": 2},
        {"isolation_level": 3},
        {"server_side_binding": True},
        {"assume_role": "postgres", "application_name": "a b"},
    ],
    ids=["repeatable read", "serializable", "server-side binding", "a role"],
)
def test_options_of_postgres_connections_are_kept(make_project: Make, options: dict[str, Any]) -> None:
    from django.db import transaction

    if "isolation_level" in options:
        options = {"isolation_level": IsolationLevel(options["isolation_level"])}
    project = make_project("postgres", **options)
    with transaction.atomic():
        order = project.orders.create(what="tea")
        inside = project.tasks.pay.enqueue(order.pk)
    outside = project.tasks.echo.enqueue()
    assert drain(project.app) == 2
    for each in (inside, outside):
        each.refresh()
        assert each.status == "SUCCESSFUL"


def test_the_commit_of_atomic_wakes_the_workers_of_what_was_retried(project: Project) -> None:
    from django.db import transaction

    result = project.tasks.echo.enqueue()
    app = project.app
    app.cancel(result.id)
    with closing(core_of(app).backend.watch(hears_done=False)) as watch:
        while watch.wait(0.2):
            pass
        with transaction.atomic():
            assert app.retry(result.id)
            assert not watch.wait(0)
        assert watch.wait(30)


def test_another_alias_has_its_own_transaction(make_project: Make, tmp_path: Path) -> None:
    """A job goes into the transaction of Dray's alias alone."""
    from django.db import connections, transaction

    project = make_project("sqlite")
    settings: Any = connections.settings
    settings["other"] = connections.configure_settings({"default": sqlite(tmp_path / "other.sqlite3")})["default"]
    with suppress(ZeroDivisionError), transaction.atomic(using="other"):
        project.tasks.echo.enqueue()
        raise ZeroDivisionError
    assert len(project.app.jobs()) == 1
    connections["other"].close()
