"""Jobs under a limit follow one another without a claim in between, and never too many at a time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends.store.work import WorkStore
from dray.model.limit import Source, bounds_of
from dray.runtime.context import Context
from tests.runtime.watching import sql, until

Spans = list[tuple[float, float]]


def most_at_once(spans: Spans) -> int:
    moments = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many standbys each exchange of a worker counts."""
    found: list[int] = []
    exchange = WorkStore.exchange

    def counting(self: WorkStore, *given: Any, **named: Any) -> Any:
        found.append(len(named.get("followers", ())))
        return exchange(self, *given, **named)

    monkeypatch.setattr(WorkStore, "exchange", counting)
    return found


def test_short_bodies_follow_one_another_and_never_too_many(app: App, exchanges: list[int]) -> None:
    spans: Spans = []

    @app.task(name="short", limit=2)
    def short() -> None:
        began = time.monotonic()
        time.sleep(0.002)
        spans.append((began, time.monotonic()))

    short.enqueue_many([()] * 300)

    assert app.worker(concurrency=4).run_until_idle() == 300
    assert most_at_once(spans) <= 2
    assert sum(exchanges) > 100  # most have followed another at once
    assert sql(app, "SELECT count(*) FROM dray_jobs WHERE state = 'completed' AND attempt = 1")[0][0] == 300


def test_a_body_that_completes_its_job_itself_has_no_follower(app: App) -> None:
    """Its place is free when its own transaction commits: another worker may have it."""
    spans: Spans = []

    @app.task(name="short", limit=2)
    def short(ctx: Context) -> None:
        began = time.monotonic()
        time.sleep(0.002)
        spans.append((began, time.monotonic()))
        with ctx.transaction():
            pass

    short.enqueue_many([()] * 60)
    with app.worker(concurrency=4), app.worker(concurrency=4):
        until(lambda: len(spans) == 60)

    assert most_at_once(spans) <= 2


def test_a_limit_that_was_lowered_holds_when_the_call_returns(app: App) -> None:
    spans: Spans = []

    @app.task(name="short", limit=4)
    def short() -> None:
        began = time.monotonic()
        time.sleep(0.005)
        spans.append((began, time.monotonic()))

    short.enqueue_many([()] * 2_000)
    with app.worker(concurrency=4):
        until(lambda: len(spans) > 100)
        core_of(app).backend.limits.say("task", "short", Source.OVERRIDE, bounds_of("task", {"limit": 1}))
        lowered_at = time.monotonic()
        count = len(spans)
        until(lambda: len(spans) > count + 20)

    assert most_at_once([span for span in spans if span[0] > lowered_at]) == 1
