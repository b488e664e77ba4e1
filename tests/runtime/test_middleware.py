"""Middleware: functions around each body, in order, in the thread, coroutine or process that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError
from dray.hooks import Hooks
from dray.settings import Settings
from dray.testing import drain
from tests.runtime import hooked
from tests.runtime.watching import Gate, ended, outcomes, state_of

Call = Callable[[], Any]


def through(ctx: Any, call: Call) -> Any:
    return call()


def test_the_first_registered_is_the_outermost_and_what_it_returns_is_the_result(app: App) -> None:
    said: list[str] = []

    @app.middleware
    def outer(ctx: dray.Context, call: Call) -> Any:
        said.append("outer before")
        value = call()
        said.append("outer after")
        return value + 1

    @app.middleware
    def inner(ctx: dray.Context, call: Call) -> Any:
        said.append("inner before")
        value = call()
        said.append("inner after")
        return value * 10

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        said.append("body")
        return a + b

    job = add.enqueue(1, 2)
    app.worker().run_until_idle()

    assert job.result() == 31
    assert said == ["outer before", "inner before", "body", "inner after", "outer after"]


def test_it_sees_the_task_the_arguments_as_the_body_gets_them_and_the_headers(app: App) -> None:
    seen: list[Any] = []

    @app.middleware
    def look(ctx: dray.Context, call: Call) -> Any:
        seen.append((ctx.task, dict(ctx.args), dict(ctx.headers), ctx.attempt, ctx.job_id))
        for mapping in (ctx.args, ctx.headers):
            with pytest.raises(TypeError):
                mapping["a"] = "changed"  # type: ignore[index] # pyright: ignore[reportIndexIssue]
        return call()

    @app.task(name="send")
    def send(ctx: dray.Context, to: str, *rest: int, many: set[int], note: str = "none", **extra: int) -> str:
        return f"{to} {ctx.headers['request_id']}"

    job = send.using(headers={"request_id": "42"}).enqueue("ann", 1, 2, many={3}, more=4)
    app.worker().run_until_idle()

    assert job.result() == "ann 42"
    args = {"to": "ann", "rest": (1, 2), "many": {3}, "note": "none", "more": 4}
    assert seen == [("send", args, {"request_id": "42"}, 1, job.id)]


@pytest.mark.parametrize("by", ["worker", "drain"])
def test_tasks_that_no_middleware_goes_around_are_named_once(
    app: App, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.middleware(through)

    @app.task(name="add")
    def add() -> None: ...

    @app.task(name="fetch")
    async def fetch() -> None: ...

    for _ in range(2):
        add.enqueue()
        fetch.enqueue()
        if by == "drain":
            drain(app)
        else:
            app.worker().run_until_idle()

    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "through, a def, does not go around coroutine functions: fetch; register an async def for those" in said


def test_with_middleware_of_both_kinds_there_is_no_warning(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.middleware(through)
    app.middleware(hooked.around)

    @app.task(name="add")
    def add() -> None: ...

    @app.task(name="fetch")
    async def fetch() -> None: ...

    assert add.enqueue().id != fetch.enqueue().id
    assert drain(app) == 2

    assert caplog.messages == []


def test_a_def_wraps_functions_and_an_async_def_wraps_coroutine_functions(app: App) -> None:
    @app.middleware
    def plain(ctx: dray.Context, call: Call) -> Any:
        return ["plain", call()]

    @app.middleware
    async def awaiting(ctx: dray.Context, call: Call) -> Any:
        await asyncio.sleep(0)
        return ["awaiting", await call()]

    class Counting:
        async def __call__(self, ctx: dray.Context, call: Call) -> Any:
            return ["object", await call()]

    app.middleware(Counting())

    @app.task(name="function")
    def function() -> str:
        return "body"

    @app.task(name="coroutine")
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return "body"

    jobs = function.enqueue(), coroutine.enqueue()
    app.worker().run_until_idle()

    assert [job.result() for job in jobs] == [["plain", "body"], ["awaiting", ["object", "body"]]]
    assert function() == "body"  # a plain call stays one


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_what_it_raises_is_the_bodys_error_and_what_the_body_raises_passes_through_it(app: App, runner: str) -> None:
    passed: list[str] = []
    ran: list[str] = []

    def note(ctx: dray.Context, error: BaseException) -> None:
        passed.append(f"{ctx.task} {ctx.attempt} {type(error).__name__}")

    @app.middleware
    def watch(ctx: dray.Context, call: Call) -> Any:
        if ctx.task == "refused":
            raise PermissionError("not today")
        try:
            return call()
        except ValueError as error:
            note(ctx, error)
            raise

    @app.middleware
    async def awatch(ctx: dray.Context, call: Call) -> Any:
        if ctx.task == "refused":
            raise PermissionError("not today")
        try:
            return await call()
        except ValueError as error:
            note(ctx, error)
            raise

    def fail() -> None:
        ran.append("body")
        raise ValueError("no")

    async def afail() -> None:
        fail()

    body: Any = fail if runner == "thread" else afail
    refused = app.task(name="refused", max_attempts=2, retry=0, fail_on=())(body).enqueue()
    failing = app.task(name="failing", max_attempts=2, retry=0)(body).enqueue()
    app.worker().run_until_idle()

    assert (state_of(refused), outcomes(refused)) == ("failed(error)", ["error", "error"])
    assert refused.error == "PermissionError: not today"
    assert (state_of(failing), passed, ran) == (
        "failed(error)",
        ["failing 1 ValueError", "failing 2 ValueError"],
        ["body", "body"],
    )
    traceback = failing.attempts()[-1].error.traceback or ""  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess]
    assert "in fail" in traceback
    assert "dray/hooks.py" not in traceback


def test_one_that_never_calls_returns_the_result_itself(app: App) -> None:
    @app.middleware
    def cache(ctx: dray.Context, call: Call) -> str:
        return "cached"

    job = app.task(name="slow")(lambda_like).enqueue()
    app.worker().run_until_idle()

    assert job.result() == "cached"


def lambda_like() -> None:
    raise AssertionError("it must not run")


def test_a_timeout_and_a_cancel_stop_a_body_through_it(app: App) -> None:
    left: list[str] = []
    gate = Gate()

    @app.middleware
    def session(ctx: dray.Context, call: Call) -> Any:
        try:
            return call()
        finally:
            left.append(ctx.task)

    @app.middleware
    async def asession(ctx: dray.Context, call: Call) -> Any:
        try:
            return await call()
        finally:
            left.append(ctx.task)

    @app.task(name="late", timeout=0.05, max_attempts=1)
    def late() -> None:
        while True:
            time.sleep(0.005)

    @app.task(name="alate", timeout=0.05, max_attempts=1)
    async def alate() -> None:
        await asyncio.sleep(30)

    @app.task(name="unwanted")
    def unwanted() -> None:
        gate.pass_through()

    jobs = late.enqueue(), alate.enqueue()
    stopped = unwanted.enqueue()
    with app.worker():
        gate.await_arrival()
        stopped.cancel()
        states = [ended(job) for job in (*jobs, stopped)]

    assert states == ["failed(timeout)", "failed(timeout)", "cancelled(user)"]
    assert sorted(left) == ["alate", "late", "unwanted"]


def test_a_transaction_of_the_body_completes_the_job_and_its_middleware_sees_the_end(app: App) -> None:
    left: list[str] = []

    @app.middleware
    def session(ctx: dray.Context, call: Call) -> Any:
        call()
        left.append(ctx.task)

    @app.task(name="write")
    def write(ctx: dray.Context) -> None:
        with ctx.transaction(result="written"):
            pass

    job = write.enqueue()
    app.worker().run_until_idle()

    assert (job.result(), left) == ("written", ["write"])


def test_a_context_manager_makes_a_middleware(app: App) -> None:
    """The session of an ORM, say."""
    open_sessions: list[str] = []

    @contextlib.contextmanager
    def session(name: str) -> Generator[None]:
        open_sessions.append(name)
        yield
        open_sessions.remove(name)

    @app.middleware
    def with_session(ctx: dray.Context, call: Call) -> Any:
        with session(ctx.job_id):
            return call()

    count = app.task(name="count")(lambda_count(open_sessions))
    job = count.enqueue()
    app.worker().run_until_idle()

    assert (job.result(), open_sessions) == (1, [])


def lambda_count(found: list[str]) -> Callable[[], int]:
    def count() -> int:
        return len(found)

    return count


# What is refused


def _generator(ctx: Any, call: Any) -> Any:
    yield call()


async def _async_generator(ctx: Any, call: Any) -> Any:
    yield await call()


def _takes_one(ctx: Any) -> None: ...


def _takes_three(ctx: Any, call: Any, more: Any) -> None: ...


def _takes_names(*, ctx: Any, call: Any) -> None: ...


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (_generator, "has a yield in it"),
        (_async_generator, "has a yield in it"),
        (_takes_one, r"takes two arguments, as in def .*\(ctx, call\): return call\(\)"),
        (_takes_three, "takes two arguments"),
        (_takes_names, "takes two arguments"),
        (Gate, "is a function"),
        ("mw", "is a function"),
        (None, "is a function"),
        (hooked.add, "is a task"),
    ],
)
def test_what_cannot_wrap_a_body_is_refused_when_it_is_registered(given: Any, said: str) -> None:
    app = App("sqlite:///unused.db")

    with pytest.raises(TypeError, match=said):
        app.middleware(given)

    assert core_of(app).hooks.middleware == ()


def test_all_that_can_be_called_with_two_arguments_is_taken() -> None:
    app = App("sqlite:///unused.db")

    @app.middleware
    def usual(ctx: Any, call: Call, more: int = 1) -> Any:
        return call()

    def any_number(*args: Any) -> Any:
        return args[1]()

    app.middleware(any_number)
    app.middleware(functools.partial(usual, more=2))

    assert len(core_of(app).hooks.around_def) == 3


def test_registering_beside_a_running_worker_is_refused(app: App) -> None:
    app.task(name="nothing")(lambda_like)

    with app.worker():
        with pytest.raises(ConfigError, match="register middleware before the worker starts"):
            app.middleware(through)
        with pytest.raises(ConfigError, match="register a hook before the worker starts"):
            app.on("failed")

    app.middleware(through)


# In child processes


@pytest.fixture
def hooked_app(url: str, shared_forker: None) -> Generator[App]:
    before = core_of(hooked.app).settings
    core_of(hooked.app).settings = replace(before, url=Settings.of(url).url)
    with hooked.app as opened:
        yield opened
    core_of(hooked.app).settings, core_of(hooked.app)._opened = before, None


def test_a_child_process_runs_it_around_the_body(hooked_app: App) -> None:
    jobs = (
        hooked.add.using(headers={"request_id": "7"}).enqueue(1),
        hooked.fetch.enqueue("https://x"),
        hooked.fail.enqueue(5),
    )
    hooked_app.worker(concurrency=1).run_until_idle()

    assert jobs[0].result() == ["outer tests.runtime.hooked.add 7", 3]
    assert jobs[1].result() == ["around", "https://x", {"url": "https://x"}]
    assert (state_of(jobs[2]), jobs[2].error) == ("failed(error)", "ValueError: 5")


def test_a_child_process_loads_the_modules_that_register_middleware(hooked_app: App) -> None:
    known = core_of(hooked_app).hooks.middleware
    sys.modules.pop("tests.runtime.hooked_more", None)
    more = importlib.import_module("tests.runtime.hooked_more")
    try:
        job = hooked.add.enqueue(1)
        hooked_app.worker(concurrency=1).run_until_idle()
        assert job.result() == ["outer tests.runtime.hooked.add None", ["more", 3]]
    finally:
        core_of(hooked_app).hooks._set_middleware(known)
    assert more.more not in core_of(hooked_app).hooks.middleware

    again = hooked.add.enqueue(2)
    hooked_app.worker(concurrency=1).run_until_idle()
    assert again.result() == ["outer tests.runtime.hooked.add None", 4]


def test_a_job_whose_child_lacks_a_middleware_says_which(hooked_app: App) -> None:
    known = core_of(hooked_app).hooks.middleware
    hooked_app.middleware(through)
    try:
        job = hooked.add.using(max_attempts=1).enqueue(1)
        hooked_app.worker(concurrency=1).run_until_idle()
    finally:
        core_of(hooked_app).hooks._set_middleware(known)

    assert state_of(job) == "failed(error)"
    assert "does not find the middleware tests.runtime.test_middleware." in (job.error or "")


# What it costs not to use any


class CountingHooks(Hooks):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        if name != "asked":
            self.asked[name] += 1
        return super().__getattribute__(name)


def test_without_hooks_a_body_costs_one_look_and_an_enqueue_costs_one(app: App) -> None:
    core_of(app).hooks = hooks = CountingHooks()

    @app.task(name="nothing")
    def nothing() -> None:
        pass

    @app.task(name="anothing")
    async def anothing() -> None:
        pass

    hooks.asked.clear()
    with app.worker(concurrency=2) as worker:
        jobs = nothing.enqueue_many([()] * 20) + anothing.enqueue_many([()] * 30)
        assert {ended(job) for job in jobs} == {"completed"}
        threads = {thread.name for thread in threading.enumerate()}
        assert worker._engine._events is None
        link: Any = worker._engine._bodies.link
        assert len(link._on_began) == 1  # the stopper
    asked = hooks.asked

    assert (asked.pop("around_def"), asked.pop("around_async"), asked.pop("enqueued")) == (20, 30, 2)
    assert asked.pop("middleware") == 1  # when the worker starts, and so are these
    assert asked.keys() <= {"worker_events", "_events"}
    assert asked.total() <= 4
    assert "dray-hooks" not in threads


# Middleware of integrations

OF_AN_INTEGRATION = """
def around(ctx, call):
    try:
        return call()
    except BaseException as error:
        seen.append(type(error).__name__)
        raise
"""


def test_a_body_in_a_thread_can_be_stopped_below_middleware_of_an_integration(app: App) -> None:
    names: dict[str, Any] = {"__name__": "dray.integrations.example", "seen": []}
    exec(compile(OF_AN_INTEGRATION, "example.py", "exec"), names)
    app.middleware(names["around"])

    @app.task(name="endless", timeout=0.05, max_attempts=1)
    def endless() -> None:
        while True:
            time.sleep(0.001)

    job = endless.enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "failed(timeout)"
    assert names["seen"] == ["Interrupted"]
    (attempt,) = job.attempts()
    assert attempt.error is not None
    assert "example.py" not in (attempt.error.traceback or "")
