"""What every test may use: both databases, real, each test in a place of its own."""

from __future__ import annotations

import gc
import itertools
import os
import re
import select
import shutil
import signal
import threading
from collections.abc import Generator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest

from dray.address import PostgresAddress, parse_address
from dray.backends import Backend, open_backend
from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.connect import Connector, OwnConnection
from dray.backends.postgres.pool import Pool
from dray.clock import Ids
from tests.manual_clock import ManualClock
from tests.prompt import close_prompts, prompt
from tests.schemas import Schemas
from tests.server import TEMPLATE, Server, in_database, in_memory

_numbers = itertools.count(1)
_OBJECTS = 20_000  # more of them than before, and there is a garbage collection; with Python's 700 they took 3 %

# An example may take long on a busy machine, which says nothing about the code.
hypothesis.settings.register_profile("dray", deadline=None)
hypothesis.settings.load_profile("dray")

# A run in the background of a shell, or below nohup, ignores these signals; so would all that the tests start.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# What mostly waits comes first, then the files that take longest: last, they would be waited for.
_LONG = (
    *("tests/processes/", "tests/cli/test_demo", "tests/backends/test_machine", "tests/interrupts/"),
    *("tests/settings/", "tests/web/browser/", "tests/test_benchmarks", "tests/backends/test_causes"),
    *("tests/cli/", "tests/faults/", "tests/runtime/test_costs", "tests/backends/test_transfer"),
    *("tests/backends/test_graphs", "tests/web/test_names", "tests/test_docs", "tests/model/test_clock_changes"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next((n for n, start in enumerate(_LONG) if item.nodeid.startswith(start)), len(_LONG))
    )


def pytest_collection(session: pytest.Session) -> None:
    """What is collected stays: no garbage collection finds anything, and they took a third of the time."""
    gc.disable()
    _load_tests(session.config)


def _load_tests(config: pytest.Config) -> None:
    """In a test process of pytest-xdist: loads the test modules, beginning at another one than the other processes.

    In a new clone a module is compiled by the first process that loads it. If all began with the same one, each would
    compile them all, which takes twice as long as loading them.
    """
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    if given is None:
        return
    places = [Path(config.rootpath, each.partition("::")[0]) for each in config.args]
    files = sorted({file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place])})
    first = len(files) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    # A conftest.py before all tests: it may name modules in which pytest explains assertions.
    for file in [*sorted(Path(__file__).parent.rglob("conftest.py")), *files[first:], *files[:first]]:
        with suppress(Exception):  # pytest loads it again and says what is wrong
            import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Looking through the collected tests at each full garbage collection took a fifth of the time."""
    gc.freeze()
    gc.set_threshold(_OBJECTS, 10, 10)
    gc.enable()


_SERVER = pytest.StashKey[Server]()


def pytest_configure(config: pytest.Config) -> None:
    """One server for the whole run, before the processes start that use it; and files in memory, if there is room.

    On a disk, each commit of a SQLite file took a quarter more of the processor's time, and a wait.
    """
    for folder in in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))
    if config.getoption("tx", None) and not config.getoption("collectonly"):
        config.stash[_SERVER] = _start_server()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a test process of pytest-xdist where it is."""
    node.workerinput["postgres"] = node.config.stash[_SERVER].url


def pytest_unconfigure(config: pytest.Config) -> None:
    if (server := config.stash.get(_SERVER, None)) is not None:
        del os.environ[TEMPLATE]
        server.remove()


def _start_server() -> Server:
    try:
        server = Server("max_connections=400")  # six processes, whose pools may hold 20 each, and what they start
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from None
    os.environ[TEMPLATE] = str(server.template)  # for all servers that tests start
    return server


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
    with prompt(postgres_server, None) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


class WarmConnections:
    """Dray's connections to PostgreSQL that later tests in the same schema use: a new one costs the server 6 ms.

    All that opens a database of a shared schema gets one: the test itself, each part of a worker.
    """

    _MOST = 40  # in a test process. Without a bound, four processes had opened all 400 that the server allows

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._places: set[str] = set()
        self._idle: dict[tuple[str, float], list[OwnConnection]] = {}  # by place and patience; used last, comes last

    def share(self, url: str) -> None:
        """From now on the connections to this address are kept."""
        address = parse_address(url)
        assert isinstance(address, PostgresAddress)
        self._places.add(address.place)

    def take(self, connector: Connector) -> OwnConnection | None:
        if self._pid != os.getpid():  # a fork: they are its parent's
            return None
        with self._lock:
            idle = self._idle.get((connector._place, connector._patience), [])
            while idle:
                connection = idle.pop()
                if _is_as_new(connection):
                    return connection
                connection.close()
        return None

    def keep(self, pool: Pool) -> None:
        """Takes over the idle connections of a pool that is being closed."""
        if self._pid != os.getpid() or pool.place not in self._places:
            return
        with pool.lock:
            kept = [each for each in pool.idle if _is_as_new(each)]
            pool.idle[:] = [each for each in pool.idle if each not in kept]
        with self._lock:
            idle = self._idle.pop((pool.place, pool.patience), [])
            self._idle[pool.place, pool.patience] = idle + kept
            while sum(map(len, self._idle.values())) > self._MOST:
                for connection in self._idle.pop(next(iter(self._idle))):
                    connection.close()

    def close(self) -> None:
        with self._lock:
            for connection in itertools.chain(*self._idle.values()):
                connection.close()
            self._idle.clear()


def _is_as_new(connection: OwnConnection) -> bool:
    """Not closed, by the server neither (it would have said so), and it still prepares its statements."""
    return not (connection.closed or select.select([connection], [], [], 0)[0]) and bool(connection.prepare_threshold)


_connect, _close = Connector.connect, PostgresDatabase.close


@pytest.fixture(scope="session", autouse=True)
def warm() -> Generator[WarmConnections]:
    def connect_or_take(connector: Connector) -> OwnConnection:
        return made.take(connector) or _connect(connector)

    def keep_and_close(database: PostgresDatabase) -> None:
        database._notifier.flush()  # it sends on one of them
        made.keep(database._pool)
        _close(database)

    with closing(WarmConnections()) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connector, "connect", connect_or_take)
        patch.setattr(PostgresDatabase, "close", keep_and_close)
        yield made
    close_prompts()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are opened and closed as they are by users: for tests about what calls leave behind."""
    monkeypatch.setattr(Connector, "connect", _connect)
    monkeypatch.setattr(PostgresDatabase, "close", _close)


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


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a test, as pytest's own fixture makes it, which looks at the folders of all tests before it."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Generator[str]:
    """An address of each database in turn, with its tables."""
    if request.param == "sqlite":
        path = request.getfixturevalue("tmp_path") / "jobs.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)  # its mode too
        yield f"sqlite:///{path}"
        return
    yield request.getfixturevalue("shared_url")


@pytest.fixture
def shared_url(postgres_server: str, schemas: Schemas, warm: WarmConnections) -> Generator[str]:
    """An address on the server, with its tables; connections to it are used by later tests."""
    schema = schemas.take()
    url = f"{postgres_server}&schema={schema}"
    warm.share(url)
    yield url
    schemas.give_back(schema)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """An address of each database in turn, where no table is made yet."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'jobs.db'}"
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
    with closing(open_backend(url, clock=clock)) as opened:
        yield opened
