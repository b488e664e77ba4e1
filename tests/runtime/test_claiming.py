"""How much a worker claims ahead; when it looks before it claims, ignores wake-ups, or leaves the lock to others."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from dray.app import App
from dray.backends.database import Rivalry
from dray.backends.sqlite.database import SqliteDatabase
from dray.instants import MILLISECOND, SECOND
from dray.model.bounds import ARGS_BYTES, MIB
from dray.model.job import Claim
from dray.runtime.claiming import ClaimPolicy, GatherPolicy, PollPolicy, YieldPolicy

AHEAD = SqliteDatabase.most_ahead


@pytest.mark.parametrize(
    ("body_us", "in_flight", "in_turn"),
    [(1_000, 0, 4), (1_000, 6, 2), (1_000, 8, 0), (20_000, 0, 2), (20_000, 5, 1), (100_000, 0, 0)],
)
def test_of_jobs_with_keys_at_most_one_for_each_slot_and_10_ms_of_work_are_claimed_ahead(
    body_us: int, in_flight: int, in_turn: int
) -> None:
    policy = ClaimPolicy(4, {"default": None}, ("task",), random.Random(1), None, AHEAD)
    assert policy.demand(in_flight).ahead_in_turn == 0  # how long bodies take is not known yet

    policy.body_took(body_us)

    demand = policy.demand(in_flight)
    assert demand.ahead_in_turn == in_turn
    assert demand.ahead >= in_turn


def test_a_claim_that_took_all_it_may_in_turn_is_not_short_of_jobs() -> None:
    policy = ClaimPolicy(4, None, ("task",), random.Random(1), None, AHEAD)
    policy.body_took(5_000)
    first = policy.demand(0)

    policy.claimed(first, claims(first.limit + first.ahead_in_turn, key="key"))
    assert policy.demand(7).ahead_in_turn == 1  # it fills up before a slot is free

    policy.claimed(first, claims(first.limit + first.ahead_in_turn - 1, key="key"))
    assert policy.demand(7).ahead == 0


def claims(count: int, *, args: str = "{}", key: str | None = None) -> list[Claim]:
    claim = Claim("id", 1, "task", "default", args, 1, 3, 0, 3, None, 0, 0, None, key=key)
    return [claim] * count


def test_of_jobs_with_large_arguments_fewer_are_claimed_ahead() -> None:
    policy = ClaimPolicy(4, None, ("task",), random.Random(1), None, AHEAD)
    policy.body_took(5)
    assert policy.demand(0).ahead == AHEAD

    policy.claimed(policy.demand(0), claims(4, args="x" * ARGS_BYTES))
    assert policy.demand(0).ahead == 16 * MIB // ARGS_BYTES

    policy.claimed(policy.demand(0), claims(68))
    assert policy.demand(0).ahead == AHEAD


def called(policy: PollPolicy) -> bool:
    """A commit wakes it. Returns whether it claims without a look."""
    policy.woken(by_change=True, by_ring=False)
    return policy.claims_at_once()


def claimed(policy: PollPolicy) -> None:
    policy.exchanged(has_claimed=True, has_changed=True)


def wrote(policy: PollPolicy) -> None:
    """It wrote an outcome, and there was nothing to claim."""
    policy.exchanged(has_claimed=False, has_changed=True)


@pytest.fixture(params=[False, True], ids=["hears others", "hears itself"])
def policy(request: pytest.FixtureRequest) -> PollPolicy:
    return PollPolicy(hears_own=request.param)


def serve_one(policy: PollPolicy) -> None:
    """Plays what follows a wake-up, until the worker is idle again."""
    claimed(policy)
    policy.looked(found=False)
    wrote(policy)
    policy.looked(found=False)


def test_a_call_is_answered_with_a_claim(policy: PollPolicy) -> None:
    assert called(policy)
    serve_one(policy)

    assert policy.pause == 0.0


def test_what_it_wrote_itself_is_no_call() -> None:
    policy = PollPolicy(hears_own=True)
    assert called(policy)
    serve_one(policy)

    assert not called(policy)  # woken by its own commit
    policy.looked(found=False)
    assert policy.pause == 0.0
    assert called(policy)


def test_where_its_own_commits_do_not_wake_it_each_is_a_call() -> None:
    policy = PollPolicy(hears_own=False)
    assert called(policy)
    serve_one(policy)

    assert called(policy)


def test_after_a_claim_in_vain_it_looks_first_until_it_wins_again(policy: PollPolicy) -> None:
    assert called(policy)
    assert policy.exchanged(has_claimed=False, has_changed=False) == 0.0  # looks at once
    assert policy.may_have_work
    policy.looked(found=False)
    assert not called(policy)
    policy.looked(found=True)
    claimed(policy)
    policy.looked(found=False)
    policy.woken(by_change=True, by_ring=False)
    policy.looked(found=False)

    assert called(policy)


def test_an_outcome_after_which_nothing_is_there_costs_no_luck() -> None:
    policy = PollPolicy(hears_own=False)
    wrote(policy)

    assert called(policy)


def test_neither_a_ring_nor_the_safety_poll_is_a_call(policy: PollPolicy) -> None:
    for by_change, by_ring in ((True, True), (False, False)):
        policy.may_have_work = False
        policy.woken(by_change=by_change, by_ring=by_ring)
        assert policy.may_have_work
        assert not policy.claims_at_once()


def test_a_poll_that_is_proven_to_show_the_same_is_left_out_until_a_job_is_due(policy: PollPolicy) -> None:
    policy.looked(found=False)
    policy.due_at = 1_000

    policy.woken(by_change=False, by_ring=False, is_same=True)

    assert not policy.wants_work(999)
    assert policy.wants_work(1_000)
    policy.woken(by_change=False, by_ring=True, is_same=True)
    assert policy.wants_work(999), "a thread rang"


def test_looks_in_vain_come_less_and_less_often_up_to_a_bound(policy: PollPolicy) -> None:
    pauses: list[float] = []
    for _ in range(200):
        policy.woken(by_change=True, by_ring=False)
        policy.looked(found=False)
        pauses.append(policy.pause)

    assert pauses[:2] == [0.0, 0.001], "a single write, as of a beat, is no reason"
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 0.1
    policy.looked(found=True)
    assert policy.pause == 0.0


def test_a_quiet_time_ends_the_deafness(policy: PollPolicy) -> None:
    for _ in range(20):
        policy.woken(by_change=True, by_ring=False)
        policy.looked(found=False)
    assert policy.pause > 0

    policy.woken(by_change=False, by_ring=False)
    assert policy.pause == 0.0


def test_a_look_because_time_was_up_is_followed_by_no_pause(policy: PollPolicy) -> None:
    for _ in range(20):
        policy.woken(by_change=False, by_ring=False)
        policy.looked(found=False)

    assert policy.pause == 0.0


def test_rows_that_others_lock_are_tried_again_without_haste(policy: PollPolicy) -> None:
    pauses = [policy.exchanged(has_claimed=False, has_changed=False) for _ in range(12)]

    assert pauses[0] == 0.005
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25
    claimed(policy)
    assert policy.exchanged(has_claimed=False, has_changed=False) == 0.005


def test_jobs_that_another_worker_took_first_do_not_count_as_locked(policy: PollPolicy) -> None:
    """As when a rate opens: two workers find the same job, and one of them gets it."""
    pauses: list[float] = []
    for _ in range(10):
        policy.woken(by_change=False, by_ring=False)  # its time has come
        policy.looked(found=True)
        pauses.append(policy.exchanged(has_claimed=False, has_changed=False))
        policy.looked(found=False)

    assert pauses == [0.005] * 10


def test_it_wakes_when_a_job_is_due() -> None:
    policy = PollPolicy(hears_own=False)
    policy.looked(found=False)
    policy.due_at = 100

    assert not policy.wants_work(99)
    assert policy.wants_work(100)


MS = MILLISECOND


def after(policy: YieldPolicy, *seen: tuple[int, int], took: int = MS) -> float:
    """The last pause after exchanges that waited for the lock: when each was, in ms, and the newest job it saw."""
    pauses = [policy.exchanged(Rivalry(at * MS, newest), at * MS, at * MS + took) for at, newest in seen]
    return pauses[-1]


def free(policy: YieldPolicy, at: int, took: int = MS) -> float:
    return policy.exchanged(None, at * MS, at * MS + took)


def test_a_worker_that_finds_the_lock_free_never_yields() -> None:
    policy = YieldPolicy()

    assert [free(policy, at) for at in range(5)] == [0.0] * 5


def test_beside_a_producer_it_leaves_the_lock_ten_times_as_long_as_it_had_it() -> None:
    assert after(YieldPolicy(), (0, 100), (10, 120), took=2 * MS) == 0.02


def test_it_yields_for_a_bounded_time() -> None:
    assert after(YieldPolicy(), (0, 100), (10, 120), took=1) == 0.005
    assert after(YieldPolicy(), (0, 100), (10, 120), took=SECOND) == 0.1


def test_it_does_not_yield_to_other_workers() -> None:
    assert after(YieldPolicy(), (0, 100), (10, 100), (20, 100)) == 0.0


def test_nor_to_a_producer_of_few_jobs() -> None:
    assert after(YieldPolicy(), (0, 100), (10, 101), (20, 102)) == 0.0


def test_nor_at_the_first_time_it_waits() -> None:
    assert after(YieldPolicy(), (0, 100)) == 0.0


def test_a_wait_counts_for_the_next_exchange_and_no_longer() -> None:
    policy = YieldPolicy()
    assert after(policy, (0, 100), (10, 120)) > 0

    assert free(policy, 20) > 0
    assert free(policy, 30) == 0.0


def flow(
    policy: GatherPolicy,
    start: int,
    exchanges: int,
    *,
    each_ms: int = 1,
    ended: int = 1,
    claimed: int = 2,
    may_gather: bool = True,
) -> float:
    """The last pause after so many exchanges from a time on, in ms."""
    pauses = [
        policy.exchanged(ended, claimed, (start + n * each_ms) * MS, may_gather=may_gather)
        for n in range(1, exchanges + 1)
    ]
    return pauses[-1]


def test_a_worker_waits_for_more_while_jobs_come_by_twos_and_threes() -> None:
    policy = GatherPolicy()

    assert flow(policy, 0, 15) == 0.0
    assert flow(policy, 15, 1) == 0.01
    # As many come as before, now by 22 in each pause.
    assert flow(policy, 16, 48, each_ms=11, claimed=22) == 0.01


@pytest.mark.parametrize(
    "seen",
    [
        {"claimed": 1},  # a chain: each job enqueues the next
        {"ended": 0},  # bodies that take longer
        {"claimed": 8, "may_gather": False},  # there is more than it can take
    ],
)
def test_it_does_not_wait_where_that_would_bring_no_more(seen: dict[str, Any]) -> None:
    assert flow(GatherPolicy(), 0, 100, **seen) == 0.0


def test_it_stops_to_wait_where_fewer_come_because_of_it_and_for_twice_as_long_each_time() -> None:
    policy = GatherPolicy()
    assert flow(policy, 0, 16) == 0.01

    assert flow(policy, 16, 16, each_ms=11) == 0.0  # those who enqueue two wait for their ends

    assert flow(policy, 192, 992) == 0.0
    assert flow(policy, 1184, 16) == 0.01
    assert flow(policy, 1200, 16, each_ms=11) == 0.0
    assert flow(policy, 1376, 1984) == 0.0
    assert flow(policy, 3360, 16) == 0.01


def test_it_judges_by_what_comes_at_a_time() -> None:
    policy = GatherPolicy()
    assert flow(policy, 0, 16) == 0.01

    assert flow(policy, 1000, 1) == 0.0
    assert flow(policy, 1001, 16) == 0.01
    # Fewer than in the milliseconds before, although many more than in the second before.
    assert flow(policy, 1017, 16, each_ms=11) == 0.0


def test_bodies_of_half_a_millisecond_are_not_short() -> None:
    """While they counted as short, jobs at 1,200 a second with bodies of 5 ms waited for 18 ms instead of 1.6."""
    policy = ClaimPolicy(8, None, ("noop",), random.Random(1), None, AHEAD)

    policy.body_took(400)
    assert policy.are_short
    policy.body_took(5_000)
    assert not policy.are_short


@pytest.mark.parametrize(("body_us", "ahead"), [(10, AHEAD), (100, 500), (400, 125), (1_000, 200), (20_000, 10)])
def test_what_is_claimed_ahead_is_50_ms_of_work(body_us: int, ahead: int) -> None:
    """Short bodies run one after the other, others in all slots."""
    policy = ClaimPolicy(4, None, ("noop",), random.Random(1), None, AHEAD)

    policy.body_took(body_us)

    assert policy.demand(0).ahead == ahead


def test_it_stops_to_wait_at_once_when_there_is_more_than_it_can_take() -> None:
    policy = GatherPolicy()
    assert flow(policy, 0, 16) == 0.01

    assert flow(policy, 16, 1, claimed=8, may_gather=False) == 0.0


def test_outcomes_are_written_by_halves_of_what_may_be_in_flight_while_bodies_are_short() -> None:
    policy = ClaimPolicy(8, None, ("noop",), random.Random(1), None, AHEAD)
    assert policy.batch == 8  # how long bodies take is not known yet

    policy.body_took(5)
    assert policy.batch == 500

    policy.stop_claiming_ahead()
    assert policy.batch == 8  # all slots at once


def test_a_worker_with_thousands_of_slots_writes_a_bounded_number_of_outcomes_at_once() -> None:
    assert ClaimPolicy(3_000, None, ("noop",), random.Random(1), None, AHEAD).batch == 500


@pytest.mark.parametrize(("seconds", "may_gather"), [(0.0, True), (0.002, False)])
def test_only_short_bodies_are_gathered(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, seconds: float, may_gather: bool
) -> None:
    seen: list[bool] = []

    def exchanged(*_: object, may_gather: bool) -> float:
        seen.append(may_gather)
        return 0.0

    monkeypatch.setattr(GatherPolicy, "exchanged", exchanged)
    with App(shared_url) as app:

        @app.task(name="pause")
        def pause() -> None:
            time.sleep(seconds)

        for _ in range(20 if may_gather else 1):  # on a busy machine the shortest body may take long
            pause.enqueue_many([()] * 40)
            assert app.worker(concurrency=2).run_until_idle() == 40
            if True in seen:
                break

    assert (True in seen) is may_gather
