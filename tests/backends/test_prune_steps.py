"""Pruning does not block other writers: each transaction is limited in rows of all tables and in time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from dray.backends import Backend, open_backend
from dray.backends.database import Session
from dray.backends.store import history as prune_module
from dray.backends.store import jobs as jobs_module
from dray.backends.store.history import Pruned, _Pruning
from dray.clock import Ids
from dray.instants import MILLISECOND, SECOND
from dray.model.retention import STEP_US, Budget, Retention
from dray.model.workflow import Workflow
from dray.ops import pruning
from tests.backends import beside, raw
from tests.backends.world import World
from tests.manual_clock import ManualClock

AT_ONCE = Retention(0, 0, 0)
TABLES = ("dray_jobs", "dray_logs", "dray_attempts", "dray_edges")
SMALL = 100


def cancelled(world: World, count: int, **options: Any) -> list[str]:
    ids = [each.id for each in world.backend.jobs.enqueue([world.new(**options) for _ in range(count)])]
    world.backend.jobs.cancel(ids)
    world.clock.advance(SECOND)
    return ids


def say(world: World, ids: list[str], lines: int) -> None:
    with raw.transaction(world.backend) as execute:
        for job_id in ids:
            execute(
                "INSERT INTO dray_logs (job_id, claim, at, level, logger, message) "
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                "SELECT j.id, 1, j.run_at, 'INFO', 'app', 'a line' FROM dray_jobs AS j CROSS JOIN n WHERE j.id = ?",
                lines,
                job_id,
            )


def rows(url: str) -> int:
    return sum(beside.count(url, table) for table in TABLES)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits transactions to a hundred rows."""
    for module in (prune_module, jobs_module):
        monkeypatch.setattr(module, "Budget", partial(Budget, rows=SMALL))
        monkeypatch.setattr(module, "STEP_ROWS", SMALL)


@pytest.fixture
def writes(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records one entry per write transaction."""
    made: list[int] = []
    write = backend.db.write

    def counting(work: Callable[[Session], Any], **options: Any) -> Any:
        made.append(1)
        return write(work, **options)

    monkeypatch.setattr(backend.db, "write", counting)
    return made


def steps(world: World, url: str, retention: Retention = AT_ONCE) -> list[tuple[Pruned, int]]:
    """Yields, for each step of a pass, how many rows of all tables it removed, counted on another connection."""
    seen: list[tuple[Pruned, int]] = []
    before = rows(url)
    for step in world.backend.history.prune_steps(retention):
        after = rows(url)
        seen.append((step, before - after))
        before = after
    return seen


# Rows


def test_a_transaction_removes_ten_thousand_rows_at_most_whichever_tables_they_are_in(
    world: World, url: str, writes: list[int]
) -> None:
    ids = cancelled(world, 25)
    say(world, ids, 1_000)
    writes.clear()

    seen = steps(world, url)

    assert [removed for _, removed in seen] == [step.rows for step, _ in seen]
    assert all(removed <= 10_000 for _, removed in seen)
    assert (len(seen), len(writes)) == (3, 3)
    assert sum(step.jobs for step, _ in seen) == 25
    assert rows(url) == 0


@pytest.mark.usefixtures("small")
def test_a_job_with_more_rows_than_a_transaction_goes_last_after_all_that_it_has(world: World, url: str) -> None:
    worker, job_id = world.worker(), world.enqueue(max_attempts=100)
    for _ in range(40):
        world.fail(worker, world.claim_one(worker))
    world.backend.jobs.cancel([job_id])
    world.clock.advance(SECOND)
    say(world, [job_id], 330)

    seen = steps(world, url)

    assert [removed for _, removed in seen] == [SMALL, SMALL, SMALL, 71]
    assert [step.jobs for step, _ in seen] == [0, 0, 0, 1]


@pytest.mark.usefixtures("small")
def test_light_jobs_beside_a_heavy_one_go_too(world: World, url: str) -> None:
    ids = [job_id for _ in range(5) for job_id in cancelled(world, 1)]  # one after the other: the oldest goes first
    say(world, ids[2:3], 250)

    seen = steps(world, url)

    assert all(removed <= SMALL for _, removed in seen)
    assert [step.jobs for step, _ in seen] == [2, 0, 3]
    assert rows(url) == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("wide", ["parent", "child"])
def test_the_edges_of_a_wide_graph_count(world: World, url: str, wide: str) -> None:
    if wide == "parent":
        parent = world.enqueue()
        many = world.backend.jobs.enqueue([world.new(parents=(parent,)) for _ in range(250)])
    else:
        many = world.backend.jobs.enqueue([world.new() for _ in range(250)])
        parent = world.enqueue(parents=tuple(each.id for each in many))
    world.backend.jobs.cancel([parent, *(each.id for each in many)])
    world.clock.advance(SECOND)

    seen = steps(world, url)

    # A job whose edges were deleted with their other ends has fewer rows than were counted.
    assert all(removed <= step.rows <= SMALL for step, removed in seen)
    assert sum(step.jobs for step, _ in seen) == 251
    assert rows(url) == 0


@pytest.mark.usefixtures("small")
def test_nothing_of_a_heavy_job_is_touched_that_a_live_child_needs(
    world: World, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent,) = cancelled(world, 1)
    say(world, [parent], 250)
    found = _Pruning._found

    def enqueued_meanwhile(*args: Any, **params: Any) -> Any:
        answer = found(*args, **params)
        if answer:
            world.enqueue(parents=(parent,), on_parent_failure="hold")
        return answer

    monkeypatch.setattr(_Pruning, "_found", enqueued_meanwhile)

    assert [step.rows for step in world.backend.history.prune_steps(AT_ONCE)] == [0]

    assert beside.count(url, "dray_logs") == 250


@pytest.mark.usefixtures("small")
def test_a_heavy_job_that_is_started_over_between_two_steps_is_left_alone(world: World, url: str) -> None:
    (job_id,) = cancelled(world, 1)
    say(world, [job_id], 250)
    going = world.backend.history.prune_steps(AT_ONCE)
    assert next(going).rows == SMALL

    assert world.backend.jobs.retry([job_id]) == [job_id]

    assert [step.rows for step in going] == [0]
    assert beside.count(url, "dray_logs") == 150
    assert world.job(job_id).state == "queued"


# Workflows


def workflow(world: World, jobs: int) -> str:
    made = Workflow(world.ids.new(), "etl", 0)
    new = [world.new(workflow_id=made.id, step=str(n)) for n in range(jobs)]
    world.backend.jobs.enqueue(new, workflow=made)
    world.backend.jobs.cancel([each.id for each in new])
    world.clock.advance(SECOND)
    return made.id


@pytest.mark.usefixtures("small")
def test_a_workflow_that_is_larger_than_a_transaction_goes_in_parts_and_its_name_with_the_last(
    world: World, url: str
) -> None:
    made = workflow(world, 250)
    going = world.backend.history.prune_steps(AT_ONCE)

    parts = [(step.jobs, world.backend.workflows.get(made) is not None) for step in going]

    assert parts == [(0, True), (100, True), (100, True), (50, False)]
    assert rows(url) == 0


@pytest.mark.usefixtures("small")
def test_many_small_workflows_go_together(world: World, writes: list[int]) -> None:
    made = [workflow(world, 10) for _ in range(15)]
    writes.clear()

    seen = list(world.backend.history.prune_steps(AT_ONCE))

    assert sum(step.jobs for step in seen) == 150
    assert all(step.rows <= SMALL + len(made) for step in seen)
    assert len(writes) == 2
    assert all(world.backend.workflows.get(each) is None for each in made)


def test_what_is_old_and_kept_is_passed_over_without_the_write_lock(
    world: World, url: str, writes: list[int]
) -> None:
    first = workflow(world, 40)
    raw.run(
        world.backend,
        "UPDATE dray_jobs SET state = 'queued', reason = NULL, finished_at = NULL "
        "WHERE workflow_id = ? AND step = '1'",
        first,
    )
    writes.clear()

    assert sum(step.rows for step in world.backend.history.prune_steps(AT_ONCE)) == 0

    assert (writes, rows(url)) == ([], 40)


# Time


class SlowClock(ManualClock):
    """Advances with every reading."""

    us = 0

    def steady(self) -> int:
        self._steady += self.us
        return self._steady


@pytest.fixture
def slow(url: str) -> Generator[World]:
    clock = SlowClock()
    backend = open_backend(url, clock=clock)
    backend.migrate()
    yield World(backend, clock, Ids(clock))
    backend.close()


def test_where_rows_take_long_a_transaction_is_over_after_about_fifty_milliseconds(slow: World) -> None:
    ids = cancelled(slow, 200)
    assert isinstance(slow.clock, SlowClock)
    slow.clock.us = 20 * MILLISECOND

    seen = list(slow.backend.history.prune_steps(AT_ONCE))

    assert [step.jobs for step in seen] == [77, 77, 46]
    assert all(step.us < STEP_US + 2 * slow.clock.us for step in seen)
    assert slow.backend.jobs.get(ids) == []


def test_where_one_statement_takes_too_long_it_is_the_only_one(slow: World) -> None:
    cancelled(slow, 60)
    assert isinstance(slow.clock, SlowClock)
    slow.clock.us = SECOND

    assert [step.jobs for step in slow.backend.history.prune_steps(AT_ONCE)] == [25, 25, 10]


# Manual pruning


@pytest.mark.usefixtures("small")
def test_whoever_prunes_by_hand_rests_between_two_transactions(
    world: World, writes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(world, 250)
    rests: list[float] = []
    monkeypatch.setattr(pruning.time, "sleep", rests.append)
    writes.clear()
    told: list[int] = []

    assert pruning.remove(world.backend, AT_ONCE, told.append) == 250

    assert told == [100, 200, 250]
    assert len(rests) == len(writes) == 3
    assert all(rest >= 0.005 for rest in rests)


@pytest.mark.usefixtures("small")
def test_jobs_that_are_deleted_by_hand_go_in_as_many_transactions_as_their_rows_need(
    world: World, url: str, writes: list[int]
) -> None:
    ids = cancelled(world, 6)
    say(world, ids, 40)
    say(world, ids[:1], 500)
    writes.clear()

    assert world.backend.jobs.delete(ids) == ids

    assert rows(url) == 0
    assert len(writes) == 4  # the large one alone, then two, two and one


def test_workers_are_forgotten_some_at_a_time(world: World) -> None:
    for _ in range(5):
        world.backend.workers.deregister(world.worker())
    world.clock.advance(SECOND)

    assert [world.backend.workers.prune(world.clock.now(), 2) for _ in range(4)] == [2, 2, 1, 0]
