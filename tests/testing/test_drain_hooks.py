"""Hooks, middleware and headers inside `drain`: as in a worker, and in the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import dray
from dray.app import App
from dray.testing import context, crash, database, drain


@pytest.fixture
def app(place: str) -> App:
    return App("sqlite:////nowhere/never-opened.db")


def test_hooks_are_told_in_the_calling_thread_what_was_written(app: App) -> None:
    told: list[tuple[str, str, str | None, bool]] = []

    def note(event: str) -> Callable[..., None]:
        def tell(job: dray.Job[Any], error: Any = None) -> None:
            here = threading.current_thread() is threading.main_thread()
            told.append((event, job.state, None if error is None else error.type, here))

        return tell

    events: list[Any] = ["enqueued", "started", "completed", "retried", "failed", "cancelled"]
    for event in events:
        app.on(event)(note(event))

    @app.task(name="shop.charge", max_attempts=2, retry=60)
    def charge() -> None:
        raise OSError("away")

    with database(app):
        charge.enqueue()
        assert drain(app) == 2

    assert told == [
        ("enqueued", "queued", None, True),
        ("started", "running", None, True),
        ("retried", "scheduled", "OSError", True),
        ("started", "running", None, True),
        ("failed", "failed", "OSError", True),
    ]


def test_a_crash_is_told_of_too(app: App) -> None:
    told: list[str] = []

    @app.on("retried")
    def tell(job: dray.Job[Any], error: Any = None) -> None:
        told.append(f"{job.task}: {error.type}")

    @app.task(name="shop.pay")
    def pay() -> None: ...

    with database(app), crash(app, pay):
        job = pay.enqueue()
        assert drain(app) == 2
        assert job.state == "completed"

    assert told == ["shop.pay: WorkerDied"]


def test_middleware_sees_the_headers(app: App) -> None:
    seen: list[str] = []

    @app.middleware
    def request_id(ctx: dray.Context, call: Callable[[], Any]) -> Any:
        seen.append(ctx.headers["request_id"])
        return call()

    @app.task(name="shop.mail")
    def mail(ctx: dray.Context) -> str:
        return ctx.headers["request_id"]

    with database(app):
        job = mail.using(headers={"request_id": "r-1"}).enqueue()
        drain(app)
        assert job.result(5) == "r-1"

    assert seen == ["r-1"]
    assert mail(context(headers={"request_id": "r-2"})) == "r-2"
