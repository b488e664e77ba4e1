"""Coroutine bodies share an event loop and cannot harm each other."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import sys
import threading
import time
from queue import Queue
from typing import Any

import pytest

import dray
from dray.app import App
from dray.model.settlement import Settlement
from dray.runtime.execution import Execution, StopCause
from dray.runtime.runners.loop import LoopRunner
from tests.runtime.stage import Link, new_execution
from tests.runtime.watching import LONG, come_to, ended, outcomes, state_of, until

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def test_what_a_task_of_a_body_raises_stays_its_own(app: App) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def interrupt() -> None:
        raise KeyboardInterrupt

    @app.task(name="exits", max_attempts=1)
    async def exits() -> None:
        await asyncio.gather(leave())

    @app.task(name="interrupts", max_attempts=1)
    async def interrupts() -> None:
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.create_task(interrupt())

    @app.task(name="stops", max_attempts=1)
    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "went on"

    @app.task(name="neighbour")
    async def neighbour() -> int:
        await asyncio.sleep(0.05)
        return 7

    with app.worker(concurrency=2):
        jobs = [neighbour.enqueue(), exits.enqueue(), interrupts.enqueue(), stops.enqueue(), neighbour.enqueue()]

        assert [ended(job) for job in jobs[1:3]] == ["failed(error)"] * 2
        assert jobs[3].result(timeout=LONG) == "went on"
        assert jobs[0].result(timeout=LONG) == jobs[4].result(timeout=LONG) == 7


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_context_variables_of_one_job_are_not_seen_by_the_next(app: App, runner: str) -> None:
    def look() -> str:
        seen = tenant.get()
        tenant.set("somebody")
        return seen

    @app.task(name="alook")
    async def alook() -> str:
        return look()

    task = app.task(name="look")(look) if runner == "thread" else alook
    jobs = [task.enqueue() for _ in range(3)]
    app.worker(concurrency=1).run_until_idle()

    assert [job.result(timeout=0) for job in jobs] == ["nobody"] * 3


def test_no_task_of_a_failed_attempt_runs_beside_the_next_one(app: App) -> None:
    live: set[int] = set()
    seen: list[set[int]] = []

    async def linger(number: int) -> None:
        live.add(number)
        try:
            await asyncio.sleep(LONG)
        finally:
            live.discard(number)

    @app.task(name="half", max_attempts=3, retry=0)
    async def half(ctx: dray.Context) -> None:
        seen.append(set(live))
        asyncio.create_task(linger(ctx.attempt))  # noqa: RUF006
        await asyncio.sleep(0.01)
        raise ValueError("the other one goes on")

    job = half.enqueue()
    app.worker(concurrency=1).run_until_idle()

    assert outcomes(job) == ["error"] * 3
    assert seen == [set[int]()] * 3
    assert not live


def test_a_coroutine_that_swallows_its_cancellation_is_cut_off(app: App, quick_kill: None) -> None:
    steps: list[int] = []

    @app.task(name="stubborn", timeout=0.1, max_attempts=2, retry=0)
    async def stubborn(ctx: dray.Context) -> None:
        while True:
            steps.append(ctx.attempt)
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    with app.worker(concurrency=1):
        job = stubborn.enqueue()
        assert ended(job) == "failed(timeout)"
        count = len(steps)
        time.sleep(0.1)  # nothing of it may still be running
        assert len(steps) == count

    assert outcomes(job) == ["timeout", "timeout"]
    assert steps == sorted(steps)  # the first attempt had ended when the second began


def test_nor_do_its_tasks_go_on(app: App, quick_kill: None) -> None:
    steps: list[int] = []

    async def stubborn(attempt: int) -> None:
        while True:
            steps.append(attempt)
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @app.task(name="crowd", timeout=0.1, max_attempts=2, retry=0)
    async def crowd(ctx: dray.Context) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(stubborn(ctx.attempt))

    with app.worker(concurrency=1):
        job = crowd.enqueue()
        assert ended(job) == "failed(timeout)"
        count = len(steps)
        time.sleep(0.1)
        assert len(steps) == count

    assert steps == sorted(steps)


def test_a_timeout_reaches_the_tasks_of_a_body(app: App) -> None:
    stopped: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            stopped.append("child")
            raise

    @app.task(name="family", timeout=0.1, max_attempts=1)
    async def family() -> None:
        task = asyncio.create_task(child())
        await asyncio.sleep(LONG)
        await task

    job = family.enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "failed(timeout)"
    assert stopped == ["child"]


def test_a_body_that_blocks_the_loop_blocks_no_jobs_but_those_beside_it(app: App, quick_kill: None) -> None:
    gate, inside = threading.Event(), threading.Event()

    @app.task(name="blocks", timeout=0.1, max_attempts=2, retry=0)
    async def blocks(ctx: dray.Context) -> int:
        inside.set()
        if ctx.attempt == 1:
            gate.wait(LONG)
            await asyncio.sleep(0.01)
        return ctx.attempt

    @app.task(name="quick")
    async def quick() -> int:
        return 1

    with app.worker(concurrency=2):
        stuck = blocks.enqueue()
        assert inside.wait(LONG)
        waiting = quick.enqueue()  # claimed for the blocked loop

        assert waiting.result(timeout=LONG) == 1
        assert (state_of(stuck), stuck.attempt) == ("running", 1)  # no retry while the attempt is alive
        gate.set()
        assert stuck.result(timeout=LONG) == 2

    assert outcomes(stuck) == ["timeout", "completed"]


def test_a_cancel_reaches_a_coroutine_at_its_next_await(app: App) -> None:
    began = threading.Event()
    seen: list[Any] = []

    @app.task(name="wait")
    async def wait(ctx: dray.Context) -> None:
        began.set()
        try:
            await asyncio.sleep(LONG)
        finally:
            seen.append(ctx.cancelled)

    with app.worker(concurrency=1):
        job = wait.enqueue()
        assert began.wait(LONG)
        assert job.cancel()
        assert ended(job) == "cancelled(user)"

    assert seen == [True]
    assert outcomes(job) == ["cancelled"]


def test_a_coroutine_that_returns_though_it_was_cancelled_is_completed(app: App) -> None:
    began = threading.Event()

    @app.task(name="finish")
    async def finish() -> str:
        began.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            return "done anyway"
        return "slept"

    with app.worker(concurrency=1):
        job = finish.enqueue()
        assert began.wait(LONG)
        assert job.cancel()
        assert job.result(timeout=LONG) == "done anyway"


def test_as_many_coroutines_run_at_once_as_the_worker_has_slots(app: App) -> None:
    here: set[int] = set()
    most: list[int] = []
    all_here = threading.Event()

    @app.task(name="meet")
    async def meet(n: int) -> None:
        here.add(n)
        most.append(len(here))
        if len(here) == 5:
            all_here.set()
        while not all_here.is_set():
            await asyncio.sleep(0.005)
        here.discard(n)

    jobs = meet.enqueue_many([(n,) for n in range(12)])
    with app.worker(concurrency=5):
        until(lambda: all(job.refresh().state == "completed" for job in jobs))

    assert max(most) == 5


def test_a_coroutine_is_run_once_whatever_its_loop_is_used_for_in_between(app: App) -> None:
    """A body may run its own event loop in its own thread, or use a thread pool."""

    def inner() -> int:
        return asyncio.run(asyncio.sleep(0, 3))

    @app.task(name="inner")
    async def outer() -> int:
        return await asyncio.to_thread(inner)

    job = outer.enqueue()
    app.worker().run_until_idle()

    assert job.result(timeout=0) == 3
    come_to(job, "completed")


def test_a_body_that_is_cancelled_before_its_first_step_ends() -> None:
    """The loop is busy while another body is started and cancelled, and learns of both at once: asyncio takes no step
    of a task that is cancelled before its first."""
    tasks = App("sqlite:///unused.db")
    is_busy, go_on = threading.Event(), threading.Event()
    reported: Queue[tuple[Execution, Settlement | None]] = Queue()
    link = Link()
    runner = LoopRunner(2, lambda execution, end: reported.put((execution, end)), lambda _: None, link.clock)

    @tasks.task(name="busy")
    async def busy() -> None:
        is_busy.set()
        go_on.wait(LONG)

    @tasks.task(name="never_begun")
    async def never_begun() -> None:
        raise AssertionError

    first, second = new_execution(link, busy), new_execution(link, never_begun)
    runner.start([first])
    assert is_busy.wait(LONG)
    runner.start([second])
    second.stop = StopCause.CANCEL
    runner.stop(second)
    go_on.set()
    ends = dict(reported.get(timeout=LONG) for _ in range(2))
    assert [end and end.state for end in (ends[first], ends[second])] == ["completed", "cancelled"]
    runner.close()
    assert runner.join(LONG)


def test_the_stack_of_a_body_that_was_cut_off_is_stored_without_passwords(app: App, quick_kill: None) -> None:
    """Lines of source are in it."""

    @app.task(name="deaf", timeout=0.2, max_attempts=1)
    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(LONG, "postgresql://me:kanarie@host/db")
            except asyncio.CancelledError:
                continue

    with app.worker(concurrency=1):
        job = deaf.enqueue()
        assert ended(job) == "failed(timeout)"

    error = job.attempts()[0].error
    stack = (error and error.traceback) or ""
    assert "await asyncio.sleep" in stack
    assert "kanarie" not in stack


def test_short_coroutines_take_few_turns_of_the_loop(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn the loop asks the operating system for events, and waits for the GIL."""
    turns: list[float | None] = []
    select = selectors.DefaultSelector.select

    def counted(self: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        turns.append(timeout)
        return select(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)

    @app.task(name="brief")
    async def brief() -> None:
        pass

    brief.enqueue_many([()] * 1_000)

    assert app.worker(concurrency=1).run_until_idle() == 1_000
    assert len(turns) < 300  # one for each job before


def test_short_coroutines_that_wait_after_all_keep_to_their_slots(app: App) -> None:
    running: list[int] = []
    most = 0

    @app.task(name="brief")
    async def brief(number: int) -> None:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        if number % 10 == 0:
            await asyncio.sleep(0.0001)
        running.remove(number)

    brief.enqueue_many([(number,) for number in range(500)])

    assert app.worker(concurrency=2).run_until_idle() == 500
    assert most == 2
