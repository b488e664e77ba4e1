"""Lists and statistics: every filter, every page, and counts that add up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.backends.store.jobs import Filter
from dray.instants import HOUR, MINUTE, SECOND
from dray.model import settlement as model
from dray.model.job import Reason, State, states_named
from dray.model.workflow import Tally, Workflow, workflow_state
from tests import verbs
from tests.backends.world import World


def listed(world: World, fit: Filter | None = None, **options: Any) -> list[str]:
    return [job.id for job in world.backend.jobs.newest(fit, **options)]


def settle(world: World, task: str, reason: Reason | None = None) -> str:
    """Ends the only job of a task: completed, or failed with a reason."""
    worker = world.worker()
    claim = world.claim_one(worker, tasks=(task,))
    now = world.clock.steady()
    ended = model.completed(claim, now, now)
    if reason is not None:
        ended = model.failed(claim, now, now, reason, "Error", "no", None)
    verbs.settle(world.backend, worker, [ended])
    return claim.id


# Pages


def test_the_newest_come_first(world: World) -> None:
    ids = [world.enqueue() for _ in range(5)]

    assert listed(world) == ids[::-1]
    assert listed(world, limit=2) == ids[:2:-1]


@pytest.mark.parametrize("size", [1, 7, 10, 40, 100])
def test_pages_give_every_job_exactly_once(world: World, size: int) -> None:
    rng = random.Random(size)
    ids = [world.enqueue(queue=rng.choice("abc"), priority=rng.randint(-5, 5)) for _ in range(40)]

    pages: list[list[str]] = []
    while page := listed(world, limit=size, before=pages[-1][-1] if pages else None):
        pages.append(page)

    assert [job_id for page in pages for job_id in page] == ids[::-1]
    assert {len(page) for page in pages[:-1]} <= {size}


def test_jobs_enqueued_between_two_pages_shift_nothing(world: World) -> None:
    ids = [world.enqueue() for _ in range(4)]
    first = listed(world, limit=2)
    world.enqueue()

    assert [*first, *listed(world, limit=2, before=first[-1])] == ids[::-1]


def test_pages_of_a_filter_give_every_job_that_fits_exactly_once(world: World) -> None:
    ids = [world.enqueue(queue="ab"[n % 2], tags=("t",) if n % 3 else ()) for n in range(30)]
    fit = Filter(queue="b", tag="t")

    pages: list[list[str]] = []
    while page := listed(world, fit, limit=4, before=pages[-1][-1] if pages else None):
        pages.append(page)

    wanted = [job_id for n, job_id in enumerate(ids) if n % 2 and n % 3]
    assert [job_id for page in pages for job_id in page] == wanted[::-1]


# Filters


def test_each_filter_alone(world: World) -> None:
    flow = Workflow(world.ids.new(), "etl", 0)
    world.backend.jobs.enqueue([], workflow=flow)
    queue = world.enqueue(queue="mail")
    task = world.enqueue("report")
    tagged = world.enqueue(tags=("x", "y"))
    of_flow = world.enqueue(workflow_id=flow.id, step="a")
    of_schedule = world.enqueue(schedule="nightly")
    world.clock.advance(SECOND)
    young = world.enqueue()

    for fit, wanted in [
        (Filter(queue="mail"), queue),
        (Filter(task="report"), task),
        (Filter(tag="x"), tagged),
        (Filter(tag="y"), tagged),
        (Filter(workflow_id=flow.id), of_flow),
        (Filter(schedule="nightly"), of_schedule),
        (Filter(since=world.clock.now()), young),
    ]:
        assert (fit, listed(world, fit)) == (fit, [wanted])
    assert len(listed(world, Filter(since=world.clock.now() - SECOND))) == 6
    assert listed(world, Filter(queue="none")) == listed(world, Filter(states=frozenset())) == []


def test_filters_add_up(world: World) -> None:
    wanted = world.enqueue("report", queue="mail", tags=("x",), schedule="nightly")
    others: list[dict[str, Any]] = [
        {"task": "other", "queue": "mail", "tags": ("x",), "schedule": "nightly"},
        {"task": "report", "queue": "other", "tags": ("x",), "schedule": "nightly"},
        {"task": "report", "queue": "mail", "tags": ("z",), "schedule": "nightly"},
        {"task": "report", "queue": "mail", "tags": ("x",), "schedule": "other"},
        {"task": "report", "queue": "mail", "tags": ("x",), "schedule": "nightly", "delay_us": HOUR},
    ]
    for other in others:
        world.enqueue(**other)

    fit = Filter(
        states=frozenset({State.QUEUED}),
        queue="mail",
        task="report",
        tag="x",
        schedule="nightly",
        since=world.clock.now(),
    )

    assert listed(world, fit) == [wanted]


@pytest.mark.parametrize("tag", ["x", "ünï ✓", 'quo"te', "50%", "a.b:c-d_e", "x y", "\u2028"])
def test_a_tag_is_found_whole_and_by_itself(world: World, tag: str) -> None:
    wanted = world.enqueue(tags=("other", tag))
    world.enqueue(tags=(f"{tag}{tag}", f" {tag}"))
    world.enqueue()

    assert listed(world, Filter(tag=tag)) == [wanted]


def test_every_word_for_a_state_finds_its_jobs(world: World) -> None:
    ids = {
        "completed": (world.enqueue("a"), settle(world, "a"))[0],
        "error": (world.enqueue("b"), settle(world, "b", Reason.ERROR))[0],
        "timeout": (world.enqueue("c"), settle(world, "c", Reason.TIMEOUT))[0],
        "crashed": (world.enqueue("d"), settle(world, "d", Reason.CRASHED))[0],
        "user": world.enqueue("e"),
        "expired": world.enqueue("f", expires_at=world.clock.now()),
        "queued": world.enqueue("g"),
        "scheduled": world.enqueue("h", delay_us=HOUR),
        "running": world.enqueue("i"),
    }
    ids["waiting"] = world.enqueue("j", parents=(ids["queued"],))
    world.backend.jobs.cancel([ids["user"]])
    world.backend.jobs.expire()
    world.claim_one(world.worker(), tasks=("i",))

    def found(word: str) -> set[str]:
        states, reason = states_named(word)
        by_id = {job_id: name for name, job_id in ids.items()}
        return {by_id[job_id] for job_id in listed(world, Filter(states=states, reason=reason))}

    assert found("pending") == found("created") == {"queued", "scheduled", "waiting"}
    assert found("succeeded") == found("completed") == {"completed"}
    assert found("failed") == {"error", "timeout", "crashed"}
    assert found("cancelled") == {"user", "expired"}
    for word in ("timeout", "crashed", "expired", "queued", "scheduled", "running", "waiting"):
        assert found(word) == {word}


# Numbers


def test_counts_are_by_queue_and_state(world: World) -> None:
    for _ in range(3):
        world.enqueue("a", queue="mail")
    world.enqueue("a", queue="mail", delay_us=HOUR)
    world.enqueue("b")
    world.enqueue("c")
    settle(world, "c", Reason.ERROR)
    world.claim_one(world.worker(), queue="mail", tasks=("a",))

    assert world.backend.history.stats(HOUR).counts == {
        "default": {"failed": 1, "queued": 1},
        "mail": {"queued": 2, "running": 1, "scheduled": 1},
    }


def test_an_empty_database_has_numbers_too(world: World) -> None:
    stats = world.backend.history.stats(HOUR)

    assert (stats.counts, stats.oldest_queued_us, stats.finished) == ({}, {}, {})
    assert (stats.window_us, stats.p50_us, stats.p95_us) == (HOUR, None, None)


def test_the_oldest_ready_job_is_as_old_as_its_time_not_as_its_row(world: World) -> None:
    now = world.clock.now()
    world.enqueue(run_at=now - MINUTE)
    world.enqueue()
    world.enqueue(queue="mail", delay_us=2 * SECOND)
    world.enqueue(queue="later", delay_us=HOUR)
    world.clock.advance(10 * SECOND)
    world.backend.jobs.promote()

    assert world.backend.history.stats(HOUR).oldest_queued_us == {
        "default": MINUTE + 10 * SECOND,
        "mail": 8 * SECOND,
    }


def test_no_job_is_younger_than_nothing_after_the_clock_was_set_back(world: World) -> None:
    world.enqueue()
    world.clock.step(-HOUR)

    assert world.backend.history.stats(HOUR).oldest_queued_us == {"default": 0}


def test_throughput_counts_what_ended_within_the_window(world: World) -> None:
    for task, reason in [("a", None), ("b", Reason.ERROR)]:
        world.enqueue(task)
        settle(world, task, reason)
    world.clock.advance(HOUR)
    for task, reason in [("c", None), ("d", None), ("e", Reason.ERROR)]:
        world.enqueue(task)
        settle(world, task, reason)
    world.backend.jobs.cancel([world.enqueue()])
    world.clock.advance(MINUTE)

    assert world.backend.history.stats(2 * MINUTE).finished == {"completed": 2, "failed": 1, "cancelled": 1}
    assert world.backend.history.stats(2 * HOUR).finished == {"completed": 3, "failed": 2, "cancelled": 1}
    assert world.backend.history.stats(SECOND).finished == {}


def test_half_of_the_bodies_ran_no_longer_than_the_median(world: World) -> None:
    worker = world.worker()
    world.backend.jobs.enqueue([world.new() for _ in range(100)])
    now = world.clock.steady()
    seconds = random.Random(3).sample(range(1, 101), 100)
    verbs.settle(
        world.backend,
        worker,
        [
            model.completed(claim, now - ran * SECOND, now)
            for claim, ran in zip(world.claim(worker, 100), seconds, strict=True)
        ],
    )
    world.enqueue("failing")
    settle(world, "failing", Reason.ERROR)

    stats = world.backend.history.stats(HOUR)

    assert stats.p50_us in {50 * SECOND, 51 * SECOND}
    assert stats.p95_us in {95 * SECOND, 96 * SECOND}


def test_one_body_is_its_own_median_to_the_microsecond(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.completed(world.claim_one(worker), now - 1_234_567, now)])

    stats = world.backend.history.stats(HOUR)

    assert (stats.p50_us, stats.p95_us) == (1_234_567, 1_234_567)


# Workflows


def test_a_workflow_adds_up_its_jobs(world: World) -> None:
    flow = Workflow(world.ids.new(), "etl", 0)
    a = world.new("a", workflow_id=flow.id, step="a")
    b = world.new("b", workflow_id=flow.id, step="b", parents=(a.id,))
    world.backend.jobs.enqueue([a, b], workflow=flow)
    world.enqueue("other")

    def counts() -> dict[str, int]:
        found = world.backend.workflows.get(flow.id)
        assert found is not None
        return found[1].counts

    assert counts() == {"queued": 1, "waiting": 1}
    settle(world, "a")
    assert counts() == {"completed": 1, "queued": 1}
    assert world.backend.workflows.jobs(flow.id, frozenset({"completed", "failed"})) == [a.id]
    settle(world, "b", Reason.ERROR)
    assert workflow_state(Tally(counts(), {})) == "failed"
    assert world.backend.workflows.get(world.ids.new()) is None


def test_workflows_are_listed_newest_first_in_pages(world: World) -> None:
    flows = [Workflow(world.ids.new(), f"flow {n}", world.clock.now()) for n in range(5)]
    for flow in flows:
        world.backend.jobs.enqueue([world.new(workflow_id=flow.id)], workflow=flow)

    first = world.backend.workflows.newest(limit=3)

    assert first == flows[:1:-1]
    assert world.backend.workflows.newest(limit=3, before=first[-1].id) == flows[1::-1]
