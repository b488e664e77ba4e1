"""Completing a job in the user's own transaction: their writes and the completion commit or roll back together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from dray.backends import open_backend
from dray.backends.postgres import PostgresDatabase
from dray.errors import StaleClaim, StorageLocked
from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Demand
from dray.model.limit import Source, bounds_of
from dray.model.settlement import Settlement
from tests import verbs
from tests.backends import beside, raw, users
from tests.backends.users import User
from tests.backends.world import World

LARGE = '"' + "x" * 3_000 + '"'


@pytest.fixture(params=["driver", "Session", "async driver", "AsyncSession"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def orders(url: str, world: World) -> Callable[[], list[int]]:
    beside.rows(url, "CREATE TABLE orders (n integer)")
    return lambda: [row[0] for row in beside.rows(url, "SELECT n FROM orders ORDER BY n")]


class Held:
    """A job claimed by a worker."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.id = world.enqueue(**options)
        self.worker = world.worker()
        self.claim = world.claim_one(self.worker)

    def completion(self, result: str | None = None, *, keep_args: bool = True) -> Settlement:
        now = self.world.clock.steady()
        return model.completed(self.claim, now - SECOND, now, result, keep_args=keep_args)

    @property
    def state(self) -> str:
        return self.world.job(self.id).state


def run(world: World, url: str, kind: str, program: Callable[[User], Any]) -> None:
    async def opened() -> None:
        async with users.ALL[kind](url) as user:
            await program(user)

    asyncio.run(opened())


def test_it_is_completed_with_the_users_commit_and_not_before(
    world: World, url: str, kind: str, orders: Callable[[], list[int]]
) -> None:
    held = Held(world, args=LARGE)

    async def program(user: User) -> None:
        await user.order(1)
        completion = held.completion(LARGE, keep_args=False)
        has_children = await world.backend.work.complete_async(held.worker, completion, user.connection)
        assert (held.state, has_children) == ("running", False)
        await user.order(2)
        await user.commit()

    run(world, url, kind, program)

    job = world.job(held.id)
    assert (job.state, job.result, job.args, orders()) == ("completed", LARGE, None, [1, 2])
    assert (job.started_at, job.finished_at) == (world.clock.now() - SECOND, world.clock.now())


def test_a_rollback_leaves_the_job_in_its_workers_hands(
    world: World, url: str, kind: str, orders: Callable[[], list[int]]
) -> None:
    held = Held(world)

    async def program(user: User) -> None:
        await user.order(1)
        await world.backend.work.complete_async(held.worker, held.completion(), user.connection)
        await user.rollback()

    run(world, url, kind, program)

    assert (held.state, orders()) == ("running", [])
    assert world.complete(held.worker, held.claim).stale == []
    assert held.state == "completed"


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("rule", ["limit", "key_limit"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_it_keeps_its_slot_under_a_limit_until_the_users_commit(
    world: World, url: str, kind: str, rule: str, commits: bool
) -> None:
    world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {rule: 1}))
    held, other = Held(world, key="a"), world.worker()
    second = world.enqueue(key="a")
    demand = Demand(("default",), ("task",), 1)

    async def program(user: User) -> None:
        await user.order(1)
        await world.backend.work.complete_async(held.worker, held.completion(), user.connection)
        assert not world.backend.work.look(other, demand).is_ready
        assert claims_beside(world, url, other, demand) == []
        await (user.commit() if commits else user.rollback())

    run(world, url, kind, program)

    assert world.backend.work.look(other, demand).is_ready == commits
    assert [each.id for each in claims_beside(world, url, other, demand)] == [second] * commits
    if not commits:
        world.fail(held.worker, held.claim, delay_us=SECOND)
        assert [each.id for each in claims_beside(world, url, other, demand)] == [second]


def claims_beside(world: World, url: str, worker: str, demand: Demand) -> list[Claim]:
    """What a claim of another program takes: none while a transaction has the one write lock of a SQLite file."""
    with closing(open_backend(url, clock=world.clock, busy_timeout=0.05)) as backend:
        try:
            return verbs.claim(backend, worker, demand)
        except StorageLocked:
            assert url.startswith("sqlite")
            return []


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("why", ["rescued", "cancelled", "settled", "wrong claim", "wrong worker", "twice"])
def test_a_lost_claim_completes_nothing(world: World, url: str, kind: str, why: str) -> None:
    held = Held(world, max_attempts=5)
    worker, completion = held.worker, held.completion()
    if why == "rescued":
        world.bury(held.worker)
    elif why == "cancelled":
        verbs.settle(world.backend, held.worker, [model.cancelled(held.claim, 0, 0)])
    elif why == "settled":
        world.fail(held.worker, held.claim)
    elif why == "wrong claim":
        completion = completion._replace(claim=completion.claim + 1)
    elif why == "wrong worker":
        worker = world.worker()

    async def program(user: User) -> None:
        await user.order(1)
        if why == "twice":
            await world.backend.work.complete_async(worker, completion, user.connection)
        before = held.state
        with pytest.raises(StaleClaim, match=held.id):
            await world.backend.work.complete_async(worker, completion, user.connection)
        await user.rollback()
        assert held.state == before

    run(world, url, kind, program)


def test_after_a_lost_claim_the_transaction_is_still_the_users(
    world: World, url: str, kind: str, orders: Callable[[], list[int]]
) -> None:
    held = Held(world)
    world.bury(held.worker)

    async def program(user: User) -> None:
        await user.order(1)
        with pytest.raises(StaleClaim):
            await world.backend.work.complete_async(held.worker, held.completion(), user.connection)
        await user.order(2)
        await user.commit()

    run(world, url, kind, program)

    assert orders() == [1, 2]


def test_what_the_worker_settles_afterwards_finds_it_written_already(world: World, url: str) -> None:
    held = Held(world)
    with beside.connect(url) as user:
        world.backend.work.complete(held.worker, held.completion('"theirs"'), user)
        user.commit()

    settled = world.complete(held.worker, held.claim, '"late"')

    assert (settled.already, settled.stale) == ([held.id], [])
    assert world.job(held.id).result == '"theirs"'


def test_one_that_was_asked_to_stop_may_still_complete(world: World, url: str) -> None:
    held = Held(world)
    world.backend.jobs.cancel([held.id])
    with beside.connect(url) as user:
        world.backend.work.complete(held.worker, held.completion(), user)
        user.commit()

    assert held.state == "completed"


def test_children_are_freed_by_the_duty_after_the_commit(world: World, url: str, kind: str) -> None:
    held = Held(world)
    child = world.enqueue("child", parents=(held.id,))
    told: list[bool] = []

    async def program(user: User) -> None:
        told.append(await world.backend.work.complete_async(held.worker, held.completion(), user.connection))
        await user.commit()

    run(world, url, kind, program)
    assert (told, world.job(child).state) == ([True], "waiting")

    world.backend.graph.fan_out()

    assert world.job(child).state == "queued"
    assert not world.job(held.id).fanout_pending


def test_children_enqueued_in_the_same_transaction_are_freed_too(world: World, url: str) -> None:
    held = Held(world)
    child, later = world.new("child", parents=(held.id,)), world.new("child", parents=(held.id,))
    with beside.connect(url) as user:
        world.backend.jobs.enqueue([child], connection=user)
        assert world.backend.work.complete(held.worker, held.completion(), user)
        world.backend.jobs.enqueue([later], connection=user)
        user.commit()

    world.backend.graph.fan_out()

    assert [world.job(new.id).state for new in (child, later)] == ["queued", "queued"]


def test_a_worker_can_ask_which_jobs_its_bodies_have_completed(world: World, url: str) -> None:
    held, other = Held(world), Held(world)
    asked = [(each.id, each.claim.claim) for each in (held, other)]
    with beside.connect(url) as user:
        world.backend.work.complete(held.worker, held.completion(), user)
        before = world.backend.work.completed_by(held.worker, asked) if url.startswith("postgres") else set[str]()
        user.commit()

    assert before == set()
    assert world.backend.work.completed_by(held.worker, asked) == {held.id}
    assert world.backend.work.completed_by(other.worker, asked) == set()
    assert world.backend.work.completed_by(held.worker, [(held.id, held.claim.claim + 1)]) == set()


# On PostgreSQL, where other transactions may lock the row


def test_a_row_that_somebody_has_for_a_moment_is_waited_for(server: World, shared_url: str) -> None:
    # A settle leaves a locked row for the next batch; here that would look like a lost claim.
    held = Held(server)
    with ThreadPoolExecutor(1) as pool, beside.connect(shared_url) as user:
        with raw.job_held(server.backend, held.id):
            completing = pool.submit(server.backend.work.complete, held.worker, held.completion(), user)
            wait([completing], beside.BLOCKED)
            assert not completing.done()
        completing.result(10)
        user.commit()

    assert held.state == "completed"


def test_an_edge_that_the_users_old_snapshot_hides_is_not_forgotten(server: World, shared_url: str) -> None:
    held = Held(server)
    with beside.connect(shared_url) as user:
        assert isinstance(user, psycopg.Connection)
        user.isolation_level = IsolationLevel.REPEATABLE_READ
        user.execute("SELECT 1 FROM dray_jobs").fetchall()
        child = server.enqueue("child", parents=(held.id,))
        assert server.backend.work.complete(held.worker, held.completion(), user)
        user.commit()

    server.backend.graph.fan_out()

    assert server.job(child).state == "queued"
    assert not server.job(held.id).fanout_pending


def test_the_commit_wakes_those_who_wait_for_the_result(server: World, shared_url: str) -> None:
    held = Held(server)
    assert isinstance(server.backend.db, PostgresDatabase)
    channel = server.backend.db._channels.done
    with psycopg.connect(shared_url.partition("&schema")[0], autocommit=True) as listener:
        listener.execute(f'LISTEN "{channel}"'.encode())
        with beside.connect(shared_url) as user:
            server.backend.work.complete(held.worker, held.completion(), user)
            user.commit()

        assert [note.channel for note in listener.notifies(timeout=5, stop_after=1)] == [channel]
