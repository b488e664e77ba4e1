"""Log lines of a job are stored with it: in order, limited in number and size, and only its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

import dray
from dray.app import App
from dray.backends.store.work import WorkStore
from dray.errors import StorageLocked
from dray.handle.job import Job
from tests.runtime.watching import LONG, Gate, outcomes, state_of, until

shop = logging.getLogger("tests.shop")


@pytest.fixture(autouse=True)
def talkative() -> Generator[None]:
    before = shop.level
    shop.setLevel(logging.DEBUG)
    yield
    shop.setLevel(before)


@contextmanager
def bare_root() -> Generator[None]:
    """The root logger as in a user's program: without the handlers of the test framework, which raise and print."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


def messages(job: Job[Any]) -> list[str]:
    return [line.message for line in job.logs()]


def run_one(app: App, body: Callable[[dray.Context], Any], **options: Any) -> Job[Any]:
    def function(ctx: dray.Context) -> Any:
        return body(ctx)

    job = app.task(name="speak", **options)(function).enqueue()
    app.worker(concurrency=1).run_until_idle()
    return job


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_lines_of_every_logger_are_kept_in_order(app: App, runner: str) -> None:
    def speak(ctx: dray.Context) -> None:
        ctx.log.info("hello %s", "ann")
        shop.debug("a detail")
        shop.warning("careful")
        try:
            {}["lost"]
        except KeyError:
            logging.getLogger("tests.shop.deep").exception("it broke")

    @app.task(name="aspeak")
    async def aspeak(ctx: dray.Context) -> None:
        speak(ctx)

    job = (app.task(name="speak")(speak) if runner == "thread" else aspeak).enqueue()
    app.worker().run_until_idle()

    lines = job.logs()
    assert [(line.level, line.message.partition("\n")[0]) for line in lines] == [
        ("INFO", "hello ann"),
        ("DEBUG", "a detail"),
        ("WARNING", "careful"),
        ("ERROR", "it broke"),
    ]
    assert [line.logger for line in lines[1:]] == ["tests.shop", "tests.shop", "tests.shop.deep"]
    assert "KeyError: 'lost'" in lines[-1].message
    assert [line.seq for line in lines] == sorted(line.seq for line in lines)
    assert all(abs(line.at - lines[0].at) < timedelta(seconds=5) for line in lines)
    assert job.created_at <= lines[0].at


def test_of_very_many_lines_the_newest_are_kept(app: App) -> None:
    def chatter(ctx: dray.Context) -> None:
        for n in range(10_000):
            ctx.log.info("line %d", n)

    job = run_one(app, chatter)

    assert messages(job) == [f"line {n}" for n in range(9_000, 10_000)]


def test_lines_of_all_attempts_are_kept(app: App) -> None:
    def stumble(ctx: dray.Context) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("again")

    job = run_one(app, stumble, retry=0)

    assert messages(job) == ["attempt 1", "attempt 2", "attempt 3"]


def test_lines_are_made_fit_to_be_stored(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    def speak(ctx: dray.Context) -> None:
        ctx.log.info("a\0b\udc80c\x1b[31md\n\u202e")
        ctx.log.info("x" * 1_000_000)
        ctx.log.info("é" * 1_000_000)
        ctx.log.info("connecting to postgresql://ann:sesame@db/x with password='open sesame'")
        ctx.log.info("%d apples", "no number")
        ctx.log.info("100% of it")
        logging.getLogger("n" * 10_000).warning("named at length")

    with bare_root():
        job = run_one(app, speak)

    assert state_of(job) == "completed"
    found = {line[:1]: line for line in messages(job)}
    assert found["a"].startswith("a\ufffdb\\udc80c")
    assert all(len(line.encode()) <= 8 * 1024 for line in messages(job))
    assert "[truncated, 1,000,000 bytes in all]" in found["x"]
    assert "[truncated, 2,000,000 bytes in all]" in found["é"]
    assert "sesame" not in found["c"]
    assert found["1"] == "100% of it"
    assert all(len(line.logger) <= 1_000 for line in job.logs())
    capsys.readouterr()  # what the logging module prints about the record that does not fit its format


def test_a_value_that_cannot_be_shown_does_not_harm_the_body(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    class Shy:
        def __str__(self) -> str:
            raise RuntimeError("not to be shown")

    def speak(ctx: dray.Context) -> str:
        ctx.log.info("before")
        ctx.log.info("%s", Shy())
        ctx.log.info("after")
        return "fine"

    with bare_root():
        job = run_one(app, speak)

    assert job.result(timeout=0) == "fine"
    assert {"before", "after"} <= set(messages(job))
    capsys.readouterr()  # what the logging module prints about such a record


def test_lines_of_jobs_that_run_at_once_are_not_mixed(app: App) -> None:
    meeting = threading.Barrier(4, timeout=LONG)

    @app.task(name="speak")
    def speak(n: int) -> None:
        for round_ in range(20):
            meeting.wait()
            shop.info("job %d round %d", n, round_)

    @app.task(name="aspeak")
    async def aspeak(n: int) -> None:
        for round_ in range(20):
            shop.info("job %d round %d", n, round_)
            await asyncio.sleep(0)

    jobs = [*speak.enqueue_many([(n,) for n in range(4)]), *aspeak.enqueue_many([(n,) for n in range(4, 8)])]
    app.worker(concurrency=8).run_until_idle()

    for n, job in enumerate(jobs):
        assert messages(job) == [f"job {n} round {round_}" for round_ in range(20)]


def test_lines_of_a_coroutines_tasks_and_threads_are_the_jobs(app: App) -> None:
    async def helper(n: int) -> None:
        await asyncio.sleep(0)
        shop.info("task %d", n)

    @app.task(name="speak")
    async def speak() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(helper(n))
        await asyncio.to_thread(shop.info, "thread")

    job = speak.enqueue()
    app.worker().run_until_idle()

    assert messages(job) == ["task 0", "task 1", "task 2", "thread"]


def test_what_is_logged_outside_a_job_is_nobodys(app: App) -> None:
    gate = Gate()

    @app.task(name="speak")
    def speak() -> None:
        gate.pass_through()

    with app.worker():
        job = speak.enqueue()
        gate.await_arrival()
        shop.warning("from the main thread")
        gate.open()
        job.result(timeout=LONG)
    shop.warning("after it")

    assert messages(job) == []


def test_lines_are_there_while_the_body_still_runs(app: App) -> None:
    gate = Gate()

    @app.task(name="speak")
    def speak(ctx: dray.Context) -> None:
        ctx.log.info("early")
        gate.pass_through()
        ctx.log.info("late")

    with app.worker():
        job = speak.enqueue()
        gate.await_arrival()
        until(lambda: messages(job) == ["early"])
        gate.open()
        job.result(timeout=LONG)

    assert messages(job) == ["early", "late"]
    assert outcomes(job) == ["completed"]


def test_a_program_that_has_set_up_no_logging_still_sees_warnings(
    app: App, capsys: pytest.CaptureFixture[str]
) -> None:
    app.task(name="nothing")(_nothing)

    with bare_root(), app.worker():
        shop.warning("look out")

    assert "look out" in capsys.readouterr().err


def _nothing() -> None:
    pass


def test_lines_stay_in_order_when_a_write_fails(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    exchange = WorkStore.exchange
    is_failed: list[bool] = []

    def fail_once(self: WorkStore, worker_id: str, settlements: Any, demand: Any, notes: Any, **options: Any) -> Any:
        if notes.lines and not is_failed:
            is_failed.append(True)
            gate.open()
            until(is_over.is_set)
            raise StorageLocked("not now")
        return exchange(self, worker_id, settlements, demand, notes, **options)

    monkeypatch.setattr(WorkStore, "exchange", fail_once)
    is_over = threading.Event()

    @app.task(name="speak")
    def speak(ctx: dray.Context) -> None:
        ctx.log.info("first")
        gate.pass_through()
        ctx.log.info("second")
        ctx.log.info("third")
        is_over.set()

    with app.worker(concurrency=1):
        job = speak.enqueue()
        job.result(timeout=LONG)

    assert is_failed
    assert messages(job) == ["first", "second", "third"]
