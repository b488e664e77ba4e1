"""`assert_enqueued` and its kin: what waits to run, and a message that says what there is instead."""

from __future__ import annotations

import datetime

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, UnknownTask
from dray.testing import all_enqueued, assert_enqueued, drain, refute_enqueued
from tests.testing.shop import Address, double, move, send

ANN = "ann@example.com"


def test_a_job_that_waits_is_found_by_some_of_its_arguments(app: App) -> None:
    job = send.enqueue(ANN, "Welcome")

    assert assert_enqueued(app, send, to=ANN) == [job]
    assert assert_enqueued(app, send, to=ANN, subject="Welcome", count=1) == [job]
    assert assert_enqueued(app, send) == [job]
    assert assert_enqueued(app, send.name, to=ANN) == [job]
    refute_enqueued(app, send, to="bob@example.com")
    refute_enqueued(app, double)


def test_defaults_count_and_values_are_compared_as_the_body_gets_them(app: App) -> None:
    send.enqueue(ANN)
    assert_enqueued(app, send, subject="Hello")
    address = Address("High Street", datetime.date(2020, 1, 2))
    move.enqueue(address, {"b", "a"})
    assert_enqueued(app, move, to=address, tags={"a", "b"})
    assert_enqueued(app, move, to={"street": "High Street", "since": "2020-01-02"})
    refute_enqueued(app, move, tags={"a"})
    app.enqueue("elsewhere.task", {"point": (1, 2)})
    assert_enqueued(app, "elsewhere.task", point=(1, 2))


def test_jobs_that_wait_for_their_time_or_their_parents_count_and_ended_ones_do_not(app: App) -> None:
    first = double.using(delay=60).enqueue(1)
    send.using(after=[first]).enqueue(ANN)
    assert_enqueued(app, double, count=1)
    assert_enqueued(app, send, count=1)
    assert [job.task for job in all_enqueued(app)] == [double.name, send.name]
    assert [job.task for job in all_enqueued(app, task=send)] == [send.name]
    drain(app)
    assert all_enqueued(app) == []
    refute_enqueued(app, send)


def test_options_of_the_job(app: App) -> None:
    send.using(tags=["x"], name="to Ann").enqueue(ANN)
    assert_enqueued(app, send, using={"queue": "mail", "priority": 5, "tags": ["x"], "name": "to Ann"})
    refute_enqueued(app, send, using={"queue": "default"})
    assert_enqueued(app, send, using={"args": {"to": ANN}})  # for arguments that are called count, using …


def test_the_message_says_which_jobs_there_are_the_closest_first(app: App) -> None:
    far, near = send.enqueue("bob@example.com", "Bye"), send.enqueue(ANN, "Bye")

    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, send, to=ANN, subject="Hello", using={"queue": "mail"})

    expected = "expected that a job of tests.testing.shop.send waits to run"
    assert str(caught.value).splitlines() == [
        f"{expected} with to='ann@example.com', subject='Hello', queue='mail'; there is none",
        "jobs of tests.testing.shop.send that wait:",
        f"  {near.id[-8:]} queued: subject is 'Bye', to='ann@example.com'",
        f"  {far.id[-8:]} queued: to is 'bob@example.com', subject is 'Bye'",
    ]


def test_the_message_of_a_wrong_count(app: App) -> None:
    jobs = send.enqueue_many([(ANN,)] * 7)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, send, count=2)
    lines = str(caught.value).splitlines()
    assert lines[0] == "expected that 2 jobs of tests.testing.shop.send wait to run; there are 7"
    assert lines[1] == "jobs of tests.testing.shop.send that wait (the closest 5 of 7):"
    assert lines[2] == f"  {jobs[0].id[-8:]} queued: to='ann@example.com'"
    with pytest.raises(AssertionError, match=r"expected that 0 jobs .+ wait to run with to='ann.+there are 7"):
        refute_enqueued(app, send, to=ANN)


def test_the_message_without_a_job_of_the_task_names_others_and_those_that_ran(app: App) -> None:
    with pytest.raises(AssertionError, match="no job of any task waits"):
        assert_enqueued(app, send)
    send.enqueue(ANN)
    drain(app)
    double.enqueue_many([(1,), (2,)])
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, send)
    assert str(caught.value).splitlines()[1:] == [
        "jobs of other tasks wait: tests.testing.shop.double (2)",
        "jobs of tests.testing.shop.send that do not wait any more: 1 completed",
    ]


def test_redacted_arguments_are_compared_and_not_shown(app: App) -> None:
    @app.task(name="login", redact=["password"])
    def login(password: str) -> None: ...

    try:
        login.enqueue("secret")
        assert_enqueued(app, login, password="secret")
        with pytest.raises(AssertionError) as caught:
            assert_enqueued(app, login, password="other")
        assert "secret" not in str(caught.value)
        assert "other" not in str(caught.value)
    finally:
        core_of(app).registry._tasks.pop("login")


def test_mistakes_are_errors_and_no_answers(app: App) -> None:
    with pytest.raises(TypeError, match=r"shop\.send: unknown 'too'; its arguments are \(to, subject=…\)"):
        refute_enqueued(app, send, too=ANN)
    with pytest.raises(UnknownTask, match=r"tests\.testing\.shop\.send"):
        refute_enqueued(app, "tests.testing.shop.sendd")
    with pytest.raises(ConfigError, match="'colour' cannot be asserted; known are args, max_attempts"):
        refute_enqueued(app, send, using={"colour": "red"})
    with pytest.raises(TypeError, match="a task or its name, not function"):
        refute_enqueued(app, test_options_of_the_job)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="count"):
        assert_enqueued(app, send, count=-1)
