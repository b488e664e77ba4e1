"""What a second request with a unique key does to the first job: nothing, replace its arguments, or reschedule it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from dray.backends.database import Session
from dray.backends.store import insert
from dray.errors import ConfigError, GraphError
from dray.instants import HOUR, MINUTE, SECOND
from dray.model.job import Enqueued
from dray.model.new_job import NewJob
from tests.backends import beside
from tests.backends.world import World

LARGE = '{"text":"' + "x" * 3_000 + '"}'


def ask(world: World, on_conflict: str, **options: Any) -> Enqueued:
    """Makes a second request for the key."""
    (answer,) = world.backend.jobs.enqueue([world.new(unique_key="k", on_conflict=on_conflict, **options)])
    return answer


def kept(holder: str) -> Enqueued:
    return Enqueued(holder, duplicate=True)


def replaced(holder: str) -> Enqueued:
    return Enqueued(holder, duplicate=True, replaced=True)


# Replace


def test_a_job_that_has_not_started_takes_over_what_is_to_be_done(world: World) -> None:
    holder = world.enqueue(unique_key="k", args='{"n":1}', tags=("old",), delay_us=HOUR, expires_us=2 * HOUR)
    before = world.job(holder)
    wanted = {
        "args": '{"n":2}',
        "priority": 7,
        "max_attempts": 9,
        "max_crashes": 8,
        "timeout": 2.5,
        "name": "second",
        "description": "words",
        "tags": ("new", "newer"),
        "headers": '{"trace":"00-1-2-01"}',
        "retry": '{"policy":["fixed",5.0]}',
        "keep_us": 60_000_000,
    }

    assert ask(world, "replace", **wanted, delay_us=SECOND, unique_us=HOUR, queue="other") == replaced(holder)

    after = world.job(holder)
    assert {name: getattr(after, name) for name in wanted} == wanted
    same = ("queue", "state", "run_at", "expires_at", "created_at", "unique_lock", "unique_until", "attempt", "claim")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert [job.id for job in world.backend.jobs.newest()] == [holder]


def test_what_the_second_leaves_out_is_left_out_afterwards(world: World) -> None:
    world.backend.queues.upsert("default", 4)
    holder = world.enqueue(unique_key="k", priority=9, timeout=1.0, name="first", tags=("x",))

    assert ask(world, "replace") == replaced(holder)

    job = world.job(holder)
    assert (job.priority, job.timeout, job.name, job.tags) == (4, None, None, ())


@pytest.mark.parametrize(("first", "second"), [("{}", LARGE), (LARGE, "{}"), (LARGE, LARGE[:-2] + 'y"}')])
def test_arguments_of_any_size_replace_each_other(world: World, first: str, second: str) -> None:
    holder, worker = world.enqueue(unique_key="k", args=first), world.worker()

    assert ask(world, "replace", args=second) == replaced(holder)

    assert world.job(holder).args == second
    assert world.claim_one(worker).args == second


def test_a_replaced_job_runs_by_its_new_priority(world: World) -> None:
    holder, other = world.enqueue(unique_key="k"), world.enqueue(priority=1)
    ask(world, "replace", priority=2)

    assert [claim.id for claim in world.claim(world.worker(), 2)] == [holder, other]


@pytest.mark.parametrize("on_conflict", ["replace", "reschedule"])
@pytest.mark.parametrize("scheduled", [True, False], ids=["scheduled", "queued"])
def test_a_job_that_waits_for_another_attempt_counts_as_not_started(
    world: World, on_conflict: str, scheduled: bool
) -> None:
    holder, worker = world.enqueue(unique_key="k"), world.worker()
    world.fail(worker, world.claim_one(worker), delay_us=HOUR if scheduled else 0)

    assert ask(world, on_conflict, args='{"n":2}') == replaced(holder)

    assert world.job(holder).attempt == 1
    if on_conflict == "reschedule":
        assert world.claim_one(worker).attempt == 2


@pytest.mark.parametrize("on_conflict", ["replace", "reschedule"])
def test_a_running_holder_is_kept(world: World, on_conflict: str) -> None:
    holder, worker = world.enqueue(unique_key="k", args='{"n":1}'), world.worker()
    claim = world.claim_one(worker)
    before = world.job(holder)

    assert ask(world, on_conflict, args='{"n":2}', delay_us=HOUR) == kept(holder)

    assert world.job(holder) == before
    assert world.complete(worker, claim) == ([], [], [], [], [])


@pytest.mark.parametrize("on_conflict", ["replace", "reschedule"])
def test_an_ended_holder_whose_window_is_open_is_kept(world: World, on_conflict: str) -> None:
    holder, worker = world.enqueue(unique_key="k", unique_us=HOUR), world.worker()
    world.complete(worker, world.claim_one(worker))
    before = world.job(holder)

    assert ask(world, on_conflict, args='{"n":2}') == kept(holder)

    assert world.job(holder) == before


@pytest.mark.parametrize("on_conflict", ["replace", "reschedule"])
def test_a_key_that_is_free_gives_a_new_job(world: World, on_conflict: str) -> None:
    first, worker = world.enqueue(unique_key="k", unique_scope="queued"), world.worker()
    world.claim_one(worker)

    answer = ask(world, on_conflict)

    assert (answer.duplicate, answer.replaced, answer.id != first) == (False, False, True)


def test_the_arguments_of_another_task_replace_nothing(world: World) -> None:
    holder = world.enqueue("task", unique_key="k", args='{"n":1}')

    answer = world.backend.jobs.enqueue([world.new("other", unique_key="k", on_conflict="replace", args='{"m":2}')])

    assert answer == [kept(holder)]
    assert world.job(holder).args == '{"n":1}'


# Reschedule


@pytest.mark.parametrize(
    ("first", "second", "state", "runs_in"),
    [
        ({"delay_us": HOUR}, {}, "queued", 0),
        ({"delay_us": HOUR}, {"delay_us": MINUTE}, "scheduled", MINUTE),
        ({}, {"delay_us": MINUTE}, "scheduled", MINUTE),
        ({"delay_us": HOUR}, {"run_at": 0}, "queued", None),
    ],
    ids=["to now", "sooner", "later", "to the past"],
)
def test_a_job_that_has_not_started_takes_over_when(
    world: World, first: dict[str, Any], second: dict[str, Any], state: str, runs_in: int | None
) -> None:
    holder = world.enqueue(unique_key="k", args='{"n":1}', priority=3, **first)
    world.clock.advance(SECOND)

    assert ask(world, "reschedule", args='{"n":2}', priority=9, **second) == replaced(holder)

    job = world.job(holder)
    assert (job.state, job.args, job.priority) == (state, '{"n":1}', 3)
    assert job.run_at == (0 if runs_in is None else world.clock.now() + runs_in)


def test_a_job_moved_again_and_again_runs_once_the_requests_have_ceased(world: World) -> None:
    holder, worker = world.enqueue(unique_key="k", delay_us=10 * SECOND), world.worker()
    for _ in range(5):
        world.clock.advance(9 * SECOND)
        assert ask(world, "reschedule", delay_us=10 * SECOND) == replaced(holder)
        assert world.claim(worker) == []

    world.clock.advance(10 * SECOND)

    assert world.claim_one(worker).id == holder


def test_the_expiry_moves_with_the_time(world: World) -> None:
    holder = world.enqueue(unique_key="k", delay_us=SECOND, expires_us=MINUTE)
    world.clock.advance(SECOND)

    ask(world, "reschedule", delay_us=HOUR, expires_us=2 * HOUR)
    assert world.job(holder).expires_at == world.clock.now() + 2 * HOUR
    ask(world, "reschedule", expires_at=world.clock.now() + 5)
    assert world.job(holder).expires_at == world.clock.now() + 5
    ask(world, "reschedule")
    assert world.job(holder).expires_at is None


def test_a_holder_that_waits_for_its_parents_goes_on_waiting(world: World) -> None:
    worker, parent = world.worker(), world.enqueue("parent")
    holder = world.enqueue(unique_key="k", parents=(parent,))

    assert ask(world, "reschedule", delay_us=HOUR) == replaced(holder)
    assert ask(world, "replace", args='{"n":2}') == replaced(holder)
    assert (world.job(holder).state, world.job(holder).args) == ("waiting", '{"n":2}')

    world.complete(worker, world.claim_one(worker, tasks=("parent",)))
    assert world.job(holder).state == "scheduled"


# Batches, graphs, repetition


def test_within_one_batch_the_last_word_holds(world: World) -> None:
    jobs = [
        world.new(unique_key="k", args='{"n":1}'),
        world.new(unique_key="k", args=LARGE, on_conflict="replace"),
        world.new(unique_key="k", args='{"n":3}', on_conflict="replace"),
        world.new(unique_key="k", args='{"n":4}'),
        world.new(unique_key="k", args='{"n":5}', on_conflict="reschedule", delay_us=MINUTE),
    ]

    answer = world.backend.jobs.enqueue(jobs)

    first = jobs[0].id
    assert answer == [
        Enqueued(first, duplicate=False),
        replaced(first),
        replaced(first),
        kept(first),
        replaced(first),
    ]
    assert (world.job(first).args, world.job(first).state) == ('{"n":3}', "scheduled")


def test_a_batch_changes_each_holder_by_its_own_request(world: World) -> None:
    holders = [world.enqueue(unique_key=f"k{n}") for n in range(20)]
    worker = world.worker()
    started = {claim.id for claim in world.claim(worker, 5)}

    answer = world.backend.jobs.enqueue(
        [world.new(unique_key=f"k{n}", args=f'{{"n":{n}}}', on_conflict="replace") for n in reversed(range(20))]
    )

    assert answer == [kept(i) if i in started else replaced(i) for i in reversed(holders)]
    assert [world.job(i).args for i in holders] == [
        "{}" if i in started else f'{{"n":{n}}}' for n, i in enumerate(holders)
    ]


def test_a_job_cannot_run_after_one_that_only_replaced_another(world: World) -> None:
    holder = world.enqueue(unique_key="k", args='{"n":1}')
    loser = world.new(unique_key="k", args='{"n":2}', on_conflict="replace")

    with pytest.raises(GraphError, match=holder):
        world.backend.jobs.enqueue([loser, world.new(parents=(loser.id,))])

    assert world.job(holder).args == '{"n":1}'


def test_a_request_repeated_after_a_lost_answer_replaces_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = world.enqueue(unique_key="k")
    new = world.new(unique_key="k", args='{"n":2}', on_conflict="replace")
    world.backend.jobs.enqueue([new])

    assert world.backend.jobs.enqueue([new]) == [replaced(holder)]
    assert world.job(holder).args == '{"n":2}'


def test_a_word_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_conflict must be one of keep, replace, reschedule"):
        NewJob(id="01900000-0000-7000-8000-000000000001", task="t", unique_key="k", on_conflict="drop")


# In a user's transaction


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
def test_a_replacement_stands_or_falls_with_the_users_transaction(world: World, url: str, commits: bool) -> None:
    holder = world.enqueue(unique_key="k", args="{}")
    with beside.connect(url) as user:
        new = [
            world.new(unique_key="k", args=LARGE, on_conflict="replace"),
            world.new(unique_key="k", on_conflict="reschedule", delay_us=HOUR),
        ]
        assert world.backend.jobs.enqueue(new, connection=user) == [replaced(holder)] * 2
        user.commit() if commits else user.rollback()

    job = world.job(holder)
    assert (job.args, job.state) == ((LARGE, "scheduled") if commits else ("{}", "queued"))


def test_a_job_that_somebody_is_replacing_is_not_claimed_with_its_old_arguments(world: World, url: str) -> None:
    holder, worker = world.enqueue(unique_key="k", args='{"n":1}'), world.worker()
    new = world.new(unique_key="k", args='{"n":2}', on_conflict="replace")
    with beside.connect(url) as user, ThreadPoolExecutor(1) as pool:
        world.backend.jobs.enqueue([new], connection=user)
        claiming = pool.submit(world.claim, worker)  # waits on SQLite, skips the row on PostgreSQL
        wait([claiming], beside.BLOCKED)
        user.commit()
        claimed = claiming.result() or world.claim(worker)

    assert [(claim.id, claim.args) for claim in claimed] == [(holder, '{"n":2}')]


@pytest.mark.parametrize("on_conflict", ["replace", "reschedule"])
def test_a_holder_that_is_found_and_ends_before_it_can_be_changed_gives_way_to_a_new_job(
    world: World, monkeypatch: pytest.MonkeyPatch, on_conflict: str
) -> None:
    holder = world.enqueue(unique_key="k", args='{"n":1}')
    change = insert._change

    def late(tx: Session, met: Any) -> set[str]:
        tx.rows("job_cancel", ids=[holder])
        return change(tx, met)

    monkeypatch.setattr(insert, "_change", late)
    answer = ask(world, on_conflict, args='{"n":2}')

    assert (answer.duplicate, answer.id != holder) == (False, True)
    assert [(world.job(i).state, world.job(i).args) for i in (holder, answer.id)] == [
        ("cancelled", '{"n":1}'),
        ("queued", '{"n":2}'),
    ]


def test_many_that_replace_one_job_at_once_leave_it_whole(world: World, url: str) -> None:
    holder = world.enqueue(unique_key="k", args='{"n":-1}')

    def replace(n: int) -> Enqueued:
        size = "x" * 2_000 if n % 2 else ""
        return ask(world, "replace", args=f'{{"n":{n},"size":"{size}"}}', name=f"n{n}")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(replace, range(40)))

    assert answers == [replaced(holder)] * 40
    job = world.job(holder)
    assert f'"n":{(job.name or "")[1:]},' in (job.args or "")
    assert beside.count(url, "dray_jobs") == 1
