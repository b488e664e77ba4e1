"""Both databases for tests beside real frameworks, with the server of tests/server.py."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.backends import open_backend
from tests.schemas import Schemas
from tests.server import TEMPLATE, Server, in_database, in_memory

_numbers = itertools.count(1)
_SERVER = pytest.StashKey[Server]()


# What takes longest comes first: last, it would be waited for.
_LONG = tuple(
    f"tests_integrations/{name}.py"
    for name in (
        *("django/test_djangos_own", "django/test_runners", "django/test_commands", "mcp/test_transports"),
        *("django/test_servers", "connections/test_kinds", "telemetry/test_page", "django/test_docs"),
        *("fastapi/test_lifespan", "fastapi/test_transaction"),
    )
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, file in enumerate(_LONG) if item.nodeid.startswith(file)), len(_LONG)))


def pytest_configure(config: pytest.Config) -> None:
    """One server for the whole run, before the processes start that use it."""
    for folder in in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))
    if config.getoption("tx", None) and not config.getoption("collectonly"):
        config.stash[_SERVER] = _start_server()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres"] = node.config.stash[_SERVER].url


def pytest_unconfigure(config: pytest.Config) -> None:
    if (server := config.stash.get(_SERVER, None)) is not None:
        os.environ.pop(TEMPLATE, None)
        server.remove()


def _start_server() -> Server:
    server = Server("max_connections=300")
    os.environ[TEMPLATE] = str(server.template)
    return server


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    """The address of a database of this process's own, on the PostgreSQL of the whole run."""
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
def sqlite_url(tmp_path: Path) -> str:
    """A file that is not there yet."""
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def postgres_url(postgres_server: str) -> Generator[str]:
    """An empty schema; its tables are not made yet."""
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    yield f"{postgres_server}&schema={schema}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A new, empty database, of each kind."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(scope="session")
def schemas(postgres_server: str) -> Generator[Schemas]:
    with closing(Schemas(postgres_server)) as made:
        yield made


@pytest.fixture
def made_postgres_url(schemas: Schemas) -> Generator[str]:
    """A schema with empty tables, which later tests use again."""
    schema = schemas.take()
    yield f"{schemas.server}&schema={schema}"
    schemas.give_back(schema)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    with closing(open_backend(f"sqlite:///{path}")) as backend:
        backend.migrate()
    return path


@pytest.fixture
def made_sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A file with empty tables."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'jobs.db')}"


@pytest.fixture(params=["sqlite", "postgres"])
def made_url(request: pytest.FixtureRequest) -> str:
    """As `url`, with empty tables: making them is most of what a small test takes."""
    return request.getfixturevalue(f"made_{request.param}_url")


@pytest.fixture
def postgres_database(postgres_server: str) -> Generator[str]:
    """A database without tables: SQLAlchemy knows nothing of the schema in Dray's addresses."""
    name = f"shop_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield in_database(postgres_server, name).replace("postgresql:", "postgresql+psycopg:")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=["sqlite", "postgres"])
def shop_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One address for Dray and for SQLAlchemy, as examples have it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    return request.getfixturevalue("postgres_database")
