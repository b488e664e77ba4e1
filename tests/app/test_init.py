"""The first enqueue of a new program: its tables are made, or an error says where and by which command."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from dray.app import App
from dray.app_interface import core_of
from dray.backends.database import Session as DraySession
from dray.backends.migrate import missing
from dray.errors import ConfigError, SchemaMissing, StorageLocked
from dray.settings import Settings
from tests.backends import beside, users


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A program's own database, with a table of its own and without Dray's."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (n INTEGER)")
    return path


@pytest.fixture
def connection(shop: Path) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(shop)) as opened:
        yield opened


def test_the_first_request_enqueues_with_its_order_before_any_worker_ran(
    shop: Path, connection: sqlite3.Connection
) -> None:
    with App(f"sqlite:///{shop}") as app:
        app.enqueue("mail.send", {"to": "ann@example.com"}, connection=connection)
        connection.execute("INSERT INTO orders VALUES (1)")
        assert app.jobs() == []
        connection.commit()

        assert [job.task for job in app.jobs()] == ["mail.send"]


def test_a_request_that_rolls_back_leaves_the_tables_and_no_job(empty_url: str) -> None:
    with App(empty_url, migrate=True) as app, beside.connect(empty_url) as connection:
        app.enqueue("mail.send", connection=connection)
        connection.rollback()

        assert app.jobs() == []


def test_a_session_of_sqlalchemy_is_joined_before_any_worker_ran(empty_url: str) -> None:
    engine = users.engine(empty_url)
    with App(empty_url, migrate=True) as app, Session(engine) as session:
        app.enqueue("mail.send", connection=session)
        session.execute(text("SELECT 1"))
        session.commit()

        assert len(app.jobs()) == 1
    engine.dispose()


def test_init_makes_the_tables_once_and_returns_nothing(empty_url: str) -> None:
    with App(empty_url, migrate=False) as app:
        assert app.init() is None
        assert app.enqueue("x").state == "queued"
        assert app.init() is None
        assert asyncio.run(app.ainit()) is None
        assert len(app.jobs()) == 1


def test_ainit_makes_the_tables(empty_url: str) -> None:
    with App(empty_url) as app:
        asyncio.run(app.ainit())
        assert app.jobs() == []


def test_programs_that_make_the_tables_at_once_all_succeed(empty_url: str) -> None:
    begin = threading.Barrier(4)

    def program(_: int) -> int:
        with App(empty_url) as app:
            begin.wait()
            app.init()
            return len(app.jobs())

    with ThreadPoolExecutor(4) as programs:
        assert list(programs.map(program, range(4))) == [0] * 4


def test_an_open_write_transaction_is_left_as_it_is_and_told_what_to_do(
    shop: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.backends.sqlite.database._MOMENT", 0.05)
    connection.execute("INSERT INTO orders VALUES (1)")
    with App(shop, migrate=True) as app:
        with pytest.raises(SchemaMissing) as caught:
            app.enqueue("mail.send", connection=connection)
        assert connection.in_transaction
        connection.commit()

        said = str(caught.value)
        assert said.startswith(f"{shop}: Dray's tables are not there yet, and cannot be made while this connection's")
        assert f"Call app.init() before you open a transaction, or run `dray db init --url sqlite:///{shop}`" in said
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)

        app.enqueue("mail.send", connection=connection)  # a new transaction, which has not written yet
        connection.commit()
        assert len(app.jobs()) == 1


def test_a_program_that_keeps_the_lock_for_longer_than_the_busy_timeout_is_told_of(
    shop: Path, connection: sqlite3.Connection
) -> None:
    with App(shop, busy_timeout=0.05) as app, closing(sqlite3.connect(shop)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageLocked, match=r"another connection kept the write lock for 0\.05 s.*app\.init\(\)"):
            app.enqueue("mail.send", connection=connection)
        assert not connection.in_transaction


def test_a_transaction_that_began_before_the_tables_were_made_cannot_see_them(shop: Path) -> None:
    with closing(sqlite3.connect(shop, isolation_level=None)) as connection, App(shop) as app:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM orders").fetchall()

        with pytest.raises(SchemaMissing, match="this transaction began before; roll it back and begin again"):
            app.enqueue("mail.send", connection=connection)

        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
        app.enqueue("mail.send", connection=connection)
        connection.execute("COMMIT")
        assert len(app.jobs()) == 1


def test_a_connection_to_another_file_is_refused_before_a_file_is_made(
    tmp_path: Path, connection: sqlite3.Connection
) -> None:
    with App(tmp_path / "jobs.db") as app, pytest.raises(ConfigError, match="use a connection to the same file"):
        app.enqueue("mail.send", connection=connection)

    assert not (tmp_path / "jobs.db").exists()


def test_a_connection_that_commits_by_itself_is_refused_before_tables_are_made(shop: Path) -> None:
    with closing(sqlite3.connect(shop, isolation_level=None)) as connection, App(shop) as app:
        with pytest.raises(ConfigError, match="open a transaction first"):
            app.enqueue("mail.send", connection=connection)

        assert core_of(app).backend.schema_version() is None


def test_a_coroutine_that_waits_for_the_lock_lets_others_run(shop: Path) -> None:
    async def program() -> None:
        with closing(sqlite3.connect(shop)) as connection, closing(sqlite3.connect(shop)) as other:
            other.execute("BEGIN IMMEDIATE")
            asyncio.get_running_loop().call_later(0.05, other.rollback)
            await app.aenqueue("mail.send", connection=connection)
            connection.commit()

    with App(shop) as app:
        asyncio.run(program())
        assert len(app.jobs()) == 1


def test_the_tables_are_looked_for_once_and_not_at_every_enqueue(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DraySession] = []
    known = DraySession.known

    def ask(session: DraySession) -> dict[str, str]:
        asked.append(session)
        return known(session)

    monkeypatch.setattr(DraySession, "known", ask)
    with App(url) as app, beside.connect(url) as connection:
        app.enqueue("mail.send", connection=connection)
        connection.commit()
        assert asked
        asked.clear()

        for _ in range(3):
            app.enqueue("mail.send", connection=connection)
        connection.commit()

        assert asked == []
        assert len(app.jobs()) == 4


def test_a_password_is_not_in_the_command() -> None:
    said = str(missing(Settings.of("postgresql://ann:hidden@db.example.com/shop").place))

    assert "hidden" not in said
    assert said.endswith("run `dray db init` with DRAY_URL set to this address and its password")


def test_an_address_that_a_shell_would_take_apart_is_quoted() -> None:
    said = str(missing(Settings.of("postgresql://ann@db.example.com/shop?schema=jobs").place))

    assert said.endswith("or run `dray db init --url 'postgresql://ann@db.example.com/shop?schema=jobs'`")
