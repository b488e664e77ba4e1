"""The first opening of a database: by many processes at once, by a reader, by a role that may not create tables."""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.backends import open_backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.connect import OwnConnection
from dray.backends.sqlite import database as sqlite_database
from dray.backends.sqlite.connect import connect
from dray.errors import ConfigError, SchemaMissing, StorageUnavailable
from tests.backends.processes import (
    ask_together,
    enqueue,
    enqueue_some,
    integrity,
    job_ids,
    migrate_database,
    raw_sql,
)
from tests.server import in_database


@pytest.fixture
def empty_database(postgres_server: str) -> Iterator[str]:
    """The address of a new PostgreSQL database, without its own schema."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE opening")
    yield in_database(postgres_server, "opening")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP DATABASE opening WITH (FORCE)")


def test_twenty_processes_open_an_empty_file_at_once_and_lose_no_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    made = ask_together(enqueue_some, [(str(path), 5)] * 20)

    assert job_ids(str(path)) == sorted(job_id for each in made for job_id in each)
    assert len(job_ids(str(path))) == 100
    assert raw_sql(str(path), "PRAGMA auto_vacuum") == [(2,)]
    assert raw_sql(str(path), "PRAGMA journal_mode") == [("wal",)]
    assert integrity(path) == "ok"
    assert raw_sql(str(path), "SELECT count(*) FROM dray_meta WHERE name = 'version'") == [(1,)]
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db"], "drafts, or a -wal after the last closed"


def test_twenty_processes_migrate_an_empty_schema_at_once(postgres_url: str) -> None:
    assert ask_together(migrate_database, [(postgres_url,)] * 20) == [7] * 20

    assert raw_sql(postgres_url, "SELECT value FROM dray_meta WHERE name = 'version'") == [("7",)]


def test_twenty_processes_migrate_an_empty_database_at_once(empty_database: str) -> None:
    assert ask_together(migrate_database, [(empty_database,)] * 20) == [7] * 20

    assert raw_sql(empty_database, "SELECT value FROM dray_meta WHERE name = 'version'") == [("7",)]


def test_threads_share_the_first_opening(url: str) -> None:
    backend = open_backend(url, create=True)
    start = threading.Barrier(8)

    def use(number: int) -> list[str]:
        start.wait(10)
        if number % 2:
            backend.jobs.newest()
            return []
        return [enqueue(backend) for _ in range(3)]

    with ThreadPoolExecutor(8) as threads:
        made = [job_id for each in threads.map(use, range(8)) for job_id in each]

    backend.close()
    assert job_ids(url) == sorted(made)


def test_a_reader_waits_while_another_thread_makes_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way, go_on = threading.Event(), threading.Event()
    run_script = sqlite_database.run_script

    def slowly(connection: sqlite3.Connection, text: str) -> None:
        half_way.set()
        assert go_on.wait(10)
        run_script(connection, text)

    monkeypatch.setattr(sqlite_database, "run_script", slowly)
    backend = open_backend(str(tmp_path / "jobs.db"))
    with ThreadPoolExecutor(2) as threads:
        writer = threads.submit(enqueue, backend)
        assert half_way.wait(10)
        reader = threads.submit(backend.jobs.newest)
        _is_done(reader, 0.2)
        go_on.set()
        writer.result(10)
        found = reader.result(10)

    assert len(found) in {0, 1}
    backend.close()


def _is_done(future: Any, seconds: float) -> bool:
    """Gives a thread time to do the wrong thing; returns whether it has ended."""
    try:
        future.exception(seconds)
    except TimeoutError:
        return False
    return True


def test_opening_alone_makes_nothing(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path / "jobs.db"))

    assert backend.schema_version() is None
    backend.close()
    assert list(tmp_path.iterdir()) == []


def test_the_first_read_makes_the_tables_of_a_file_as_the_first_write_does(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path / "jobs.db"))

    assert backend.jobs.newest() == []
    assert backend.schema_version() == 7
    backend.close()


def test_asking_for_the_version_first_does_not_spoil_the_first_read(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()
    backend = open_backend(str(tmp_path / "jobs.db"))

    assert backend.schema_version() is None
    assert backend.jobs.newest() == []
    backend.close()


def test_postgres_without_a_migration_says_which_command_to_run_and_makes_nothing(postgres_url: str) -> None:
    backend = open_backend(postgres_url)

    for use in (backend.jobs.newest, lambda: enqueue(backend), backend.jobs.newest):
        with pytest.raises(SchemaMissing, match="`dray db init`") as caught:
            use()
        assert isinstance(caught.value, ConfigError)
        assert "\n" not in str(caught.value)

    assert backend.schema_version() is None
    backend.close()
    schema = postgres_url.rpartition("schema=")[2]
    assert (
        raw_sql(postgres_url, f"SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('{schema}')") == []
    )
    assert (
        raw_sql(
            postgres_url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dray%' AND schemaname = 'public'"
        )
        == []
    )


def test_postgres_makes_its_tables_at_the_first_call_where_it_is_told_to(postgres_url: str) -> None:
    backend = open_backend(postgres_url, create=True)

    made = enqueue(backend)

    backend.close()
    assert job_ids(postgres_url) == [made]


def test_one_object_goes_on_after_the_migration_it_asked_for(postgres_url: str) -> None:
    backend = open_backend(postgres_url)
    with pytest.raises(SchemaMissing):
        backend.jobs.newest()

    assert backend.migrate() == 7

    assert backend.jobs.newest() == []
    backend.close()


def test_who_may_not_create_finds_no_file_and_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = open_backend(str(path), create=False)

    with pytest.raises(StorageUnavailable, match="no such file") as caught:
        backend.jobs.newest()

    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_who_may_not_create_leaves_a_file_without_our_tables_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    raw_sql(str(path), "CREATE TABLE mine (x)")
    before = path.read_bytes()
    backend = open_backend(str(path), create=False)

    with pytest.raises(SchemaMissing):
        backend.jobs.newest()
    with pytest.raises(SchemaMissing):
        enqueue(backend)

    backend.close()
    assert path.read_bytes() == before


def test_asking_a_foreign_file_for_its_version_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    raw_sql(str(path), "CREATE TABLE mine (x)")
    before = path.read_bytes()
    backend = open_backend(str(path))

    assert backend.schema_version() is None

    backend.close()
    assert path.read_bytes() == before


def test_a_closed_backend_opens_again_at_the_next_call(url: str) -> None:
    backend = open_backend(url)
    backend.migrate()
    made = [enqueue(backend)]
    backend.close()

    made.append(enqueue(backend))

    assert [job.id for job in backend.jobs.newest()] == sorted(made, reverse=True)
    backend.close()


@pytest.mark.usefixtures("cold")
def test_a_connection_in_use_while_its_database_is_closed_is_closed_afterwards(shared_url: str) -> None:
    """It stayed open until it was garbage. An interrupt may end the stop of a worker while its threads work."""
    backend = open_backend(shared_url)
    assert isinstance(backend.db, PostgresDatabase)
    is_inside, goes_on = threading.Event(), threading.Event()

    def use(connection: OwnConnection) -> OwnConnection:
        is_inside.set()
        assert goes_on.wait(30)
        return connection

    with ThreadPoolExecutor(1) as threads:
        using = threads.submit(backend.db._persist, use)
        assert is_inside.wait(30)
        backend.close()
        goes_on.set()
        assert using.result().closed

    enqueue(backend)
    assert [connection.closed for connection in backend.db._pool.idle] == [False], "the next one is kept again"
    backend.close()


@pytest.mark.usefixtures("cold")
def test_a_database_that_is_used_after_its_end_and_forgotten_leaves_no_connection_open(shared_url: str) -> None:
    """A thread that is late opens a connection again, and nobody is there to close it: garbage collection warned."""
    backend = open_backend(shared_url)
    backend.close()
    enqueue(backend)
    assert isinstance(backend.db, PostgresDatabase)
    (connection,) = backend.db._pool.idle

    del backend
    gc.collect()

    assert connection.closed


def test_a_connection_whose_settings_fail_is_closed(tmp_path: Path) -> None:
    class Failing(sqlite3.Connection):
        def execute(self, *given: Any) -> sqlite3.Cursor:
            made.append(self)
            if "journal_size_limit" in given[0]:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(*given)

    made: list[sqlite3.Connection] = []
    path = tmp_path / "jobs.db"
    path.touch()
    with pytest.raises(sqlite3.OperationalError, match="I/O"):
        connect(path, Failing)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        sqlite3.Connection.execute(made[0], "SELECT 1")
