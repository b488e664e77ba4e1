"""Whichever call fails while the tables are made: they are there whole, or not at all, and made by the next try."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.migrate import latest
from dray.clock import Ids, SystemClock
from dray.errors import DrayError
from dray.model.new_job import NewJob
from dray.ops.audit import audit
from tests.faults import postgres_proxy, sqlite_driver
from tests.faults.count import Count, Figures
from tests.faults.databases import deadline, in_memory
from tests.faults.trial import Trial, Way

_LONGEST = 6.0
_ids = Ids(SystemClock())
Addresses = Callable[[int], tuple[str, str]]


def run(addresses: tuple[str, str], count: Count, way: Way, at: int) -> int:
    """One run, on a database without tables."""
    faulty_url, direct_url = addresses
    is_first_use = at % 2 == 0
    error: DrayError | None = None
    count.arm(way.fault, at, lasting=way.is_lasting)
    with closing(open_backend(faulty_url, create=True, busy_timeout=0.1)) as faulty:
        try:
            with deadline(_LONGEST):
                make(faulty, is_first_use=is_first_use)
        except DrayError as raised:
            error = raised.with_traceback(None)
            error.__cause__ = error.__context__ = None
        finally:
            injected = count.disarm()
        with closing(open_backend(direct_url, create=False)) as direct, deadline(_LONGEST):
            assert direct.schema_version() in ({latest("sqlite")} if error is None else {None, latest("sqlite")})
            make(faulty, is_first_use=is_first_use)
            assert direct.schema_version() == latest("sqlite")
            assert len(direct.jobs.newest()) in {1, 2, 3}
            assert audit(direct, patience=0).broken == ()
    assert error is None or injected, error
    return injected


def make(backend: Backend, *, is_first_use: bool) -> None:
    """Makes the tables, as a command does or as the first enqueue does."""
    if not is_first_use:
        backend.migrate()
    backend.jobs.enqueue([NewJob(id=_ids.new(), task="task")])


@contextmanager
def files() -> Generator[tuple[Addresses, Count]]:
    count = Count()
    driver = sqlite_driver.Driver(count)
    with in_memory() as folder, driver.at_work():
        driver.watch(folder)

        def addresses(number: int) -> tuple[str, str]:
            assert len(driver.open_transactions()) == 0, "connections were left in a transaction"
            for file in folder.glob(f"{number - 1}.db*"):
                file.unlink()
            url = f"sqlite:///{folder / f'{number}.db'}"
            return url, url

        yield addresses, count


@contextmanager
def schemas_of(server: str) -> Generator[tuple[Addresses, Count]]:
    count = Count()
    proxy = postgres_proxy.Proxy(server, count)

    def addresses(number: int) -> tuple[str, str]:
        drop(number - 1)
        return f"{proxy.url}&schema=made_{number}", f"{server}&schema=made_{number}"

    def drop(number: int) -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '5s'")
            connection.execute(f"DROP SCHEMA IF EXISTS made_{number} CASCADE".encode())

    try:
        yield addresses, count
    finally:
        proxy.close()


@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_whichever_call_fails_while_the_tables_are_made(kind: str, request: pytest.FixtureRequest) -> None:
    is_file = kind == "SQLite"
    figures = Figures(f"faults while tables are made, {kind}")
    with files() if is_file else schemas_of(request.getfixturevalue("postgres_server")) as (addresses, count):
        runs = 0

        def run_one(way: Way, at: int) -> int:
            nonlocal runs
            runs += 1
            return run(addresses(runs), count, way, at)

        trial = Trial(f"migrate, {kind}", run_one, count, figures)
        faults = sqlite_driver.FAULTS if is_file else postgres_proxy.FAULTS
        lasting = sqlite_driver.IO if is_file else postgres_proxy.CUT_BEFORE
        trial.everywhere([*map(Way, faults), Way(lasting, is_lasting=True)])
        addresses(runs + 1)
    figures.print()
