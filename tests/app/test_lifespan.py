"""An App for as long as an ASGI application runs, with a worker if it is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dray.app import App
from dray.errors import ConfigError, SchemaMissing, StorageUnavailable
from dray.runtime.lifespan import Lifespan
from dray.runtime.worker import Worker


def app_on(url: str, **options: Any) -> App:
    made = App(url, **options)

    @made.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    return made


def work_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name in {"dray-engine", "dray-heartbeat"}]


def test_a_worker_runs_while_the_application_does_each_time_it_is_started(url: str) -> None:
    app = app_on(url)
    web = Starlette(lifespan=app.lifespan(worker=True, concurrency=2, name="beside the web"))

    for _ in range(2):
        with TestClient(web):
            assert app.enqueue("add", {"a": 1, "b": 2}).result(timeout=30) == 3
            (worker,) = (each for each in app.workers() if each.state == "active")
            assert (worker.name, worker.concurrency) == ("beside the web", 2)
        assert work_threads() == []
        assert [each for each in app.workers() if each.state == "active"] == []
    app.close()


def test_it_goes_inside_a_lifespan_of_the_users_own(url: str) -> None:
    app, seen = app_on(url), list[Any]()

    @asynccontextmanager
    async def own(_: Starlette) -> AsyncGenerator[dict[str, str]]:
        async with app.lifespan(worker=True):
            seen.append(await (await app.aenqueue("add", {"a": 1, "b": 2})).aresult(30))
            yield {"state": "mine"}
        seen.append(work_threads())

    with TestClient(Starlette(lifespan=own)):
        pass

    assert seen == [3, []]


def test_without_a_worker_it_only_sees_to_the_tables(empty_url: str) -> None:
    app = app_on(empty_url, migrate=True)

    with TestClient(Starlette(lifespan=app.lifespan())):
        assert app.jobs() == []
        assert work_threads() == []


def test_what_keeps_it_from_starting_reaches_the_server(empty_url: str) -> None:
    app = app_on(empty_url, migrate=False)

    with (
        pytest.raises((SchemaMissing, StorageUnavailable), match="dray db init"),
        TestClient(Starlette(lifespan=app.lifespan(worker=True))),
    ):
        pass
    assert work_threads() == []


def test_a_worker_without_tasks_reaches_the_server_too(url: str) -> None:
    with (
        pytest.raises(ConfigError, match="knows no task"),
        TestClient(Starlette(lifespan=App(url).lifespan(worker=True))),
    ):
        pass
    assert work_threads() == []


def test_options_are_checked_before_a_server_starts() -> None:
    app = app_on("sqlite:///nowhere.db")

    with pytest.raises(ConfigError, match="concurrency must be a whole number"):
        app.lifespan(worker=True, concurrency=0)
    with pytest.raises(ConfigError, match=r"concurrency, queues: .* add worker=True"):
        app.lifespan(concurrency=4, queues="mail")


def test_one_that_runs_is_not_entered_again(url: str) -> None:
    lifespan = app_on(url).lifespan()

    async def twice() -> None:
        async with lifespan:
            with pytest.raises(ConfigError, match="running already"):
                await lifespan.__aenter__()

    asyncio.run(twice())


def test_jobs_that_run_at_the_end_complete_within_the_grace(url: str) -> None:
    app, began, goes_on = App(url), threading.Event(), threading.Event()

    @app.task(name="slow")
    def slow() -> str:
        began.set()
        assert goes_on.wait(30)
        return "completed"

    async def serve() -> None:
        async with app.lifespan(worker=True, grace=30):
            job = app.enqueue("slow")
            assert await asyncio.to_thread(began.wait, 30)
            asyncio.get_running_loop().call_later(0.1, goes_on.set)  # the event loop goes on while the worker stops
        assert job.result(timeout=0) == "completed"

    asyncio.run(serve())
    app.close()


def test_jobs_that_take_longer_than_the_grace_go_back_to_their_queue(url: str) -> None:
    app, began = App(url), threading.Event()

    @app.task(name="endless")
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    with TestClient(Starlette(lifespan=app.lifespan(worker=True, grace=0.05))):
        job = app.enqueue("endless")
        assert began.wait(30)

    assert (job.refresh().state, job.attempt) == ("queued", 0)
    app.close()


class Steps:
    """A lifespan's parts, which wait for the test."""

    def __init__(self) -> None:
        self.started, self.goes_on = threading.Event(), threading.Event()
        self.done: list[str] = []

    def check_tables(self) -> None:
        self.started.set()
        assert self.goes_on.wait(30)
        self.done.append("checked")

    def close(self) -> None:
        self.done.append("closed")

    def lifespan(self, make_worker: Callable[[], Worker] | None = None) -> Lifespan:
        return Lifespan(self.check_tables, make_worker, self.close)


def test_starting_leaves_the_event_loop_free() -> None:
    steps = Steps()

    async def serve() -> None:
        asyncio.get_running_loop().call_soon(steps.goes_on.set)
        async with steps.lifespan():
            assert steps.done == ["checked"]

    asyncio.run(serve())

    assert steps.done == ["checked", "closed"]


def test_a_start_that_is_cancelled_ends_what_it_has_started(url: str) -> None:
    steps, app = Steps(), app_on(url)

    async def serve() -> None:
        async with steps.lifespan(app.worker):
            raise AssertionError

    async def cancelled() -> None:
        serving = asyncio.create_task(serve())
        await asyncio.to_thread(steps.started.wait, 30)
        serving.cancel()
        await asyncio.sleep(0)
        steps.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(cancelled())

    assert steps.done == ["checked", "closed"]
    assert work_threads() == []
    app.close()
