"""A task is called here and now, or enqueued as a job; a worker makes a call of the job's row."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from dray.codec import decode
from dray.errors import PayloadError, PayloadTooLarge
from dray.model.new_job import MANY, NewJob
from dray.task.task import Task, define
from tests.tasks.fakes import Context, add, decorated, fetch, report

PARENT = "01890000-0000-7000-8000-000000000001"

# A plain call.


def test_a_plain_call_runs_here_and_now(app: Any) -> None:
    assert define(add, app)(1) == 3
    assert define(decorated, app)(4) == 8
    assert asyncio.run(define(fetch, app)("x")) == {"url": "x"}
    assert app.batches == []


def test_a_plain_call_is_given_a_context_where_it_gives_none(app: Any) -> None:
    local, mine = Context(), object()
    app.context = local
    task: Task[..., Any] = define(report, app)

    assert task(date.min) == (date.min, Decimal(0), local)
    assert task(date.min, ctx=mine) == (date.min, Decimal(0), mine)


def test_a_plain_call_may_give_a_context_of_its_own(app: Any) -> None:
    def function(ctx: Context, a: int = 1, *rest: int, **extra: int) -> tuple[Any, ...]:
        return ctx, a, rest, extra

    local, mine = Context(), Context()
    app.context = local
    task: Task[..., Any] = define(function, app, name="f")

    assert task(5, 6, z=7) == (local, 5, (6,), {"z": 7})
    assert task() == (local, 1, (), {})
    assert task(mine, 5) == (mine, 5, (), {})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'day'"):
        define(report, app)()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Enqueueing.


def test_enqueue_writes_one_job_with_the_tasks_options(app: Any) -> None:
    task = define(add, app, name="shop.add", queue="q", priority=4, max_attempts=5, timeout=9, description="Adds")

    job = task.enqueue(1, b=3)

    assert app.jobs == [
        NewJob(
            id=job.id,
            task="shop.add",
            queue="q",
            args='{"a":1,"b":3}',
            priority=4,
            max_attempts=5,
            timeout=9.0,
            description="Adds",
        )
    ]
    assert app.connections == [None]


def test_enqueue_checks_the_arguments_before_anything_is_written(app: Any) -> None:
    task: Task[..., Any] = define(add, app)
    for args in ((), (1, 2, 3), ("1",), (object(),), (math.nan,)):
        with pytest.raises((TypeError, PayloadError)):
            task.enqueue(*args)
    with pytest.raises(PayloadTooLarge, match="over the limit of 262,144"):
        define(fetch, app).enqueue("x" * 262_144)
    assert app.batches == []


def test_a_coroutine_enqueues_alike(app: Any) -> None:
    task = define(fetch, app, name="fetch")

    async def main() -> None:
        await task.aenqueue("a")
        await task.using(queue="slow").aenqueue("b")
        await task.aenqueue_many([("c",), {"url": "d"}])

    asyncio.run(main())

    assert [(job.queue, job.args) for job in app.jobs] == [
        ("default", '{"url":"a"}'),
        ("slow", '{"url":"b"}'),
        ("default", '{"url":"c"}'),
        ("default", '{"url":"d"}'),
    ]


@pytest.mark.parametrize("times", [1, MANY])
def test_many_are_one_batch_in_their_order(app: Any, times: int) -> None:
    jobs = define(add, app).enqueue_many([(1, 2), {"a": 3}, (5,)] * times)

    assert [len(batch) for batch in app.batches] == [3 * times]
    assert [job.args for job in app.jobs] == ['{"a":1,"b":2}', '{"a":3}', '{"a":5}'] * times
    assert [job.id for job in jobs] == sorted({job.id for job in app.jobs})


@pytest.mark.parametrize("option", [{"unique": True}, {"unique": "one"}, {"after": [PARENT]}, {"expires_in": 5}])
def test_many_have_the_options_of_one(app: Any, option: dict[str, Any]) -> None:
    task = define(add, app).using(**option, priority=7)
    task.enqueue(1)
    task.enqueue_many([(1,)] * MANY)

    first, *others = (replace(job, id="") for job in app.jobs)
    assert first.priority == 7
    assert others == [first] * MANY


def test_none_is_not_even_a_batch(app: Any) -> None:
    assert define(add, app).enqueue_many([]) == []
    assert app.batches == []


@pytest.mark.parametrize("wrong", [5, "ab", [1, 2], (1, 2, 3), {"z": 1}, ("1",)], ids=str)
def test_one_wrong_item_of_many_is_named_and_none_is_written(app: Any, wrong: Any) -> None:
    with pytest.raises((TypeError, PayloadError)) as caught:
        define(add, app, name="shop.add").enqueue_many([(1,), wrong])

    assert caught.value.__notes__ == ["shop.add: in item 1 of enqueue_many; nothing was written"]
    assert app.batches == []


# As a worker sees it.


def test_a_row_becomes_a_call(app: Any) -> None:
    task, context = define(report, app), Context()

    positional, named = task.arguments('{"day":"2026-01-01","total":"9.90"}', context=context)

    assert report(*positional, **named) == (date(2026, 1, 1), Decimal("9.90"), context)


@pytest.mark.parametrize("text", ["{", "[1]", "5", '{"a":NaN}'])
def test_a_row_that_no_code_could_read_is_no_misfit(app: Any, text: str) -> None:
    with pytest.raises(PayloadError):
        define(add, app).arguments(text)


def test_a_result_comes_back_as_it_is_annotated(app: Any) -> None:
    def due(day: date) -> list[date]:
        return [day]

    task = define(due, app, name="due")

    assert task.encode_result([date.min]) == '["0001-01-01"]'
    assert task.decode_result('["0001-01-01"]') == [date.min]


def test_a_result_that_is_not_what_was_annotated_comes_back_as_it_is(app: Any) -> None:
    assert define(add, app).decode_result('"oops"') == "oops"


def test_a_result_that_cannot_be_stored_names_its_path(app: Any) -> None:
    with pytest.raises(PayloadError, match=r"^result.x\[0\]: object is not JSON"):
        define(add, app).encode_result({"x": [object()]})
    with pytest.raises(PayloadTooLarge, match=r"^result: "):
        define(add, app).encode_result("x" * (1 << 20))


# Everything is lazy that may be.


def test_annotations_are_not_looked_at_before_they_are_needed(app: Any) -> None:
    scope: dict[str, Any] = {"__name__": "early"}
    exec("def work(item: 'Late') -> None: ...", scope)
    task = define(scope["work"], app)
    scope["Late"] = date

    task.enqueue(date.min)

    assert decode(app.jobs[0].args) == {"item": "0001-01-01"}
    assert task.arguments(app.jobs[0].args) == ([date.min], {})
