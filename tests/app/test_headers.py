"""Headers: strings that a producer stores with a job, bounded, and checked before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from dray.app import App
from dray.errors import ConfigError, PayloadError, PayloadTooLarge
from dray.model.headers import decode_headers


@pytest.fixture
def add(app: App) -> Any:
    return app.task(name="add")(lambda_add)


def lambda_add(a: int, b: int) -> int:
    return a + b


def test_headers_are_stored_with_the_job_however_it_is_enqueued(app: App, add: Any) -> None:
    given = {"request_id": "42", "user": "Zoë", "empty": ""}
    with_headers = add.using(headers=given)
    flow = app.workflow("flow")
    step = flow.add(with_headers, 1, 2)
    run = flow.enqueue()

    jobs = [
        with_headers.enqueue(1, 2),
        *with_headers.enqueue_many([(1, 2), (3, 4)]),
        app.enqueue("add", {"a": 1, "b": 2}, headers=given),
        app.enqueue("elsewhere", headers=given),
        add.using(headers=given, unique="k").enqueue(1, 2),
        run.jobs()[0],
    ]

    assert step.id == jobs[-1].id
    assert [app.job(job.id).headers for job in jobs] == [given] * len(jobs)
    assert app.job(add.enqueue(1, 2).id).headers == {}
    assert app.job(add.using(headers={}).enqueue(1, 2).id).headers == {}


def test_a_replacement_brings_its_own_headers_and_a_retry_keeps_them(app: App, add: Any) -> None:
    first = add.using(unique="k", delay=60, headers={"n": "1"}).enqueue(1, 2)

    second = add.using(unique="k", on_conflict="replace", headers={"n": "2"}).enqueue(1, 2)
    assert second.id == first.id
    assert first.refresh().headers == {"n": "2"}

    first.cancel()
    assert first.retry()
    assert first.refresh().headers == {"n": "2"}


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ("request_id=42", TypeError, "headers must be a dict of strings by name, not str"),
        ({"n": 42}, TypeError, r"headers\['n'\]: names and values of headers are strings, not int; use str"),
        ({42: "n"}, TypeError, r"headers\[42\]: names and values of headers are strings, not int"),
        ({"": "x"}, PayloadError, "a header's name must have 1 to 100 characters, not 0"),
        ({"x" * 101: "x"}, PayloadError, "a header's name must have 1 to 100 characters, not 101"),
        ({"a": "b\0"}, PayloadError, r"headers\['a'\]: contains a NUL"),
        ({"a": "half \ud83d"}, PayloadError, r"headers\['a'\]: contains a NUL or half a character"),
        ({"a": "x" * 8_200}, PayloadTooLarge, "headers: 8,208 bytes of JSON, over the limit of 8,192"),
        ({str(n): "" for n in range(51)}, ConfigError, "a job has at most 50 headers, not 51"),
    ],
)
def test_what_is_no_header_is_refused_before_anything_is_written(
    app: App, add: Any, given: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        add.using(headers=given)
    with pytest.raises(kind, match=said):
        app.enqueue("add", {"a": 1, "b": 2}, headers=given)

    assert app.jobs() == []


@pytest.mark.parametrize("stored", ["", "[", "[1]", "7", '{"a": 1}'])
def test_headers_that_another_program_wrote_wrongly_are_as_good_as_none(stored: str) -> None:
    assert decode_headers(stored) == {}


def test_a_plain_call_sees_its_arguments_and_no_headers(app: App) -> None:
    @app.task(name="look")
    def look(ctx: dray.Context, a: int, b: int = 2) -> Any:
        return ctx.task, dict(ctx.args), dict(ctx.headers)

    assert look(1) == ("look", {"a": 1}, {})
