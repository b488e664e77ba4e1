"""Limits and turns: what may start, whose turn it is, and that what has ended or crashed counts no more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dray.backends.store import turns
from dray.backends.store.jobs import Filter
from dray.errors import ConfigError, PayloadError
from dray.instants import HOUR, MILLISECOND, MINUTE, SECOND
from dray.model.job import Demand, Outcome, State
from dray.model.limit import Kind, Source, bounds_of
from dray.model.settlement import completed, errored, released
from tests.backends import raw
from tests.backends.world import LEASE_US
from tests.verbs import settle

if TYPE_CHECKING:
    from dray.backends.store.work import Exchange
    from dray.model.job import Claim
    from dray.model.limit import Scope
    from tests.backends.world import World

TASKS = ("task", "other")
PERIODS = 5


def limit(
    world: World, scope: Scope = "task", name: str = "task", source: Source = Source.DECLARED, **given: object
) -> bool:
    return world.backend.limits.say(scope, name, source, bounds_of(name, given))


def claim(
    world: World, worker: str, most: int = 10, *, ahead: int = 0, queues: tuple[str, ...] = ("default",)
) -> list[Claim]:
    def exchange() -> Exchange:
        return world.backend.work.exchange(worker, [], Demand(queues, TASKS, most, ahead))

    # On PostgreSQL the first claim after a change may only find out that there are limits.
    first = exchange()
    return first.claims if first.claims or not first.goes_on else exchange().claims


def keys(claims: list[Claim]) -> list[str | None]:
    return [each.key for each in claims]


# How many at the same time


def test_no_more_jobs_of_a_task_run_than_its_limit(world: World) -> None:
    limit(world, limit=2)
    for _ in range(5):
        world.enqueue()
    one, two = world.worker(), world.worker()

    first, second = claim(world, one), claim(world, two)

    assert (len(first), len(second)) == (2, 0)
    world.complete(one, first[0])
    assert len(claim(world, two)) == 1
    assert claim(world, one) == []


def test_a_limit_of_a_task_is_for_all_queues_and_for_no_other_task(world: World) -> None:
    limit(world, limit=1)
    world.enqueue(queue="a")
    world.enqueue(queue="b")
    world.enqueue("other", queue="b")

    claims = claim(world, world.worker(), queues=("a", "b"))

    assert Counter(each.task for each in claims) == {"task": 1, "other": 1}


def test_a_limit_of_a_queue_is_for_all_its_tasks(world: World) -> None:
    limit(world, "queue", "default", limit=3)
    for task in ("task", "other", "task", "other"):
        world.enqueue(task)
    world.enqueue(queue="free")

    claims = claim(world, world.worker(), queues=("default", "free"))

    assert Counter(each.queue for each in claims) == {"default": 3, "free": 1}


def test_the_order_of_priority_time_and_id_holds_under_a_limit(world: World) -> None:
    limit(world, limit=4)
    late = world.enqueue(run_at=world.clock.now() - SECOND)
    early = world.enqueue("other", run_at=world.clock.now() - 9 * SECOND)
    urgent = world.enqueue(priority=5)
    world.enqueue(priority=-1)

    assert [each.id for each in claim(world, world.worker(), 3)] == [urgent, early, late]


def test_a_limit_of_nothing_stops_a_queue_and_what_runs_goes_on(world: World) -> None:
    world.enqueue()
    world.enqueue()
    worker = world.worker()
    (running,) = claim(world, worker, 1)

    limit(world, "queue", "default", limit=0)

    assert claim(world, worker) == []
    world.complete(worker, running)
    assert world.job(running.id).state == "completed"
    assert claim(world, worker) == []


@pytest.mark.parametrize("end", ["complete", "fail", "release", "rescue"])
def test_whatever_ends_an_attempt_makes_room(world: World, end: str) -> None:
    limit(world, limit=1, key_limit=1)
    for _ in range(2):
        world.enqueue(key="acct", max_attempts=5)
    worker, other = world.worker(), world.worker()
    (running,) = claim(world, worker)
    assert claim(world, other) == []

    if end == "complete":
        world.complete(worker, running)
    elif end == "fail":
        world.fail(worker, running, delay_us=HOUR)
    elif end == "release":
        world.backend.work.exchange(worker, [released(running, world.clock.steady())], Demand((), (), 0))
    else:
        world.bury(worker)

    assert len(claim(world, other)) == 1


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_an_outcome_that_was_left_gives_its_slot_back_when_it_is_written_and_not_before(
    world: World, end: str
) -> None:
    """Its worker had to go while another transaction had locked the row."""
    limit(world, limit=1, key_limit=1)
    for _ in range(2):
        world.enqueue(key="acct", max_attempts=5)
    worker, other = world.worker(), world.worker()
    (running,) = claim(world, worker)
    now = world.clock.steady()
    ends = {
        "complete": completed(running, now, now),
        "fail": errored(running, now, now, Outcome.ERROR, HOUR, "ValueError", "no", None),
        "release": released(running, now),
    }

    world.backend.outcomes.leave(worker, [(ends[end], [])])
    world.backend.workers.deregister(worker)
    assert claim(world, other) == []
    world.backend.workers.rescue([], rng=world.rng)

    (taken,) = claim(world, other)
    assert (taken.id == running.id) == (end == "release")
    assert claim(world, world.worker()) == []


@pytest.mark.parametrize("way", ["grow", "leave"])
def test_steps_with_keys_that_a_job_adds_wait_for_its_slot_and_take_their_turns(world: World, way: str) -> None:
    limit(world, limit=2, key_limit=1)
    workflow_id = world.ids.new()
    world.enqueue(key="a", workflow_id=workflow_id, step="first")
    worker, other = world.worker(), world.worker()
    (first,) = claim(world, worker)
    steps = [world.new(key=key, workflow_id=workflow_id, step=f"step {n}") for n, key in enumerate("aab")]
    now = world.clock.steady()

    if way == "grow":
        world.backend.work.grow(worker, completed(first, now, now), steps)
    else:
        world.backend.outcomes.leave(worker, [(completed(first, now, now), steps)])
        world.backend.workers.deregister(worker)
        assert claim(world, other) == []
        world.backend.workers.rescue([], rng=world.rng)

    assert keys(claim(world, other)) == ["b", "a"]  # the last turn was that of "a"
    assert [world.job(step.id).state for step in steps] == ["running", "queued", "running"]


def test_an_outcome_that_comes_after_the_rescue_frees_nothing_a_second_time(world: World) -> None:
    limit(world, limit=1, key_limit=1)
    for _ in range(3):
        world.enqueue(key="acct", max_attempts=5)
    lost, other = world.worker(), world.worker()
    (claim_of_lost,) = claim(world, lost)
    world.clock.advance(LEASE_US - SECOND)
    world.backend.workers.beat(other, LEASE_US)
    world.bury(lost)
    assert len(claim(world, other)) == 1

    settled = world.complete(lost, claim_of_lost)

    assert settled.stale == [claim_of_lost.id]
    assert claim(world, other) == []


def test_running_jobs_count_from_the_moment_at_which_a_limit_is_set(world: World) -> None:
    for _ in range(4):
        world.enqueue()
    worker = world.worker()
    assert len(claim(world, worker, 2)) == 2

    limit(world, limit=3)

    assert len(claim(world, worker)) == 1


def test_a_limit_that_is_lowered_stops_nothing_and_one_that_is_raised_holds_at_once(world: World) -> None:
    limit(world, limit=3)
    for _ in range(9):
        world.enqueue()
    worker = world.worker()
    running = claim(world, worker)
    assert len(running) == 3

    limit(world, limit=1)
    assert claim(world, worker) == []
    assert {world.job(each.id).state for each in running} == {"running"}

    limit(world, limit=5)
    assert len(claim(world, worker)) == 2


def test_jobs_under_a_limit_are_not_claimed_ahead(world: World) -> None:
    limit(world, limit=10)
    for _ in range(5):
        world.enqueue()
        world.enqueue("other", priority=-1)

    claims = claim(world, world.worker(), 2, ahead=10)

    # Those of the other task come after what may not be claimed ahead, and wait for a free slot too.
    assert [each.task for each in claims] == ["task", "task"]


def test_jobs_without_a_limit_are_claimed_ahead_beside_those_that_have_one(world: World) -> None:
    limit(world, limit=1)
    world.enqueue(priority=1)
    for _ in range(5):
        world.enqueue("other")

    assert len(claim(world, world.worker(), 2, ahead=10)) == 6


def test_a_job_that_a_limit_holds_back_keeps_none_from_being_claimed_ahead(world: World) -> None:
    limit(world, key_limit=1)
    for _ in range(2):
        world.enqueue(key="a", priority=1)
    for _ in range(5):
        world.enqueue("other")

    claims = claim(world, world.worker(), 1, ahead=10)

    assert [each.task for each in claims] == ["task", *["other"] * 5]


def ahead_in_turn(world: World, worker: str, most: int, in_turn: int, *queues: str) -> list[Claim]:
    """What a worker claims that may take ten ahead, of which some may have keys."""
    demand = Demand(queues or ("default",), TASKS, most, ahead=10, ahead_in_turn=in_turn)
    return world.backend.work.exchange(worker, [], demand).claims


def test_of_jobs_with_keys_only_a_few_are_claimed_ahead_and_each_key_has_its_turn(world: World) -> None:
    for key in "abc":
        for _ in range(5):
            world.enqueue(key=key)
    worker = world.worker()

    assert keys(ahead_in_turn(world, worker, 2, 3)) == ["a", "b", "c", "a", "b"]
    assert keys(ahead_in_turn(world, worker, 0, 1)) == ["c"]
    assert ahead_in_turn(world, worker, 0, 0) == []


def test_what_comes_after_jobs_with_keys_is_not_claimed_ahead_of_them(world: World) -> None:
    for _ in range(5):
        world.enqueue(key="a")
        world.enqueue("other", priority=-1)
        world.enqueue("other", queue="next")

    claims = ahead_in_turn(world, world.worker(), 1, 1, "default", "next")

    assert [(each.task, each.queue) for each in claims] == [("task", "default")] * 2


def test_jobs_without_keys_that_come_first_leave_none_ahead_for_those_with_keys(world: World) -> None:
    for _ in range(4):
        world.enqueue("other", priority=1)
        world.enqueue("other", queue="next")
        world.enqueue(queue="next", key="b", priority=-1)
    world.enqueue(key="a")

    claims = ahead_in_turn(world, world.worker(), 1, 3, "default", "next")

    assert [(each.task, each.queue) for each in claims] == [("other", "default")] * 4
    claims = ahead_in_turn(world, world.worker(), 1, 6, "default", "next")
    assert keys(claims) == ["a", *[None] * 4, "b", "b"]


def test_under_a_limit_none_is_claimed_ahead_in_turn(world: World) -> None:
    limit(world, key_limit=5)
    for key in "ab":
        for _ in range(3):
            world.enqueue(key=key)

    assert keys(ahead_in_turn(world, world.worker(), 2, 3)) == ["a", "b"]


# Keys


def test_keys_take_turns_whoever_came_first(world: World) -> None:
    for _ in range(5):
        world.enqueue(key="heavy")
    world.enqueue(key="light")
    world.enqueue(key="new")

    claims = claim(world, world.worker(), 4)

    assert keys(claims) == ["heavy", "light", "new", "heavy"]


def test_the_next_claim_goes_on_with_the_next_key(world: World) -> None:
    for key in "abcd":
        for _ in range(3):
            world.enqueue(key=key)
    worker = world.worker()

    assert [keys(claim(world, worker, n)) for n in (3, 3, 2)] == [["a", "b", "c"], ["d", "a", "b"], ["c", "d"]]


def test_the_jobs_of_one_key_start_in_order(world: World) -> None:
    ids = [world.enqueue(key="a", priority=priority) for priority in (0, 0, 5, 0)]

    claims = claim(world, world.worker())

    assert [each.id for each in claims] == [ids[2], ids[0], ids[1], ids[3]]


def test_a_key_that_has_reached_its_limit_holds_up_no_other(world: World) -> None:
    limit(world, key_limit=1)
    for _ in range(3):
        world.enqueue(key="a")
    world.enqueue(key="b")
    worker = world.worker()

    assert keys(claim(world, worker)) == ["a", "b"]
    assert claim(world, worker) == []


def test_the_limit_of_a_key_is_shared_by_its_priorities_and_by_the_tasks_of_a_queue(world: World) -> None:
    limit(world, key_limit=1)
    limit(world, "queue", "shared", key_limit=2)
    for priority in (3, 2, 1):
        world.enqueue(key="a", priority=priority)
        world.enqueue(key="q", queue="shared", priority=priority)
        world.enqueue("other", key="q", queue="shared", priority=priority)
    worker = world.worker()

    assert keys(claim(world, worker)) == ["a"]
    claims = claim(world, worker, queues=("shared",))
    assert Counter(each.task for each in claims) == {"task": 1, "other": 1}


def test_people_see_a_job_with_a_key_as_queued_and_its_key(world: World) -> None:
    job_id = world.enqueue(key="acct:7")

    assert (world.job(job_id).state, world.job(job_id).key) == ("queued", "acct:7")
    assert [job.id for job in world.backend.jobs.newest(Filter(states=frozenset({State.QUEUED})))] == [job_id]


@pytest.mark.parametrize("way", ["due", "retried", "delayed", "freed", "again"])
def test_a_job_with_a_key_takes_its_turn_however_it_became_ready(world: World, way: str) -> None:
    limit(world, key_limit=1)
    worker = world.worker()
    blocker = world.enqueue(key="a")
    (running,) = claim(world, worker)
    assert running.id == blocker
    other = world.worker()

    if way == "due":
        job_id = world.enqueue(key="a", delay_us=SECOND)
        world.clock.advance(2 * SECOND)
    elif way == "freed":
        parent = world.enqueue("other")
        job_id = world.enqueue(key="a", parents=(parent,))
        (ran,) = claim(world, other)
        world.complete(other, ran)
    else:
        job_id = world.enqueue(key="b", max_attempts=1 if way == "again" else 5)
        (ran,) = claim(world, other)
        raw.run(world.backend, "UPDATE dray_jobs SET key = 'a' WHERE id = ?", job_id)
        world.fail(other, ran, delay_us=SECOND if way == "delayed" else 0)
        if way == "again":
            assert world.job(job_id).state == "failed"
            world.backend.jobs.retry([job_id])
        world.clock.advance(2 * SECOND)

    assert claim(world, other) == []
    assert world.job(job_id).state == "queued"
    world.complete(worker, running)
    assert [each.id for each in claim(world, other)] == [job_id]


def test_a_job_that_another_one_replaces_takes_its_key(world: World) -> None:
    limit(world, key_limit=0)
    job_id = world.enqueue(key="a", unique_key="u")
    world.enqueue(unique_key="u", on_conflict="replace")
    worker = world.worker()

    assert (world.job(job_id).key, world.job(job_id).state) == (None, "queued")
    assert [each.id for each in claim(world, worker)] == [job_id]

    second = world.enqueue(unique_key="v")
    world.enqueue(unique_key="v", on_conflict="replace", key="b")
    assert world.job(second).key == "b"
    assert claim(world, worker) == []


def test_a_queued_job_with_a_key_expires_and_is_cancelled(world: World) -> None:
    expired = world.enqueue(key="a", expires_us=SECOND)
    cancelled = world.enqueue(key="a")
    world.backend.jobs.cancel([cancelled])
    world.clock.advance(2 * SECOND)

    assert claim(world, world.worker()) == []
    assert [(world.job(each).state, world.job(each).reason) for each in (expired, cancelled)] == [
        ("cancelled", "expired"),
        ("cancelled", "user"),
    ]


@pytest.mark.parametrize("key", ["", "x" * 201, "nul\0", "half \ud800"])
def test_a_bad_key_is_refused_before_anything_is_written(world: World, key: str) -> None:
    with pytest.raises(PayloadError, match=r"^key: "):
        world.enqueue(key=key)


# Rates


def test_no_more_attempts_start_in_a_period_than_its_rate(world: World) -> None:
    limit(world, rate="3/s")
    for _ in range(20):
        world.enqueue()
    worker = world.worker()
    started: list[int] = []

    for _ in range(100 * PERIODS):
        for each in claim(world, worker):
            started.append(world.clock.now())
            world.complete(worker, each)
        world.clock.advance(SECOND // 100)

    assert len(started) >= 3 * PERIODS - 1  # one less than the periods allow
    assert max(sum(at <= other < at + SECOND for other in started) for at in started) == 3


def test_a_worker_that_looks_when_a_rate_opens_uses_nearly_all_of_it(world: World) -> None:
    """It runs 8 at a time and is 5 ms late whenever it wakes. A slice, a hundredth of the period, is lost too."""
    rate, seconds, began = 40, 20, world.clock.now()
    limit(world, rate=f"{rate}/s")
    world.backend.jobs.enqueue([world.new() for _ in range(rate * (seconds + 1))])
    worker, demand = world.worker(), Demand(("default",), TASKS, 8)
    started: list[int] = []

    while world.clock.now() < began + seconds * SECOND:
        now = world.clock.now()
        claims = claim(world, worker, 8)
        started += [now] * len(claims)
        if claims:
            settle(world.backend, worker, [completed(each, now, now) for each in claims])
            world.clock.advance(2 * MILLISECOND)
            continue
        look = world.backend.work.look(worker, demand)
        assert look.opens_at is not None
        world.clock.advance(max(0, look.opens_at - now) + 5 * MILLISECOND)

    assert len(started) >= 0.97 * rate * seconds
    assert max(sum(at <= other < at + SECOND for other in started) for at in started) == rate


def test_all_rates_of_a_list_hold(world: World) -> None:
    limit(world, "queue", "default", rate=["2/s", "5/min"])
    for _ in range(20):
        world.enqueue()
    worker = world.worker()
    taken: list[int] = []

    for _ in range(6):
        taken.append(len(claim(world, worker)))
        world.clock.advance(2 * SECOND)
    world.clock.advance(MINUTE)

    assert taken == [2, 2, 1, 0, 0, 0]
    assert len(claim(world, worker)) == 2


@pytest.mark.parametrize("kind", ["rate", "key_rate"])
@pytest.mark.parametrize(("first", "second"), [("3/min", "3/2min"), ("3/2min", "3/min"), ("3/day", "3/min")])
@pytest.mark.parametrize("change", ["declared", "override", "lifted between"])
def test_a_rate_whose_period_changes_forgets_no_start(
    world: World, kind: str, first: str, second: str, change: str
) -> None:
    def say(rate: str | None, source: Source = Source.DECLARED) -> None:
        world.backend.limits.say("task", "task", source, bounds_of("task", {kind: rate}))

    say(first)
    for _ in range(9):
        world.enqueue(key="a")
    worker = world.worker()
    world.clock.advance(7 * SECOND + 1)
    assert len(claim(world, worker)) == 3
    world.clock.advance(20 * SECOND)

    if change == "lifted between":
        say(None)
    say(second, Source.OVERRIDE if change == "override" else Source.DECLARED)

    waited = 20 * SECOND
    while waited < MINUTE:  # the shorter of the two periods
        assert claim(world, worker) == []
        world.clock.advance(2 * SECOND)
        waited += 2 * SECOND
    world.clock.advance(2 * MINUTE)
    assert len(claim(world, worker)) == 3, "and it opens in the end"


def test_a_rate_that_is_lifted_and_set_back_counts_what_started_before(world: World) -> None:
    limit(world, rate="3/min")
    for _ in range(9):
        world.enqueue()
    worker = world.worker()
    assert len(claim(world, worker)) == 3

    limit(world)
    limit(world, rate="3/min")

    assert claim(world, worker) == []


def test_starts_that_several_rates_have_noted_count_once_for_a_new_one(world: World) -> None:
    limit(world, rate=["9/100s", "9/200s"])
    for _ in range(9):
        world.enqueue()
    worker = world.worker()
    assert len(claim(world, worker, 3)) == 3

    limit(world, rate="5/50s")

    assert len(claim(world, worker)) == 2


def test_each_key_has_its_own_rate(world: World) -> None:
    limit(world, key_rate="1/min")
    for key in "aab":
        world.enqueue(key=key)
    worker = world.worker()

    assert keys(claim(world, worker)) == ["a", "b"]
    world.clock.advance(59 * SECOND)
    assert claim(world, worker) == []
    world.clock.advance(2 * SECOND)
    assert keys(claim(world, worker)) == ["a"]


def test_an_attempt_that_is_handed_back_stays_spent(world: World) -> None:
    limit(world, rate="1/min")
    world.enqueue()
    worker = world.worker()
    (running,) = claim(world, worker)
    world.backend.work.exchange(worker, [released(running, world.clock.steady())], Demand((), (), 0))

    assert claim(world, worker) == []
    world.clock.advance(61 * SECOND)
    assert len(claim(world, worker)) == 1


def test_a_job_that_goes_back_for_its_key_gives_its_start_back_and_only_once(world: World) -> None:
    limit(world, rate=["2/min", "9/hour"])
    limit(world, "queue", "default", rate="2/min")
    ids = [world.enqueue() for _ in range(3)]
    worker = world.worker()
    first = claim(world, worker)
    assert [each.id for each in first] == ids[:2]
    ends = [released(first[0], world.clock.steady(), "a"), released(first[1], world.clock.steady())]

    for _ in range(2):  # the reply to the first may have been lost
        world.backend.work.exchange(worker, ends, Demand((), (), 0))

    spent = raw.run(world.backend, "SELECT scope, period_us, n FROM dray_starts ORDER BY scope, period_us")
    assert spent == [("queue", MINUTE, 1), ("task", MINUTE, 1), ("task", HOUR, 1)]
    assert len(claim(world, worker)) == 1
    assert claim(world, worker) == []


def test_what_is_given_back_is_the_start_of_that_claim_and_of_no_other(world: World) -> None:
    limit(world, rate="2/min")
    for _ in range(3):
        world.enqueue()
    worker = world.worker()
    (early,) = claim(world, worker, 1)
    world.clock.advance(30 * SECOND)
    (late,) = claim(world, worker, 1)
    world.backend.work.exchange(worker, [released(late, world.clock.steady(), "a")], Demand((), (), 0))

    world.clock.advance(29 * SECOND)
    assert len(claim(world, worker)) == 1
    world.clock.advance(2 * SECOND)
    world.backend.work.exchange(worker, [released(early, world.clock.steady(), "b")], Demand((), (), 0))

    spent = raw.run(world.backend, "SELECT n FROM dray_starts ORDER BY at")
    assert spent == [(1,), (1,)], "the first one counts no more: there is nothing to give back"


def test_a_claim_that_spent_nothing_gives_nothing_back(world: World) -> None:
    world.enqueue()
    worker = world.worker()
    (running,) = claim(world, worker)
    limit(world, rate="1/min")
    world.enqueue()
    assert len(claim(world, worker)) == 1

    world.backend.work.exchange(worker, [released(running, world.clock.steady(), "a")], Demand((), (), 0))

    assert claim(world, worker) == []


def test_a_clock_that_is_set_back_does_not_stop_a_rate_for_longer_than_two_periods(world: World) -> None:
    limit(world, rate="1/s")
    for _ in range(3):
        world.enqueue()
    worker = world.worker()
    assert len(claim(world, worker)) == 1

    world.clock.step(-HOUR)

    world.clock.advance(2 * SECOND)
    assert len(claim(world, worker)) == 1


def test_starts_are_forgotten_once_their_period_is_over(world: World) -> None:
    limit(world, rate=["1/s", "9/hour"], key_rate="1/s")
    world.enqueue(key="a")
    claim(world, world.worker())
    assert raw.run(world.backend, "SELECT count(*) FROM dray_starts")[0][0] == 3

    world.clock.advance(3 * SECOND)

    assert world.backend.limits.prune_starts(100) == 2
    assert raw.run(world.backend, "SELECT count(*) FROM dray_starts")[0][0] == 1


# Looking


def test_a_look_finds_only_what_limits_let_start(world: World) -> None:
    limit(world, limit=1)
    world.enqueue()
    world.enqueue()
    worker = world.worker()
    demand = Demand(("default",), TASKS, 1)
    assert world.backend.work.look(worker, demand).is_ready

    (running,) = claim(world, worker)

    assert not world.backend.work.look(worker, demand).is_ready
    world.complete(worker, running)
    assert world.backend.work.look(worker, demand).is_ready


def test_a_look_says_when_a_rate_opens(world: World) -> None:
    limit(world, rate="2/s")
    for _ in range(3):
        world.enqueue()
    worker = world.worker()
    began = world.clock.now()
    claim(world, worker)

    look = world.backend.work.look(worker, Demand(("default",), TASKS, 1))

    assert not look.is_ready
    assert look.opens_at is not None
    assert began + SECOND <= look.opens_at <= began + SECOND + SECOND // 50


def test_a_worker_that_serves_all_queues_finds_those_with_keys(world: World) -> None:
    world.enqueue(queue="keyed", key="a")

    look = world.backend.work.look(world.worker(), Demand((), TASKS, 1), serves_all=True)

    assert (look.is_ready, look.queues) == (True, ["keyed"])


def test_a_claim_from_no_queue_takes_nothing(world: World) -> None:
    """Of a worker that serves all queues, and has seen none with something ready."""
    limit(world, limit=1)
    world.enqueue()

    assert claim(world, world.worker(), queues=()) == []


def test_many_closed_keys_are_passed_over_in_steps_until_an_open_one_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_HOPS", 40)
    limit(world, key_limit=1)
    worker, other = world.worker(), world.worker()
    for priority in (1, 0):
        for n in range(100):
            world.enqueue(key=f"{priority}-{n:03}", priority=priority)
            world.enqueue(key=f"{priority}-{n:03}", priority=priority)
    is_over = False
    while not is_over:
        brought = world.backend.work.exchange(other, [], Demand(("default",), TASKS, 50))
        is_over = not (brought.claims or brought.goes_on)
    open_key = world.enqueue(key="0-050-open")

    found: list[str] = []
    steps = 0
    while not found and steps < 20:
        brought = world.backend.work.exchange(worker, [], Demand(("default",), TASKS, 10))
        found, steps = [each.id for each in brought.claims], steps + 1
        assert found or brought.goes_on

    assert found == [open_key]
    assert steps > 1
    rest = [world.backend.work.exchange(worker, [], Demand(("default",), TASKS, 10)).goes_on for _ in range(20)]
    assert not all(rest)  # it comes to an end, and the worker can rest


CLOSED = [f"task {n:02}" for n in range(20)]


def close_keys(world: World, keys: int) -> None:
    """Many tasks, each with as many keys of which none may start."""
    limit(world, "queue", "default", key_limit=1)
    pairs = [(task, f"{n:03}") for task in CLOSED for n in range(keys)]
    ids = [world.new(task, key=f"{task} {key}").id for task, key in pairs for _ in range(2)]
    world.backend.jobs.enqueue(
        [
            world.new(task, id=ids[2 * n + m], key=f"{task} {key}")
            for n, (task, key) in enumerate(pairs)
            for m in (0, 1)
        ]
    )
    world.backend.work.take(world.worker(), ids[::2])


def test_a_claim_visits_a_bounded_number_of_keys_however_many_lines_there_are_and_no_line_starves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_keys(world, 40)
    opened = {world.enqueue(task, key=f"{task} 03{n % 10}-open") for n, task in enumerate(CLOSED)}
    monkeypatch.setattr(turns, "_HOPS", 100)
    visited: list[int] = []
    spend = turns.Hops.spend

    def count(self: turns.Hops, line: turns.Line, n: int) -> None:
        visited[-1] += n
        spend(self, line, n)

    monkeypatch.setattr(turns.Hops, "spend", count)
    worker, found = world.worker(), list[str]()
    goes_on = True
    while goes_on:
        visited.append(0)
        brought = world.backend.work.exchange(worker, [], Demand(("default",), tuple(CLOSED), 30))
        found += [each.id for each in brought.claims]
        goes_on = brought.goes_on or bool(brought.claims)
        assert len(visited) < 100

    assert set(found) == opened
    assert max(visited) <= 125  # on PostgreSQL a quarter may be asked for before it is known that it is too much
    assert len(visited) > 8  # 800 closed keys


def test_a_look_passes_over_closed_keys_until_it_has_seen_all_or_found_an_open_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_keys(world, 20)
    monkeypatch.setattr(turns, "_HOPS", 50)
    worker, demand = world.worker(), Demand(("default",), tuple(CLOSED), 1)

    def look() -> tuple[bool, int]:
        for steps in range(1, 20):
            seen = world.backend.work.look(worker, demand)
            if not seen.goes_on:
                return seen.is_ready, steps
        pytest.fail("it comes to no end")

    is_ready, steps = look()
    assert (is_ready, steps > 1) == (False, True)

    for task in (CLOSED[0], CLOSED[7], CLOSED[19]):
        open_key = world.enqueue(task, key=f"{task} 011-open")
        assert look()[0]
        assert [each.id for each in world.backend.work.exchange(worker, [], demand).claims] == [open_key]
    assert not look()[0]


# Who says what


def test_what_an_operator_says_wins_until_it_is_taken_back(world: World) -> None:
    for _ in range(9):
        world.enqueue()
    worker = world.worker()
    assert limit(world, limit=1)
    assert limit(world, source=Source.OVERRIDE, limit=3)

    assert not limit(world, limit=1)  # code says the same as before
    assert len(claim(world, worker)) == 3
    assert limit(world, source=Source.OVERRIDE)
    assert claim(world, worker) == []


def test_an_override_of_one_kind_leaves_the_others_and_can_lift_a_limit(world: World) -> None:
    limit(world, limit=1, key_limit=1)
    for key in "aab":
        world.enqueue(key=key)

    world.backend.limits.say("task", "task", Source.OVERRIDE, {Kind.LIMIT: ()})

    assert keys(claim(world, world.worker())) == ["a", "b"]
    rules = {(rule.kind, rule.source): (rule.most, rule.in_force) for rule in world.backend.limits.all()}
    assert rules == {
        ("limit", "declared"): (1, False),
        ("limit", "override"): (None, False),
        ("key_limit", "declared"): (1, True),
    }


def test_a_rule_that_says_the_same_keeps_its_time(world: World) -> None:
    limit(world, limit=1, rate="5/s")
    before = {rule.kind: rule.changed_at for rule in world.backend.limits.all()}
    world.clock.advance(MINUTE)

    limit(world, limit=2, rate="5/s")

    after = {rule.kind: rule.changed_at for rule in world.backend.limits.all()}
    assert after["rate"] == before["rate"]
    assert after["limit"] == world.clock.now()


def test_the_first_limit_is_refused_while_a_worker_lives_that_does_not_know_limits(world: World) -> None:
    old = world.worker()
    raw.run(world.backend, "UPDATE dray_workers SET knows = NULL WHERE id = ?", old)

    with pytest.raises(ConfigError, match="runs an earlier release of Dray"):
        limit(world, limit=1)
    assert world.backend.limits.all() == []

    world.bury(old)
    assert limit(world, limit=1)
    assert dict(raw.run(world.backend, "SELECT name, value FROM dray_meta"))["oldest_code"] == "7"


def test_a_worker_that_was_killed_and_did_not_know_limits_refuses_none(world: World) -> None:
    """Its row says that it works until a rescuer buries it, and only a worker that has started has one."""
    old = world.worker()
    raw.run(world.backend, "UPDATE dray_workers SET knows = NULL WHERE id = ?", old)

    world.clock.advance(LEASE_US + SECOND)

    assert world.backend.workers.gone() == {old}
    assert limit(world, limit=1)


def queued_by_an_earlier_release(world: World) -> None:
    """Its promote, rescue, retry and reschedule do not look at keys."""
    raw.run(world.backend, "UPDATE dray_jobs SET state = 'queued' WHERE state = 'parked'")


@pytest.mark.parametrize("scope", ["task", "queue"])
def test_jobs_with_keys_that_an_earlier_release_has_queued_take_turns_once_there_is_a_limit(
    world: World, scope: Scope
) -> None:
    for key in "aaaab":
        world.enqueue(key=key, priority=1)
    plain = [world.enqueue() for _ in range(2)]
    queued_by_an_earlier_release(world)

    limit(world, scope, "task" if scope == "task" else "default", key_limit=1)

    worker = world.worker()
    claims = claim(world, worker, 2)
    claims += claim(world, worker, 2)
    assert keys(claims) == ["a", "b", None, None]
    assert {each.id for each in claims[2:]} == set(plain)
    assert claim(world, worker, 2) == []


def test_jobs_with_keys_that_an_earlier_release_has_queued_are_parked_in_steps(world: World) -> None:
    ids = [world.enqueue(key="a") for _ in range(5)]
    plain = world.enqueue()
    queued_by_an_earlier_release(world)

    assert world.backend.limits.park(3) == ["default"] * 3
    assert world.backend.limits.park(3) == ["default"] * 2
    assert world.backend.limits.park(3) == []

    states = dict(raw.run(world.backend, "SELECT CAST(id AS text), state FROM dray_jobs"))
    assert states == {**dict.fromkeys(ids, "parked"), plain: "queued"}


def test_beside_a_worker_that_does_not_know_limits_a_limit_that_is_refused_parks_nothing(world: World) -> None:
    """That worker would not find what is parked."""
    world.enqueue(key="a")
    queued_by_an_earlier_release(world)
    raw.run(world.backend, "UPDATE dray_workers SET knows = NULL WHERE id = ?", world.worker())

    with pytest.raises(ConfigError, match="runs an earlier release of Dray"):
        limit(world, key_limit=1)

    assert raw.run(world.backend, "SELECT state FROM dray_jobs") == [("queued",)]


# Pauses and other queues


def test_a_paused_queue_holds_no_slot_of_a_task(world: World) -> None:
    limit(world, limit=1)
    world.enqueue(queue="paused")
    world.enqueue(queue="open")
    world.backend.queues.pause("paused")

    claims = claim(world, world.worker(), queues=("paused", "open"))

    assert [each.queue for each in claims] == ["open"]


def test_a_worker_that_was_declared_dead_claims_nothing_under_limits(world: World) -> None:
    limit(world, limit=1)
    world.enqueue()
    worker = world.worker()
    world.bury(worker)

    assert claim(world, worker) == []


def test_queues_are_served_in_their_order_whether_they_have_limits_or_not(world: World) -> None:
    for queue in "abc":
        for _ in range(3):
            world.enqueue(queue=queue)
    limit(world, "queue", "a", limit=2)
    limit(world, "queue", "c", limit=1)

    claims = [claim(world, world.worker(), 6, queues=("a", "b", "c")) for _ in range(2)]

    assert [each.queue for each in claims[0] + claims[1]] == ["a", "a", "b", "b", "b", "c"]
