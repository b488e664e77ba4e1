"""When a worker looks before it claims, and when it does not listen."""

from __future__ import annotations

import pytest

from dray.runtime.alertness import Alertness


def called(alertness: Alertness) -> bool:
    """Somebody's commit wakes it; whether it claims without a look."""
    alertness.woken(by_change=True, by_ring=False)
    return alertness.claims_at_once()


def claimed(alertness: Alertness) -> None:
    alertness.exchanged(has_claimed=True, has_changed=True)


def wrote(alertness: Alertness) -> None:
    """An outcome, and nothing more was there."""
    alertness.exchanged(has_claimed=False, has_changed=True)


@pytest.fixture(params=[False, True], ids=["hears others", "hears itself"])
def alertness(request: pytest.FixtureRequest) -> Alertness:
    return Alertness(hears_own=request.param)


def serve_one(alertness: Alertness) -> None:
    """What follows a call, until all is quiet again."""
    claimed(alertness)
    alertness.looked(in_vain=True)
    wrote(alertness)
    alertness.looked(in_vain=True)


def test_a_call_is_answered_with_a_claim(alertness: Alertness) -> None:
    assert called(alertness)
    serve_one(alertness)

    assert alertness.pause == 0.0


def test_what_it_wrote_itself_is_no_call() -> None:
    alertness = Alertness(hears_own=True)
    assert called(alertness)
    serve_one(alertness)

    assert not called(alertness)  # its own commit
    alertness.looked(in_vain=True)
    assert alertness.pause == 0.0
    assert called(alertness)


def test_where_its_own_commits_do_not_wake_it_each_is_a_call() -> None:
    alertness = Alertness(hears_own=False)
    assert called(alertness)
    serve_one(alertness)

    assert called(alertness)


def test_after_a_claim_in_vain_it_looks_first_until_it_wins_again(alertness: Alertness) -> None:
    assert called(alertness)
    assert alertness.exchanged(has_claimed=False, has_changed=False) == 0.0  # and looks at once
    assert alertness.is_hungry
    alertness.looked(in_vain=True)
    assert not called(alertness)
    alertness.looked(in_vain=False)
    claimed(alertness)
    alertness.looked(in_vain=True)
    alertness.woken(by_change=True, by_ring=False)
    alertness.looked(in_vain=True)

    assert called(alertness)


def test_an_outcome_after_which_nothing_is_there_costs_no_luck() -> None:
    alertness = Alertness(hears_own=False)
    wrote(alertness)

    assert called(alertness)


def test_neither_a_ring_nor_the_safety_poll_is_a_call(alertness: Alertness) -> None:
    for by_change, by_ring in ((True, True), (False, False)):
        alertness.is_hungry = False
        alertness.woken(by_change=by_change, by_ring=by_ring)
        assert alertness.is_hungry
        assert not alertness.claims_at_once()


def test_looks_in_vain_come_less_and_less_often_up_to_a_bound(alertness: Alertness) -> None:
    pauses: list[float] = []
    for _ in range(200):
        alertness.woken(by_change=True, by_ring=False)
        alertness.looked(in_vain=True)
        pauses.append(alertness.pause)

    assert pauses[0] == 0.001
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 0.1
    alertness.looked(in_vain=False)
    assert alertness.pause == 0.0


def test_a_quiet_time_ends_the_deafness(alertness: Alertness) -> None:
    for _ in range(20):
        alertness.looked(in_vain=True)
    assert alertness.pause > 0

    alertness.woken(by_change=False, by_ring=False)
    assert alertness.pause == 0.0


def test_rows_that_others_lock_are_tried_again_without_haste(alertness: Alertness) -> None:
    pauses = [alertness.exchanged(has_claimed=False, has_changed=False) for _ in range(12)]

    assert pauses[0] == 0.005
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25
    claimed(alertness)
    assert alertness.exchanged(has_claimed=False, has_changed=False) == 0.005


def test_it_wakes_when_a_job_is_due() -> None:
    alertness = Alertness(hears_own=False)
    alertness.looked(in_vain=True)
    alertness.due_at = 100

    assert not alertness.wants_work(99)
    assert alertness.wants_work(100)
