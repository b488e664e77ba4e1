from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.postgres.adapt import adapt
from dray.backends.store import jobs, work, workers
from dray.clock import Ids
from tests.backends.state_machine.sides import ATTEMPTS_KEPT, LOG_LINES, Sides
from tests.backends.world import World
from tests.manual_clock import ManualClock


@pytest.fixture
def world(backend: Backend, clock: ManualClock, ids: Ids) -> World:
    return World(backend, clock, ids)


@pytest.fixture
def server(shared_url: str, clock: ManualClock, ids: Ids) -> Generator[World]:
    """For what only PostgreSQL can do: concurrent writers, and responses that are lost on the way."""
    with closing(open_backend(shared_url, clock=clock)) as backend:
        backend.migrate()
        yield World(backend, clock, ids)


@pytest.fixture
def sides(postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Generator[Sides]:
    """Both databases under one clock, for the state machine."""
    for module in (jobs, work, workers):
        monkeypatch.setattr(module, "ATTEMPTS_KEPT", ATTEMPTS_KEPT)
    monkeypatch.setattr(work, "LOG_LINES", LOG_LINES)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="dray-machine-", dir=memory) as folder:
        file = Path(folder) / "jobs.db"
        sqlite, postgres = open_backend(f"sqlite:///{file}", clock=clock), open_backend(postgres_url, clock=clock)
        sqlite.migrate()
        postgres.migrate()
        server, _, schema = postgres_url.rpartition("&schema=")
        with (
            closing(sqlite3.connect(file)) as sqlite_user,
            closing(sqlite3.connect(file)) as sqlite_reader,
            psycopg.connect(server) as postgres_user,
            psycopg.connect(server, autocommit=True) as postgres_reader,
        ):
            sqlite_user.execute("PRAGMA foreign_keys = ON")
            adapt(postgres_reader)
            yield Sides(
                *(clock, sqlite, sqlite_user, sqlite_reader),
                *(postgres, postgres_user, postgres_reader, schema),
            )
        sqlite.close()
        postgres.close()
