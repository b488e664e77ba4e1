"""Mistakes of newcomers: what they wrote elsewhere, or in the wrong place, and what they are told."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import dray
from dray.task.task import define
from tests.tasks.fakes import add, report


def send(to: str, password: str = "") -> None: ...


def open_ended(**options: Any) -> None: ...


def test_an_option_of_the_job_among_the_arguments_is_told_where_it_goes(app: Any) -> None:
    task = define(add, app, name="m.add")
    told = r"^m\.add takes no delay, which is for the job; use add\.using\(delay=5\)\.enqueue\(1\)$"

    with pytest.raises(TypeError, match=told):
        task.enqueue(1, delay=5)
    with pytest.raises(TypeError, match=told):
        asyncio.run(task.aenqueue(1, delay=5))
    with pytest.raises(TypeError, match=r"use add\.using\(delay=5\)\.enqueue\(1\)$"):
        task.using(queue="x").enqueue(1, countdown=5)
    with pytest.raises(
        TypeError, match=r"takes no queue and no tags, which are .* add\.using\(queue='x', tags=\['y'\]\)\.enq"
    ):
        task.enqueue(a=1, queue="x", tags=["y"])
    with pytest.raises(TypeError) as many:
        task.enqueue_many([{"a": 1}, {"a": 1, "delay": 5}])
    assert many.value.__notes__ == [
        "m.add: in item 1 of enqueue_many; nothing was written",
        "m.add takes no delay, which is for the job; use add.using(delay=5).enqueue_many([...])",
    ]
    assert app.batches == []


def test_secrets_are_not_shown_in_it(app: Any) -> None:
    for options in ({"redact": ["password"]}, {"keep_args": False}):
        task = define(send, app, **options)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match=r"use send\.using\(delay=5\)\.enqueue\(\.\.\.\)$"):
            task.enqueue("ann", password="hush", delay=5)


def test_an_argument_of_the_function_stays_one(app: Any) -> None:
    assert define(open_ended, app).enqueue(delay=5) is not None
    with pytest.raises(TypeError, match="its arguments are"):
        define(report, app).enqueue(nothing=1)


@pytest.mark.parametrize(
    ("name", "instead"),
    {
        "delay": r"add\.enqueue\(\.\.\.\)",
        "send": r"add\.enqueue\(\.\.\.\)",
        "push": r"add\.enqueue\(\.\.\.\)",
        "apply_async": r"add\.using\(delay=5, queue=\.\.\.\)\.enqueue\(\.\.\.\)",
        "schedule": r"add\.using\(delay=5\)\.enqueue\(\.\.\.\)",
        "map": r"add\.enqueue_many\(\[\.\.\.\]\)",
        "s": r"app\.workflow\(name\)\.add\(add, \.\.\.\)",
    }.items(),
)
def test_a_word_of_another_queue_is_told_the_one_of_dray(app: Any, name: str, instead: str) -> None:
    task = define(add, app)
    for each in (task, task.using(queue="x")):
        with pytest.raises(AttributeError, match=f"^a task of Dray has no '{name}'; write {instead}$"):
            getattr(each, name)
        assert not hasattr(each, name)
    with pytest.raises(AttributeError, match="'Task' object has no attribute 'enqueued'"):
        _ = task.enqueued  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def test_what_using_returns_shows_its_options(app: Any) -> None:
    assert repr(define(add, app, name="m.add").using(queue="slow", delay=5)) == "<m.add.using(queue='slow', delay=5)>"
    assert repr(define(add, app, name="m.add")) == "<Task m.add>"


def test_a_name_with_a_typo_is_warned_of_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with dray.App(url) as app:
        app.task(name="m.add")(add)
        jobs = [app.enqueue("m.addd", {"a": 1}) for _ in range(2)]
        app.enqueue("m.quite_another")
        app.task(name="shop.jobs.orders.ship")(open_ended)
        app.enqueue("shop.jobs.orders.refund")
        app.enqueue("other.addd")

        assert [job.state for job in jobs] == ["queued", "queued"]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            "no task is named 'm.addd' here; did you mean m.add? The job waits until a worker knows its task",
        )
    ]


def test_a_step_with_an_option_of_the_job_is_told_too(url: str) -> None:
    with dray.App(url) as app:
        task = app.task(name="m.add")(add)
        with pytest.raises(TypeError, match=r"m\.add takes no delay, .* use add\(add\.using\(delay=5\), 1\)$"):
            app.workflow("w").add(task, 1, delay=5)
