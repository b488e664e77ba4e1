"""Lists of a table that is too large to scan: every search strategy finds the same jobs."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.backends import Backend, open_backend
from dray.backends.sqlite import SqliteDatabase, session
from dray.backends.statements import Catalogue
from dray.backends.store.jobs import Filter
from dray.instants import SECOND
from dray.model.job import FINAL, LIVE, Job, State
from tests.backends.raw import transaction
from tests.manual_clock import ManualClock

STATES = list(State)
TASKS = ["mail.send", "report"]
QUEUES = ["default", "mail", "slow"]
JOBS = 120


@pytest.fixture
def backend(url: str, clock: ManualClock) -> Iterator[Backend]:
    """A hundred jobs of every kind: first all states mixed, then a long run of completed ones."""
    opened = open_backend(url, clock=clock)
    opened.migrate()
    rows = [_row(number, clock.now()) for number in range(JOBS)]
    instant = "?" if isinstance(opened.db, SqliteDatabase) else "timestamptz 'epoch' + ? * interval '1 microsecond'"
    marks = ", ".join(instant if name.endswith("_at") else "?" for name in rows[0])
    with transaction(opened) as execute:
        for row in rows:
            execute(f"INSERT INTO dray_jobs ({', '.join(row)}) VALUES ({marks})", *row.values())
    yield opened
    opened.close()


def _row(number: int, now: int) -> dict[str, Any]:
    state = STATES[number % len(STATES)] if number < JOBS // 2 else State.COMPLETED
    at = now - (JOBS - number) * SECOND
    reasons = {State.FAILED: ["error", "timeout"], State.CANCELLED: ["user", "expired"]}
    return {
        "id": f"01a1e083-5ed4-704a-ae25-0000{number:08x}",
        "task": TASKS[number % 2],
        "queue": QUEUES[number % 5 % 3],
        "state": state,
        "reason": reasons[state][number % 2] if state in reasons else None,
        "priority": 0,
        "run_at": at,
        "max_attempts": 3,
        "max_crashes": 3,
        "worker_id": "01a1e083-5ed4-704a-ae25-a11872c7f5d4" if state == State.RUNNING else None,
        "tags": '["x", "a\\"b"]' if number % 7 == 3 else None,
        "created_at": at,
        "updated_at": at,
        "started_at": at if state == State.RUNNING else None,
        "finished_at": at if state in FINAL else None,
    }


def fits(job: Job, fit: Filter) -> bool:
    return (
        job.state in fit.states
        and fit.reason in {None, job.reason}
        and fit.queue in {None, job.queue}
        and fit.task in {None, job.task}
        and (fit.tag is None or fit.tag in job.tags)
        and (fit.since is None or job.created_at >= fit.since)
    )


SETS = [
    *(frozenset({state}) for state in State),
    *(frozenset({State.FAILED, State.CANCELLED}), frozenset(LIVE), frozenset(FINAL), frozenset(State)),
    frozenset({State.QUEUED, State.COMPLETED}),
]


@pytest.mark.parametrize(("few", "near"), [(0, 0), (0, 30), (5, 10), (1000, 1000)])
def test_every_filter_finds_the_same_by_every_way(
    backend: Backend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, few: int, near: int
) -> None:
    monkeypatch.setattr(session, "_FEW", few)
    monkeypatch.setattr(session, "_NEAR", near)
    everything = sorted(
        backend.jobs.get([_row(n, 0)["id"] for n in range(JOBS)]), key=lambda job: job.id, reverse=True
    )
    assert len(everything) == JOBS
    others: list[dict[str, Any]] = [{}, {"tag": "x"}, {"tag": 'a"b'}, {"tag": "a"}, {"reason": "error"}]
    others.append({"since": clock.now() - 70 * SECOND})

    for states, queue, task in itertools.product(SETS, [None, "slow", "nosuch"], [None, "report"]):
        for more in others:
            fit = Filter(states=states, queue=queue, task=task, **more)
            expected = [job.id for job in everything if fits(job, fit)]
            found = [job.id for job in backend.jobs.newest(fit, limit=7)]
            assert found == expected[:7], fit
            if len(found) == 7:
                assert [job.id for job in backend.jobs.newest(fit, limit=7, before=found[-1])] == expected[7:14], fit


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("wide") / "jobs.db"
    backend = open_backend(str(path))
    backend.migrate()
    backend.close()
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


PLANS = {
    "list_count": [
        "dray_jobs_waiting",
        "dray_jobs_due",
        "dray_jobs_ready",
        "dray_jobs_running",
        "dray_jobs_finished",
    ],
    "list_few": ["dray_jobs_waiting", "dray_jobs_due", "dray_jobs_ready", "dray_jobs_running", "dray_jobs_finished"],
    "list_failed": ["dray_jobs_failed (id<?)"],
    "list_tagged": ["dray_jobs_tagged (id<?)"],
    "list_near": ["COVERING INDEX sqlite_autoindex_dray_jobs_1 (id<?)"],
    "job_list": ["sqlite_autoindex_dray_jobs_1 (id>? AND id<?)"],
}


@pytest.mark.parametrize("name", PLANS)
def test_a_list_reads_an_index_and_no_more_than_it_has_to(tables: sqlite3.Connection, name: str) -> None:
    statement = Catalogue("sqlite")[name]
    values = statement.arranged((None,) * len(statement.parameters))
    found = tables.execute(f"EXPLAIN QUERY PLAN {statement.text}", values).fetchall()
    plan = [row[3] for row in found]

    for index in PLANS[name]:
        assert any(index in step for step in plan), plan
    assert not [step for step in plan if step.startswith(("SCAN dray_jobs", "SCAN j")) and "INDEX" not in step], plan
    if name not in {"list_few", "list_count"}:
        assert not [step for step in plan if "ORDER BY" in step], plan
