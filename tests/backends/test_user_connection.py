"""Enqueueing on a user's own connection: the job commits or rolls back with the user's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.string import ByteaBinaryLoader

from dray.backends import open_backend
from dray.errors import ConfigError, DrayError, StorageLocked, UnknownJob
from dray.instants import HOUR
from dray.model.job import Enqueued
from dray.model.workflow import Workflow
from tests.backends import beside
from tests.backends.world import World
from tests.manual_clock import ManualClock
from tests.server import in_database

LARGE = '"' + "x" * 3_000 + '"'


@pytest.fixture
def user(url: str, world: World) -> Iterator[beside.Connection]:
    """A user's connection with the driver's defaults, on a database with the user's own table."""
    beside.rows(url, "CREATE TABLE orders (n integer)")
    with beside.connect(url) as connection:
        yield connection


def is_open(connection: beside.Connection) -> bool:
    """Returns whether a transaction is open and can be committed."""
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction
    return connection.info.transaction_status == TransactionStatus.INTRANS


def orders(url: str) -> list[int]:
    return [row[0] for row in beside.rows(url, "SELECT n FROM orders ORDER BY n")]


def order(user: beside.Connection, n: int) -> None:
    beside.execute(user, "INSERT INTO orders (n) VALUES (?)", n)


# Commit and rollback with the transaction


def test_with_no_transaction_open_one_is_opened_and_left_to_the_user(world: World, user: beside.Connection) -> None:
    assert not is_open(user)

    (enqueued,) = world.backend.jobs.enqueue([world.new()], connection=user)

    assert not enqueued.duplicate
    assert is_open(user)
    assert world.backend.jobs.get([enqueued.id]) == []
    user.commit()
    assert world.claim_one(world.worker()).id == enqueued.id


def test_a_rollback_leaves_nothing(world: World, user: beside.Connection, url: str) -> None:
    flow = Workflow(world.ids.new(), "etl", 0)
    first = world.new(args=LARGE, queue="new", workflow_id=flow.id, step="a", unique_key="k")
    second = world.new(parents=(first.id,), workflow_id=flow.id, step="b")
    world.backend.jobs.enqueue([first, second], workflow=flow, connection=user)

    user.rollback()

    for table in ("dray_jobs", "dray_edges", "dray_workflows", "dray_queues"):
        assert beside.rows(url, "SELECT count(*) FROM " + table) == [(0,)]
    assert not world.backend.jobs.enqueue([world.new(unique_key="k", queue="new")])[0].duplicate
    assert [queue.name for queue in world.backend.queues.all()] == ["new"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_open_transaction_is_joined(world: World, user: beside.Connection, url: str, ends: str) -> None:
    order(user, 1)
    assert is_open(user)
    (enqueued,) = world.backend.jobs.enqueue([world.new()], connection=user)
    order(user, 2)

    user.commit() if ends == "commit" else user.rollback()

    assert orders(url) == ([1, 2] if ends == "commit" else [])
    assert [job.id for job in world.backend.jobs.newest()] == ([enqueued.id] if ends == "commit" else [])


def test_a_whole_graph_goes_in_with_the_commit(world: World, user: beside.Connection) -> None:
    outside = world.enqueue("outside")
    flow = Workflow(world.ids.new(), "etl", world.clock.now())
    first = world.new("first", parents=(outside,), workflow_id=flow.id, step="a", args=LARGE, delay_us=HOUR)
    second = world.new("second", parents=(first.id,), workflow_id=flow.id, step="b", tags=("x",))
    world.backend.jobs.enqueue([first, second], workflow=flow, connection=user)
    user.commit()

    worker = world.worker()
    world.complete(worker, world.claim_one(worker, tasks=("outside",)))

    assert (world.job(first.id).state, world.job(first.id).args) == ("scheduled", LARGE)
    assert (world.job(second.id).state, world.job(second.id).waiting_on) == ("waiting", 1)
    assert world.backend.workflows.get(flow.id) == (flow, ({"scheduled": 1, "waiting": 1}, {}))


def test_many_calls_and_many_jobs_share_one_transaction(world: World, user: beside.Connection) -> None:
    for _ in range(12):
        world.backend.jobs.enqueue([world.new() for _ in range(20)], connection=user)
    user.commit()

    assert world.backend.history.stats(HOUR).counts == {"default": {"queued": 240}}


def test_a_key_taken_in_the_transaction_is_taken_for_the_transaction(world: World, user: beside.Connection) -> None:
    held = world.enqueue(unique_key="held")
    (first,) = world.backend.jobs.enqueue([world.new(unique_key="k")], connection=user)

    again = world.backend.jobs.enqueue([world.new(unique_key="k"), world.new(unique_key="held")], connection=user)

    assert again == [Enqueued(first.id, duplicate=True), Enqueued(held, duplicate=True)]
    user.rollback()
    assert not world.backend.jobs.enqueue([world.new(unique_key="k")])[0].duplicate


def test_an_enqueue_repeated_after_a_lost_commit_leaves_one_job(world: World, url: str) -> None:
    new = world.new(unique_key="k")
    for _ in range(2):
        with beside.connect(url) as user:
            assert world.backend.jobs.enqueue([new], connection=user) == [Enqueued(new.id, duplicate=False)]
            user.commit()

    assert [job.id for job in world.backend.jobs.newest()] == [new.id]


def test_a_block_of_the_drivers_own_decides_over_the_job_too(world: World, user: beside.Connection, url: str) -> None:
    def block() -> AbstractContextManager[Any]:
        return user if isinstance(user, sqlite3.Connection) else user.transaction()

    def fail_inside() -> None:
        with block():
            world.backend.jobs.enqueue([world.new()], connection=user)
            order(user, 1 // 0)

    with block():
        kept = world.backend.jobs.enqueue([world.new()], connection=user)[0].id
    with pytest.raises(ZeroDivisionError):
        fail_inside()

    assert [job.id for job in world.backend.jobs.newest()] == [kept]
    assert orders(url) == []


# Autocommit


def test_a_connection_in_autocommit_mode_is_refused(world: World, url: str) -> None:
    with beside.connect(url, autocommit=True) as user:
        with pytest.raises(ConfigError, match="open a transaction first"):
            world.backend.jobs.enqueue([world.new()], connection=user)

        assert not is_open(user)
    assert world.backend.jobs.newest() == []


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_transaction_opened_by_hand_in_autocommit_mode_is_joined(world: World, url: str, ends: str) -> None:
    with beside.connect(url, autocommit=True) as user:
        beside.execute(user, "BEGIN")
        (enqueued,) = world.backend.jobs.enqueue([world.new()], connection=user)
        assert is_open(user)
        assert world.backend.jobs.newest() == []
        beside.execute(user, "COMMIT" if ends == "COMMIT" else "ROLLBACK")

    assert [job.id for job in world.backend.jobs.newest()] == ([enqueued.id] if ends == "COMMIT" else [])


# A call that fails


@pytest.mark.parametrize("why", ["unknown parent", "cannot be stored"])
def test_a_failed_enqueue_leaves_the_users_own_writes_fit_to_be_committed(
    world: World, user: beside.Connection, url: str, why: str
) -> None:
    bad = world.new(parents=(world.ids.new(),)) if why == "unknown parent" else replace(world.new(), id="no id")
    flow = Workflow(world.ids.new(), "etl", 0)
    order(user, 1)
    (before,) = world.backend.jobs.enqueue([world.new()], connection=user)

    with pytest.raises(UnknownJob if why == "unknown parent" else DrayError):
        world.backend.jobs.enqueue([world.new(queue="new"), bad], workflow=flow, connection=user)

    assert is_open(user)
    order(user, 2)
    (after,) = world.backend.jobs.enqueue([world.new()], connection=user)
    user.commit()
    assert orders(url) == [1, 2]
    assert {job.id for job in world.backend.jobs.newest()} == {before.id, after.id}
    assert world.backend.workflows.get(flow.id) is None
    assert world.backend.queues.all() == []


def test_a_failed_first_call_leaves_the_connection_usable(world: World, user: beside.Connection, url: str) -> None:
    with pytest.raises(UnknownJob):
        world.backend.jobs.enqueue([world.new(parents=(world.ids.new(),))], connection=user)

    order(user, 1)
    user.commit()
    assert orders(url) == [1]
    assert beside.count(url, "dray_jobs") == 0


def test_a_lock_that_is_not_to_be_had_is_dray_s_own_error(world: World, user: beside.Connection, url: str) -> None:
    parent = world.enqueue()
    _hurry(user)
    with beside.connect(url) as other:
        beside.execute(other, "UPDATE dray_jobs SET name = 'mine' WHERE id = ?", parent)

        with pytest.raises(StorageLocked):
            world.backend.jobs.enqueue([world.new(parents=(parent,))], connection=user)

    user.rollback()
    world.backend.jobs.enqueue([world.new(parents=(parent,))], connection=user)
    user.commit()
    assert len(world.backend.jobs.newest()) == 2


def _hurry(user: beside.Connection) -> None:
    """Sets the user's connection not to wait for locks."""
    if isinstance(user, sqlite3.Connection):
        user.execute("PRAGMA busy_timeout = 50")
    else:
        user.execute("SET lock_timeout = '50ms'")
        user.commit()


# Objects that are not such a connection


def test_anything_else_than_a_connection_of_the_driver_is_refused(
    world: World, user: beside.Connection, postgres_server: str
) -> None:
    others: list[Any] = [object(), "sqlite:///jobs.db", user.cursor(), world.backend]
    with closing(sqlite3.connect(":memory:")) as lite, psycopg.connect(postgres_server) as post:
        others.append(post if isinstance(user, sqlite3.Connection) else lite)
        for other in others:
            with pytest.raises(ConfigError, match="connection="):
                world.backend.jobs.enqueue([world.new()], connection=other)

    assert world.backend.jobs.newest() == []


def test_a_connection_to_a_database_without_dray_s_tables_is_refused(
    world: World, url: str, tmp_path: Path, postgres_server: str
) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'other.db'}" if url.startswith("sqlite") else _other_database(postgres_server)
    beside.rows(elsewhere, "CREATE TABLE IF NOT EXISTS orders (n integer)")
    with beside.connect(elsewhere) as user:
        order(user, 1)

        with pytest.raises(ConfigError, match="same"):
            world.backend.jobs.enqueue([world.new()], connection=user)

        user.commit()
    assert orders(elsewhere) == [1]


def _other_database(server: str) -> str:
    """Returns another database on the same server, created once."""
    with psycopg.connect(server, autocommit=True) as connection:
        name = f"{connection.info.dbname}_elsewhere"
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchall():
            connection.execute(f"CREATE DATABASE {name}".encode())
    return in_database(server, name)


def test_a_connection_to_another_database_with_dray_s_tables_is_refused(
    world: World, url: str, tmp_path: Path, postgres_server: str, clock: ManualClock
) -> None:
    if url.startswith("sqlite"):
        elsewhere = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        elsewhere = f"{_other_database(postgres_server)}&schema={url.rpartition('schema=')[2]}"
    with closing(open_backend(elsewhere, clock=clock)) as other, beside.connect(elsewhere) as user:
        other.migrate()

        with pytest.raises(ConfigError):
            world.backend.jobs.enqueue([world.new()], connection=user)

        user.commit()
        assert other.jobs.newest() == []


# What users set on their connections


def enqueue_all_kinds(world: World, user: beside.Connection) -> None:
    """Enqueues jobs for which Dray has to read: states of parents, holders of keys."""
    done = world.enqueue("done", unique_key="window", unique_us=HOUR)
    worker = world.worker()
    world.complete(worker, world.claim_one(worker, tasks=("done",)))
    live = world.enqueue("live")

    answer = world.backend.jobs.enqueue(
        [world.new(parents=(done,)), world.new(parents=(live,)), world.new(unique_key="window")],
        connection=user,
    )
    user.commit()

    assert [enqueued.duplicate for enqueued in answer] == [False, False, True]
    assert answer[2].id == done
    assert [world.job(enqueued.id).state for enqueued in answer] == ["queued", "waiting", "completed"]


def test_a_row_factory_of_the_users_does_not_matter(world: World, user: beside.Connection) -> None:
    if isinstance(user, sqlite3.Connection):
        user.row_factory = lambda cursor, row: {"columns": len(row)}
    else:
        user.row_factory = dict_row

    enqueue_all_kinds(world, user)

    if isinstance(user, sqlite3.Connection):
        assert user.execute("SELECT 1").fetchall() == [{"columns": 1}]
    else:
        assert user.execute("SELECT 1 AS n").fetchall() == [{"n": 1}]


def test_how_the_user_reads_text_does_not_matter(world: World, user: beside.Connection) -> None:
    if isinstance(user, sqlite3.Connection):
        user.text_factory = bytes
    else:
        user.adapters.register_loader("text", ByteaBinaryLoader)
        user.adapters.register_loader("uuid", ByteaBinaryLoader)

    enqueue_all_kinds(world, user)


def test_what_the_user_set_for_the_session_does_not_matter(world: World, user: beside.Connection) -> None:
    if isinstance(user, sqlite3.Connection):
        for pragma in ("foreign_keys = ON", "reverse_unordered_selects = ON", "recursive_triggers = ON"):
            user.execute(f"PRAGMA {pragma}")
    else:
        user.execute("SET TimeZone = 'Asia/Tokyo'")
        user.execute("SET search_path = pg_catalog")
        user.execute("SET DateStyle = 'German'")
        user.commit()
        user.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    enqueue_all_kinds(world, user)


class OwnConnection(sqlite3.Connection):
    """A user's own kind of connection."""


class OwnCursor(psycopg.Cursor[Any]):
    """A user's own kind of cursor."""


@pytest.mark.parametrize(
    ("sqlite_options", "postgres_cursor"),
    [
        ({"factory": OwnConnection}, OwnCursor),
        ({"cached_statements": 0}, psycopg.ClientCursor),
        ({"detect_types": sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES}, psycopg.RawCursor),
    ],
)
def test_the_users_kind_of_connection_or_cursor_does_not_matter(
    world: World, user: beside.Connection, sqlite_options: Any, postgres_cursor: Any
) -> None:
    if isinstance(user, psycopg.Connection):
        user.cursor_factory = postgres_cursor
        enqueue_all_kinds(world, user)
        return
    path = user.execute("PRAGMA database_list").fetchone()[2]
    with closing(sqlite3.connect(path, **sqlite_options)) as own:
        enqueue_all_kinds(world, own)


def test_nothing_that_the_user_set_is_changed(world: World, user: beside.Connection) -> None:
    def settings() -> Any:
        if isinstance(user, sqlite3.Connection):
            pragmas = ("foreign_keys", "synchronous", "busy_timeout", "journal_mode", "wal_autocheckpoint")
            return (
                [user.execute(f"PRAGMA {pragma}").fetchall() for pragma in pragmas],
                (user.isolation_level, user.row_factory, user.text_factory),
            )
        shown = user.execute(
            "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name"
        ).fetchall()
        return shown, user.autocommit, user.isolation_level, user.row_factory, user.prepare_threshold

    before = settings()
    user.commit()
    enqueue_all_kinds(world, user)

    assert settings() == before


# Other kinds of user transactions, on PostgreSQL


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_block_of_psycopg_s_own_is_joined(server: World, shared_url: str, autocommit: bool) -> None:
    world = server
    with psycopg.connect(shared_url.partition("&schema")[0], autocommit=autocommit) as user, user.transaction():
        kept = world.backend.jobs.enqueue([world.new()], connection=user)[0].id
        with user.transaction(force_rollback=True):
            world.backend.jobs.enqueue([world.new()], connection=user)

    assert [job.id for job in world.backend.jobs.newest()] == [kept]


def test_a_connection_in_pipeline_mode_is_joined(server: World, shared_url: str) -> None:
    with beside.connect(shared_url) as user:
        assert isinstance(user, psycopg.Connection)
        with user.pipeline():
            enqueue_all_kinds(server, user)


def test_a_transaction_that_has_failed_already_is_dray_s_own_error(server: World, shared_url: str) -> None:
    with beside.connect(shared_url) as user:
        with pytest.raises(psycopg.Error):
            beside.execute(user, "SELECT 1 / 0")

        with pytest.raises(DrayError):
            server.backend.jobs.enqueue([server.new()], connection=user)


def test_a_new_queue_in_an_open_transaction_holds_up_nobody_else(server: World, shared_url: str) -> None:
    world = server
    with ThreadPoolExecutor(1) as pool, beside.connect(shared_url) as user:
        world.backend.jobs.enqueue([world.new(queue="new")], connection=user)

        other = pool.submit(world.enqueue, queue="new").result(2)

        assert world.job(other).state == "queued"
