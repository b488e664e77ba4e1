"""``@app.task``: what it returns for a function, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, UnknownTask


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path / "jobs.db")


def double(n: int) -> int:
    return 2 * n


async def adouble(n: int) -> int:
    return 2 * n


def test_it_works_bare_with_options_and_with_none(app: App) -> None:
    bare, empty, named = app.task(double), app.task(name="empty")(double), app.task(name="named", queue="q")(double)

    assert (bare.name, empty.name, named.name) == (f"{__name__}.double", "empty", "named")
    assert named.options.queue == "q"
    assert bare(2) == empty(2) == named(2) == 4
    assert core_of(app).registry.names() == tuple(sorted([bare.name, "empty", "named"]))


def test_a_coroutine_function_stays_one(app: App) -> None:
    assert asyncio.run(app.task()(adouble)(2)) == 4


def test_the_default_timeout_is_of_tasks_that_have_none(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", default_timeout=timedelta(minutes=1))

    assert app.task(name="a")(double).options.timeout == 60
    assert app.task(name="b", timeout=5)(double).options.timeout == 5
    with app:
        assert app.enqueue("elsewhere").row.timeout == 60
        assert app.enqueue("elsewhere", timeout=7).row.timeout == 7


REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda app: app.task("mail"), TypeError, "options are given by name"),
    (lambda app: app.task(lambda: 1), TypeError, "write it as a def"),
    (lambda app: app.task(int), TypeError, "is a class"),
    (lambda app: app.task(retries=3)(double), TypeError, "did you mean max_attempts"),
    (lambda app: app.task(max_attempts=0)(double), ConfigError, "max_attempts must be between 1"),
    (lambda app: (app.task(double), app.task(double)), ValueError, "two tasks are named"),
    (lambda app: app.task(app.task(double)), TypeError, "is a task already"),
]


@pytest.mark.parametrize(("wrong", "kind", "says"), REFUSED)
def test_what_cannot_be_a_task_is_refused(
    app: App, wrong: Callable[[App], Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        wrong(app)


def test_what_was_refused_is_not_registered(app: App) -> None:
    with pytest.raises(ConfigError):
        app.task(every=5, name="beat")(double)

    with pytest.raises(UnknownTask):
        core_of(app).registry.get("beat")


def test_a_plain_call_gets_a_context_that_needs_no_worker(app: App, tmp_path: Path) -> None:
    @app.task(name="greet")
    def greet(name: str, ctx: dray.Context) -> tuple[Any, ...]:
        ctx.log.info("hello")
        ctx.progress(50, "half way")
        ctx.raise_if_cancelled()
        assert ctx.idempotency_key == ctx.job_id
        return name, ctx.attempt, ctx.max_attempts, ctx.cancelled, ctx.parent_results, repr(ctx)

    assert greet("ann") == ("ann", 1, 1, False, {}, "<Context of a plain call of greet>")
    assert list(tmp_path.iterdir()) == []


def test_a_plain_call_has_no_job_to_complete(app: App) -> None:
    @app.task(name="order")
    def order(ctx: dray.Context) -> None:
        with ctx.transaction():
            raise AssertionError

    with pytest.raises(ConfigError, match="order was called as a function, so there is no job to complete"):
        order()
    with pytest.raises(ConfigError, match="no job to complete"):
        app.task(name="session")(complete)(1)
    with pytest.raises(ConfigError, match="no job to complete"):
        asyncio.run(app.task(name="async")(acomplete)(1))


def complete(ctx: dray.Context, session: int) -> None:
    ctx.complete(connection=session)


async def acomplete(ctx: dray.Context, session: int) -> None:
    await ctx.acomplete(connection=session)
