"""Acknowledged writes survive a crash on a server whose default is `synchronous_commit=off`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.backends import open_backend
from tests.backends.test_outage import persistently
from tests.server import Server

# Only a synchronous commit writes the log to disk; the server's background writers do not.
SETTINGS = ("synchronous_commit=off", "wal_writer_delay=10s", "autovacuum=off", "checkpoint_timeout=1h")


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    made = Server(*SETTINGS)
    with App(made.url, migrate=True) as app:
        app.stats()
    with psycopg.connect(made.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (n integer)")
        connection.execute("CHECKPOINT")
    yield made
    made.remove()


@pytest.fixture
def app(server: Server) -> Generator[App]:
    with App(server.url, durability="full") as opened:
        yield opened


def orders(server: Server) -> int:
    with psycopg.connect(server.url) as connection:
        return connection.execute("SELECT count(*) FROM orders").fetchall()[0][0]


def enqueue(app: App) -> list[str]:
    return [app.enqueue("task", {"n": n}).id for n in range(20)]


def enqueue_many(app: App) -> list[str]:
    task = app.task(name="task")(nothing)
    return [job.id for job in task.enqueue_many([(n,) for n in range(100)])]


def enqueue_workflow(app: App) -> list[str]:
    task = app.task(name="task")(nothing)
    flow = app.workflow("flow")
    first = flow.add(task, 1)
    flow.add(task, 2, after=[first])
    return [job.id for job in flow.enqueue().jobs()]


def nothing(n: int) -> None:
    """A body."""


# A user's commit is as durable as their connection is set; Dray warns (test_server_defaults.py).
@pytest.mark.parametrize("act", [enqueue, enqueue_many, enqueue_workflow], ids=lambda act: act.__name__)
def test_acknowledged_jobs_outlive_a_crash(server: Server, app: App, act: Callable[[App], list[str]]) -> None:
    ids = act(app)
    server.crash()

    found = persistently(lambda: core_of(app).backend.jobs.get(ids))

    assert sorted(job.id for job in found) == sorted(ids)


def test_tables_that_were_made_outlive_a_crash(server: Server) -> None:
    with closing(open_backend(f"{server.url}&schema=made")) as backend:
        version = backend.migrate()
        server.crash()

        assert persistently(backend.schema_version) == version


def test_what_a_body_wrote_in_its_transaction_outlives_a_crash_with_its_completion(server: Server, app: App) -> None:
    @app.task(name="body")
    def body(ctx: dray.Context) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")

    before = orders(server)
    job = body.enqueue()
    assert app.worker().run_until_idle() == 1
    server.crash()

    (row,) = persistently(lambda: core_of(app).backend.jobs.get([job.id]))
    assert (row.state, orders(server) - before) == ("completed", 1)


def test_with_full_durability_an_outcome_outlives_a_crash(server: Server, app: App) -> None:
    job: dray.Job[Any] = app.task(name="full")(nothing).enqueue(1)
    assert app.worker(queues=["default"]).run_until_idle() >= 1
    server.crash()

    (row,) = persistently(lambda: core_of(app).backend.jobs.get([job.id]))
    assert row.state == "completed"


def test_a_commit_that_does_not_insist_is_lost(server: Server) -> None:
    """Otherwise the tests above would prove nothing."""
    before = orders(server)
    with psycopg.connect(server.url) as connection:
        connection.execute("INSERT INTO orders VALUES (2)")
    server.crash()

    assert orders(server) == before
