"""`database`: an App on a scratch database, and back."""

from __future__ import annotations

import sqlite3
import time
import unittest
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from dray import testing
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, StorageError, StorageLocked
from dray.testing import clock, database, drain
from tests.testing import shop
from tests.testing.shop import book, count, double, flaky, send


def _schemas(server: str) -> set[str]:
    with psycopg.connect(server) as connection:
        return {
            row[0] for row in connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^dray_test_'")
        }


@pytest.mark.usefixtures("place")
def test_each_block_has_an_empty_database_and_the_app_is_as_before_afterwards() -> None:
    before = core_of(shop.app).settings, core_of(shop.app).clock, core_of(shop.app).ids
    with database(shop.app) as app:
        assert app is shop.app
        send.enqueue("ann@example.com")
        assert len(app.jobs()) == 1
    with database(shop.app):
        assert shop.app.jobs() == []
    assert (core_of(shop.app).settings, core_of(shop.app).clock, core_of(shop.app).ids) == before
    with pytest.raises(StorageError, match="/nowhere"):
        shop.app.jobs()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("columns", ["job text", "job text, cents integer"])
def test_tables_that_a_body_makes_are_of_its_block_alone(columns: str) -> None:
    with database(shop.app):
        job = book.enqueue(columns)
        drain(shop.app)
        assert job.result(5) == 0


def test_a_body_finds_the_tables_of_the_address_too(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA own; CREATE TABLE own.rates (id text); INSERT INTO own.rates VALUES ('a')")
        try:
            options = quote("-c search_path=own,public", safe="")
            monkeypatch.setenv("DRAY_TEST_URL", f"{postgres_server}&options={options}")
            with database(shop.app):
                job = count.enqueue("rates")
                drain(shop.app)
                assert job.result(5) == 1
        finally:
            connection.execute("DROP SCHEMA own CASCADE")


def test_a_transaction_that_the_test_keeps_open_is_said_within_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAY_TEST_URL", raising=False)
    with database(shop.app):
        send.enqueue("ann@example.com")
        with closing(sqlite3.connect(shop.app.url.removeprefix("sqlite:///"), isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            for run in (lambda: drain(shop.app), lambda: shop.app.worker().run_until_idle()):
                began = time.monotonic()
                with pytest.raises(
                    StorageLocked, match=r"kept the write lock for 2 s, so no job can .+ end it first"
                ):
                    run()
                assert time.monotonic() - began < 4  # not half a minute
            own.execute("ROLLBACK")
        assert drain(shop.app) == 1


def test_nothing_is_left_behind(place: str, request: pytest.FixtureRequest) -> None:
    with database(shop.app):
        send.enqueue("ann@example.com")
        drain(shop.app)
        url = shop.app.url
        if place == "postgres":
            assert len(_schemas(request.getfixturevalue("postgres_server"))) == 1
    if place == "postgres":
        assert _schemas(request.getfixturevalue("postgres_server")) == set()
    else:
        assert not Path(url.removeprefix("sqlite:///")).parent.exists()


def test_the_database_is_removed_after_an_error_too() -> None:
    paths: list[Path] = []

    def fail() -> None:
        paths.append(Path(shop.app.url.removeprefix("sqlite:///")))
        assert paths[0].exists()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), database(shop.app):
        fail()
    assert not paths[0].parent.exists()
    assert "nowhere" in shop.app.url


@pytest.mark.usefixtures("place")
def test_blocks_can_be_nested() -> None:
    with database(shop.app):
        send.enqueue("outer")
        with database(shop.app):
            assert shop.app.jobs() == []
        assert [job.args for job in shop.app.jobs()] == [{"to": "outer"}]


def test_it_works_with_unittest() -> None:
    class Case(unittest.TestCase):
        def test_it(self) -> None:
            self.enterContext(database(shop.app))
            send.enqueue("ann@example.com")
            assert drain(shop.app) == 1

    result = unittest.TestResult()
    Case("test_it").run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert "nowhere" in shop.app.url


def test_a_real_worker_runs_on_it(app: App) -> None:
    job = double.enqueue(2)
    with app.worker(concurrency=1):
        assert job.result(10) == 4


def test_a_running_worker_is_refused_with_a_sentence(app: App) -> None:
    with app.worker(concurrency=1):
        for refused in (database(app), clock(app), testing.inline(app)):
            with (
                pytest.raises(ConfigError, match="a worker of this App runs in this process; stop it first"),
                refused,
            ):
                pass
        with pytest.raises(ConfigError, match="a worker of this App runs"):
            drain(app)


def test_a_worker_that_outlives_the_block_is_an_error() -> None:
    worker = shop.app.worker(concurrency=1)
    with pytest.raises(ConfigError, match="still runs: stop it inside the block"), database(shop.app):
        worker.start()
    assert "nowhere" in shop.app.url
    worker.stop()


def test_an_address_that_is_no_postgresql_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_TEST_URL", "sqlite:///x.db")
    said = r"DRAY_TEST_URL is 'sqlite:///x\.db', which is no PostgreSQL"
    with pytest.raises(ConfigError, match=said), database(shop.app):
        pass


def test_something_that_is_no_app_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a dray\.App, not module"), database(shop):  # type: ignore[arg-type]
        pass


def test_settings_other_than_the_address_stay(place: str) -> None:
    own = App("sqlite:////nowhere/x.db", durability="full", default_timeout=7, busy_timeout=3)
    with database(own):
        used = core_of(own).settings
        assert (used.durability, used.default_timeout, used.busy_timeout) == ("full", 7, 3)
        assert used.is_sqlite == (place == "sqlite")


# The clock


def test_the_clock_stands_still_until_it_is_moved(app: App) -> None:
    with clock(app) as time:
        job = flaky.using(delay=60).enqueue(1)
        before = time.now
        time.advance(59.999)
        assert drain(app, delays=False) == 0
        time.advance(timedelta(milliseconds=1))
        assert time.now - before == timedelta(seconds=60)
        assert drain(app, delays=False) == 1
    assert job.refresh().state == "scheduled"  # its first attempt failed


@pytest.mark.usefixtures("place")
def test_the_clock_can_begin_at_a_moment() -> None:
    with database(shop.scheduled) as app, clock(app, at=datetime(2031, 5, 4, 2, 59, tzinfo=UTC)) as time:
        time.advance(60)
        assert drain(app, delays=False) == 1
        assert app.jobs(task=shop.poll)[0].slot == datetime(2031, 5, 4, 3, 0, tzinfo=UTC)
    with pytest.raises(ConfigError, match="no time zone"), clock(shop.app, at=datetime(2031, 5, 4)):  # noqa: DTZ001
        pass


def test_time_goes_on_from_there_afterwards_and_never_back(app: App) -> None:
    with clock(app) as time:
        time.advance(3600)
        moved = time.now
    assert send.enqueue("ann@example.com").created_at >= moved
    with clock(app) as time, pytest.raises(ConfigError, match="seconds must be between 0"):
        time.advance(-1)


def test_a_clock_of_an_app_that_is_not_on_a_scratch_database(url: str) -> None:
    own = App(url)
    add = own.task(name="add")(_add)
    with own, clock(own) as time:
        job = add.using(delay=60).enqueue(1)
        time.advance(60)
        assert drain(own, delays=False) == 1
        assert job.result(5) == 2
    assert type(core_of(own).clock).__name__ == "SystemClock"


def test_a_worker_inside_the_block_hears_that_time_has_passed(app: App) -> None:
    with clock(app) as time, app.worker(concurrency=1):
        job = double.using(delay=3600).enqueue(2)
        time.advance(3600)
        assert job.result(10) == 4


def _add(n: int) -> int:
    return n + 1
