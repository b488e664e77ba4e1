"""What is injected is what the drivers do: the harness would prove nothing otherwise."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, nullcontext
from pathlib import Path

import psycopg
import pytest

from tests.faults import postgres_proxy as server
from tests.faults import sqlite_driver as file
from tests.faults.count import Count


def told(error: sqlite3.Error) -> tuple[str, int, str]:
    return str(error), error.sqlite_errorcode, error.sqlite_errorname


def test_busy_full_and_read_only_look_like_the_drivers_own(tmp_path: Path) -> None:
    path = tmp_path / "any.db"
    with closing(sqlite3.connect(path, timeout=0)) as one, closing(sqlite3.connect(path, timeout=0)) as other:
        one.execute("CREATE TABLE t (x)")
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("BEGIN IMMEDIATE")
        one.commit()
        one.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as full:
            one.execute("INSERT INTO t VALUES (zeroblob(100000))")
        other.execute("PRAGMA query_only = ON")
        with pytest.raises(sqlite3.OperationalError) as read_only:
            other.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.OperationalError) as missing:
            sqlite3.connect(tmp_path / "nowhere" / "any.db")

    found = [told(error.value) for error in (busy, full, read_only, missing)]
    assert found == [told(fault.error) for fault in (file.BUSY, file.FULL, file.READ_ONLY, file.CANNOT_OPEN)]


_NO_ROOM = """
import json, resource, signal, sqlite3, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE t (x)")
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
except sqlite3.OperationalError as error:
    print(json.dumps([str(error), error.sqlite_errorcode, error.sqlite_errorname]))
"""


def test_an_io_error_looks_like_the_drivers_own(tmp_path: Path) -> None:
    """A file that may not grow: the kernel refuses the write."""
    command = [sys.executable, "-c", _NO_ROOM, str(tmp_path / "any.db")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert tuple(json.loads(said)) == told(file.IO.error)


def test_a_call_of_sqlite_fails_before_it_is_done_or_after(tmp_path: Path) -> None:
    count = Count()
    driver = file.Driver(count)
    driver.watch(tmp_path)
    with driver.at_work(), closing(sqlite3.connect(tmp_path / "any.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")
        for fault, kept, is_open in ((file.IO, 0, True), (file.IO_UNDONE, 0, False), (file.IO_AFTER, 1, False)):
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t VALUES (1)")
            count.arm(fault, 1)
            with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
                connection.execute("COMMIT")
            assert count.disarm() == 1
            assert connection.in_transaction == is_open
            assert driver.open_transactions() == ([connection] if is_open else [])
            if is_open:
                connection.execute("ROLLBACK")
            assert connection.execute("SELECT count(*) FROM t").fetchall() == [(kept,)]


class Through:
    """A connection through a proxy, and one beside it."""

    def __init__(self, address: str) -> None:
        self.count = Count()
        self.proxy = server.Proxy(address, self.count)
        self.beside = psycopg.connect(address, autocommit=True)
        self.beside.execute("CREATE TABLE injected (x integer)")

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.proxy.url, prepare_threshold=0)

    def kept(self) -> int:
        ((count,),) = self.beside.execute("SELECT count(*) FROM injected").fetchall()
        return count

    def close(self) -> None:
        self.beside.execute("DROP TABLE injected")
        self.beside.close()
        self.proxy.close()


@pytest.fixture
def through(postgres_server: str) -> Generator[Through]:
    made = Through(postgres_server)
    yield made
    made.close()


def write(connection: psycopg.Connection, *, pipelined: bool) -> None:
    with connection.pipeline() if pipelined else nullcontext():
        connection.execute("INSERT INTO injected VALUES (1)")
        connection.commit()


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(("fault", "kept"), [(server.CUT_BEFORE, 0), (server.CUT_AFTER, 1)], ids=["before", "after"])
def test_a_connection_is_lost_before_the_commit_or_after_it(
    through: Through, fault: server.PostgresFault, kept: int, *, pipelined: bool
) -> None:
    with closing(through.connect()) as connection:
        through.count.arm(fault, 3)  # BEGIN, INSERT, COMMIT
        with pytest.raises(psycopg.OperationalError):
            write(connection, pipelined=pipelined)
        assert (through.count.disarm(), through.count.first_call) == (1, "COMMIT")
        assert connection.closed
    assert through.kept() == kept


@pytest.mark.parametrize(("fault", "kept"), [(server.CUT_BEFORE, 0), (server.CUT_AFTER, 1)], ids=["before", "after"])
def test_a_connection_is_lost_before_or_after_a_statement_that_commits_by_itself(
    through: Through, fault: server.PostgresFault, kept: int
) -> None:
    with closing(through.connect()) as connection:
        connection.autocommit = True
        through.count.arm(fault, 1)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO injected VALUES (%s)", (1,))
    assert through.kept() == kept


def test_an_error_leaves_the_transaction_as_the_server_leaves_it(through: Through) -> None:
    with closing(through.connect()) as connection:
        connection.execute("INSERT INTO injected VALUES (1)")
        through.count.arm(server.FULL, 1)
        with pytest.raises(psycopg.errors.DiskFull):
            connection.execute("INSERT INTO injected VALUES (2)")
        assert through.count.disarm() == 1
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        connection.execute("INSERT INTO injected VALUES (3)")
        connection.commit()
    assert through.kept() == 1


def test_a_server_that_shuts_down_ends_the_connection(through: Through) -> None:
    """Mostly it says so (57P01); what it says is lost if it ends before it has read all."""
    with closing(through.connect()) as connection:
        through.count.arm(server.TERMINATED, 2)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        assert connection.closed


def test_prepared_statements_vanish(through: Through) -> None:
    with closing(through.connect()) as connection:
        connection.execute("SELECT %s::int", (1,))
        connection.commit()
        through.count.arm(server.UNPREPARED, 1)
        connection.execute("SELECT %s::int", (1,))  # the server was asked for this one before
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            connection.execute("SELECT %s::int", (1,))


def test_a_connection_lands_on_a_server_that_only_reads_and_stays_there(through: Through) -> None:
    with closing(through.connect()) as connection:
        through.count.arm(server.READ_ONLY_ONCE, 1)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with closing(through.connect()) as landed, closing(through.connect()) as next_one:
        through.count.disarm()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            landed.execute("INSERT INTO injected VALUES (1)")
        next_one.execute("INSERT INTO injected VALUES (1)")


@pytest.mark.parametrize(
    ("fault", "said"), [(server.TOO_MANY, "too many connections"), (server.STARTING, "starting")]
)
def test_a_connection_is_refused(through: Through, fault: server.PostgresFault, said: str) -> None:
    through.count.arm(fault, 1)
    with pytest.raises(psycopg.OperationalError, match=said):
        through.connect()
    through.connect().close()
