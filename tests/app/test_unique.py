"""Unique jobs through an App: what a second request returns, and what it may change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from dray.app import App
from dray.errors import ConfigError
from dray.handle.job import Job
from dray.instants import HOUR, SECOND, to_datetime
from dray.task.task import Task
from tests.app.hands import Hands
from tests.backends import beside
from tests.manual_clock import ManualClock


def add(a: int, b: int = 2) -> int:
    return a + b


@pytest.fixture
def adding(app: App) -> Task[..., int]:
    return app.task(name="add")(add)


def told(job: Job[Any]) -> tuple[str, bool, bool]:
    return job.id, job.duplicate, job.replaced


# Replace and reschedule


def test_a_second_request_replaces_the_arguments_of_a_job_that_has_not_started(
    app: App, hands: Hands, adding: Task[..., int]
) -> None:
    first = adding.using(unique="sum", delay=60).enqueue(1)

    second = adding.using(unique="sum", on_conflict="replace", priority=3, name="newer").enqueue(5, 6)

    assert told(first) == (first.id, False, False)
    assert told(second) == (first.id, True, True)
    assert (second.args, second.priority, second.name, second.state) == ({"a": 5, "b": 6}, 3, "newer", "scheduled")
    assert len(app.jobs()) == 1


def test_a_second_request_moves_the_time_of_a_job_that_has_not_started(
    app: App, clock: ManualClock, adding: Task[..., int]
) -> None:
    first = adding.using(unique="sum", delay=60).enqueue(1)
    moved = adding.using(unique="sum", delay=timedelta(hours=1), on_conflict="reschedule").enqueue(9)

    assert told(moved) == (first.id, True, True)
    assert (moved.args, moved.state) == ({"a": 1}, "scheduled")
    assert moved.run_at == to_datetime(clock.now()) + timedelta(hours=1)
    assert adding.using(unique="sum", on_conflict="reschedule").enqueue(9).state == "queued"


@pytest.mark.parametrize("word", ["replace", "reschedule"])
def test_a_job_that_runs_is_kept_and_the_answer_says_so(
    app: App, hands: Hands, adding: Task[..., int], word: Any
) -> None:
    first = adding.using(unique="sum").enqueue(1)
    claim = hands.claim(first)

    second = adding.using(unique="sum", on_conflict=word, delay=5).enqueue(7)

    assert told(second) == (first.id, True, False)
    assert second.args == {"a": 1}
    hands.complete(first, 3, claim)
    assert second.result(timeout=10) == 3


def test_of_many_in_one_call_the_first_is_written_and_the_last_replaces_it(app: App, adding: Task[..., int]) -> None:
    jobs = adding.using(unique="sum", on_conflict="replace").enqueue_many([(1,), (2,), (3,)])

    assert [told(job) for job in jobs] == [
        (jobs[0].id, False, False),
        (jobs[0].id, True, True),
        (jobs[0].id, True, True),
    ]
    assert jobs[0].args == {"a": 3}


def test_coroutines_and_callers_by_name_replace_too(app: App, adding: Task[..., int]) -> None:
    first = adding.using(unique="sum").enqueue(1)
    by_name = app.enqueue("add", {"a": 2}, unique="sum", on_conflict="replace")
    awaited = asyncio.run(adding.using(unique="sum", on_conflict="replace").aenqueue(3))

    assert told(by_name) == told(awaited) == (first.id, True, True)
    assert first.args == {"a": 3}


@pytest.mark.parametrize("commits", [True, False])
def test_on_the_users_connection_it_stands_or_falls_with_their_transaction(
    app: App, url: str, adding: Task[..., int], commits: bool
) -> None:
    first = adding.using(unique="sum").enqueue(1)
    with beside.connect(url) as connection:
        second = adding.using(unique="sum", on_conflict="replace", connection=connection).enqueue(2)
        assert told(second) == (first.id, True, True)
        connection.commit() if commits else connection.rollback()

    assert first.args == {"a": 2 if commits else 1}


def test_the_arguments_of_another_task_replace_nothing(app: App, adding: Task[..., int]) -> None:
    first = adding.using(unique="sum").enqueue(1)

    assert told(app.enqueue("other", {"x": 1}, unique="sum", on_conflict="replace")) == (first.id, True, False)
    assert first.args == {"a": 1}


# How long a key is held


def test_a_key_of_the_arguments_tells_calls_apart_and_not_how_they_are_written(
    app: App, adding: Task[..., int]
) -> None:
    unique = adding.using(unique=True)
    first = unique.enqueue(1, 2)

    assert [unique.enqueue(1, b=2).id, unique.enqueue(b=2, a=1).id] == [first.id, first.id]
    assert app.enqueue("add", {"b": 2, "a": 1}, unique=True).id == first.id
    assert unique.enqueue(1, 3).id != first.id
    assert app.enqueue("other", {"a": 1, "b": 2}, unique=True).id != first.id


def test_a_key_held_while_queued_is_free_once_the_job_runs(app: App, hands: Hands, adding: Task[..., int]) -> None:
    unique = adding.using(unique="sum", unique_scope="queued")
    first = unique.enqueue(1)
    assert unique.enqueue(1).duplicate

    hands.claim(first)

    assert not unique.enqueue(1).duplicate


def test_a_window_outlives_the_job_and_counts_from_its_enqueue(
    app: App, hands: Hands, clock: ManualClock, adding: Task[..., int]
) -> None:
    unique = adding.using(unique="sum", unique_for=3600)
    first = unique.enqueue(1)
    hands.complete(first)  # advances the clock by a second

    clock.advance(HOUR - SECOND - 1)
    assert told(unique.enqueue(2)) == (first.id, True, False)
    clock.advance(1)
    assert not unique.enqueue(2).duplicate


# Instants


def test_a_time_that_has_passed_means_at_once(app: App, adding: Task[..., int]) -> None:
    job = adding.using(run_at=datetime(1999, 12, 31, tzinfo=UTC)).enqueue(1)

    assert (job.state, job.run_at) == ("queued", datetime(1999, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize("option", ["run_at", "expires_at"])
def test_a_time_without_a_zone_is_refused(app: App, adding: Task[..., int], option: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} has no time zone, so it names no instant"):
        app.enqueue("add", {"a": 1}, **cast("Any", {option: datetime(2030, 1, 1)}))  # noqa: DTZ001
    assert app.jobs() == []
