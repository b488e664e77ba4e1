"""From enqueue to result with a real worker in this process, as a user would write it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from dataclasses import dataclass
from datetime import date

import pytest

import dray
from dray.app import App


@pytest.fixture
def app(url: str) -> Generator[App]:
    with App(url) as opened:
        yield opened


@dataclass
class Order:
    number: int
    day: date


def test_a_result_comes_back_with_its_type(app: App) -> None:
    @app.task(name="postpone")
    def postpone(order: Order) -> Order:
        return Order(order.number, order.day.replace(year=order.day.year + 1))

    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    order, number = postpone.enqueue(Order(7, date(2026, 1, 2))), double.enqueue(21)

    assert app.worker().run_until_idle() == 2
    assert order.result(timeout=5) == Order(7, date(2027, 1, 2))
    assert number.result(timeout=5) == 42


def test_threads_and_coroutines_wait_while_a_worker_works(app: App) -> None:
    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    async def ask(n: int) -> int:
        return await (await double.aenqueue(n)).aresult(timeout=30)

    async def ask_all() -> list[int]:
        return await asyncio.gather(*map(ask, range(10)))

    with app.worker(concurrency=2):
        assert asyncio.run(ask_all()) == [2 * n for n in range(10)]
        assert [job.result(timeout=30) for job in double.enqueue_many([(n,) for n in range(100)])] == [
            2 * n for n in range(100)
        ]


def test_a_body_steers_its_job(app: App) -> None:
    @app.task(name="steered", max_attempts=3)
    def steered(how: str, ctx: dray.Context) -> int:
        if how == "retry" and ctx.attempt < 3:
            raise dray.Retry(delay=0)
        if how == "fail":
            raise dray.Fail("no such user")
        if how == "cancel":
            raise dray.Cancel("not needed")
        return ctx.attempt

    jobs = {how: steered.enqueue(how) for how in ("retry", "fail", "cancel")}
    app.worker().run_until_idle()

    assert jobs["retry"].result(timeout=5) == 3
    assert [attempt.outcome for attempt in jobs["retry"].attempts()] == ["retry", "retry", "completed"]
    with pytest.raises(dray.JobFailed, match="no such user"):
        jobs["fail"].result(timeout=5)
    with pytest.raises(dray.JobCancelled, match="not needed"):
        jobs["cancel"].result(timeout=5)


def test_what_a_body_says_can_be_read(app: App) -> None:
    @app.task(name="talk")
    def talk(ctx: dray.Context) -> None:
        ctx.log.info("hello %s", "world")
        ctx.progress(50, "half way")

    job = talk.enqueue()
    app.worker().run_until_idle()

    assert [(line.level, line.message) for line in job.logs()] == [("INFO", "hello world")]
    assert job.refresh().progress == (50.0, "half way")


def test_a_running_job_is_cancelled_within_moments(app: App) -> None:
    started = threading.Event()

    @app.task(name="endless")
    def endless(ctx: dray.Context) -> None:
        started.set()
        while True:
            ctx.raise_if_cancelled()

    with app.worker():
        job = endless.enqueue()
        assert started.wait(30)
        assert job.cancel() is True
        with pytest.raises(dray.JobCancelled):
            job.result(timeout=30)


def test_the_traceback_of_a_body_comes_with_its_failure(app: App) -> None:
    @app.task(name="broken", max_attempts=1)
    def broken() -> None:
        raise ValueError("no such user")

    job = broken.enqueue()
    app.worker().run_until_idle()

    with pytest.raises(dray.JobFailed, match="ValueError: no such user") as raised:
        job.result(timeout=5)
    assert 'raise ValueError("no such user")' in raised.value.__notes__[0]
