"""A user's sqlite3 connection: how it opens transactions, and how durable its commits are."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.backends import open_backend
from dray.clock import Ids
from dray.errors import ConfigError, DrayError, StorageFull
from tests.backends.world import World
from tests.manual_clock import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def world(path: Path, clock: ManualClock, ids: Ids) -> Generator[World]:
    backend = open_backend(f"sqlite:///{path}", clock=clock)
    backend.migrate()
    yield World(backend, clock, ids)
    backend.close()


def connect(path: Path, **options: Any) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, **options))


# Durability is the connection's own setting


@pytest.mark.parametrize(("level", "warns"), [("OFF", True), ("NORMAL", True), ("FULL", False), ("EXTRA", False)])
def test_a_connection_whose_commits_may_be_forgotten_is_warned_of_once(
    world: World, path: Path, caplog: pytest.LogCaptureFixture, level: str, warns: bool
) -> None:
    with connect(path) as user:
        user.execute(f"PRAGMA synchronous = {level}")
        before = user.execute("PRAGMA synchronous").fetchall()
        for _ in range(3):
            world.backend.jobs.enqueue([world.new()], connection=user)
        user.commit()

        assert user.execute("PRAGMA synchronous").fetchall() == before
    said = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warns
    assert all("synchronous" in line and str(path) in line for line in said)


# How the module opens transactions


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_that_opens_transactions_is_joined(world: World, path: Path, level: str) -> None:
    with connect(path, isolation_level=level) as user:
        (kept,) = world.backend.jobs.enqueue([world.new()], connection=user)
        user.commit()
        world.backend.jobs.enqueue([world.new()], connection=user)
        user.rollback()

    assert [job.id for job in world.backend.jobs.newest()] == [kept.id]


pep_249 = pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no autocommit= before Python 3.12")


@pep_249
def test_a_connection_that_always_has_a_transaction_is_joined(world: World, path: Path) -> None:
    with connect(path, autocommit=False) as user:
        (kept,) = world.backend.jobs.enqueue([world.new()], connection=user)
        user.commit()
        world.backend.jobs.enqueue([world.new()], connection=user)
        user.rollback()

    assert [job.id for job in world.backend.jobs.newest()] == [kept.id]


@pep_249
def test_a_connection_that_commits_every_statement_is_refused(world: World, path: Path) -> None:
    with connect(path, autocommit=True) as user:
        with pytest.raises(ConfigError, match="open a transaction first"):
            world.backend.jobs.enqueue([world.new()], connection=user)
        assert not user.in_transaction
        user.execute("BEGIN")
        (kept,) = world.backend.jobs.enqueue([world.new()], connection=user)
        user.execute("COMMIT")

    assert [job.id for job in world.backend.jobs.newest()] == [kept.id]


# When SQLite itself gives up


def test_a_disk_that_fills_up_is_dray_s_own_error(world: World, path: Path) -> None:
    with connect(path) as user:
        pages = user.execute("PRAGMA page_count").fetchone()[0]
        user.execute(f"PRAGMA max_page_count = {pages + 2}")

        with pytest.raises(StorageFull):
            world.backend.jobs.enqueue([world.new(args='"' + "x" * 200_000 + '"')], connection=user)

        user.rollback()
        world.backend.jobs.enqueue([world.new()], connection=user)
        user.commit()
    assert len(world.backend.jobs.newest()) == 1


def test_a_transaction_that_sqlite_rolled_back_itself_is_told_by_its_cause(world: World, path: Path) -> None:
    with connect(path) as user:
        user.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON dray_jobs BEGIN SELECT RAISE(ROLLBACK, 'not today'); END"
        )
        user.execute("CREATE TABLE orders (n integer)")
        user.execute("INSERT INTO orders VALUES (1)")

        with pytest.raises(DrayError, match="not today"):
            world.backend.jobs.enqueue([world.new()], connection=user)

        assert not user.in_transaction
        user.execute("DROP TRIGGER refuse")
        (kept,) = world.backend.jobs.enqueue([world.new()], connection=user)
        user.commit()
    assert [job.id for job in world.backend.jobs.newest()] == [kept.id]
