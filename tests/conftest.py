"""What every test may use: both databases, real, each test in a place of its own."""

from __future__ import annotations

import gc
import itertools
import os
import select
import shutil
import signal
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.connect import OwnConnection
from dray.clock import Ids
from tests.manual_clock import ManualClock
from tests.server import Server, in_database

_numbers = itertools.count(1)

# An example may take long on a busy machine, which says nothing about the code.
hypothesis.settings.register_profile("dray", deadline=None)
hypothesis.settings.load_profile("dray")

# A run in the background of a shell, or below nohup, ignores these signals; so would all that the tests start.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Children before what they refer to.
TABLES = [
    f"dray_{name}"
    for name in (
        *("logs", "attempts", "edges", "jobs", "workflows"),
        *("queues", "workers", "leases", "schedules", "stacks", "outcomes"),
    )
]
AS_MADE = [("oldest_code", "1"), ("tables", str(len(TABLES) + 1)), ("version", "3")]


# What mostly waits comes first: last, it would be waited for.
_LONG = ("tests/processes/", "tests/cli/test_demo", "tests/backends/test_machine", "tests/cli/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next((n for n, start in enumerate(_LONG) if item.nodeid.startswith(start)), len(_LONG))
    )


def pytest_collection() -> None:
    """What is collected stays: no garbage collection finds anything, and they took a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Looking through the collected tests at each full garbage collection took a fifth of the time."""
    gc.freeze()
    gc.enable()


_SERVER = pytest.StashKey[Server]()


def pytest_configure(config: pytest.Config) -> None:
    """One server for the whole run, before the processes start that use it."""
    if config.getoption("tx", None) and not config.getoption("collectonly"):
        config.stash[_SERVER] = _start_server()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a test process of pytest-xdist where it is."""
    node.workerinput["postgres"] = node.config.stash[_SERVER].url


def pytest_unconfigure(config: pytest.Config) -> None:
    if (server := config.stash.get(_SERVER, None)) is not None:
        server.remove()


def _start_server() -> Server:
    try:
        return Server("max_connections=400")  # four processes, whose pools may hold 20 each, and what they start
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    """The address of a database of this process's own, on the PostgreSQL of the whole run.

    Of its own, because notifications, advisory locks and connections are found by database.
    """
    given: dict[str, str] | None = getattr(pytestconfig, "workerinput", None)
    if given is None:
        pytestconfig.stash[_SERVER] = _start_server()
        url, name = pytestconfig.stash[_SERVER].url, "test_alone"
    else:
        url, name = given["postgres"], f"test_{given['workerid']}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return in_database(url, name)


@pytest.fixture
def postgres_url(postgres_server: str) -> Generator[str]:
    """An empty schema on the server; its tables are not made yet."""
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    yield f"{postgres_server}&schema={schema}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


class Schemas:
    """Schemas whose tables are made once and emptied between tests: making them takes a hundred times as long."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._free: list[str] = []
        self._connection: psycopg.Connection[Any] | None = None

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        schema = f"test_{os.getpid()}_{next(_numbers)}"
        backend = open_backend(f"{self._server}&schema={schema}")
        backend.migrate()
        backend.close()
        return schema

    def give_back(self, schema: str) -> None:
        # Kept: a new one for each test takes ten times as long as all the rest.
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._server, autocommit=True)
        try:
            self._connection.execute("; ".join(f'DELETE FROM "{schema}".{table}' for table in TABLES).encode())
            is_as_made = self._look(self._connection, schema) == AS_MADE
        except psycopg.Error:
            is_as_made = False
        if is_as_made:
            self._free.append(schema)
        else:
            self._connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())

    @staticmethod
    def _look(connection: psycopg.Connection[Any], schema: str) -> list[Any]:
        count = f"SELECT 'tables', count(*)::text FROM pg_tables WHERE schemaname = '{schema}'"
        notes = f'SELECT name, value FROM "{schema}".dray_meta'
        return connection.execute(f"{notes} UNION ALL {count} ORDER BY 1".encode()).fetchall()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class WarmConnections:
    """Connections to PostgreSQL that later tests in the same schema use: a new one costs the server 10 ms."""

    _MOST = 40  # in a test process. Without a bound, four processes had opened all 400 that the server allows

    def __init__(self) -> None:
        self._idle: dict[str, list[OwnConnection]] = {}  # by address; those used last come last

    @contextmanager
    def lent_to(self, backend: Backend, url: str) -> Generator[None]:
        """Within, the backend uses the connections that the last one at this address has left."""
        if not isinstance(backend.db, PostgresDatabase):
            yield
            return
        pool = backend.db._pool
        pool.idle += self._idle.pop(url, [])
        try:
            yield
        finally:
            self._idle[url] = [each for each in pool.idle if _is_as_new(each)]
            pool.idle = [each for each in pool.idle if each not in self._idle[url]]
            while sum(map(len, self._idle.values())) > self._MOST:
                for connection in self._idle.pop(next(iter(self._idle))):
                    connection.close()

    def close(self) -> None:
        for connection in itertools.chain(*self._idle.values()):
            connection.close()


def _is_as_new(connection: OwnConnection) -> bool:
    """Not closed, by the server neither (it would have said so), and it still prepares its statements."""
    return not (connection.closed or select.select([connection], [], [], 0)[0]) and bool(connection.prepare_threshold)


@pytest.fixture(scope="session")
def schemas(postgres_server: str) -> Generator[Schemas]:
    with closing(Schemas(postgres_server)) as made:
        yield made


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with empty tables. A copy takes a tenth of the time in which they are made."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    with closing(open_backend(f"sqlite:///{path}")) as backend:
        backend.migrate()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """An address of each database in turn, with its tables."""
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
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


@pytest.fixture(scope="session")
def warm() -> Generator[WarmConnections]:
    with closing(WarmConnections()) as made:
        yield made


@pytest.fixture
def backend(url: str, clock: ManualClock, warm: WarmConnections) -> Generator[Backend]:
    """The storage contract on each database in turn, its tables made, its time in the test's hands."""
    with closing(open_backend(url, clock=clock)) as opened, warm.lent_to(opened, url):
        opened.migrate()
        yield opened
