"""Lists, statistics, queues, workers and pruning through an App."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, InvalidName, UnknownJob
from dray.instants import DAY, HOUR, LAST_INSTANT, SECOND, to_datetime
from dray.model.job import Reason
from dray.ops.why import why
from tests.app.hands import Hands
from tests.backends import raw
from tests.manual_clock import ManualClock


def test_a_job_is_found_by_its_id_in_any_form(app: App) -> None:
    job = app.enqueue("x")

    for form in (job.id, job.id.upper(), UUID(job.id), job):
        assert app.job(form) == job


@pytest.mark.parametrize(
    ("job_id", "kind", "says"),
    [
        ("7", UnknownJob, "'7' is no job's id; pass a whole one"),
        ("", UnknownJob, "'' is no job's id"),
        ("01890000-0000-7000-8000-000000000000", UnknownJob, "no job has the id 01890000-"),
        (7, TypeError, "a job's id is a string, not int"),
        (None, TypeError, "a job's id is a string, not NoneType"),
    ],
)
def test_an_id_that_leads_nowhere_is_said_to(app: App, job_id: Any, kind: type[Exception], says: str) -> None:
    for use in (app.job, app.cancel, app.retry, app.delete):
        with pytest.raises(kind, match=says):
            use(job_id)


def test_by_id_as_by_handle(app: App, hands: Hands) -> None:
    job = app.enqueue("x")
    assert app.cancel(job.id) is True
    assert app.retry(UUID(job.id)) is True
    hands.complete(job)
    assert app.cancel(job) is False
    assert app.delete(job.id) is True
    assert app.jobs() == []


# Lists


@pytest.mark.parametrize("field", ["run_at", "expires_at"])
def test_the_last_instant_there_is_shows_in_every_zone(app: App, field: str) -> None:
    options: dict[str, Any] = {field: to_datetime(LAST_INSTANT)}
    job = app.enqueue("x", **options)

    (found,) = app.jobs()
    at = to_datetime(getattr(found.row, field))
    assert found == job
    assert abs(at - to_datetime(LAST_INSTANT)) < timedelta(seconds=1)
    assert at.astimezone(timezone(timedelta(hours=14))).year == at.astimezone(timezone(-timedelta(hours=14))).year


@pytest.mark.parametrize("field", ["run_at", "expires_at"])
def test_the_end_of_the_calendar_is_refused(app: App, field: str) -> None:
    options: dict[str, Any] = {field: datetime.max.replace(tzinfo=UTC)}

    with pytest.raises(ConfigError, match=f"{field}.*9999-12-30"):
        app.enqueue("x", **options)


@pytest.mark.parametrize("field", ["run_at", "expires_at"])
@pytest.mark.parametrize("end", ["infinity", "-infinity", "far"])
def test_an_instant_beyond_the_calendar_breaks_no_list(app: App, field: str, end: str) -> None:
    """Plain SQL can write such an instant."""
    numbers = {"infinity": 2**63 - 1, "-infinity": -(2**63), "far": 10**18}
    texts = {"far": "20000-01-01"}
    job = app.enqueue("x", expires_in=60)
    value = numbers[end] if app.url.startswith("sqlite:") else texts.get(end, end)
    raw.run(core_of(app).backend, f"UPDATE dray_jobs SET {field} = ? WHERE id = ?", value, job.id)

    assert [found.id for found in app.jobs()] == [job.id]
    year = 1 if end == "-infinity" else 9999
    assert to_datetime(getattr(job.refresh().row, field)).year == year
    assert why(core_of(app).backend, job.id).causes


def test_jobs_come_newest_first_and_page_by_page(app: App) -> None:
    made = [app.enqueue("x") for _ in range(5)]

    first = app.jobs(limit=2)
    second = app.jobs(limit=2, after=first[-1])
    third = app.jobs(limit=2, after=second[-1].id)

    assert [*first, *second, *third] == made[::-1]
    assert app.jobs(after=made[0]) == []


def test_a_list_is_read_at_once(app: App) -> None:
    app.enqueue("x")
    (job,) = app.jobs()
    app.cancel(job.id)

    assert job.state == "queued"


def test_filters_fit_together(app: App) -> None:
    task = app.task(name="known")(empty)
    mail = app.enqueue("send", queue="mail", tags=["x"])
    app.enqueue("send", queue="slow", tags=["x", "y"])
    known = task.using(queue="mail").enqueue()

    assert app.jobs(queue="mail") == [known, mail]
    assert app.jobs(queue="mail", task="send") == app.jobs(queue="mail", tag="x") == [mail]
    assert app.jobs(task=task) == [known]
    assert app.jobs(queue="nothing") == []


def empty() -> None: ...


def test_states_go_by_every_word_people_have_for_them(app: App, hands: Hands) -> None:
    done, late = app.enqueue("x", queue="a"), app.enqueue("x", queue="b")
    hands.complete(done)
    hands.fail(late, reason=Reason.TIMEOUT)
    queued, scheduled = app.enqueue("x", queue="c"), app.enqueue("x", delay=60)

    assert app.jobs(state="completed") == app.jobs(state="succeeded") == [done]
    assert app.jobs(state="failed") == app.jobs(state="timeout") == [late]
    assert app.jobs(state="crashed") == []
    assert app.jobs(state="pending") == [scheduled, queued]
    assert app.jobs(state=["completed", "queued"]) == [queued, done]


def test_since_is_a_time_or_so_long_until_now(app: App, clock: ManualClock) -> None:
    app.enqueue("x")
    clock.advance(HOUR)
    new = app.enqueue("x")

    assert (
        app.jobs(since=60)
        == app.jobs(since=timedelta(minutes=1))
        == app.jobs(since=to_datetime(clock.now()))
        == [new]
    )
    assert len(app.jobs(since=timedelta(hours=1))) == 2
    assert app.jobs(since=datetime(2100, 1, 1, tzinfo=UTC)) == []


MISUSE: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda app: app.jobs(state="done"), ConfigError, "no job state 'done'; known are waiting"),
    (lambda app: app.jobs(state=[]), ConfigError, "give states"),
    (lambda app: app.jobs(state=["timeout", "completed"]), ConfigError, "timeout, crashed and expired alone"),
    (lambda app: app.jobs(state=[7]), TypeError, "state must be a word"),
    (lambda app: app.jobs(queue="a,b"), InvalidName, "queue name 'a,b'"),
    (lambda app: app.jobs(task=7), InvalidName, "task name"),
    (lambda app: app.jobs(tag=""), InvalidName, "tag name"),
    (lambda app: app.jobs(since=datetime(2030, 1, 1)), ConfigError, "since has no time zone"),  # noqa: DTZ001
    (lambda app: app.jobs(since="today"), TypeError, "since must be a number of seconds"),
    (lambda app: app.jobs(limit=0), ConfigError, "limit must be between 1 and 10,000, not 0"),
    (lambda app: app.jobs(limit=1_000_000), ConfigError, "read on with after="),
    (lambda app: app.jobs(limit="5"), TypeError, "limit must be a whole number"),
    (lambda app: app.jobs(after="7"), UnknownJob, "no job's id"),
    (lambda app: app.stats(window=0), ConfigError, "window must be more than 0"),
    (lambda app: app.prune(older_than=-1), ConfigError, "older_than must be between 0"),
    (lambda app: app.prune(older_than="1d"), TypeError, "older_than must be a number"),
    (lambda app: app.pause("a,b"), InvalidName, "queue name"),
    (lambda app: app.resume(7), InvalidName, "queue name"),
    (lambda app: app.queue("q", priority="high"), TypeError, "priority must be a whole number"),
    (lambda app: app.queue("q", priority=1 << 40), ConfigError, "priority must be between"),
    (lambda app: app.queue("a,b"), InvalidName, "queue name"),
]


@pytest.mark.parametrize(("wrong", "kind", "says"), MISUSE)
def test_what_cannot_be_meant_is_refused(
    app: App, wrong: Callable[[App], Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        wrong(app)
    assert app.queues() == []


# Numbers


def test_numbers_of_an_empty_database(app: App) -> None:
    stats = app.stats()

    assert set(stats.states.values()) == {0}
    assert (stats.queues, stats.oldest_queued, stats.oldest_queued_age) == ({}, {}, None)
    assert (stats.throughput, stats.p50, stats.p95) == (0, None, None)


def test_numbers_by_state_and_queue(app: App, hands: Hands, clock: ManualClock) -> None:
    done, bad = app.enqueue("x", queue="a"), app.enqueue("x", queue="b")
    hands.complete(done)
    hands.fail(bad)
    app.enqueue("x", queue="a")
    clock.advance(5 * SECOND)
    app.enqueue("x", queue="b")
    app.enqueue("x", queue="b", delay=60)

    stats = app.stats(window=timedelta(seconds=10))

    assert stats.states == {
        **dict.fromkeys(["waiting", "running", "cancelled"], 0),
        "scheduled": 1,
        "queued": 2,
        "completed": 1,
        "failed": 1,
    }
    assert stats.queues == {"a": {"completed": 1, "queued": 1}, "b": {"failed": 1, "queued": 1, "scheduled": 1}}
    assert stats.oldest_queued == {"a": 5.0, "b": 0.0}
    assert stats.oldest_queued_age == 5.0
    assert (stats.window, stats.finished) == (10.0, {"completed": 1, "failed": 1, "cancelled": 0})
    assert (stats.throughput, stats.p50, stats.p95) == (0.2, 1.0, 1.0)
    assert json.loads(json.dumps(stats.as_dict()))["oldest_queued_age"] == 5.0


# Queues


def test_a_queue_has_a_default_priority_for_jobs_to_come(app: App) -> None:
    assert (app.queue("mail").priority, app.queues()) == (0, [])
    before = app.enqueue("x", queue="mail")

    assert app.queue("mail", priority=10).priority == 10

    assert app.queue("mail").priority == 10
    assert before.priority == 0
    assert app.enqueue("x", queue="mail").priority == 10
    assert app.enqueue("x", queue="mail", priority=1).priority == 1
    assert [(queue.name, queue.jobs) for queue in app.queues()] == [("mail", {"queued": 3})]


def test_a_paused_queue_starts_nothing_until_it_goes_on(app: App, clock: ManualClock) -> None:
    woken: list[list[str]] = []
    core_of(app).on_enqueue.append(lambda queues: woken.append(list(queues)))

    assert app.pause("mail") is True
    assert app.pause("mail") is False
    assert app.queue("mail").is_paused
    assert app.queue("mail").paused_at == to_datetime(clock.now())
    assert woken == []

    assert app.resume("mail") is True
    assert app.resume("mail") is False
    assert not app.queue("mail").is_paused
    assert woken == [["mail"]]


# Workers


def test_workers_are_shown_with_their_duties(app: App, hands: Hands, clock: ManualClock) -> None:
    assert app.workers() == []
    core_of(app).backend.leases.take("prune", hands.worker)

    (worker,) = app.workers()

    assert (worker.id, worker.name, worker.host, worker.pid) == (hands.worker, "hands", "here", 1)
    assert (worker.state, worker.duties, worker.stopped_at) == ("active", ("prune",), None)
    assert worker.started_at == worker.last_seen_at == to_datetime(clock.now())


# Pruning


def test_prune_removes_what_ended_long_enough_ago(app: App, hands: Hands, clock: ManualClock) -> None:
    old, live = app.enqueue("x", queue="a"), app.enqueue("x", queue="b")
    hands.complete(old)
    clock.advance(HOUR)
    new = app.enqueue("x", queue="a")
    hands.complete(new)

    assert app.prune(older_than=timedelta(minutes=30)) == 1
    assert app.jobs() == [new, live]
    assert app.prune(older_than=0) == 0
    clock.advance(SECOND)
    assert app.prune(older_than=0) == 1
    assert app.jobs() == [live]


def test_prune_keeps_failures_longer_by_default(app: App, hands: Hands, clock: ManualClock) -> None:
    done, bad = app.enqueue("x", queue="a"), app.enqueue("x", queue="b")
    hands.complete(done)
    hands.fail(bad)
    clock.advance(8 * DAY)

    assert app.prune() == 1
    assert app.jobs() == [bad]


def test_prune_goes_on_until_nothing_is_left_to_remove(app: App, clock: ManualClock) -> None:
    task = app.task(name="many")(empty)
    core_of(app).backend.jobs.cancel([job.id for job in task.enqueue_many([()] * 2_500)])
    clock.advance(SECOND)

    assert app.prune(older_than=0) == 2_500
