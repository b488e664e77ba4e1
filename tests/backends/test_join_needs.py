"""What joining a user's transaction requires, and which packages it does not import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dray.backends import open_backend
from dray.clock import Ids
from dray.errors import SchemaMissing
from dray.model.new_job import NewJob
from tests.backends import beside, users
from tests.manual_clock import ManualClock


@pytest.mark.parametrize("kind", users.ALL)
def test_where_tables_may_not_be_made_the_command_that_makes_them_is_named(
    empty_url: str, kind: str, ids: Ids, clock: ManualClock
) -> None:
    is_sqlite = empty_url.startswith("sqlite")
    if is_sqlite:
        beside.rows(empty_url, "CREATE TABLE orders (n integer)")

    async def program() -> None:
        async with users.ALL[kind](empty_url) as user:
            with pytest.raises(
                SchemaMissing, match=r"app\.init\(\).* `dray db init(` with DRAY_URL| --url sqlite:///)"
            ):
                await backend.jobs.enqueue_async([NewJob(id=ids.new(), task="t")], connection=user.connection)
            await user.rollback()

    with closing(open_backend(empty_url, clock=clock, create=False if is_sqlite else None)) as backend:
        asyncio.run(program())
        assert backend.schema_version() is None


@pytest.mark.parametrize("kind", users.ALL)
def test_tables_are_made_before_a_users_transaction_and_not_in_it(
    empty_url: str, kind: str, ids: Ids, clock: ManualClock
) -> None:
    if empty_url.startswith("sqlite"):
        beside.rows(empty_url, "CREATE TABLE orders (n integer)")
    kept = ids.new()

    async def program() -> None:
        async with users.ALL[kind](empty_url) as user:
            await backend.jobs.enqueue_async([NewJob(id=ids.new(), task="t")], connection=user.connection)
            await user.rollback()
            assert backend.schema_version() is not None
            await backend.jobs.enqueue_async([NewJob(id=kept, task="t")], connection=user.connection)
            await user.commit()

    with closing(open_backend(empty_url, clock=clock, create=True)) as backend:
        asyncio.run(program())
        assert [job.id for job in backend.jobs.newest()] == [kept]


def test_nothing_is_loaded_that_the_program_has_not(tmp_path: Path) -> None:
    program = """
import sqlite3, sys
from dray.backends import open_backend
from dray.clock import Ids, SystemClock
from dray.model.new_job import NewJob
backend, ids = open_backend(sys.argv[1]), Ids(SystemClock())
backend.migrate()
user = sqlite3.connect(sys.argv[1])
backend.jobs.enqueue([NewJob(id=ids.new(), task="t")], connection=user)
user.commit()
print(*sorted({"sqlalchemy", "aiosqlite", "psycopg", "asyncio"} & sys.modules.keys()), "none")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "jobs.db")], capture_output=True, text=True, check=True
    )

    assert done.stdout == "none\n"
