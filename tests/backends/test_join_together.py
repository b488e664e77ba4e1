"""A job stands or falls with the data that was written beside it: every kind of user connection, every end of a
transaction."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.backends import open_backend
from dray.clock import Ids
from tests.backends import beside, together, users
from tests.backends.together import Scenario
from tests.backends.world import World
from tests.manual_clock import ManualClock


def stands_or_falls(world: World, url: str, kind: str, scenario: Scenario) -> None:
    for table in together.TABLES:
        beside.rows(url, table)
    parent = world.enqueue("parent")

    async def enqueue(n: int, connection: Any, *, held: bool = False) -> object:
        new = world.new("order", args=json.dumps({"n": n}), parents=(parent,) if held else ())
        return await world.backend.jobs.enqueue_async([new], connection=connection)

    expected = asyncio.run(
        together.play(scenario, lambda: users.ALL[kind](url), enqueue, is_sqlite=url.startswith("sqlite"))
    )

    jobs = [json.loads(job.args or "{}")["n"] for job in world.backend.jobs.newest() if job.task == "order"]
    orders = [row[0] for row in beside.rows(url, "SELECT n FROM orders ORDER BY n")]
    assert (orders, sorted(jobs)) == (expected, expected)


@pytest.mark.parametrize("kind", users.ALL)
@pytest.mark.parametrize("scenario", together.EACH)
def test_a_job_stands_or_falls_with_its_order(world: World, url: str, kind: str, scenario: str) -> None:
    stands_or_falls(world, url, kind, together.EACH[scenario])


@pytest.mark.parametrize("kind", users.ASYNC)
@pytest.mark.parametrize("scenario", together.ASYNC)
def test_so_it_does_when_the_program_is_cancelled(world: World, url: str, kind: str, scenario: str) -> None:
    stands_or_falls(world, url, kind, together.ASYNC[scenario])


@pytest.mark.parametrize("kind", users.ALL)
def test_so_it_does_when_sqlite_ends_the_transaction_itself(
    tmp_path: Path, clock: ManualClock, ids: Ids, kind: str
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with closing(open_backend(url, clock=clock)) as backend:
        backend.migrate()
        stands_or_falls(World(backend, clock, ids), url, kind, together.undone_by_sqlite_itself)
