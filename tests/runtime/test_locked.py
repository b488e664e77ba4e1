"""`run_until_idle` while a transaction of the same process keeps SQLite's write lock."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from dray.app import App
from dray.errors import StorageLocked
from dray.runtime import worker

OPENED: list[sqlite3.Connection] = []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[App]:
    monkeypatch.setattr(worker, "_PATIENCE", 0.1)
    monkeypatch.setattr(worker, "_LOCK_LOOK", 0.05)
    with App(f"sqlite:///{path}", busy_timeout=0.3) as opened:
        yield opened


def test_it_says_that_a_transaction_is_open_instead_of_waiting_for_ever(app: App, path: Path) -> None:
    add = app.task(add_one)
    add.enqueue(1)

    with closing(sqlite3.connect(path, isolation_level=None)) as test:
        test.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageLocked, match=r"kept the write lock for 0\.3 s.+dray\.testing\.drain\(app, conn"):
            app.worker().run_until_idle()

    assert app.worker().run_until_idle() == 1


@pytest.mark.usefixtures("quick_kill")
def test_it_says_so_when_a_body_has_left_a_transaction_open(app: App, path: Path) -> None:
    @app.task(name="body")
    def leave_open() -> None:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        OPENED.append(connection)

    job = leave_open.enqueue()
    with pytest.raises(StorageLocked, match="kept the write lock"):
        app.worker(grace=0.1).run_until_idle()
    OPENED.pop().close()

    assert job.result(10) is None  # the worker that was left behind writes it


def test_a_body_that_keeps_the_lock_itself_is_waited_for(app: App, path: Path) -> None:
    @app.task(name="body")
    def slow() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            time.sleep(0.6)
            own.execute("ROLLBACK")

    slow.enqueue()
    add = app.task(add_one)
    add.enqueue(1)

    assert app.worker(concurrency=1).run_until_idle() == 2


def add_one(n: int) -> int:
    return n + 1
