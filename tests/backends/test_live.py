"""What live views read: each event since the last read once, and the current activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from dray.instants import HOUR, MINUTE, SECOND, to_datetime
from dray.model import settlement as model
from dray.model.job import Claim, LogLine
from dray.ops import tail as following
from dray.ops import top
from dray.ops.tail import Event, Tail, Wanted
from dray.ops.top import Top
from tests import verbs
from tests.backends.world import World

Told = list[tuple[str, str]]


@pytest.fixture
def tail(world: World) -> Tail:
    """A tail that starts now."""
    return begun(world)


def begun(world: World, since: int | None = None) -> Tail:
    made = Tail(world.backend)
    for _ in made.begin(since):
        pass
    return made


def told(events: list[Event]) -> Told:
    """Returns each event and its subject."""
    return [(event["event"], _whom(event)) for event in events]


def _whom(event: Event) -> str:
    return next(event[name] for name in ("job", "worker", "queue") if name in event)


def passing(world: World, us: int = SECOND) -> None:
    world.clock.advance(us)


# Ends


def test_the_life_of_a_job_is_told_step_by_step_and_once(world: World, tail: Tail) -> None:
    worker = world.worker()
    job = world.enqueue()
    assert told(tail.look()) == [("worker_started", worker), ("enqueued", job)]
    claim = world.claim_one(worker)
    (started,) = tail.look()
    passing(world)
    world.complete(worker, claim)
    (completed,) = tail.look()

    about = {"event": "started", "state": "running", "worker": worker, "attempt": 1}
    assert {name: started[name] for name in about} == about
    assert (completed["event"], completed["job"], completed["seconds"]) == ("completed", job, 0.0)
    for _ in range(3):
        passing(world)
        assert tail.look() == []


def test_what_happened_between_two_looks_is_told_by_its_end(world: World, tail: Tail) -> None:
    worker = world.worker()
    jobs = [world.enqueue() for _ in range(20)]
    for claim in world.claim(worker, 20):
        passing(world, 1000)
        world.complete(worker, claim)

    found = told(tail.look())

    assert [job for event, job in found if event == "completed"] == jobs
    assert [job for event, job in found if event == "enqueued"] == jobs


def test_an_end_that_is_written_long_after_the_body_ended_is_told(world: World, tail: Tail) -> None:
    """After an outage, `finished_at` lies far before what has already been read."""
    worker = world.worker()
    job = world.enqueue()
    claim = world.claim_one(worker)
    ended_at = world.clock.steady()
    tail.look()
    for _ in range(3):
        passing(world, HOUR)
        tail.look()
    verbs.settle(world.backend, worker, [model.completed(claim, ended_at, ended_at)])

    assert told(tail.look()) == [("completed", job)]
    assert tail.look() == []


def test_an_end_that_lies_a_little_before_the_last_look_is_told(world: World, tail: Tail) -> None:
    """A worker takes the time of its transaction before it computes how long ago the body ended."""
    worker = world.worker()
    job = world.enqueue()
    passing(world)
    tail.look()
    claim = world.claim_one(worker)
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.completed(claim, now - 100_000, now - 100_000)])

    assert told(tail.look()) == [("completed", job)]


def test_a_job_that_is_cancelled_before_it_starts_is_told(world: World, tail: Tail) -> None:
    job = world.enqueue()
    tail.look()
    world.backend.jobs.cancel([job])

    (event,) = tail.look()

    assert (event["event"], event["reason"], event["seconds"]) == ("cancelled", "user", None)


def test_a_cancellation_that_comes_into_sight_late_is_told_once(world: World, tail: Tail) -> None:
    """On PostgreSQL the cancelling statement may have waited for a lock, and its transaction for the commit."""
    job = world.enqueue()
    tail.look()
    now = world.clock.now()
    passing(world, 20 * SECOND)
    tail.look()
    world.clock.step(now - world.clock.now())
    world.backend.jobs.cancel([job])
    world.clock.step(20 * SECOND)
    passing(world, 2 * SECOND)

    assert told(tail.look()) == [("cancelled", job)]
    passing(world, 2 * SECOND)
    assert tail.look() == []


def test_a_job_that_ends_again_after_a_retry_is_told_again(world: World, tail: Tail) -> None:
    worker = world.worker()
    job = world.enqueue(max_attempts=1)
    for _ in range(2):
        world.fail(worker, world.claim_one(worker))
        passing(world)
        world.backend.jobs.retry([job])
        tail.look()
    world.backend.jobs.cancel([job])
    assert told(tail.look()) == [("cancelled", job)]
    passing(world)
    world.backend.jobs.retry([job])
    world.backend.jobs.cancel([job])
    assert told(tail.look()) == [("cancelled", job)]


def test_more_than_fits_a_page_is_told_page_by_page(
    world: World, tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_page", 10)
    jobs = [world.enqueue() for _ in range(35)]
    world.backend.jobs.cancel(jobs)  # all at the same instant
    found: Told = []
    while True:
        found += told(tail.look())
        if not tail.is_behind:
            break

    assert sorted(job for event, job in found if event == "cancelled") == sorted(jobs)
    assert sorted(job for event, job in found if event == "enqueued") == sorted(jobs)


def test_what_lies_before_the_end_of_a_full_page_is_told_when_it_comes_into_sight(world: World, tail: Tail) -> None:
    worker = world.worker()
    jobs = [world.enqueue() for _ in range(3)]
    passing(world)
    tail.look()
    tail._page = 2
    for claim in world.claim(worker, 2):
        world.complete(worker, claim)
    tail.look()
    claim = world.claim_one(worker)
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.completed(claim, now - 100_000, now - 100_000)])

    assert ("completed", jobs[2]) in told(tail.look())


def test_what_was_cancelled_before_is_not_told_when_newer_ones_start_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_BACK_PAGE", 2)
    jobs = [world.enqueue() for _ in range(5)]
    for job in jobs:
        world.backend.jobs.cancel([job])
        passing(world)
    tail = begun(world)
    world.backend.jobs.retry(jobs[-1:])
    passing(world, 2 * SECOND)

    assert tail.look() == []


def test_a_clock_that_is_set_back_hides_no_end(world: World, tail: Tail) -> None:
    worker = world.worker()
    passing(world)
    tail.look()
    world.clock.step(-MINUTE)
    passing(world)
    job = world.enqueue()
    world.complete(worker, world.claim_one(worker))
    passing(world)

    found = told(tail.look()) + told(tail.look())

    assert found.count(("completed", job)) == 1


# In between


def test_an_attempt_that_failed_is_told_though_no_look_saw_it_run(world: World, tail: Tail) -> None:
    worker = world.worker()
    job = world.enqueue()
    world.fail(worker, world.claim_one(worker), delay_us=5 * SECOND)

    retry = [event for event in tail.look() if event["event"] == "retrying"]

    assert told(retry) == [("retrying", job)]
    assert (retry[0]["error"], retry[0]["attempt"]) == ("ValueError: no", 1)
    assert retry[0]["run_at"] == to_datetime(world.clock.now() + 5 * SECOND)
    passing(world)
    assert tail.look() == []


def test_a_job_that_is_handed_back_is_told(world: World, tail: Tail) -> None:
    worker = world.worker()
    job = world.enqueue()
    claim = world.claim_one(worker)
    tail.look()
    verbs.settle(world.backend, worker, [model.released(claim, world.clock.steady())])

    assert told(tail.look()) == [("returned", job)]


def test_a_claim_that_follows_another_between_two_looks_is_a_new_start(world: World, tail: Tail) -> None:
    worker = world.worker()
    job = world.enqueue()
    claim = world.claim_one(worker)
    tail.look()
    world.fail(worker, claim)
    world.claim_one(worker)

    assert told(tail.look()) == [("started", job)]


def test_ids_that_come_into_sight_late_are_told(world: World, tail: Tail) -> None:
    new = world.new()
    passing(world, 5 * SECOND)
    tail.look()
    passing(world)
    world.backend.jobs.enqueue([new])

    assert told(tail.look()) == [("enqueued", new.id)]
    passing(world, 2 * SECOND)
    assert tail.look() == []


def test_workers_and_queues_come_and_go(world: World, tail: Tail) -> None:
    here, gone = world.worker(), world.worker()
    world.backend.workers.deregister(gone)
    assert told(tail.look()) == [("worker_started", here), ("worker_started", gone), ("worker_stopped", gone)]
    world.bury(here)
    assert told(tail.look()) == [("worker_died", here)]
    world.backend.queues.pause("mail")
    assert told(tail.look()) == [("queue_paused", "mail")]
    world.backend.queues.resume("mail")
    assert told(tail.look()) == [("queue_resumed", "mail")]
    passing(world, HOUR)
    assert tail.look() == []


# Log lines


def said(world: World, worker: str, claim: Claim, *messages: str) -> None:
    at = world.clock.steady()
    lines = [LogLine(claim.id, claim.claim, at, "INFO", "shop", message) for message in messages]
    verbs.write_logs(world.backend, worker, lines)


def test_lines_are_told_once_and_in_order(world: World, tail: Tail) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    tail.look()
    said(world, worker, claim, "one", "two")
    first = tail.look()
    said(world, worker, claim, "three")

    assert [event["message"] for event in first if event["event"] == "log"] == ["one", "two"]
    assert [event["message"] for event in tail.look() if event["event"] == "log"] == ["three"]
    assert tail.look() == []


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # SQLite has one writer, so numbers come in order
def test_a_line_with_a_smaller_number_that_is_committed_later_is_told(world: World, tail: Tail, url: str) -> None:
    worker = world.worker()
    job = world.enqueue()
    claim = world.claim_one(worker)
    server, _, schema = url.partition("&schema=")
    with psycopg.connect(server) as connection:
        connection.execute(f'SET search_path TO "{schema}"'.encode())
        connection.execute(
            "INSERT INTO dray_logs (job_id, claim, at, level, logger, message)"
            " VALUES (%s, 1, now(), 'INFO', 'shop', 'late')",
            (job,),
        )
        said(world, worker, claim, "early")
        before = [event["message"] for event in tail.look() if event["event"] == "log"]
        connection.commit()

    assert before == ["early"]
    assert [event["message"] for event in tail.look() if event["event"] == "log"] == ["late"]
    assert tail.look() == []


def test_a_number_that_never_comes_is_not_waited_for_for_ever(world: World, tail: Tail) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    said(world, worker, claim, *(str(n) for n in range(1500)))  # the first 500 are dropped at once
    tail.look()
    passing(world, 11 * SECOND)
    tail.look()
    said(world, worker, claim, "next")

    assert [event["message"] for event in tail.look() if event["event"] == "log"] == ["next"]
    assert tail._lines is not None
    assert tail._lines._beyond == {}


# Where a tail starts


def test_nothing_of_the_past_is_told_unless_it_is_asked_for(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    said(world, worker, claim := world.claim_one(worker), "old")
    world.complete(worker, claim)
    world.backend.jobs.cancel([world.enqueue()])
    world.backend.queues.pause("mail")

    assert begun(world).look() == []


def test_the_past_begins_where_it_is_asked_to(world: World) -> None:
    worker = world.worker()
    old = world.enqueue()
    said(world, worker, first := world.claim_one(worker), "old")
    world.complete(worker, first)
    passing(world, MINUTE)
    since = world.clock.now()
    new = world.enqueue()
    said(world, worker, second := world.claim_one(worker), "new")
    passing(world)
    world.complete(worker, second)
    tail = Tail(world.backend)

    found = [event for page in tail.begin(since) for event in page]

    assert told(found) == [("enqueued", new), ("log", new), ("completed", new)]
    assert old not in {job for _, job in told(found)}
    assert tail.look() == []


def test_what_happened_right_before_the_beginning_is_not_told_later(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    world.complete(worker, world.claim_one(worker))
    passing(world, 1000)

    assert begun(world, since=world.clock.now()).look() == []


def test_the_last_so_many_events_begin_about_there(world: World) -> None:
    jobs: list[str] = []
    for _ in range(10):
        passing(world)
        jobs.append(world.enqueue())
    tail = Tail(world.backend)

    found = [event for page in tail.begin(tail.since_last(3)) for event in page]

    assert [job for _, job in told(found)][-3:] == jobs[-3:]
    assert len(found) <= 4


@pytest.mark.parametrize(
    ("wanted", "events"),
    [
        (Wanted(), {"enqueued", "started", "log", "failed", "worker_started", "queue_paused"}),
        (Wanted(logs=False), {"enqueued", "started", "failed", "worker_started", "queue_paused"}),
        (Wanted(events=False), {"log"}),
        (Wanted(queue="mail"), {"queue_paused"}),
        (Wanted(queue="default"), {"enqueued", "started", "log", "failed"}),
        (Wanted(task="task"), {"enqueued", "started", "log", "failed"}),
        (Wanted(task="other"), set[str]()),
        (Wanted(states=frozenset({model.State.FAILED})), {"failed"}),
        (Wanted(states=frozenset({model.State.FAILED}), reason="timeout"), set[str]()),
    ],
)
def test_who_wants_some_events_is_told_of_no_others(
    world: World, tail: Tail, wanted: Wanted, events: set[str]
) -> None:
    worker = world.worker()
    world.enqueue(max_attempts=1)
    claim = world.claim_one(worker)
    said(world, worker, claim, "a line")
    found = tail.look()
    world.fail(worker, claim)
    world.backend.queues.pause("mail")
    found += tail.look()

    assert {event["event"] for event in found if wanted.takes(event)} == events


def test_idle_is_when_nothing_runs_and_nothing_is_ready(world: World, tail: Tail) -> None:
    worker = world.worker()
    claims: list[Claim] = []
    steps: list[Callable[[], object]] = [
        lambda: world.enqueue(delay_us=HOUR),
        world.enqueue,
        lambda: claims.append(world.claim_one(worker)),
        lambda: world.complete(worker, claims[0]),
        lambda: passing(world, 2 * HOUR),
    ]
    idle: list[bool] = []
    for step in steps:
        step()
        tail.look()
        idle.append(tail.is_idle)

    assert idle == [True, False, False, True, False]


# Current activity


def test_a_snapshot_shows_queues_running_jobs_failures_and_workers(world: World) -> None:
    worker = world.worker()
    running = world.enqueue()
    failed = world.enqueue("broken", max_attempts=1)
    passing(world, 5 * SECOND)
    world.claim_one(worker)
    world.fail(worker, world.claim_one(worker, tasks=("broken",)))
    passing(world)
    world.enqueue(queue="mail")
    world.enqueue(queue="mail", task="other", priority=5)
    passing(world, 3 * SECOND)
    world.backend.queues.pause("mail")

    found = Top(world.backend).look()

    assert found.queues == [
        {"name": "default", "priority": 0, "queued": 0, "running": 1, "oldest": None, "paused_at": None},
        {"name": "mail", "priority": 0, "queued": 2, "running": 0, "oldest": 3.0, "paused_at": found.at},
    ]
    assert [(job["id"], job["worker_id"]) for job in found.running] == [(running, worker)]
    assert [(job["id"], job["error"]) for job in found.failures] == [(failed, "ValueError: no")]
    assert [(each["id"], each["running"]) for each in found.workers] == [(worker, 1)]
    assert set(found.counts) == set(model.State)
    assert +Counter(found.counts) == {"queued": 2, "running": 1, "failed": 1}
    assert found.rates == {"enqueued": 0.4, "completed": 0.0, "failed": 0.1, "cancelled": 0.0}


def test_counts_end_somewhere_and_rates_do_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "COUNTED", 5)
    monkeypatch.setattr(top, "_NEWEST", 5)
    world.backend.jobs.cancel([world.enqueue() for _ in range(20)])
    for _ in range(20):
        world.enqueue()
    passing(world)

    found = Top(world.backend, counted=4).look()

    assert (found.counts["queued"], found.counts["cancelled"]) == (5, 4)
    assert (found.cap("queued"), found.cap("cancelled"), found.is_cut) == (5, 4, True)
    assert found.queues[0]["queued"] == 5
    assert found.rates["cancelled"] == pytest.approx(5.0)  # 5 of them within the last second


@pytest.mark.parametrize(("took", "shows"), [(SECOND // 100, 2), (SECOND // 10, 1)])
def test_after_an_action_counts_are_taken_again_at_once_unless_they_are_dear(
    world: World, monkeypatch: pytest.MonkeyPatch, took: int, shows: int
) -> None:
    numbers = world.backend.live.numbers

    def slowly(**given: Any) -> Any:
        world.clock.advance(took)
        return numbers(**given)

    monkeypatch.setattr(world.backend.live, "numbers", slowly)
    source = Top(world.backend)
    world.enqueue()
    source.look()
    world.enqueue()
    assert source.look().counts["queued"] == 1

    source.forget()
    assert source.look().counts["queued"] == shows

    passing(world, 50 * took)
    assert source.look().counts["queued"] == 2


def test_the_first_counts_are_small_where_others_can_be_taken_beside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_FEW", 3)
    world.backend.jobs.cancel([world.enqueue() for _ in range(5)])
    beside = list[Callable[[], None]]()
    source = Top(world.backend, counted=10)

    first = source.look(beside.append)
    assert (first.counts["cancelled"], first.cap("cancelled"), first.is_cut) == (3, 3, True)

    (count,) = beside
    count()
    second = source.look(beside.append)
    assert (second.counts["cancelled"], second.cap("cancelled"), second.is_cut) == (5, 10, False)
    assert len(beside) == 1


def test_first_counts_that_found_all_are_not_taken_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_FEW", 3)
    world.backend.jobs.cancel([world.enqueue() for _ in range(2)])
    beside = list[Callable[[], None]]()
    source = Top(world.backend, counted=10)

    for _ in range(2):
        found = source.look(beside.append)
        assert (found.counts["cancelled"], found.cap("cancelled"), found.is_cut) == (2, 10, False)
    assert not beside


@pytest.mark.parametrize("took", [SECOND // 100, SECOND // 10])
def test_a_look_does_not_wait_for_dear_counts_that_can_be_taken_beside(
    world: World, monkeypatch: pytest.MonkeyPatch, took: int
) -> None:
    numbers = world.backend.live.numbers

    def slowly(**given: Any) -> Any:
        world.clock.advance(took)
        return numbers(**given)

    monkeypatch.setattr(world.backend.live, "numbers", slowly)
    beside = list[Callable[[], None]]()
    source = Top(world.backend)
    source.look(beside.append)
    world.enqueue()
    passing(world, 10 * SECOND)

    is_cheap = took < SECOND // 50
    assert source.look(beside.append).counts["queued"] == int(is_cheap)
    assert len(beside) == int(not is_cheap)
    for count in beside:
        count()
    assert source.look(beside.append).counts["queued"] == 1


def test_the_oldest_ready_job_is_found_whatever_its_task_and_priority(world: World) -> None:
    for age, task, priority in ((3, "b", 0), (9, "a", -5), (5, "a", 5), (4, "c", 0)):
        world.clock.step(-age * SECOND)
        world.enqueue(task, priority=priority)
        world.clock.step(age * SECOND)

    assert [queue["oldest"] for queue in Top(world.backend).look().queues] == [9.0]
