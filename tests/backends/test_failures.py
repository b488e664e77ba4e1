"""Failed jobs have the key of their error, from the failure until they start over; groups are read by it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dray.backends.store import failures as store
from dray.errors import ConfigError
from dray.instants import HOUR, MINUTE, SECOND, to_datetime
from dray.model import settlement as model
from dray.model.error_group import error_key
from dray.model.job import Outcome, Reason
from dray.ops import failures
from tests import verbs
from tests.backends import raw
from tests.backends.world import World


def key_of(world: World, job_id: str) -> str | None:
    return raw.run(world.backend, "SELECT error_key FROM dray_jobs WHERE id = ?", job_id)[0][0]


def fail(world: World, error: str = "no", task: str = "task", times: int = 1) -> list[str]:
    worker = world.worker()
    ids = [world.enqueue(task, max_attempts=1) for _ in range(times)]
    now = world.clock.steady()
    claims = world.claim(worker, times, tasks=(task,))
    ends = [model.failed(claim, now, now, Reason.ERROR, "ValueError", error, None) for claim in claims]
    verbs.settle(world.backend, worker, ends)
    return ids


# The key


def test_a_failure_has_the_key_of_its_error(world: World) -> None:
    (job_id,) = fail(world, "no 7")

    assert key_of(world, job_id) == error_key("task", "ValueError: no 8")


def test_an_attempt_that_is_followed_by_another_has_none(world: World) -> None:
    job_id, worker = world.enqueue(max_attempts=2), world.worker()
    world.fail(worker, world.claim_one(worker))
    before = key_of(world, job_id)
    world.fail(worker, world.claim_one(worker))

    assert (before, key_of(world, job_id)) == (None, error_key("task", "ValueError: no"))


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.ERROR])
def test_so_has_one_that_took_too_long(world: World, outcome: Outcome) -> None:
    job_id, worker, now = world.enqueue(max_attempts=1), world.worker(), world.clock.steady()
    claim = world.claim_one(worker)
    end = model.errored(claim, now, now, outcome, 0, "TimeLimit", "30 s", None)
    verbs.settle(world.backend, worker, [end])

    assert key_of(world, job_id) == error_key("task", "TimeLimit: 30 s")


def test_so_has_one_whose_worker_died(world: World) -> None:
    job_id, worker = world.enqueue(max_attempts=1), world.worker()
    world.claim_one(worker)
    world.bury(worker)

    assert key_of(world, job_id) == error_key("task", str(world.job(job_id).error))


def test_a_crash_that_ends_as_cancelled_has_none(world: World) -> None:
    job_id, worker = world.enqueue(max_attempts=1), world.worker()
    world.claim_one(worker)
    world.backend.jobs.cancel([job_id])
    world.bury(worker)

    assert (world.job(job_id).state, key_of(world, job_id)) == ("cancelled", None)


def test_so_has_an_outcome_that_the_database_refuses(world: World) -> None:
    job_id, worker, now = world.enqueue(), world.worker(), world.clock.steady()
    end = model.completed(world.claim_one(worker), now, now)
    bad = model.unstorable(end, "a bad result")
    verbs.settle(world.backend, worker, [bad])

    assert world.job(job_id).state == "failed"
    assert key_of(world, job_id) == error_key("task", "Unstorable: a bad result")


def test_so_has_an_outcome_that_a_worker_has_left_behind(world: World) -> None:
    job_id, worker, now = world.enqueue(max_attempts=1), world.worker(), world.clock.steady()
    end = model.failed(world.claim_one(worker), now, now, Reason.ERROR, "ValueError", "no", None)
    world.backend.outcomes.leave(worker, [(end, ())])
    left = raw.run(world.backend, "SELECT outcome FROM dray_outcomes")[0][0]
    world.bury(worker)

    assert '"task"' not in left, "a rescuer of an earlier release would not know what that is"
    assert key_of(world, job_id) == error_key("task", "ValueError: no")


def test_a_job_that_starts_over_has_none(world: World) -> None:
    (job_id,) = fail(world)
    world.backend.jobs.retry([job_id])
    retried = key_of(world, job_id)
    worker = world.worker()
    world.complete(worker, world.claim_one(worker))

    assert (retried, key_of(world, job_id)) == (None, None)


def test_a_key_that_an_earlier_release_has_left_goes_with_the_end(world: World) -> None:
    done, again = world.enqueue(), world.enqueue(max_attempts=2)
    raw.run(world.backend, "UPDATE dray_jobs SET error_key = '0123456789abcdef'")
    worker = world.worker()
    first, second = world.claim(worker, 2)
    world.complete(worker, first)
    world.fail(worker, second)

    assert (key_of(world, done), key_of(world, again)) == (None, None)


# Groups


def test_failures_are_grouped_by_task_and_error_newest_first(world: World) -> None:
    began = world.clock.now()
    fail(world, "user 1 is unknown", times=2)
    world.clock.advance(MINUTE)
    fail(world, "no answer", task="send")
    world.clock.advance(MINUTE)
    (newest,) = fail(world, "user 77 is unknown")

    first, second = failures.groups(world.backend)

    assert (first.task, first.pattern, first.error) == (
        "task",
        "ValueError: user · is unknown",
        "ValueError: user 77 is unknown",
    )
    assert (first.count, first.is_capped, first.newest_id) == (3, False, newest)
    assert (first.first_at, first.last_at) == (to_datetime(began), to_datetime(began + 2 * MINUTE))
    assert (second.task, second.count) == ("send", 1)
    assert failures.group(world.backend, first.key) == first
    assert (len(first.points), first.points[-1], sum(first.points)) == (30, 3, 3)


def test_groups_of_the_last_hour_count_that_hour_and_say_since_when(world: World) -> None:
    began = world.clock.now()
    fail(world, "user 1 is unknown", times=2)
    fail(world, "no answer", task="send")
    world.clock.advance(2 * HOUR)
    fail(world, "user 2 is unknown")
    world.clock.advance(30 * MINUTE)

    for since in (timedelta(hours=1), 3600, to_datetime(world.clock.now() - HOUR)):
        (group,) = failures.groups(world.backend, since=since)
        assert (group.task, group.count, group.first_at) == ("task", 1, to_datetime(began))
        assert [step for step, jobs in enumerate(group.points) if jobs] == [15]


def test_a_count_ends_somewhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "COUNTED", 3)
    fail(world, times=4)
    fail(world, "other", times=3)

    found = {group.error: (group.count, group.is_capped) for group in failures.groups(world.backend, limit=5)}

    assert found == {"ValueError: no": (3, True), "ValueError: other": (3, False)}


def test_many_large_groups_share_what_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_COUNTED_IN_ALL", 4)
    fail(world, times=3)
    fail(world, "other", times=2)

    found = {group.error: (group.count, group.is_capped) for group in failures.groups(world.backend)}

    assert found == {"ValueError: no": (2, True), "ValueError: other": (2, False)}


def test_of_many_groups_those_of_the_newest_failures_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_KEYS", 3)
    monkeypatch.setattr(store, "_NEWEST", 2)
    for error in ("one", "two", "three", "four"):
        fail(world, error)
        world.clock.advance(SECOND)

    assert [group.error for group in failures.groups(world.backend)] == ["ValueError: four", "ValueError: three"]
    assert len(failures.groups(world.backend, limit=1)) == 1


def test_what_has_started_over_or_is_gone_is_in_no_group(world: World) -> None:
    one, two = fail(world, times=2)
    key = str(key_of(world, one))
    world.backend.jobs.retry([one])
    world.backend.jobs.delete([two])

    assert failures.groups(world.backend) == []
    assert failures.group(world.backend, key) is None


def test_a_key_that_is_left_on_a_job_that_runs_again_is_in_no_group(world: World) -> None:
    (job_id,) = fail(world)
    key = str(key_of(world, job_id))
    world.backend.jobs.retry([job_id])
    raw.run(world.backend, "UPDATE dray_jobs SET error_key = ?", key)

    assert failures.groups(world.backend) == []
    assert failures.group(world.backend, key) is None


@pytest.mark.parametrize("limit", [0, -1, 1_001, True])
def test_a_limit_that_cannot_be_is_refused(world: World, limit: int) -> None:
    with pytest.raises(ConfigError, match="limit must be between 1 and 1,000"):
        failures.groups(world.backend, limit=limit)
