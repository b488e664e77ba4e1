"""A worker that cannot work says so within two beats, for as long as that lasts, and is well again by itself.

Every case is a worker of its own on a file or schema of its own. They run side by side, because they mostly wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.faults import postgres_proxy, sqlite_driver
from tests.faults.count import Fault, Figures
from tests.faults.databases import FaultyDatabase, FaultyPostgres, FaultySqlite, in_memory
from tests.faults.worker import WorkerUnderTest, until

LEASE = 3.0
BEAT = LEASE / 3
LASTS = 1.5 * LEASE
AGAIN = 10.0  # seconds, after which all must be well again
RED_BY = 2.5 * BEAT  # two, and what it takes to see it; the lease itself ends after three


class Case(NamedTuple):
    """What fails, from the first such call on until it is over."""

    name: str
    fault: Fault
    only: Callable[[str], bool] = lambda _: True
    is_cut: bool = False  # connections end first


def writes(sql: str) -> bool:
    return any(word in sql for word in ("INSERT", "UPDATE dray", 'UPDATE "', "DELETE", "BEGIN IMMEDIATE"))


def begins(sql: str) -> bool:
    return "BEGIN IMMEDIATE" in sql


def claims(sql: str) -> bool:
    return "state = 'running', worker_id" in sql


def settles(sql: str) -> bool:
    return "state = 'completed', finished_at" in sql or "finished_age_us" in sql


def beats(sql: str) -> bool:
    return "SET last_seen_at" in sql and "lease_until" in sql


SQLITE = (
    Case("nothing can be read or written", sqlite_driver.IO),
    Case("the disk is full", sqlite_driver.FULL_UNDONE, writes),
    Case("the file is read-only", sqlite_driver.READ_ONLY, writes),
    Case("another keeps the write lock", sqlite_driver.BUSY, begins),
    Case("claims fail", sqlite_driver.IO, claims),
    Case("outcomes cannot be written", sqlite_driver.IO, settles),
    Case("beats fail", sqlite_driver.IO, beats),
)
POSTGRES = (
    Case("the server is away", postgres_proxy.CUT_BEFORE, is_cut=True),
    Case("the server lets no one in", postgres_proxy.TOO_MANY, is_cut=True),
    Case("the server only reads", postgres_proxy.READ_ONLY_SERVERS, is_cut=True),
    Case("the disk is full", postgres_proxy.FULL, writes),
    Case("claims take too long", postgres_proxy.CANCELLED, claims),
    Case("outcomes cannot be written", postgres_proxy.LOCKED, settles),
    Case("beats fail", postgres_proxy.CANCELLED, beats),
)


def fail_for_a_while(tested: WorkerUnderTest, case: Case, figures: Figures) -> list[str]:
    """Red while it lasts, green before and after, and the job is done in the end; what was otherwise."""
    database, problems = tested.database, list[str]()
    assert tested.is_green
    database.count.arm(case.fault, 1, lasting=case.fault is not postgres_proxy.READ_ONLY_SERVERS, only=case.only)
    began = time.monotonic()
    try:
        if case.is_cut:
            database.cut_all()
        job = tested.direct.enqueue("plain", {"label": case.name})
        until(lambda: database.count.injected, "the fault", tested.describe)
        took: float | None = None
        green: float = 0.0  # seconds, after it was red
        while (now := time.monotonic()) < began + LASTS:
            if tested.is_red:
                took = now - database.count.first_at if took is None else took
            elif took is not None:
                green += 0.01
            time.sleep(0.01)
        if took is None or took > RED_BY:
            problems.append(
                f"red after {took if took is None else round(took, 2)} s; {RED_BY} s are two beats and a half"
            )
        if green:
            problems.append(f"green again for {green:.2f} s while it could not work")
    finally:
        figures.add(case.name, str(case.fault), database.count.disarm())
    for what, look in (
        ("green", lambda: tested.is_green),
        ("the job to be done", lambda: job.refresh().state == "completed" and tested.bodies.ran[case.name] >= 1),
    ):
        try:
            until(look, what, tested.describe, seconds=AGAIN)
        except AssertionError as error:
            problems.append(str(error)[:200])
    if not problems:
        tested.is_well()
        tested.check_slots()
    return problems


def side_by_side(databases: Sequence[FaultyDatabase], cases: Sequence[Case], figures: Figures) -> None:
    def scenario(database: FaultyDatabase, case: Case) -> list[str]:
        tested = WorkerUnderTest(database, lease=LEASE)
        try:
            tested.start()
            return fail_for_a_while(tested, case, figures)
        finally:
            tested.close()

    with ThreadPoolExecutor(len(cases)) as threads:
        runs = [threads.submit(scenario, database, case) for database, case in zip(databases, cases, strict=True)]
    problems = [
        f"- {case.name}: {problem}" for case, run in zip(cases, runs, strict=True) for problem in run.result()
    ]
    assert not problems, "health was not what it should be:\n" + "\n".join(problems)


@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_a_worker_that_cannot_work_is_red_within_two_beats_and_green_again_by_itself(
    kind: str, request: pytest.FixtureRequest
) -> None:
    is_file = kind == "SQLite"
    cases = SQLITE if is_file else POSTGRES
    figures = Figures(f"faults that last, {kind}")
    with ExitStack() as stack:
        databases: list[FaultyDatabase] = []
        for _ in cases:
            if is_file:
                database: FaultyDatabase = FaultySqlite(stack.enter_context(in_memory()))
            else:
                schemas: Any = request.getfixturevalue("schemas")
                schema = schemas.take()
                stack.callback(schemas.give_back, schema)
                database = FaultyPostgres(request.getfixturevalue("postgres_server"), schema)
            stack.callback(database.close)
            databases.append(database)
        side_by_side(databases, cases, figures)
    figures.print()
