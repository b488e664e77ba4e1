"""Bodies in an application context of Flask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import flask
import pytest

from dray import App, testing
from dray.app_interface import core_of
from dray.clock import SystemClock
from dray.errors import ConfigError
from dray.integrations.flask import init_app
from dray.testing.binding import Rebound
from tests_integrations.flask import site_at_import
from tests_integrations.serving import PATIENCE


@pytest.fixture
def jobs(made_url: str) -> Generator[App]:
    with App(made_url) as opened:
        yield opened


def test_bodies_of_every_runner_have_the_application(url: str) -> None:
    app = site_at_import.jobs
    names = ("in.a.thread", "on.a.loop", "in.a.process", "on.a.loop.in.a.process")
    settings = replace(core_of(app).settings, url=url, migrate=True)
    with Rebound(app, settings, SystemClock()), app.worker():
        results = [app.enqueue(name).result(timeout=PATIENCE) for name in names]

    of_site = [site_at_import.site.name, "shop@example.com"]
    assert [result[:2] for result in results] == [of_site] * 4
    assert str(os.getpid()) not in [pid for result in results for pid in result[2:]]


def test_each_body_has_its_own_g_and_is_torn_down_with_its_error(jobs: App) -> None:
    site, torn_down = flask.Flask(__name__), list[Any]()
    init_app(site, jobs)
    site.teardown_appcontext(lambda error: torn_down.append((flask.g.get("order"), type(error).__name__)))

    @jobs.task(name="keep", max_attempts=1)
    def keep(order: int) -> None:
        assert "order" not in flask.g
        flask.g.order = order
        if order < 0:
            raise ValueError(order)

    @jobs.task(name="keep.too", max_attempts=1)
    async def keep_too(order: int) -> None:
        assert "order" not in flask.g
        flask.g.order = order
        await asyncio.sleep(0)

    with site.app_context():  # of a test, or of a command
        flask.g.order = "the caller's"
        for task, order in ((keep, 1), (keep_too, 2), (keep, -3)):
            task.enqueue(order)
            assert testing.drain(jobs) == 1
        assert flask.g.order == "the caller's"
        assert torn_down == [(1, "NoneType"), (2, "NoneType"), (-3, "ValueError")]


def test_coroutines_that_run_at_the_same_time_do_not_share_a_context(jobs: App) -> None:
    init_app(flask.Flask(__name__), jobs)

    @jobs.task(name="meet")
    async def meet(order: int) -> int:
        flask.g.order = order
        for _ in range(5):
            await asyncio.sleep(0.01)
        return flask.g.order

    orders = [meet.enqueue(number) for number in range(8)]
    assert jobs.worker(concurrency=8).run_until_idle() == 8
    assert [order.result() for order in orders] == [*range(8)]


def test_a_body_that_is_stopped_leaves_its_context(jobs: App) -> None:
    site, torn_down = flask.Flask(__name__), list[str]()
    init_app(site, jobs)
    site.teardown_appcontext(lambda error: torn_down.append(type(error).__name__))

    @jobs.task(name="endless", timeout=0.2, max_attempts=1)
    async def endless() -> None:
        await asyncio.Event().wait()

    job = endless.enqueue()
    jobs.worker().run_until_idle()

    assert job.refresh().state == "failed"
    assert len(torn_down) == 1


def test_a_factory_may_make_several_applications_and_the_last_one_counts(jobs: App) -> None:
    torn_down: list[str] = []

    def create_app(name: str) -> flask.Flask:
        site = flask.Flask(__name__)
        site.config["NAME"] = name
        site.teardown_appcontext(lambda _: torn_down.append(name))
        init_app(site, jobs)
        init_app(site, jobs)
        return site

    @jobs.task(name="name")
    def name() -> str:
        return flask.current_app.config["NAME"]

    for made in ("first", "second"):
        site = create_app(made)
        assert site.extensions["dray"] is jobs
        job = name.enqueue()
        assert testing.drain(jobs) == 1
        assert job.result() == made
    assert torn_down == ["first", "second"]


def test_mistakes_are_refused(jobs: App, sqlite_url: str) -> None:
    site = flask.Flask(__name__)
    with pytest.raises(TypeError, match=r"takes a Flask application and a dray.App, not a App and a Flask"):
        init_app(jobs, site)  # pyright: ignore[reportArgumentType]
    init_app(site, jobs)
    with pytest.raises(ConfigError, match=r"has another dray\.App already"):
        init_app(site, App(sqlite_url))

    late = App(sqlite_url)
    late.task(name="nothing")(_nothing)
    with late.worker(), pytest.raises(ConfigError, match="before the worker starts"):
        init_app(flask.Flask(__name__), late)
    late.close()


def _nothing() -> None: ...
