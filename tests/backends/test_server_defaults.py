"""PostgreSQL with defaults of the server, database or role that would break a promise."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.database import Session
from dray.backends.postgres import PostgresDatabase, faults
from dray.backends.statements import Catalogue
from dray.errors import ConfigError, StorageError, StorageUnavailable
from dray.model.job import Demand
from dray.model.new_job import MANY, AlikeJobs
from tests.backends.processes import enqueue, job_ids, new_job
from tests.server import in_database

_numbers = itertools.count(1)
NOTHING = Demand((), (), 0)


class OwnDatabase:
    """A database whose defaults a test may change."""

    def __init__(self, server: str, options: str = "") -> None:
        self._server = server
        self.name = f"defaults_{os.getpid()}_{next(_numbers)}"
        self._run(f"CREATE DATABASE {self.name} {options}")
        self.url = in_database(server, self.name)

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement.encode())

    def set(self, name: str, value: str) -> None:
        """Sets a default for new sessions."""
        self._run(f"ALTER DATABASE {self.name} SET {name} TO '{value}'")

    def reset(self, name: str) -> None:
        self._run(f"ALTER DATABASE {self.name} RESET {name}")

    def reset_all(self) -> None:
        self._run(f"ALTER DATABASE {self.name} RESET ALL")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DELETE FROM dray_jobs")

    def end_sessions(self) -> None:
        self._run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'")

    def drop(self) -> None:
        self._run(f"DROP DATABASE {self.name} WITH (FORCE)")


@pytest.fixture(scope="module")
def made(postgres_server: str) -> Generator[OwnDatabase]:
    own = OwnDatabase(postgres_server)
    with closing(open_backend(own.url)) as backend:
        backend.migrate()
    yield own
    own.drop()


@pytest.fixture
def own(made: OwnDatabase) -> Generator[OwnDatabase]:
    yield made
    made.reset_all()


@pytest.fixture
def backend(own: OwnDatabase) -> Generator[Backend]:
    with closing(open_backend(own.url)) as opened:
        yield opened


def fail_over(own: OwnDatabase) -> None:
    """Ends all sessions; new ones find a read-only database."""
    own.set("default_transaction_read_only", "on")
    own.end_sessions()


def test_after_a_failover_calls_work_again_as_soon_as_the_database_can_be_written(
    own: OwnDatabase, backend: Backend
) -> None:
    made = [enqueue(backend)]
    fail_over(own)
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="read-only"):
            enqueue(backend)
        assert backend.jobs.newest()  # reads work, but the next write must not get this connection

    own.reset("default_transaction_read_only")

    made += [enqueue(backend) for _ in range(3)]
    assert job_ids(own.url) == sorted(made)


SETTINGS = ("synchronous_commit", "transaction_isolation", "statement_timeout", "lock_timeout")


def seen_in(tx: Session) -> dict[str, Any]:
    connection: psycopg.Connection[Any] = tx._connection  # pyright: ignore[reportAttributeAccessIssue]
    found = [connection.execute("SELECT current_setting(%s)", (name,)) for name in SETTINGS]
    return {name: cursor.fetchall()[0][0] for name, cursor in zip(SETTINGS, found, strict=True)}


def as_later(tx: Session) -> Callable[[], dict[str, Any]]:
    tx.begin_work((), durable=True)
    found = seen_in(tx)
    return lambda: found


TRANSACTIONS: dict[str, Callable[[PostgresDatabase], dict[str, Any]]] = {
    "write": lambda db: db.write(seen_in),
    "write of many rows": lambda db: db.write(seen_in, many=True),
    "exchange": lambda db: db.exchange(as_later),
}


@pytest.mark.parametrize("transaction", TRANSACTIONS)
def test_what_a_promise_needs_is_said_and_not_assumed(own: OwnDatabase, backend: Backend, transaction: str) -> None:
    own.set("synchronous_commit", "off")
    own.set("default_transaction_isolation", "repeatable read")
    own.set("statement_timeout", "200ms")
    own.set("lock_timeout", "100ms")
    own.end_sessions()
    assert isinstance(backend.db, PostgresDatabase)

    assert TRANSACTIONS[transaction](backend.db) == {
        "synchronous_commit": "on",
        "transaction_isolation": "read committed",
        "statement_timeout": "0",
        "lock_timeout": "30s",
    }


def test_a_stronger_level_than_the_usual_is_left_as_it_is(own: OwnDatabase, backend: Backend) -> None:
    own.set("synchronous_commit", "remote_apply")
    own.end_sessions()
    assert backend.db.write(seen_in)["synchronous_commit"] == "remote_apply"
    assert backend.db.exchange(as_later, durable=True)["synchronous_commit"] == "remote_apply"


def test_a_block_of_the_users_own_statements_is_durable(own: OwnDatabase, backend: Backend) -> None:
    own.set("synchronous_commit", "off")
    own.set("default_transaction_isolation", "serializable")
    with backend.transaction() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_many_jobs_take_longer_than_a_statement_may(own: OwnDatabase, backend: Backend) -> None:
    own.set("statement_timeout", "50ms")
    own.end_sessions()
    ids = [new_job().id for _ in range(100 * MANY)]
    backend.jobs.enqueue_alike(AlikeJobs(new_job(), ids, ["{}"] * len(ids)))
    assert len(backend.jobs.get(ids)) == len(ids)


@pytest.mark.parametrize("name", ["queue_list", "schedule_list", "job_counts", "job_oldest_queued"])
def test_names_have_the_same_order_whatever_the_locale(name: str) -> None:
    """Reads the statements instead of running them: the test server is built without locales."""
    assert 'COLLATE "C"' in Catalogue("postgres")[name].text.partition("ORDER BY")[2]


@pytest.mark.parametrize("work", ["a bulk enqueue", "a snapshot"])
def test_the_client_may_pause_inside_a_transaction_whatever_the_limit_for_that(
    own: OwnDatabase, backend: Backend, work: str
) -> None:
    """It encodes 200,000 jobs, or writes what it has read to another database."""
    own.set("idle_in_transaction_session_timeout", "100ms")
    own.end_sessions()

    def pause(tx: Session) -> bool:
        before = tx.rows("server_now")
        time.sleep(0.5)
        return tx.rows("server_now") >= before

    if work == "a snapshot":
        assert backend.db.snapshot(pause)
    else:
        assert backend.db.write(pause, many=True)


@pytest.mark.parametrize("kind", ["IdleInTransactionSessionTimeout", "TransactionTimeout", "AdminShutdown"])
def test_a_session_that_the_server_has_ended_is_lost(kind: str) -> None:
    assert faults.is_lost(getattr(psycopg.errors, kind)())


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_all_text_is_refused(postgres_server: str, encoding: str) -> None:
    own = OwnDatabase(postgres_server, f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        with closing(open_backend(own.url)) as backend:
            for call in (backend.migrate, backend.jobs.newest, backend.schema_version):
                with pytest.raises(ConfigError, match=rf"{encoding}.*ENCODING 'UTF8'"):
                    call()
    finally:
        own.drop()


def test_text_arrives_whole_whatever_encoding_clients_have_by_default(own: OwnDatabase, backend: Backend) -> None:
    own.set("client_encoding", "LATIN1")
    own.end_sessions()
    job = backend.jobs.enqueue([new_job(args='{"name":"Ωmega €"}')])[0]
    assert backend.jobs.get([job.id])[0].args == '{"name":"Ωmega €"}'


@pytest.mark.parametrize("use", ["job_look", "job_list"])
def test_prepared_statements_that_vanish_are_done_without(
    backend: Backend, use: str, caplog: pytest.LogCaptureFixture
) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "job_look": lambda: backend.work.look("00000000-0000-7000-8000-000000000000", NOTHING, serves_all=True),
        "job_list": backend.jobs.newest,
    }
    for _ in range(5):
        uses[use]()
    db = backend.db
    assert isinstance(db, PostgresDatabase)
    assert db._pool.idle[-1].execute("SELECT count(*) FROM pg_prepared_statements").fetchall() != [(0,)]

    for connection in db._pool.idle:
        connection.pgconn.exec_(b"DEALLOCATE ALL")  # behind the driver's back
    for _ in range(5):
        uses[use]()

    assert "prepared statements do not last here" in caplog.text
    assert caplog.text.count("prepared statements") == 1


def test_a_users_connection_that_may_forget_is_told_of_once(
    own: OwnDatabase, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    own.set("synchronous_commit", "off")
    with psycopg.connect(own.url) as user:
        backend.jobs.enqueue([new_job()], connection=user)
        backend.jobs.enqueue([new_job()], connection=user)
    assert caplog.text.count("may forget") == 1


def test_who_may_not_create_can_migrate_what_is_up_to_date_and_is_told_what_to_do_otherwise(
    own: OwnDatabase, backend: Backend
) -> None:
    role = f"reader_{os.getpid()}"
    with psycopg.connect(own.url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN".encode())
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
        try:
            address = own.url.replace("//postgres:", f"//{role}:")
            with closing(open_backend(address)) as theirs:
                assert theirs.migrate() == theirs.schema_version()
            refused = pytest.raises(StorageError, match=r"permission denied.*dray db sql")
            with closing(open_backend(f"{address}&schema=other")) as theirs, refused:
                theirs.migrate()
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
