"""app.init(connection=…): the tables are made in the program's own transaction, as its migrations do it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dray.address import PostgresAddress, SqliteAddress, parse_address
from dray.app import App
from dray.app_interface import core_of
from dray.backends.migrate import latest
from dray.errors import ConfigError, DrayError, SchemaMissing
from dray.testing import drain
from tests.backends import beside, users


@pytest.fixture
def app(empty_url: str) -> Generator[App]:
    """An App whose tables are not there yet, and are not made by themselves."""
    address = parse_address(empty_url)
    if isinstance(address, PostgresAddress):  # the program has its place already
        beside.rows(empty_url, f'CREATE SCHEMA "{address.schema}"')  # pyright: ignore[reportArgumentType]
    with App(empty_url, migrate=False) as made:
        yield made


@pytest.mark.parametrize("kind", ["driver", "Session", "async driver", "AsyncSession"])
def test_the_tables_are_there_with_the_commit(app: App, empty_url: str, kind: str) -> None:
    async def program() -> None:
        async with users.ALL[kind](empty_url) as user:
            await user.run("CREATE TABLE orders (n integer)")
            await app.ainit(connection=user.connection)
            with pytest.raises(SchemaMissing):
                app.jobs()
            await user.order(1)
            await user.commit()
            await app.ainit(connection=user.connection)  # they are there: nothing to do
            await user.commit()

    asyncio.run(program())

    assert app.enqueue("mail.send").state == "queued"
    assert core_of(app).backend.schema_version() == latest("sqlite")
    assert beside.rows(empty_url, "SELECT n FROM orders") == [(1,)]


def test_a_rollback_leaves_none(app: App, empty_url: str) -> None:
    with beside.connect(empty_url) as connection:
        app.init(connection)
        connection.rollback()

        with pytest.raises(SchemaMissing, match=r"app\.init\(\)"):
            app.jobs()
        with pytest.raises(SchemaMissing):
            app.enqueue("mail.send", connection=connection)
        connection.rollback()
        app.init(connection)
        connection.commit()
    assert app.jobs() == []


@pytest.mark.parametrize("migrate", [True, False])
def test_a_job_can_be_enqueued_in_the_same_transaction(empty_url: str, migrate: bool) -> None:
    with App(empty_url, migrate=migrate) as app, beside.connect(empty_url) as connection:
        app.init(connection)
        job = app.enqueue("mail.send", connection=connection)
        connection.commit()

        assert [found.id for found in app.jobs()] == [job.id]


def test_after_a_rollback_they_are_made_where_they_may_be(empty_url: str) -> None:
    with App(empty_url, migrate=True) as app, beside.connect(empty_url) as connection:
        app.init(connection)
        connection.rollback()
        with pytest.raises(SchemaMissing):  # told of the rollback by this alone
            app.enqueue("mail.send", connection=connection)
        connection.rollback()

        job = app.enqueue("mail.send", connection=connection)
        connection.commit()

        assert [found.id for found in app.jobs()] == [job.id]


def test_what_fails_on_the_way_leaves_nothing_and_the_transaction_usable(
    app: App, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sqlite = isinstance(parse_address(empty_url), SqliteAddress)
    broken = {1: "CREATE TABLE dray_meta (name text, value text);\nCREATE TABLE dray_meta (name text);\n"}
    with beside.connect(empty_url) as connection, monkeypatch.context() as patched:
        beside.execute(connection, "CREATE TABLE orders (n integer)")
        patched.setattr("dray.backends.migrate.migrations", {"sqlite": broken, "postgres": broken}.__getitem__)
        with pytest.raises(DrayError):
            app.init(connection)
        beside.execute(connection, "INSERT INTO orders VALUES (1)")
        connection.commit()

    tables = (
        "SELECT name FROM sqlite_master WHERE name LIKE 'dray%'" if is_sqlite else "SELECT to_regclass('dray_meta')"
    )
    assert beside.rows(empty_url, tables) == ([] if is_sqlite else [(None,)])
    assert beside.rows(empty_url, "SELECT n FROM orders") == [(1,)]


def test_an_autocommit_connection_and_another_database_are_refused(app: App, empty_url: str, tmp_path: Path) -> None:
    with beside.connect(empty_url, autocommit=True) as connection:
        with pytest.raises(ConfigError, match="autocommit"):
            app.init(connection)
        assert beside.execute(connection, "SELECT 1") == [(1,)]
    elsewhere = users.elsewhere(empty_url, tmp_path)
    with beside.connect(elsewhere) as connection:
        with pytest.raises(ConfigError, match="the queue"):
            app.init(connection)
        connection.commit()
    with App(elsewhere) as other:
        assert core_of(other).backend.schema_version() is None


def test_something_that_is_no_connection_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="connection= takes"):
        app.init(connection="postgresql://here")


# PostgreSQL


def test_the_rest_of_the_transaction_looks_for_tables_where_it_did(shared_url: str) -> None:
    server, schema = shared_url.partition("&schema=")[::2]
    with App(shared_url) as app, psycopg.connect(server, options="-c search_path=pg_temp,public") as connection:
        app.init(connection)
        shown = connection.execute("SHOW search_path").fetchall()
        found = connection.execute("SELECT to_regclass('dray_jobs'), to_regclass(%s)", (f"{schema}.dray_jobs",))

        assert (shown, found.fetchall()) == ([("pg_temp,public",)], [(None, f"{schema}.dray_jobs")])


def test_tables_are_not_made_where_the_app_would_not_find_them(shared_url: str) -> None:
    server, schema = shared_url.partition("&schema=")[::2]
    beside.rows(shared_url, f'CREATE SCHEMA IF NOT EXISTS "{schema}"')  # pyright: ignore[reportArgumentType]
    with App(server) as app, beside.connect(shared_url) as connection:
        with pytest.raises(ConfigError, match=rf"in the schema '{schema}'.*in 'public'.*\?schema="):
            app.init(connection)
        assert beside.execute(connection, "SELECT 1") == [(1,)]


# A database in memory, as the tests of a program have it


@pytest.fixture
def memory() -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


def test_a_database_in_memory_gets_the_tables_and_then_jobs(tmp_path: Path, memory: sqlite3.Connection) -> None:
    ran: list[int] = []
    with App(tmp_path / "jobs.db") as app:

        @app.task(name="m.note")
        def note(n: int) -> None:
            ran.append(n)

        with pytest.raises(ConfigError, match=r"a database in memory.*app\.init\(connection=…\)"):
            note.using(connection=memory).enqueue(1)
        app.init(memory)
        memory.commit()
        note.using(connection=memory).enqueue(2)
        asyncio.run(note.using(connection=memory).aenqueue(3))

        assert drain(app, connection=memory) == 2
        memory.rollback()
        assert memory.execute("SELECT count(*) FROM dray_jobs").fetchone() == (0,)
    assert ran == [2, 3]
    assert not (tmp_path / "jobs.db").exists()


# An App from libpq's parameters


def parameters(url: str) -> dict[str, Any]:
    address = parse_address(url)
    assert not isinstance(address, SqliteAddress)
    return {**conninfo_to_dict(address.conninfo), "schema": address.schema}


def test_an_app_is_made_from_libpqs_parameters(shared_url: str) -> None:
    given = {**parameters(shared_url), "connect_timeout": 10, "sslmode": None, "options": "-c statement_timeout=9000"}
    with App(given, migrate=True) as app:
        assert app.enqueue("mail.send").state == "queued"
        assert core_of(app).backend.db.glance("join_identity", table="x")
        with App(app.url) as other:
            assert len(other.jobs()) == 1


def test_strange_characters_arrive_and_no_message_shows_the_password() -> None:
    given = {
        "host": "db.example.com",
        "port": 5433,
        "user": "an n@shop",
        "password": "s3cr@t:/?#[]% &",
        "dbname": "shop/ü",
        "options": "-c search_path=a,b",
        "application_name": "",
    }
    app = App(given)

    found = conninfo_to_dict(app.url)
    assert found == {name: str(value) for name, value in given.items() if value}
    assert (
        app.place
        == "postgresql://an%20n%40shop:***@db.example.com:5433/shop%2F%C3%BC?options=-c%20search_path%3Da%2Cb"
    )
    assert "s3cr" not in repr(app)


@pytest.mark.parametrize("name", ["password", "sslpassword", "oauth_client_secret"])
def test_no_secret_among_the_parameters_is_shown(name: str) -> None:
    app = App({"host": "h", name: "s3cr@t", "dbname": "shop"})

    assert "s3cr" in app.url
    assert "s3cr" not in app.place
    assert "***" in app.place


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"host": "/run/postgresql", "dbname": "shop"}, "postgresql:///shop?host=%2Frun%2Fpostgresql"),
        ({"host": "a,b", "port": "1,2"}, "postgresql:///?host=a%2Cb&port=1%2C2"),
        ({"host": "::1", "user": "ann"}, "postgresql://ann@/?host=%3A%3A1"),
        ({"service": "shop", "schema": "jobs"}, "postgresql:///?service=shop&schema=jobs"),
        ({}, "postgresql:///"),
    ],
)
def test_sockets_and_several_hosts_stay_parameters(given: dict[str, Any], shown: str) -> None:
    app = App(given)

    assert app.url == shown
    expected = {name: value for name, value in given.items() if name != "schema"}
    assert conninfo_to_dict(app.place.partition("schema=")[0].rstrip("&")) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"database": "shop"}, "write dbname"),
        ({"NAME": "shop"}, "write dbname"),
        ({"HOST": "here"}, "as libpq does: host, port"),
        ({"password": b"s3cret"}, "password .* must be text or a number, not bytes"),
        ({"password": "s3cret\0"}, "password .* control character"),
        ({"password": "s3cret\udc80"}, "password .* UTF-8"),
        ({"pool": True}, "pool .* not bool"),
        ({"schema": "No"}, "schema 'No' cannot be used"),
        ({3: "x"}, "'3' is no parameter"),
        ({"dsn": "postgresql://ann:s3cret@here/shop"}, "'dsn' is no parameter .* write the address itself"),
    ],
)
def test_what_libpq_would_not_take_is_told_at_once(given: dict[Any, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        App(given)

    assert re.search(said, str(caught.value))
    assert "s3cret" not in str(caught.value)
