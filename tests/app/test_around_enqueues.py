"""What integrations put around enqueues: it sees all of them, adds headers, and cannot harm them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.hooks import Enqueuing
from dray.model.new_job import one_by_one


class Numbering:
    """Gives each job the number of its enqueue, and notes what was enqueued."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @contextmanager
    def __call__(self, enqueuing: Enqueuing) -> Generator[None]:
        jobs = one_by_one(enqueuing.jobs)
        enqueuing.add_headers({"enqueue": str(len(self.seen) + 1)})
        error = None
        try:
            yield
        except Exception as raised:
            error = type(raised)
            raise
        finally:
            written = None if enqueuing.handles is None else [job.id for job in enqueuing.handles]
            self.seen.append((len(jobs), enqueuing.is_added, written, error))


@pytest.fixture
def numbering(app: App) -> Numbering:
    core_of(app).hooks.put_around_enqueues(numbering := Numbering())
    return numbering


def test_every_way_to_enqueue_goes_through_it_once(app: App, numbering: Numbering) -> None:
    @app.task(name="add")
    def add(a: int) -> int:
        return a

    @app.task(name="grow")
    def grow(ctx: dray.Context) -> None:
        ctx.add(add, 1, step="grown")

    async def in_a_coroutine() -> list[dray.Job[Any]]:
        jobs: list[dray.Job[Any]] = [await add.aenqueue(1), *await add.aenqueue_many([(1,), (2,)])]
        return [*jobs, await app.aenqueue("add", {"a": 1})]

    jobs: list[dray.Job[Any]] = [add.enqueue(1), *add.enqueue_many([(1,), (2,)]), app.enqueue("elsewhere")]
    jobs += [add.using(unique="k").enqueue(1), *asyncio.run(in_a_coroutine())]
    flow = app.workflow("flow")
    flow.add(grow)
    run = flow.enqueue()
    app.worker().run_until_idle()

    assert [app.job(job.id).headers["enqueue"] for job in jobs] == ["1", "2", "2", "3", "4", "5", "6", "6", "7"]
    assert {job.task: job.headers["enqueue"] for job in run.jobs()} == {"grow": "8", "add": "9"}
    assert [count for count, *_ in numbering.seen] == [1, 2, 1, 1, 1, 2, 1, 1, 1]
    assert [is_added for _, is_added, *_ in numbering.seen] == [False] * 8 + [True]
    assert numbering.seen[1][2] == [jobs[1].id, jobs[2].id]


def test_it_goes_around_enqueues_on_a_users_connection_and_falls_with_them(app: App, numbering: Numbering) -> None:
    @app.task(name="pair")
    def pair(ctx: dray.Context, fails: bool) -> None:
        with ctx.transaction() as tx:
            app.enqueue("elsewhere", connection=tx)
            if fails:
                raise dray.Fail("rolled back")

    @app.task(name="apair")
    async def apair(ctx: dray.Context) -> None:
        async with ctx.transaction() as tx:
            await app.aenqueue("elsewhere", connection=tx)
            await pair.using(connection=tx, delay=60).aenqueue_many([(True,), (True,)])

    pair.enqueue(fails=False)
    pair.enqueue(fails=True)
    app.worker(concurrency=1).run_until_idle()
    apair.enqueue()
    app.worker().run_until_idle()

    assert [job.headers["enqueue"] for job in app.jobs(task="elsewhere")] == ["6", "3"]
    assert [job.headers["enqueue"] for job in app.jobs(task="pair")] == ["7", "7", "2", "1"]
    assert len(numbering.seen) == 7


def test_headers_of_the_job_win_and_what_has_no_room_is_left_out(app: App, numbering: Numbering) -> None:
    many = {f"h{number}": "" for number in range(50)}

    own = app.enqueue("t", headers={"enqueue": "mine", "other": "kept"})
    full = app.enqueue("t", headers=many)

    assert app.job(own.id).headers == {"enqueue": "mine", "other": "kept"}
    assert app.job(full.id).headers == many


def test_jobs_of_one_enqueue_may_get_headers_of_their_own(app: App) -> None:
    @contextmanager
    def each_its_own(enqueuing: Enqueuing) -> Generator[None]:
        enqueuing.add_headers_each([{"n": str(number)} for number in range(len(one_by_one(enqueuing.jobs)))])
        yield

    core_of(app).hooks.put_around_enqueues(each_its_own)

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    jobs = add.enqueue_many([(0,), (1,), (2,)])

    assert [app.job(job.id).headers for job in jobs] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
    assert [app.job(job.id).args for job in jobs] == [{"a": 0}, {"a": 1}, {"a": 2}]


def test_it_learns_that_an_enqueue_failed(app: App, numbering: Numbering) -> None:
    with pytest.raises(dray.UnknownJob):
        app.enqueue("child", after="00000000-0000-7000-8000-000000000000")

    assert numbering.seen == [(1, False, None, dray.UnknownJob)]


@pytest.mark.parametrize("moment", ["call", "before", "after"])
def test_what_it_raises_is_logged_and_the_jobs_are_enqueued(
    app: App, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def entered() -> Generator[None]:
        if moment == "before":
            raise OSError("before")
        yield
        raise OSError("after")

    def broken(enqueuing: Enqueuing) -> Any:
        if moment == "call":
            raise OSError("call")
        return entered()

    hooks = core_of(app).hooks
    hooks.put_around_enqueues(broken)
    hooks.put_around_enqueues(numbering := Numbering())

    with caplog.at_level(logging.ERROR, "dray"):
        job = app.enqueue("t")

    assert app.job(job.id).headers == {"enqueue": "1"}
    assert numbering.seen == [(1, False, [job.id], None)]
    assert "around an enqueue, failed; the jobs are not affected" in caplog.text
    assert f"OSError: {moment}" in caplog.text

    hooks.remove_around_enqueues(broken)
    hooks.remove_around_enqueues(numbering)
    assert app.job(app.enqueue("t").id).headers == {}
    assert not hooks.enqueued
