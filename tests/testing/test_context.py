"""`context`: a Context made by hand, for plain calls."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

import dray
from dray.errors import ConfigError
from dray.testing import HandContext, Interrupted, context
from tests.testing.shop import flaky

app = dray.App("sqlite:////nowhere/context.db")


@app.task
def send(ctx: dray.Context, to: str) -> str:
    ctx.progress(50, "half way")
    ctx.log.info("sending to %s", to)
    return f"{to} {ctx.attempt}/{ctx.max_attempts}"


@app.task
def long(ctx: dray.Context) -> int:
    for done in range(100):
        ctx.raise_if_cancelled()
        if done == 3:
            assert isinstance(ctx, HandContext)
            ctx.cancelled = True  # as an operator would
    return 100


def test_it_says_what_job_it_is_of() -> None:
    ctx = context(task="shop.send", queue="mail", args={"to": "ann"})
    assert (ctx.task, ctx.queue, dict(ctx.args)) == ("shop.send", "mail", {"to": "ann"})
    assert (context().task, context().queue, dict(context().args)) == ("a task", "default", {})


def test_a_body_sees_the_attempt_that_the_test_says() -> None:
    assert send(context(attempt=3), "ann@example.com") == "ann@example.com 3/3"
    assert send(context(attempt=5), "ann@example.com") == "ann@example.com 5/5"
    assert send(context(max_attempts=9), to="bob") == "bob 1/9"
    with pytest.raises(ConnectionError):
        flaky(1, context(attempt=2))
    assert flaky(1, context(attempt=3)) == 1


def test_what_the_body_reports_and_logs_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    ctx, other = context(), context()
    with caplog.at_level(logging.INFO):
        send(ctx, "ann@example.com")
    assert list(ctx.reports) == [(50, "half way")]
    assert list(ctx.logged) == ["sending to ann@example.com"]
    assert list(other.logged) == []
    assert "sending to ann@example.com" in caplog.text


def test_a_body_can_be_told_to_stop() -> None:
    with pytest.raises(Interrupted):
        long(context(cancelled=True))
    with pytest.raises(Interrupted):
        long(context())


def test_everything_else_that_a_body_may_ask() -> None:
    slot = datetime(2031, 5, 4, tzinfo=UTC)
    ctx = context(job_id="job 1", parent_results={"a": 1}, schedule="nightly", slot=slot)
    assert (ctx.job_id, ctx.idempotency_key, ctx.parent_results) == ("job 1", "job 1", {"a": 1})
    assert (ctx.schedule, ctx.slot, ctx.cancelled) == ("nightly", slot, False)
    assert context().job_id != context().job_id
    with pytest.raises((TypeError, ValueError), match="attempt"):
        context(attempt=0)
    with pytest.raises(ConfigError, match=r"no job to complete .+ dray\.testing\.drain"):
        ctx.transaction()
