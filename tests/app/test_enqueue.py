"""Enqueueing: by task, by name, in bulk, on the user's connection, and what is refused before anything is written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dray.address import SqliteAddress, parse_address
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, InvalidName, PayloadError, PayloadTooLarge, UnknownJob
from dray.handle.job import Job
from dray.settings import Durability
from dray.task.task import Task
from tests.app.hands import Hands
from tests.manual_clock import ManualClock


def add(a: int, b: int = 2) -> int:
    return a + b


def report(day: date) -> date:
    return day


@pytest.fixture
def adding(app: App) -> Task[..., int]:
    return app.task(name="add", queue="maths", max_attempts=5, timeout=30, description="Adds")(add)


def in_order(jobs: Iterable[Job[Any]]) -> list[str]:
    return sorted(job.id for job in jobs)


def test_a_job_has_the_arguments_and_its_tasks_options(app: App, adding: Task[..., int]) -> None:
    job = adding.enqueue(1, b=3)

    assert (job.state, job.task, job.queue, job.args) == ("queued", "add", "maths", {"a": 1, "b": 3})
    assert (job.attempt, job.max_attempts, job.priority, job.duplicate) == (0, 5, 0, False)
    assert (job.row.timeout, job.row.description) == (30, "Adds")
    assert UUID(job.id).version == 7


def test_options_for_one_job_come_before_its_tasks(app: App, adding: Task[..., int]) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    job = adding.using(
        queue="slow", priority=7, run_at=later, max_attempts=1, timeout=5, name="one", tags=["x", "y"]
    ).enqueue(1)

    assert (job.state, job.queue, job.priority, job.run_at) == ("scheduled", "slow", 7, later)
    assert (job.max_attempts, job.row.timeout, job.name, job.tags) == (1, 5, "one", ("x", "y"))


def test_a_delay_and_an_expiry_count_from_now(app: App, adding: Task[..., int]) -> None:
    job = adding.using(delay=timedelta(minutes=1), expires_in=3600).enqueue(1)

    assert job.run_at - job.created_at == timedelta(minutes=1)
    assert job.expires_at is not None
    assert job.expires_at - job.created_at == timedelta(hours=1)


def test_many_jobs_are_written_together_and_answered_in_order(app: App, adding: Task[..., int]) -> None:
    jobs = adding.enqueue_many([(1, 2), {"a": 3}, (4,)])

    assert [job.args for job in jobs] == [{"a": 1, "b": 2}, {"a": 3}, {"a": 4}]
    assert in_order(jobs) == [job.id for job in jobs] == in_order(app.jobs())
    assert adding.enqueue_many([]) == []


def test_coroutines_enqueue_too(app: App, adding: Task[..., int]) -> None:
    async def produce() -> list[Job[Any]]:
        return [
            await adding.aenqueue(1),
            *await adding.aenqueue_many([(2,), (3,)]),
            *await asyncio.gather(adding.using(priority=1).aenqueue(4), app.aenqueue("add", {"a": 5})),
        ]

    made = asyncio.run(produce())

    assert [job.args for job in made] == [{"a": n} for n in range(1, 6)]
    assert in_order(made) == in_order(app.jobs())


# By name


def test_a_task_whose_code_is_elsewhere_is_enqueued_by_name(app: App) -> None:
    job = app.enqueue("mail.send", {"to": "ann@example.com"}, queue="mail", delay=5, tags=["x"])

    assert (job.task, job.queue, job.state, job.tags) == ("mail.send", "mail", "scheduled", ("x",))
    assert job.args == {"to": "ann@example.com"}
    assert app.enqueue("mail.flush").args == {}


def test_values_that_say_what_they_are_need_no_annotation(app: App) -> None:
    assert app.enqueue("report", {"day": date(2026, 1, 2)}).args == {"day": "2026-01-02"}


def test_by_name_a_task_that_is_known_has_its_own_options_and_checks(app: App, adding: Task[..., int]) -> None:
    job = app.enqueue("add", {"a": 1})

    assert (job.queue, job.max_attempts, job.args) == ("maths", 5, {"a": 1})
    with pytest.raises(TypeError, match="missing 'a'; unknown 'c'"):
        app.enqueue("add", {"c": 1})
    assert len(app.jobs()) == 1


# Unique


def test_the_loser_gets_the_winners_handle(app: App, adding: Task[..., int]) -> None:
    unique = adding.using(unique=True)
    first, again, other = unique.enqueue(1), unique.enqueue(1), unique.enqueue(2)

    assert (again.id, again.duplicate) == (first.id, True)
    assert (first.duplicate, other.duplicate) == (False, False)
    assert again == first != other
    assert len({first, again, other}) == 2
    assert len(app.jobs()) == 2


def test_duplicates_are_told_apart_within_one_batch(app: App, adding: Task[..., int]) -> None:
    jobs = adding.using(unique=True).enqueue_many([(1,), (2,), (1,)])

    assert [job.duplicate for job in jobs] == [False, False, True]
    assert jobs[2].id == jobs[0].id


def test_a_unique_key_is_free_once_its_job_has_ended(app: App, hands: Hands, adding: Task[..., int]) -> None:
    first = adding.using(unique="report:42").enqueue(1)
    hands.complete(first)

    assert not adding.using(unique="report:42").enqueue(1).duplicate


# After others


def test_a_job_waits_for_its_parents(app: App, hands: Hands, adding: Task[..., int]) -> None:
    parent = adding.enqueue(1)
    child = adding.using(after=[parent]).enqueue(2)
    assert child.state == "waiting"

    hands.complete(parent)

    assert child.refresh().state == "queued"


def test_a_parent_that_is_not_there_is_refused(app: App, adding: Task[..., int]) -> None:
    with pytest.raises(UnknownJob, match="does not exist"):
        adding.using(after=[core_of(app).new_id()]).enqueue(1)
    assert app.jobs() == []


# Waking up


def test_workers_of_this_process_are_told_of_the_queues_once_the_jobs_are_there(
    app: App, adding: Task[..., int]
) -> None:
    seen: list[tuple[set[str], int]] = []
    core_of(app).on_enqueue.append(lambda queues: seen.append((set(queues), len(app.jobs()))))

    adding.enqueue(1)
    adding.using(queue="other", delay=60).enqueue(2)
    asyncio.run(app.aenqueue("x", queue="third"))

    assert seen == [({"maths"}, 1), ({"other"}, 2), ({"third"}, 3)]


def test_nobody_is_told_of_what_was_refused(app: App, adding: Task[..., int]) -> None:
    seen: list[Any] = []
    core_of(app).on_enqueue.append(seen.append)

    with pytest.raises(PayloadError):
        adding.enqueue("one")
    assert seen == []


# How durable


@pytest.mark.parametrize(("durability", "is_durable"), [("full", True), ("default", True), ("normal", False)])
def test_an_enqueue_is_as_durable_as_the_app_says(
    url: str, monkeypatch: pytest.MonkeyPatch, durability: Durability, is_durable: bool
) -> None:
    with App(url, durability=durability) as app:
        written: list[bool] = []

        def noting(write: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*args: Any, durable: bool, **options: Any) -> Any:
                written.append(durable)
                return write(*args, durable=durable, **options)

            return noted

        for name in ("write", "post"):  # the first job of a queue, and those after it
            monkeypatch.setattr(core_of(app).backend.db, name, noting(getattr(core_of(app).backend.db, name)))
        app.enqueue("x")
        assert written == [is_durable]
        asyncio.run(app.aenqueue("x"))

        assert set(written[1:]) == {is_durable}
        assert len(app.jobs()) == 2


# On the user's connection


def connect(url: str) -> Any:
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        return sqlite3.connect(address.path)
    server, _, schema = url.partition("&schema=")
    return psycopg.connect(server, options=f"-c search_path={schema}")


def test_a_job_stands_or_falls_with_the_users_transaction(app: App, url: str) -> None:
    app.queues()  # creates the tables
    adding = app.task(name="add")(add)
    connection = connect(url)
    try:
        dropped = adding.using(connection=connection).enqueue(1)
        with pytest.raises(UnknownJob):
            dropped.refresh()
        connection.rollback()

        kept = adding.using(connection=connection).enqueue_many([(2,), (3,)])
        named = app.enqueue("x", connection=connection)
        connection.commit()
    finally:
        connection.close()

    assert in_order(app.jobs()) == in_order([*kept, named])


def test_a_coroutine_may_use_its_threads_connection(app: App, url: str) -> None:
    app.queues()
    connection = connect(url)
    try:
        job = asyncio.run(app.aenqueue("x", connection=connection))
        assert app.jobs() == []
        connection.commit()
    finally:
        connection.close()

    assert app.jobs() == [job]


def test_something_that_is_no_connection_is_refused(app: App) -> None:
    app.queues()
    with pytest.raises(ConfigError, match="connection"):
        app.enqueue("x", connection="jobs.db")
    assert app.jobs() == []


# Refused before anything is written


MISUSE: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (lambda app, task: app.enqueue("a name "), InvalidName, "task name 'a name ' cannot be used"),
    (lambda app, task: app.enqueue(7), InvalidName, "a task name must be a string, not int"),
    (lambda app, task: app.enqueue(task, {"a": 1}), TypeError, r"the task at hand write add\.enqueue\(\.\.\.\)"),
    (lambda app, task: app.enqueue(task, 1, 2), TypeError, r"the task at hand write add\.enqueue\(\.\.\.\)"),
    (lambda app, task: app.enqueue("add", 1, 2), TypeError, r"as a dict: app\.enqueue\('add', {\.\.\.}\)"),
    (lambda app, task: app.enqueue("add", a=1, b=2), TypeError, r"as a dict: app\.enqueue\('add', {\.\.\.}\)"),
    (lambda app, task: app.enqueue("add", countdown=5), TypeError, "did you mean delay"),
    (
        lambda app, task: app.enqueue("x", [1, 2]),
        TypeError,
        "given by name, as a dict, not as list",
    ),
    (lambda app, task: app.enqueue("x", "to"), TypeError, "as a dict, not as str"),
    (lambda app, task: app.enqueue("x", {1: 2}), PayloadError, "JSON keys are strings|key"),
    (lambda app, task: app.enqueue("x", {"a": object()}), PayloadError, r"args\.a"),
    (lambda app, task: app.enqueue("x", {"a": "x" * 300_000}), PayloadTooLarge, "over the limit"),
    (lambda app, task: app.enqueue("x", countdown=5), TypeError, "did you mean delay"),
    (lambda app, task: app.enqueue("x", a=1), TypeError, r"app.enqueue\(task, {arguments}\) has no option 'a'"),
    (lambda app, task: app.enqueue("x", delay=-1), ConfigError, "delay must be between 0"),
    (lambda app, task: app.enqueue("x", run_at=datetime(2030, 1, 1)), ConfigError, "has no time zone"),  # noqa: DTZ001
    (lambda app, task: app.enqueue("x", run_at="tomorrow"), TypeError, "run_at must be a datetime"),
    (lambda app, task: app.enqueue("x", priority="high"), TypeError, "priority must be a whole number"),
    (lambda app, task: app.enqueue("x", priority=1 << 40), ConfigError, "priority must be between"),
    (lambda app, task: app.enqueue("x", queue="a,queue"), InvalidName, "queue name"),
    (lambda app, task: app.enqueue("x", tags="x"), TypeError, "tags must be a list"),
    (lambda app, task: app.enqueue("x", after=["7"]), ConfigError, "'7' is no job id"),
    (lambda app, task: app.enqueue("x", unique_for=60), ConfigError, "means nothing without unique"),
    (lambda app, task: app.enqueue("x", expires_in=1, delay=5), ConfigError, "would expire before it may run"),
    (lambda app, task: app.enqueue("x", max_attempts=0), ConfigError, "max_attempts must be between 1"),
    (lambda app, task: task.enqueue(), TypeError, "missing a required argument: 'a'"),
    (lambda app, task: task.enqueue(1, 2, 3), TypeError, "too many positional arguments"),
    (lambda app, task: task.enqueue("x"), PayloadError, r"args\.a"),
    (lambda app, task: task.enqueue_many([(1,), ("x",)]), PayloadError, r"args\.a"),
    (lambda app, task: task.enqueue_many([1]), TypeError, r"write \(value,\)"),
    (lambda app, task: task.using(dealy=1), TypeError, "did you mean delay"),
]


@pytest.mark.parametrize(("wrong", "kind", "says"), MISUSE)
def test_misuse_is_told_before_anything_is_written(
    app: App,
    adding: Task[..., int],
    wrong: Callable[[App, Any], Any],
    kind: type[Exception],
    says: str,
) -> None:
    with pytest.raises(kind, match=says):
        wrong(app, adding)
    assert app.jobs() == []


def test_ids_follow_the_clock_of_the_app(app: App, clock: ManualClock) -> None:
    first = app.enqueue("x")
    clock.advance(1_000_000)

    assert first.id < app.enqueue("x").id
